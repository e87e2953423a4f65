//! Memory per watched object.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use std::{collections::BTreeMap, convert::Infallible, future::pending, time::Duration};
use tempfile::TempDir;
use tidewatch_agent::{
    app::{self, Surroundings},
    config::Config,
    send::{Channel, Fate, SendError, Transport},
};
use tidewatch_certs::{Ca, ClientRequest};
use tidewatch_drain::Drain;
use tidewatch_wire::{
    Route, SeqSet, SessionId,
    v3::{self, RouteAck},
};
use tokio::sync::watch;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const OBJECTS: usize = 10_000;
/// Two shared strings, fingerprint and contribution, in a table at least half full.
const KEPT: usize = 140;
/// All dirty. This allocator copies growing buffers and briefly counts them twice.
const MAX_PER_OBJECT: usize = 760;
/// Until received, and until acknowledged.
const TRANSIT: Duration = Duration::from_millis(1);
const WORK: Duration = Duration::from_millis(100);
const PIECE: usize = 20;

fn object(n: usize) -> Value {
    json!({"type": "ADDED", "object": {
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": format!("thing-{n:05}"), "namespace": "default", "uid": format!("0d7a1c1e-4a54-4d5e-9a52-{n:012}"),
            "resourceVersion": format!("{}", 1_000 + n), "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "someone", "operation": "Update", "apiVersion": "g.example/v1",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {".": {}, "f:text": {}}}}],
        },
    }})
}

fn piece(from: usize, to: usize) -> Bytes {
    (from..to).map(|n| object(n).to_string() + "\n").collect::<String>().into()
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn api_server(count: usize) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        Ok::<_, Infallible>(answer(request.uri(), count))
    });
    Client::new(service, "default")
}

fn answer(uri: &http::Uri, count: usize) -> Answer {
    let whole = |status, value: Value| {
        let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
        *response.status_mut() = status;
        response
    };
    let version = json!({"groupVersion": "g.example/v1", "version": "v1"});
    match uri.path() {
        "/apis" => whole(
            StatusCode::OK,
            json!({"kind": "APIGroupList",
                   "groups": [{"name": "g.example", "versions": [version], "preferredVersion": version}]}),
        ),
        "/apis/g.example/v1" => whole(
            StatusCode::OK,
            json!({"groupVersion": "g.example/v1", "resources": [{"name": "things", "singularName": "thing",
                   "kind": "Thing", "namespaced": true, "verbs": ["get", "list", "watch"]}]}),
        ),
        "/apis/g.example/v1/things" => {
            let begins = uri.query().is_some_and(|query| query.contains("sendInitialEvents=true"));
            let mark = json!({"type": "BOOKMARK", "object": {"kind": "Thing", "apiVersion": "g.example/v1", "metadata": {
                "resourceVersion": "99999", "annotations": {"k8s.io/initial-events-end": "true"}}}});
            let objects = if begins { count } else { 0 };
            let pieces = (0..objects).step_by(PIECE).map(move |n| piece(n, (n + PIECE).min(objects)));
            let body = pieces.chain(begins.then(|| Bytes::from(format!("{mark}\n"))));
            let body = stream::iter(body).chain(stream::pending());
            Response::new(StreamBody::new(body.map(|piece| Ok(Frame::data(piece)))).boxed_unsync())
        }
        _ => whole(StatusCode::NOT_FOUND, json!({"kind": "Status", "status": "Failure", "code": 404})),
    }
}

/// Acknowledges late.
#[derive(Clone)]
struct Receiver;

impl Transport for Receiver {
    type Connection = Self;

    async fn connect(self) -> Result<Self, SendError> {
        Ok(self)
    }

    fn renewals(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn fate(&self, _: &Self) -> Fate {
        Fate::Keep
    }

    fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
}

impl Channel for Receiver {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) -> SendError {
        pending().await
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        _: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let mut response = v3::Response::new(request.epoch, SessionId::from_bits(7));
        if request.poll {
            let done = request.awaiting.clone();
            response.acks.push(RouteAck { route: Route::engine(), done, refused: SeqSet::new() });
        }
        let takes = if request.poll { WORK } else { TRANSIT };
        async move {
            tokio::time::sleep(takes).await;
            Ok(response)
        }
    }
}

fn files() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let validity = SignedDuration::from_hours(1);
    let ca = Ca::create("test", validity, Timestamp::now()).unwrap();
    let request =
        ClientRequest { runtime_id: "runtime-1".into(), dns_names: vec![], organizations: vec![], validity };
    let own = ca.issue_client(&request, Timestamp::now()).unwrap();
    std::fs::write(dir.path().join("ca"), ca.cert_pem()).unwrap();
    std::fs::write(dir.path().join("cert"), &own.cert_pem).unwrap();
    std::fs::write(dir.path().join("key"), own.key_pem.as_str()).unwrap();
    dir
}

fn config(dir: &TempDir) -> Config {
    let file = |name: &str| dir.path().join(name).display().to_string();
    let text = format!(
        "runtimeId: runtime-1
receiver: {{url: 'https://receiver.example:8443', caFile: '{}', certFile: '{}', keyFile: '{}', proxy: direct}}
adminAddress: 127.0.0.1:0
watches:
  - {{name: things, group: g.example, resource: things, field: spec}}
",
        file("ca"),
        file("cert"),
        file("key"),
    );
    Config::parse(&text).unwrap()
}

/// Bytes when idle, and the peak.
async fn measure(dir: &TempDir, count: usize) -> (usize, usize) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let drain = Drain::new();
    let surroundings = Surroundings { client: Some(api_server(count)), without_admin: true };
    let starting = app::start_within(config(dir), None, surroundings, &drain, |_| Receiver);
    let running = Box::pin(starting).await.unwrap();
    let quiet = async {
        loop {
            let objects = running.conditions.get("things").map_or(0, |condition| condition.objects);
            let progress = running.progress.lock().clone();
            if objects == count && progress.last_observed >= count as u64 && progress.dirty == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), quiet).await.unwrap();
    let (used, peak) = (HEAP.current_usage(), HEAP.peak_usage());
    let _ended = drain.shutdown(Duration::ZERO).await;
    (used.saturating_sub(before), peak.saturating_sub(before))
}

#[tokio::test]
async fn the_agents_memory_per_object_is_bounded() {
    let dir = files();
    // Excludes one-time allocations.
    measure(&dir, 1).await;
    let few = measure(&dir, 1).await;
    let many = measure(&dir, OBJECTS).await;
    let each = |many: usize, few: usize| many.saturating_sub(few) / OBJECTS;
    let (kept, peak) = (each(many.0, few.0), each(many.1, few.1));
    assert!((1..=KEPT).contains(&kept), "{kept} bytes for each object");
    assert!((kept..=MAX_PER_OBJECT).contains(&peak), "{peak} bytes for each object while they are reported");
}
