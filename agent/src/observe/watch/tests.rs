use super::{
    super::{
        condition::Conditions,
        index::ObjectKey,
        message::{Baseline, Message},
    },
    event::ObservedObject,
    session::RECOVERED_AFTER,
    *,
};
use crate::metrics::Metrics;
use futures::{channel::mpsc as script, stream};
use jiff::Timestamp;
use kube::{api::ApiResource, core::Status};
use std::{sync::Arc, time::Duration};
use tidewatch_delivery::{
    digest::{self, ALL, Section, bucket},
    outbox::{KeepNames, Moved},
};
use tidewatch_telemetry::{BuildInfo, Readiness, metrics::Registry};
use tidewatch_wire::v3::Change;
use tokio::sync::mpsc;

pub(super) struct Bench {
    pub(super) watcher: Watcher,
    pub(super) taken: mpsc::Receiver<Message>,
    pub(super) baseline: watch::Sender<Baseline>,
    pub(super) conditions: Conditions,
    readiness: Readiness,
    pub(super) registry: Registry,
}

pub(super) fn bench(limit: usize) -> Bench {
    let (changes, taken) = mpsc::channel(100);
    let conditions = Conditions::new();
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &conditions).unwrap();
    let baseline = watch::Sender::new(Baseline::nothing_known());
    let shared = Shared {
        changes,
        baseline: baseline.subscribe(),
        conditions: conditions.clone(),
        keep_names: KeepNames::OfOthers,
        metrics,
        clock: || Timestamp::UNIX_EPOCH,
        check_every: Duration::from_mins(1),
        resumed: watch::channel(0).1,
    };
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
    Bench { watcher, taken, baseline, conditions, readiness, registry }
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

fn thing(name: &str, fingerprint: u64) -> ObservedObject {
    ObservedObject {
        key: ObjectKey { namespace: "n".into(), name: name.into() },
        uid: format!("uid-{name}"),
        resource_version: "7".into(),
        content: false,
        fingerprint: Some(fingerprint),
    }
}

fn api_error(code: u16, message: &str) -> watcher::Error {
    let status = Status { code, message: message.into(), ..Status::default() };
    watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
}

fn no_checks() -> Checks {
    Checks { list: Check::never(), replay: Replay::never() }
}

impl Bench {
    async fn pump(&mut self, events: Vec<watcher::Result<ObjectEvent>>) -> StopReason {
        self.watcher.pump(stream::iter(events), &resolved(), no_checks(), &mut 0).await
    }

    fn messages(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.taken.try_recv().ok()).collect()
    }

    fn taken(&mut self) -> Vec<(String, Change, String)> {
        let mut all = Vec::new();
        for message in self.messages() {
            let Message::Changed(seen, _) = message else { continue };
            assert_eq!((&*seen.group, &*seen.kind), ("g.example", "Thing"));
            all.push((seen.key.name.to_string(), seen.change, seen.uid));
        }
        all
    }

    fn reason(&self) -> Reason {
        self.conditions.get("w").unwrap().reason
    }
}

