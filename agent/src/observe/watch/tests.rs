use super::*;
use futures::{channel::mpsc as script, stream};
use kube::{api::ApiResource, core::Status};
use std::time::Duration;
use tidewatch_telemetry::{BuildInfo, Readiness, metrics::Registry};

pub(super) struct Bench {
    pub(super) watcher: Watcher,
    pub(super) taken: mpsc::Receiver<Observation>,
    pub(super) conditions: Conditions,
    readiness: Readiness,
    registry: Registry,
}

pub(super) fn bench(limit: usize) -> Bench {
    let (changes, taken) = mpsc::channel(100);
    let conditions = Conditions::new();
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &conditions).unwrap();
    let clock = || Timestamp::UNIX_EPOCH;
    let (_, resumed) = tokio::sync::watch::channel(0);
    let shared = Shared { changes, conditions: conditions.clone(), metrics, clock, resumed };
    let spec = config::Watch {
        name: "w".into(),
        route: "engine".into(),
        group: "g.example".into(),
        version: "*".into(),
        resource: "things".into(),
        field: Field::Spec,
        labels: std::collections::BTreeMap::new(),
        namespace: None,
    };
    let readiness = Readiness::new();
    let watcher = Watcher::new(spec, limit, shared, readiness.register("w"));
    Bench { watcher, taken, conditions, readiness, registry }
}

fn resolved() -> Resolved {
    let resource = ApiResource {
        group: "g.example".into(),
        version: "v1".into(),
        api_version: "g.example/v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    };
    Resolved { resource, namespaced: true }
}

fn thing(name: &str, fingerprint: u64) -> Seen {
    Seen {
        key: ObjectKey { namespace: "n".into(), name: name.into() },
        uid: format!("uid-{name}"),
        resource_version: "7".into(),
        fingerprint: Some(fingerprint),
    }
}

fn api_error(code: u16, message: &str) -> watcher::Error {
    let status = Status { code, message: message.into(), ..Status::default() };
    watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
}

impl Bench {
    async fn pump(&mut self, events: Vec<watcher::Result<Heard>>) -> Left {
        self.watcher.pump(stream::iter(events), &resolved(), &mut 0).await
    }

    fn taken(&mut self) -> Vec<(String, Change, String)> {
        let mut all = Vec::new();
        while let Ok(seen) = self.taken.try_recv() {
            assert_eq!((seen.group.as_str(), seen.kind.as_str()), ("g.example", "Thing"));
            all.push((seen.key.name, seen.change, seen.uid));
        }
        all
    }

    fn reason(&self) -> Reason {
        self.conditions.get("w").unwrap().reason
    }
}

#[tokio::test]
async fn differences_are_reported() {
    use Heard::{Applied, Deleted, ListBegins, ListEnds};
    let mut bench = bench(10);
    assert_eq!(bench.readiness.unready(), ["w"]);
    let first = [ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds];
    let then =
        [Applied(thing("a", 1)), Applied(thing("a", 2)), Deleted(thing("b", 1)), Deleted(thing("x", 1))];
    bench.pump(first.into_iter().chain(then).map(Ok).collect()).await;
    let changed = |name: &str| (name.to_owned(), Change::Changed, format!("uid-{name}"));
    let gone = |name: &str| (name.to_owned(), Change::Gone, format!("uid-{name}"));
    assert_eq!(bench.taken(), [changed("a"), changed("b"), changed("a"), gone("b")]);
    assert_eq!(bench.reason(), Reason::Watching);
    assert!(bench.readiness.unready().is_empty());
    // A new stream after a break: what the list does not have is gone.
    bench.pump([ListBegins, Applied(thing("c", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(bench.taken(), [changed("c"), ("a".into(), Change::Gone, String::new())]);
    assert_eq!(bench.conditions.get("w").unwrap().objects, 1);
    let text = bench.registry.encode().unwrap();
    assert!(text.contains("t_changes_observed_total{watch=\"w\"} 6\n"), "{text}");
    assert!(text.contains("t_watch_objects{watch=\"w\"} 1\n"), "{text}");
    assert!(text.contains("t_watch_state{reason=\"Watching\",watch=\"w\"} 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_kind_is_named_and_recovers() {
    let mut bench = bench(10);
    let (say, events) = script::unbounded();
    let conditions = bench.conditions.clone();
    say.unbounded_send(Ok(Heard::ListBegins)).unwrap();
    say.unbounded_send(Err(api_error(403, "things is forbidden"))).unwrap();
    let pump = tokio::spawn(async move { bench.watcher.pump(events, &resolved(), &mut 0).await });
    let reason = |conditions: &Conditions| conditions.get("w").unwrap().reason;
    while reason(&conditions) != Reason::Forbidden {
        tokio::task::yield_now().await;
    }
    assert!(conditions.get("w").unwrap().message.contains("things is forbidden"));
    say.unbounded_send(Ok(Heard::ListBegins)).unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reason(&conditions), Reason::Forbidden, "another try is no recovery");
    say.unbounded_send(Ok(Heard::ListEnds)).unwrap();
    while reason(&conditions) != Reason::Watching {
        tokio::task::yield_now().await;
    }
    // A watch that broke and works again says nothing.
    say.unbounded_send(Err(api_error(500, "etcd is away"))).unwrap();
    while reason(&conditions) != Reason::Unreachable {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(RECOVERED_AFTER + Duration::from_secs(1)).await;
    assert_eq!(reason(&conditions), Reason::Watching);
    drop(say);
    assert_eq!(pump.await.unwrap(), Left::Broken);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_list_is_begun_again() {
    let mut bench = bench(10);
    let (say, events) = script::unbounded();
    say.unbounded_send(Ok(Heard::ListBegins)).unwrap();
    assert_eq!(bench.watcher.pump(events, &resolved(), &mut 0).await, Left::Broken);
    assert_eq!(bench.reason(), Reason::Unreachable);
}

#[tokio::test]
async fn too_many_objects_are_a_condition() {
    use Heard::{Applied, ListBegins, ListEnds};
    let mut bench = bench(1);
    bench.pump([ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(bench.taken().len(), 1);
    assert_eq!(bench.reason(), Reason::TooManyObjects);
    assert!(bench.registry.encode().unwrap().contains("t_objects_not_tracked_total{watch=\"w\"} 1\n"));
    bench.pump([ListBegins, Applied(thing("a", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(bench.reason(), Reason::Watching, "after a list that fits");
}

#[tokio::test]
async fn streams_are_left_for_their_reasons() {
    let mut bench = bench(10);
    assert_eq!(bench.pump(vec![Err(api_error(404, "gone"))]).await, Left::KindGone);
    let bare = Seen { fingerprint: None, ..thing("a", 0) };
    assert_eq!(bench.pump(vec![Ok(Heard::ListBegins), Ok(Heard::Applied(bare))]).await, Left::NeedsWhole);
    assert!(bench.taken().is_empty(), "nothing is reported before it can be compared");
    drop(std::mem::replace(&mut bench.taken, mpsc::channel(1).1));
    assert_eq!(bench.pump(vec![Ok(Heard::Applied(thing("a", 1)))]).await, Left::Closed);
}
