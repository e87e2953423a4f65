use super::*;
use crate::{
    metrics::Metrics,
    observe::{
        condition::Conditions,
        message::{Baseline, Message},
    },
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use jiff::Timestamp;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tidewatch_delivery::outbox::KeepNames;
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tidewatch_wire::v3::Change;

fn watch(text: &str) -> Watch {
    serde_saphyr::from_str(text).unwrap()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn only_changed_watches_are_restarted() {
    let old = ["same", "labels", "route", "kind", "removed"]
        .map(|name| watch(&format!("{{name: {name}, resource: pods, field: spec}}")));
    let new = [
        "{name: same, resource: pods, field: spec}",
        "{name: labels, resource: pods, field: spec, labels: {a: b}}",
        "{name: route, resource: pods, field: spec, route: m}",
        "{name: kind, resource: services, field: spec}",
        "{name: added, resource: pods, field: spec}",
    ]
    .map(watch);
    let expected = Changes {
        end: names(["kind", "removed", "route"]),
        start: names(["added", "kind", "route"]),
        renew: names(["labels"]),
    };
    assert_eq!(changes(old.iter(), &new), expected);
    assert_eq!(changes(new.iter(), &new), Changes::default());
    let routes = routes(&new);
    assert_eq!(routes, BTreeMap::from([("route".to_owned(), vec![Route::manager("m")])]));
}

/// Serves `one` (label `a=b`) and `two`.
fn client(asked: &Arc<Mutex<Vec<String>>>) -> Client {
    let asked = Arc::clone(asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(&mut asked.lock(), &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    Client::new(service, "default")
}

fn answer(asked: &mut Vec<String>, request: &Request<Body>) -> Response<BoxBody<Bytes, Infallible>> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let resource = |name: &str, kind: &str| {
        json!({"name": name, "singularName": "", "kind": kind, "namespaced": true,
               "verbs": ["get", "list", "watch"]})
    };
    let object = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1}});
    let body = match path {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        "/api/v1" => json!({"groupVersion": "v1", "resources": [
            resource("pods", "Pod"), resource("services", "Service")]}),
        _ if query.contains("watch=true") => {
            let body = Empty::new().with_trailers(std::future::pending::<Option<Result<_, Infallible>>>());
            return Response::new(body.boxed());
        }
        "/api/v1/pods" | "/api/v1/services" => {
            // Skip checks: their pages are smaller.
            if !query.contains("limit=100&") && !query.ends_with("limit=100") {
                asked.push(path.rsplit('/').next().unwrap_or_default().to_owned());
            }
            let items = if query.contains("labelSelector") {
                vec![object("one")]
            } else {
                vec![object("one"), object("two")]
            };
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items})
        }
        _ => Value::Null,
    };
    let mut response = Response::new(Full::new(body.to_string().into()).boxed());
    if body.is_null() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

type Controls = Arc<Mutex<Vec<(BTreeMap<String, Vec<Route>>, Vec<String>)>>>;

struct Bench {
    supervisor: Supervisor,
    conditions: Conditions,
    taken: mpsc::Receiver<Message>,
    controls: Controls,
    lists: Arc<Mutex<Vec<String>>>,
}

fn bench() -> Bench {
    let (changes, taken) = mpsc::channel(100);
    let (control, mut controlled) = mpsc::channel::<Control>(1);
    let conditions = Conditions::new();
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &conditions).unwrap();
    let shared = Shared {
        changes,
        conditions: conditions.clone(),
        keep_names: KeepNames::OfOthers,
        metrics,
        clock: || Timestamp::UNIX_EPOCH,
        check_every: Duration::from_mins(1),
        baseline: watch::channel(Baseline::nothing_known()).1,
        resumed: watch::channel(0).1,
    };
    let (controls, lists) = (Controls::default(), Arc::default());
    let record = Arc::clone(&controls);
    tokio::spawn(async move {
        while let Some(Control { routes, complete: _, forget, done }) = controlled.recv().await {
            record.lock().push((routes, forget));
            done.send(0).unwrap();
        }
    });
    let supervisor = Supervisor::new(client(&lists), shared, control);
    Bench { supervisor, conditions, taken, controls, lists }
}