#[tokio::test]
async fn creations_changes_and_deletions_are_reported() {
    use ObjectEvent::{Applied, Deleted, ListBegins, ListEnds};
    let mut bench = bench(10);
    assert_eq!(bench.readiness.unready(), ["w"]);
    let first = [ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds];
    let then =
        [Applied(thing("a", 1)), Applied(thing("a", 2)), Deleted(thing("b", 1)), Deleted(thing("x", 1))];
    bench.pump(first.into_iter().chain(then).map(Ok).collect()).await;
    let changed = |name: &str| (name.to_owned(), Change::Changed, format!("uid-{name}"));
    let gone = |name: &str| (name.to_owned(), Change::Gone, format!("uid-{name}"));
    // First lists are reported from memory, without uid.
    let listed = |name: &str| (name.to_owned(), Change::Changed, String::new());
    // The creation of "x" was lost, but perhaps reconciled.
    assert_eq!(bench.taken(), [listed("a"), listed("b"), changed("a"), gone("b"), gone("x")]);
    assert_eq!(bench.reason(), Reason::Watching);
    assert!(bench.readiness.unready().is_empty());
    // Objects missing after a restart are gone.
    bench.pump([ListBegins, Applied(thing("c", 1)), ListEnds].map(Ok).into()).await;
    let unnamed = (String::new(), Change::Resync, String::new());
    assert_eq!(
        bench.taken(),
        [changed("c"), ("a".into(), Change::Gone, String::new()), unnamed],
        "something else may have come and gone meanwhile"
    );
    assert_eq!(bench.conditions.get("w").unwrap().objects, 1);
    let text = bench.registry.encode().unwrap();
    assert!(text.contains("t_changes_observed_total{watch=\"w\"} 7\n"), "{text}");
    assert!(text.contains("t_watch_objects{watch=\"w\"} 1\n"), "{text}");
    assert!(text.contains("t_watch_state{reason=\"Watching\",watch=\"w\"} 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_kind_is_named_and_recovers() {
    let mut bench = bench(10);
    let (script, events) = script::unbounded();
    let conditions = bench.conditions.clone();
    script.unbounded_send(Ok(ObjectEvent::ListBegins)).unwrap();
    script.unbounded_send(Err(api_error(403, "things is forbidden"))).unwrap();
    let pump =
        tokio::spawn(async move { bench.watcher.pump(events, &resolved(), no_checks(), &mut 0).await });
    let reason = |conditions: &Conditions| conditions.get("w").unwrap().reason;
    while reason(&conditions) != Reason::Forbidden {
        tokio::task::yield_now().await;
    }
    assert!(conditions.get("w").unwrap().message.contains("things is forbidden"));
    script.unbounded_send(Ok(ObjectEvent::ListBegins)).unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reason(&conditions), Reason::Forbidden, "another try is no recovery");
    script.unbounded_send(Ok(ObjectEvent::ListEnds)).unwrap();
    while reason(&conditions) != Reason::Watching {
        tokio::task::yield_now().await;
    }
    // A recovered watch sends nothing.
    script.unbounded_send(Err(api_error(500, "etcd is away"))).unwrap();
    while reason(&conditions) != Reason::Unreachable {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(RECOVERED_AFTER + Duration::from_secs(1)).await;
    assert_eq!(reason(&conditions), Reason::Watching);
    drop(script);
    assert_eq!(pump.await.unwrap(), StopReason::Broken);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_list_is_restarted() {
    let mut bench = bench(10);
    for (streaming, left) in [(true, StopReason::NoStreaming), (false, StopReason::Broken)] {
        bench.watcher.streaming = streaming;
        let (script, events) = script::unbounded();
        script.unbounded_send(Ok(ObjectEvent::ListBegins)).unwrap();
        assert_eq!(bench.watcher.pump(events, &resolved(), no_checks(), &mut 0).await, left);
    }
    assert_eq!(bench.reason(), Reason::Unreachable);
}

#[tokio::test]
async fn too_many_objects_set_a_condition() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let mut bench = bench(1);
    bench.pump([ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(bench.taken().len(), 1);
    assert_eq!(bench.reason(), Reason::TooManyObjects);
    assert!(bench.registry.encode().unwrap().contains("t_objects_not_tracked_total{watch=\"w\"} 1\n"));
    bench.pump([ListBegins, Applied(thing("a", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(bench.reason(), Reason::Watching, "after a list that fits");
}

#[tokio::test]
async fn a_stream_ends_for_missing_kinds_and_closed_channels() {
    let mut bench = bench(10);
    assert_eq!(bench.pump(vec![Err(api_error(404, "gone"))]).await, StopReason::KindGone);
    let bare = ObservedObject { fingerprint: None, ..thing("a", 0) };
    assert_eq!(
        bench.pump(vec![Ok(ObjectEvent::ListBegins), Ok(ObjectEvent::Applied(bare))]).await,
        StopReason::NeedsWhole
    );
    assert!(bench.taken().is_empty(), "nothing is reported before it can be compared");
    drop(std::mem::replace(&mut bench.taken, mpsc::channel(1).1));
    let listed = [ObjectEvent::ListBegins, ObjectEvent::Applied(thing("a", 1)), ObjectEvent::ListEnds];
    assert_eq!(bench.pump(listed.map(Ok).into()).await, StopReason::Closed);
}

fn contributes(name: &str, fingerprint: u64) -> u64 {
    digest::contribution("n", name, fingerprint, None)
}

/// After a first list of `a` and `b`.
async fn reconciled() -> (Bench, digest::Digest) {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let mut bench = bench(10);
    bench.pump([ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds].map(Ok).into()).await;
    let Some(Message::Compared { section, unnamed: Some(unnamed), .. }) = bench.messages().into_iter().next()
    else {
        panic!("compared with nothing")
    };
    assert_eq!((section.stale, unnamed.change, &*unnamed.key.name), (ALL, Change::Resync, ""));
    let mut known = digest::Digest::new();
    known.insert("w", Section { stale: 0, ..section });
    (bench, known)
}

#[tokio::test]
async fn nothing_is_reported_before_the_baseline_is_known() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let (_, known) = reconciled().await;
    let mut bench = bench(10);
    bench.baseline.send_replace(Baseline::default());
    let listed = [ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds];
    bench.pump(listed.map(Ok).into()).await;
    assert!(bench.messages().is_empty());
    bench.baseline.send_replace(Baseline {
        round: 1,
        digest: Arc::new(known.clone()),
        ..Baseline::default()
    });
    // Early changes mark their bucket.
    bench.watcher.comparison.round = 0;
    bench.watcher.changed(thing("x", 1), Change::Changed, Moved::default(), &resolved()).await.unwrap();
    assert_eq!(bench.watcher.comparison.early, 1 << bucket("n", "x"));
    bench.watcher.comparison.early = 0;
    bench.pump(vec![Ok(Applied(thing("a", 1)))]).await;
    let messages = bench.messages();
    let [Message::Compared { section, unnamed: None, .. }] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(Some(section), known.get("w"), "equal: nothing to say");
    let text = bench.registry.encode().unwrap();
    assert!(text.contains("t_digest_comparisons_total{result=\"equal\",watch=\"w\"} 1\n"), "{text}");
}

#[tokio::test]
async fn only_differences_from_the_digest_are_reported() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let (_, known) = reconciled().await;
    assert_ne!(bucket("n", "a"), bucket("n", "b"), "or this shows nothing");
    for (second, expected) in [(Some(2), vec!["b"]), (None, vec![])] {
        let mut bench = bench(10);
        bench.baseline.send_replace(Baseline {
            round: 1,
            digest: Arc::new(known.clone()),
            ..Baseline::default()
        });
        let listed = [Some(thing("a", 1)), second.map(|fingerprint| thing("b", fingerprint))];
        let listed = listed.into_iter().flatten().map(Applied);
        bench.pump([ListBegins].into_iter().chain(listed).chain([ListEnds]).map(Ok).collect()).await;
        let messages = bench.messages();
        let [Message::Compared { section, unnamed: Some(_), .. }, changes @ ..] = &messages[..] else {
            panic!("{messages:?}")
        };
        assert_eq!(section.stale, 1 << bucket("n", "b"));
        let names = changes.iter().map(|messages| match messages {
            Message::Changed(seen, moved) => {
                assert_eq!(*moved, Moved { before: 0, after: contributes(&seen.key.name, 2) });
                &*seen.key.name
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn another_round_reports_everything_again() {
    let (mut bench, _) = reconciled().await;
    bench.baseline.send_replace(Baseline { round: 2, ..Baseline::default() });
    bench.pump(vec![]).await;
    let names: Vec<String> = bench.taken().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["a", "b"]);
}

/// Also whether they are part of a full report.
fn listed(bench: &mut Bench) -> Vec<(String, bool)> {
    let messages = bench.messages().into_iter();
    messages
        .filter_map(|messages| match messages {
            Message::Changed(seen, _) => Some((seen.key.name.to_string(), seen.listed)),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn a_full_report_is_marked_as_listed() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let first = || [ListBegins, Applied(thing("a", 1)), Applied(thing("b", 1)), ListEnds].map(Ok);
    let of = |a: bool, b: bool| [("a".to_owned(), a), ("b".to_owned(), b)];
    let mut bench = bench(10);
    let live = Ok(Applied(thing("a", 2)));
    bench.pump(first().into_iter().chain([live]).collect()).await;
    let messages = listed(&mut bench);
    assert_eq!((&messages[..2], &messages[2]), (&of(true, true)[..], &("a".to_owned(), false)));
    bench.baseline.send_replace(Baseline { round: 2, ..Baseline::default() });
    bench.pump(vec![]).await;
    assert_eq!(listed(&mut bench), of(true, true), "it was demanded again");

    // These changes are certain.
    let (_, known) = reconciled().await;
    for (digest, early) in [(Arc::new(known), 0), (Arc::default(), 1 << bucket("n", "b"))] {
        let mut bench = self::bench(10);
        bench.baseline.send_replace(Baseline::default());
        bench.pump(first().into()).await;
        bench.pump(vec![Ok(Applied(thing("b", 2)))]).await;
        assert_eq!(bench.watcher.comparison.early, 1 << bucket("n", "b"));
        bench.watcher.comparison.early = early;
        bench.baseline.send_replace(Baseline {
            round: 1,
            digest: Arc::clone(&digest),
            ..Baseline::default()
        });
        bench.pump(vec![]).await;
        let all = of(true, false);
        assert_eq!(listed(&mut bench), if early == 0 { &all[1..] } else { &all[..] });
    }
}

#[tokio::test]
async fn an_object_appearing_with_its_kind_is_a_creation() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let mut bench = bench(10);
    bench.watcher.never_served().await.unwrap();
    bench.pump([ListBegins, Applied(thing("a", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(listed(&mut bench), [("a".to_owned(), false)]);
}

#[tokio::test]
async fn objects_of_a_removed_kind_are_reported_as_gone() {
    use ObjectEvent::{Applied, ListBegins, ListEnds};
    let (mut served, known) = reconciled().await;
    served.watcher.all_gone("v1", "Thing").await.unwrap();
    let gone = served.taken();
    assert_eq!(gone.iter().filter(|(_, change, _)| *change == Change::Gone).count(), 2);
    // The kind returns.
    served.pump([ListBegins, Applied(thing("a", 1)), ListEnds].map(Ok).into()).await;
    assert_eq!(served.taken()[0], ("a".into(), Change::Changed, "uid-a".into()));

    // It vanished while the agent was down.
    let mut bench = bench(10);
    bench.baseline.send_replace(Baseline { round: 1, digest: Arc::new(known), ..Baseline::default() });
    bench.watcher.never_served().await.unwrap();
    let messages = bench.messages();
    let [Message::Compared { unnamed: Some(unnamed), .. }] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((&*unnamed.version, &*unnamed.kind), ("v1", "Thing"));
}
