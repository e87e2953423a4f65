use super::{
    super::{condition::Conditions, message::Message},
    tests::{Bench, bench},
    *,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc};
use tidewatch_delivery::outbox::Observation;
use tidewatch_wire::v3::Change;
use tokio::sync::mpsc;

type Versions = &'static [&'static str];

#[derive(Default)]
struct Server {
    installed: bool,
    forbidden: bool,
    streams: bool,
    /// Default v1 and v1beta1; `then` applies after the first watch.
    served: Option<Versions>,
    unconverted: Option<&'static str>,
    then: Option<Versions>,
    items: Vec<Value>,
    log: Vec<(u64, &'static str, Value)>,
    always: Vec<(&'static str, Value)>,
    blows: Vec<Blow>,
    lists: Vec<String>,
    replays: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    CutShort,
    Failed(u16),
}

impl Server {
    /// Lists start at version 9.
    fn version(&self) -> u64 {
        self.log.last().map_or(9, |(version, ..)| *version)
    }

    fn happens(&mut self, kind: &'static str, object: Value) {
        self.log.push((self.version() + 1, kind, object));
    }
}

type Shown = Arc<Mutex<Server>>;

fn client(server: &Shown) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(&mut server.lock(), &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    Client::new(service, "default")
}

fn answer(server: &mut Server, request: &Request<Body>) -> Response<BoxBody<Bytes, Infallible>> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let shown = |value: Value| (StatusCode::OK, value);
    let failed = |code: u16, word: &str| {
        let body =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": word});
        (StatusCode::from_u16(code).unwrap(), body)
    };
    let begins = query.contains("watch=true") && !query.contains("sendInitialEvents");
    if begins && uri.path() == "/apis/g.example/v1/things" {
        server.served = server.then.or(server.served);
    }
    let versions = server.served.unwrap_or(&["v1", "v1beta1"]);
    // Served versions answer like v1.
    let path = match uri.path().split('/').nth(3) {
        Some(version) if versions.contains(&version) => uri.path().replacen(version, "v1", 1),
        Some(_) => String::new(),
        None => uri.path().to_owned(),
    };
    let is_unconverted = uri.path().split('/').nth(3) == server.unconverted && server.unconverted.is_some();
    let (status, body) = match path.as_str() {
        "/apis/g.example/v1/things" if is_unconverted => failed(
            429,
            "storage is (re)initializing: failed to list: conversion webhook for g.example/v1beta1, Kind=Thing failed",
        ),
        "/apis" => {
            let version = |v: &str| json!({"groupVersion": format!("g.example/{v}"), "version": v});
            let group = json!({
                "name": "g.example", "versions": versions.iter().map(|v| version(v)).collect::<Vec<_>>(),
                "preferredVersion": versions.first().map(|v| version(v)),
            });
            let there = server.installed && !versions.is_empty();
            shown(json!({"kind": "APIGroupList", "groups": if there { vec![group] } else { vec![] }}))
        }
        "/apis/g.example/v1" => shown(json!({"groupVersion": "g.example/v1", "resources": [{
            "name": "things", "singularName": "thing", "kind": "Thing", "namespaced": true,
            "verbs": ["get", "list", "watch"],
        }]})),
        "/apis/g.example/v1/things" if server.forbidden => failed(403, "things is forbidden to the agent"),
        "/apis/g.example/v1/things" if query.contains("sendInitialEvents=true") && !server.streams => failed(
            422,
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
        "/apis/g.example/v1/things" if query.contains("sendInitialEvents=true") => {
            server.lists.push(format!("stream {query}"));
            let line = |kind: &str, object: &Value| format!("{}\n", json!({"type": kind, "object": object}));
            let end = json!({"kind": "Thing", "apiVersion": "g.example/v1", "metadata": {
                "resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
            let mut text: String = server.items.iter().map(|item| line("ADDED", item)).collect();
            text += &line("BOOKMARK", &end);
            let open = std::future::pending::<Option<Result<_, Infallible>>>();
            return Response::new(Full::new(Bytes::from(text)).with_trailers(open).boxed());
        }
        "/apis/g.example/v1/things" if query.contains("watch=true") && asks(query, "timeoutSeconds=5") => {
            server.replays.push(query.to_owned());
            match server.blows.pop() {
                Some(Blow::Failed(code)) => failed(code, "simulated"),
                Some(Blow::CutShort) => return Response::new(Empty::new().boxed()),
                None => {
                    let from = query.split('&').find_map(|one| one.strip_prefix("resourceVersion=")).unwrap();
                    let from: u64 = from.parse().unwrap();
                    let line =
                        |kind: &str, object: &Value| format!("{}\n", json!({"type": kind, "object": object}));
                    let since = server.log.iter().filter(|(version, ..)| *version > from);
                    let mut text: String = since.map(|(_, kind, object)| line(kind, object)).collect();
                    text.extend(server.always.iter().map(|(kind, object)| line(kind, object)));
                    let mark = json!({"kind": "Thing", "apiVersion": "g.example/v1",
                                      "metadata": {"resourceVersion": server.version().to_string()}});
                    text += &line("BOOKMARK", &mark);
                    return Response::new(Full::new(Bytes::from(text)).boxed());
                }
            }
        }
        "/apis/g.example/v1/things" if query.contains("watch=true") => {
            // An open, silent watch.
            let body = Empty::new().with_trailers(std::future::pending::<Option<Result<_, Infallible>>>());
            return Response::new(body.boxed());
        }
        "/apis/g.example/v1/things" if asks(query, "limit=1") => shown(json!({
            "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": server.version().to_string()},
            "items": &server.items[..1],
        })),
        "/apis/g.example/v1/things" => {
            let accept = request.headers().get(header::ACCEPT).map_or("", |accept| accept.to_str().unwrap());
            let content = if accept.contains("PartialObjectMetadata") { "metadata" } else { "whole" };
            server.lists.push(format!("{content} {query}"));
            shown(json!({
                "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": server.items,
            }))
        }
        _ => failed(404, "the server could not find the requested resource"),
    };
    let mut response = Response::new(Full::new(body.to_string().into()).boxed());
    *response.status_mut() = status;
    response
}

fn asks(query: &str, parameter: &str) -> bool {
    query.split('&').any(|one| one == parameter)
}

fn item(generation: Option<u64>) -> Value {
    json!({
        "apiVersion": "g.example/v1", "kind": "Thing", "spec": {"a": 1},
        "metadata": {"name": "one", "namespace": "n", "uid": "u", "resourceVersion": "5", "generation": generation},
    })
}

async fn reason(conditions: &Conditions, expected: Reason) {
    // In virtual time, missing conditions fail at once.
    for _ in 0..6000 {
        if conditions.get("w").unwrap().reason == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not {expected:?} but {:?}", conditions.get("w"));
}

async fn next(taken: &mut mpsc::Receiver<Message>, conditions: &Conditions) -> Observation {
    loop {
        let seen = tokio::time::timeout(Duration::from_mins(10), taken.recv()).await.ok().flatten();
        let seen = seen.unwrap_or_else(|| panic!("nothing seen, {:?}", conditions.get("w")));
        if let Message::Changed(seen, _) = seen {
            return seen;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_starts_when_its_kind_appears() {
    let server = Shown::default();
    let Bench { mut watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    watcher.spec.labels.insert("team".into(), "a".into());
    let run = tokio::spawn(watcher.run(client(&server)));
    reason(&conditions, Reason::WaitingForKind).await;
    assert!(conditions.get("w").unwrap().message.contains("waiting for the kind"));
    {
        let mut server = server.lock();
        server.installed = true;
        server.items = vec![item(Some(1))];
    }
    let seen = next(&mut taken, &conditions).await;
    assert_eq!((&*seen.version, &*seen.kind, &*seen.key.name), ("v1", "Thing", "one"));
    reason(&conditions, Reason::Watching).await;
    assert_eq!(conditions.get("w").unwrap().resolved, "g.example/v1/Thing");
    let lists = server.lock().lists.clone();
    assert_eq!(lists.len(), 1);
    assert!(lists[0].starts_with("metadata ") && lists[0].contains("labelSelector=team%3Da"), "{lists:?}");
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_generation_is_watched_as_whole_objects() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        server.installed = true;
        server.items = vec![item(None)];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let run = tokio::spawn(watcher.run(client(&server)));
    assert_eq!(&*next(&mut taken, &conditions).await.key.name, "one");
    reason(&conditions, Reason::Watching).await;
    let lists: Vec<String> =
        server.lock().lists.iter().map(|l| l.split(' ').next().unwrap().into()).collect();
    assert_eq!(lists, ["metadata", "whole"]);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_status_watch_reads_whole_objects() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        server.installed = true;
        server.items = vec![item(Some(1))];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let spec = watcher.spec.clone();
    let (wanted, following) = watch::channel(Wanted { spec: spec.clone(), max_objects: 10 });
    let run = tokio::spawn(watcher.following(following).run(client(&server)));
    next(&mut taken, &conditions).await;
    reason(&conditions, Reason::Watching).await;
    assert!(
        server.lock().lists.iter().all(|list| list.starts_with("metadata ")),
        "{:?}",
        server.lock().lists
    );
    server.lock().lists.clear();
    wanted.send_replace(Wanted { spec: config::Watch { field: Field::Status, ..spec }, max_objects: 10 });
    next(&mut taken, &conditions).await;
    reason(&conditions, Reason::Watching).await;
    let lists = server.lock().lists.clone();
    assert!(!lists.is_empty() && lists.iter().all(|list| list.starts_with("whole ")), "{lists:?}");
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_kind_is_tried_again() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        (server.installed, server.forbidden) = (true, true);
        server.items = vec![item(Some(1))];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let run = tokio::spawn(watcher.run(client(&server)));
    reason(&conditions, Reason::Forbidden).await;
    assert!(conditions.get("w").unwrap().message.contains("things is forbidden to the agent"));
    server.lock().forbidden = false;
    assert_eq!(&*next(&mut taken, &conditions).await.key.name, "one");
    reason(&conditions, Reason::Watching).await;
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn without_converter_another_served_version_is_watched() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        (server.installed, server.unconverted) = (true, Some("v1"));
        server.items = vec![item(Some(1))];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let (spec, (wanted, following)) =
        (watcher.spec.clone(), watch::channel(Wanted { spec: watcher.spec.clone(), max_objects: 10 }));
    let run = tokio::spawn(watcher.following(following).run(client(&server)));
    let seen = next(&mut taken, &conditions).await;
    assert_eq!((&*seen.version, &*seen.key.name), ("v1beta1", "one"));
    reason(&conditions, Reason::Watching).await;
    // An explicit version waits.
    wanted.send_replace(Wanted { spec: config::Watch { version: "v1".into(), ..spec }, max_objects: 10 });
    reason(&conditions, Reason::Unreachable).await;
    server.lock().unconverted = None;
    reason(&conditions, Reason::Watching).await;
    assert_eq!(conditions.get("w").unwrap().resolved, "g.example/v1/Thing");
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_the_watch_relists_and_finds_deletions() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        server.installed = true;
        server.items = vec![item(Some(1))];
    }
    let Bench { mut watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let (resume, resumed) = watch::channel(0);
    watcher.shared.resumed = resumed;
    let run = tokio::spawn(watcher.run(client(&server)));
    assert_eq!(&*next(&mut taken, &conditions).await.key.name, "one");
    reason(&conditions, Reason::Watching).await;
    server.lock().items.clear();
    resume.send(1).unwrap();
    let gone = next(&mut taken, &conditions).await;
    assert_eq!((gone.change, &*gone.key.name), (Change::Gone, "one"));
    assert_eq!(server.lock().lists.len(), 2, "one list for one pause");
    run.abort();
}

fn many() -> Vec<Value> {
    let one = |n: u32| {
        let mut item = item(Some(1));
        (item["metadata"]["name"], item["metadata"]["uid"]) =
            (json!(format!("o-{n}")), json!(format!("u-{n}")));
        item
    };
    (0..30_000).map(one).collect()
}

#[tokio::test(start_paused = true)]
async fn many_objects_are_reported_once_and_then_only_changes() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        (server.installed, server.streams, server.items) = (true, true, many());
    }
    let Bench { mut watcher, mut taken, conditions, baseline: _baseline, .. } = bench(100_000);
    let (resume, resumed) = watch::channel(0);
    watcher.shared.resumed = resumed;
    let run = tokio::spawn(watcher.run(client(&server)));
    let mut names = std::collections::HashSet::new();
    for _ in 0..30_000 {
        names.insert(next(&mut taken, &conditions).await.key.name);
    }
    assert_eq!(names.len(), 30_000);
    reason(&conditions, Reason::Watching).await;
    assert_eq!(conditions.get("w").unwrap().objects, 30_000);
    {
        let items = &mut server.lock().items;
        items[7]["metadata"]["generation"] = json!(2);
        // Recreated with an equal generation.
        items[19_999]["metadata"]["uid"] = json!("another");
        items.remove(29_998);
    }
    resume.send(1).unwrap();
    let mut messages = Vec::new();
    for _ in 0..4 {
        let seen = next(&mut taken, &conditions).await;
        messages.push((seen.key.name.to_string(), seen.change));
    }
    let whole = messages.pop().map(|(_, change)| change);
    assert_eq!(whole, Some(Change::Resync), "what came and went meanwhile has no name");
    messages.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [("o-19999", Change::Changed), ("o-29998", Change::Gone), ("o-7", Change::Changed)];
    assert_eq!(messages, expected.map(|(name, change)| (name.to_owned(), change)));
    reason(&conditions, Reason::Watching).await;
    assert!(taken.is_empty() && conditions.get("w").unwrap().objects == 29_999);
    run.abort();
}

/// Even if a check fails.
#[tokio::test(start_paused = true)]
async fn a_swallowed_event_among_30000_objects_is_found() {
    for blow in [None, Some(Blow::CutShort), Some(Blow::Failed(500)), Some(Blow::Failed(410))] {
        let server = Shown::default();
        {
            let mut server = server.lock();
            (server.installed, server.streams, server.items) = (true, true, many());
        }
        let Bench { watcher, mut taken, conditions, baseline: _baseline, registry, .. } = bench(100_000);
        let run = tokio::spawn(watcher.run(client(&server)));
        for _ in 0..30_000 {
            next(&mut taken, &conditions).await;
        }
        reason(&conditions, Reason::Watching).await;
        // Known, so not reported.
        let known = server.lock().items[6].clone();
        server.lock().happens("MODIFIED", known);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert!(taken.is_empty());
        let replays = std::mem::take(&mut server.lock().replays);
        assert!((2..=4).contains(&replays.len()) && asks(&replays[0], "resourceVersion=9"), "{replays:?}");
        assert!(replays[1..].iter().all(|query| asks(query, "resourceVersion=10")), "{replays:?}");
        {
            let mut server = server.lock();
            server.items[7]["metadata"]["generation"] = json!(2);
            let changed = server.items[7].clone();
            let gone = server.items.remove(29_998);
            server.happens("MODIFIED", changed);
            server.happens("DELETED", gone);
            server.blows.extend(blow);
        }
        let begin = tokio::time::Instant::now();
        let (one, other) = (next(&mut taken, &conditions).await, next(&mut taken, &conditions).await);
        assert!(begin.elapsed() <= Duration::from_secs(90), "{blow:?}: after {:?}", begin.elapsed());
        assert_eq!((&*one.key.name, one.change), ("o-7", Change::Changed));
        assert_eq!((&*other.key.name, other.change), ("o-29998", Change::Gone));
        let text = registry.encode().unwrap();
        let by = if blow == Some(Blow::Failed(410)) { "list" } else { "replay" };
        let missed = format!("t_watch_checks_total{{by=\"{by}\",result=\"missed\"}} 1\n");
        assert!(text.contains(&missed), "{blow:?}: {text}");
        assert!(conditions.get("w").is_some_and(|condition| condition.objects == 29_999));
        run.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeatedly_incomplete_watch_is_unreliable_and_backs_off() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        (server.installed, server.streams, server.items) = (true, true, many());
        let mut never = item(Some(1));
        never["metadata"]["name"] = json!("never-listed");
        server.always = vec![("ADDED", never)];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(100_000);
    let run = tokio::spawn(watcher.run(client(&server)));
    let drain = tokio::spawn(async move { while taken.recv().await.is_some() {} });
    reason(&conditions, Reason::Unreliable).await;
    assert_eq!(conditions.blind(), ["w"]);
    let lists = server.lock().lists.len();
    tokio::time::sleep(Duration::from_hours(2)).await;
    let more = server.lock().lists.len() - lists;
    assert!(more <= 12, "{more} lists in two hours");
    run.abort();
    drain.abort();
}

#[tokio::test(start_paused = true)]
async fn only_the_last_removed_version_deletes_objects() {
    for then in [&[][..], &["v1beta1"]] {
        let server = Shown::default();
        {
            let mut server = server.lock();
            (server.installed, server.then) = (true, Some(then));
            server.items = vec![item(Some(1))];
        }
        let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
        let run = tokio::spawn(watcher.run(client(&server)));
        assert_eq!(next(&mut taken, &conditions).await.version.as_ref(), "v1");
        let messages = next(&mut taken, &conditions).await;
        if then.is_empty() {
            assert_eq!((messages.change, messages.key.name.as_ref()), (Change::Gone, "one"));
            reason(&conditions, Reason::WaitingForKind).await;
        } else {
            // Changes in between have no names.
            assert_eq!((messages.change, messages.version.as_ref()), (Change::Resync, "v1beta1"));
            reason(&conditions, Reason::Watching).await;
            assert_eq!(conditions.get("w").unwrap().objects, 1);
        }
        run.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn lists_are_streamed_where_supported() {
    let server = Shown::default();
    {
        let mut server = server.lock();
        (server.installed, server.streams) = (true, true);
        server.items = vec![item(Some(1))];
    }
    let Bench { watcher, mut taken, conditions, baseline: _baseline, .. } = bench(10);
    let run = tokio::spawn(watcher.run(client(&server)));
    assert_eq!(&*next(&mut taken, &conditions).await.key.name, "one");
    reason(&conditions, Reason::Watching).await;
    assert!(conditions.blind().is_empty() && conditions.settled());
    let lists = server.lock().lists.clone();
    assert!(lists.len() == 1 && lists[0].starts_with("stream "), "{lists:?}");
    run.abort();
}

/// Also returns the virtual seconds until the change.
async fn seconds_to_next(taken: &mut mpsc::Receiver<Message>, conditions: &Conditions) -> (Observation, u64) {
    let begin = tokio::time::Instant::now();
    let seen = next(taken, conditions).await;
    (seen, begin.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_swallowed_event_is_found_within_90_seconds() {
    for generation in [Some(1), None] {
        let server = Shown::default();
        {
            let mut server = server.lock();
            server.installed = true;
            server.items = vec![item(generation)];
        }
        let Bench { watcher, mut taken, conditions, baseline: _baseline, registry, .. } = bench(10);
        let run = tokio::spawn(watcher.run(client(&server)));
        assert_eq!(&*next(&mut taken, &conditions).await.key.name, "one");
        reason(&conditions, Reason::Watching).await;
        // Nothing is missing.
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert!(taken.is_empty());
        let text = registry.encode().unwrap();
        assert!(
            text.lines().any(|line| line.starts_with("t_watch_checks_total{by=\"list\",result=\"equal\"}")),
            "{text}"
        );
        // The open watch sends nothing.
        server.lock().items.clear();
        let (gone, after) = seconds_to_next(&mut taken, &conditions).await;
        assert_eq!((gone.change, &*gone.key.name), (Change::Gone, "one"));
        assert!(after <= 90, "after {after} s");
        let text = registry.encode().unwrap();
        assert!(text.contains("t_watch_checks_total{by=\"list\",result=\"missed\"} 1\n"), "{text}");
        run.abort();
    }
}