impl Bench {
    /// Returns the next change, without resyncs.
    async fn next(&mut self) -> (String, String, Change) {
        loop {
            let next = tokio::time::timeout(Duration::from_mins(5), self.taken.recv()).await;
            if let Message::Changed(seen, _) = next.expect("a change in time").unwrap()
                && seen.change != Change::Resync
            {
                return (seen.key.watch.to_string(), seen.key.name.to_string(), seen.change);
            }
        }
    }

    async fn apply(&mut self, watches: &[&str]) {
        self.supervisor.apply(watches.iter().map(|text| watch(text)).collect(), 10, None, true).await;
    }
}

fn change(watch: &str, name: &str, change: Change) -> (String, String, Change) {
    (watch.to_owned(), name.to_owned(), change)
}

#[tokio::test(start_paused = true)]
async fn watches_start_and_end_while_the_others_go_on() {
    let mut bench = bench();
    let (pods, services) =
        ("{name: p, resource: pods, field: spec}", "{name: s, resource: services, field: spec, route: m}");
    bench.apply(&[pods]).await;
    assert_eq!(bench.next().await, change("p", "one", Change::Changed));
    assert_eq!(bench.next().await, change("p", "two", Change::Changed));
    bench.apply(&[pods, services]).await;
    assert_eq!(bench.next().await, change("s", "one", Change::Changed));
    assert_eq!(bench.next().await, change("s", "two", Change::Changed));
    assert_eq!(*bench.lists.lock(), ["pods", "services"], "the first is left alone");
    bench.apply(&[services]).await;
    assert!(bench.conditions.get("p").is_none() && bench.conditions.get("s").is_some());
    bench.apply(&[]).await;
    assert!(bench.conditions.get("s").is_none() && bench.supervisor.tasks.is_empty());
    let routes = BTreeMap::from([("s".to_owned(), vec![Route::manager("m")])]);
    let controls = [
        (BTreeMap::new(), vec![]),
        (routes.clone(), vec![]),
        (routes, vec!["p".to_owned()]),
        (BTreeMap::new(), vec!["s".to_owned()]),
    ];
    assert_eq!(*bench.controls.lock(), controls, "the sender receives each");
    bench.taken.try_recv().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn an_object_no_longer_selected_is_reported_as_gone() {
    let mut bench = bench();
    bench.apply(&["{name: p, resource: pods, field: spec}"]).await;
    assert_eq!(bench.next().await, change("p", "one", Change::Changed));
    assert_eq!(bench.next().await, change("p", "two", Change::Changed));
    bench.apply(&["{name: p, resource: pods, field: spec, labels: {a: b}}"]).await;
    assert_eq!(bench.next().await, change("p", "two", Change::Gone), "and `one` is as it was");
    bench.apply(&["{name: p, resource: pods, field: spec}"]).await;
    assert_eq!(bench.next().await, change("p", "two", Change::Changed));
    assert_eq!(*bench.lists.lock(), ["pods", "pods", "pods"]);
    assert!(bench.controls.lock().iter().all(|(_, forget)| forget.is_empty()), "nothing dirty is let go");
}

#[tokio::test(start_paused = true)]
async fn another_kind_under_the_same_name_is_another_watch() {
    let mut bench = bench();
    bench.apply(&["{name: x, resource: pods, field: spec}"]).await;
    bench.next().await;
    bench.next().await;
    bench.apply(&["{name: x, resource: services, field: spec}"]).await;
    assert_eq!(bench.controls.lock()[1].1, ["x"], "what is dirty of the pods is let go");
    assert_eq!(bench.next().await, change("x", "one", Change::Changed), "and no pod is gone");
    assert_eq!(bench.next().await, change("x", "two", Change::Changed));
}

#[tokio::test(start_paused = true)]
async fn a_panicked_watch_is_detected() {
    let mut bench = bench();
    bench.apply(&["{name: p, resource: pods, field: spec}"]).await;
    let waiting = tokio::time::timeout(Duration::from_secs(1), bench.supervisor.failed()).await;
    assert!(waiting.is_err(), "it works");
    bench.supervisor.tasks.spawn(async { panic!("on purpose") });
    bench.apply(&[]).await;
    bench.supervisor.failed().await;
}
