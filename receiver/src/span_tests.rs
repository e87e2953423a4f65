//! Follows an event by its spans: intake, queue, reconcile, calls.

use std::{
    convert::Infallible,
    fmt::{self, Write},
    future,
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_drain::Drain;
use tidewatch_engine::history::{Observer, Record};
use tidewatch_listener::{Admission, Deliveries, Intake, Limits, intake::Peer};
use tidewatch_telemetry::BuildInfo;
use tidewatch_tls::{PeerIdentity, Proxies};
use tidewatch_wire::{Epoch, Seq, SessionId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower::Layer as _;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

use super::{tests::host_on, *};
use crate::kcp_client::SpanLayer;

const TOKEN: &str = "very-secret";

/// A span of the product.
#[derive(Clone, Debug)]
struct Seen {
    id: Id,
    /// Its name, its parent's, and so on.
    names: Vec<&'static str>,
    fields: String,
    /// Names of the spans that it follows from.
    follows: Vec<&'static str>,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

impl Spans {
    fn named(&self, name: &str) -> Vec<Seen> {
        self.0.lock().iter().filter(|span| span.names[0] == name).cloned().collect()
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.fields, "{field}={value:?} ").unwrap();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target().starts_with("tidewatch_") {
            let names = context.span_scope(id).unwrap().map(|span| span.name()).collect();
            let mut span = Seen { id: id.clone(), names, fields: String::new(), follows: Vec::new() };
            attributes.record(&mut span);
            self.0.lock().push(span);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let name = context.span(follows).unwrap().name();
        if let Some(span) = self.0.lock().iter_mut().rfind(|span| span.id == *id) {
            span.follows.push(name);
        }
    }
}

struct Ends(mpsc::Sender<String>);

impl Observer for Ends {
    fn reconciled(&self, key: &WorkKey, _: &Record) {
        let _ = self.0.try_send(key.to_string());
    }

    fn reachable(&self, _: &str, _: bool) {}
}

/// A KCP with the Kyma `harbour`, whose runtime refuses connections.
fn kcp() -> kube::Client {
    let hour = jiff::SignedDuration::from_hours(1);
    let ca = tidewatch_certs::Ca::create("test", hour, Timestamp::now()).unwrap();
    let kubeconfig = json!({"current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1",
            "certificate-authority-data": ByteString(ca.cert_pem().as_bytes().to_vec())}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}]});
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "kubeconfig-harbour", "namespace": "kcp-system", "uid": "s", "resourceVersion": "1",
                     "labels": {"operator.kyma-project.io/kyma-name": "harbour"}},
        "data": {"config": ByteString(kubeconfig.to_string().into_bytes())}});
    let kyma = json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
        "metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "k", "resourceVersion": "1",
                     "labels": {"kyma-project.io/runtime-id": "r1"}},
        "spec": {"channel": "regular"}});
    let service = tower::service_fn(move |request: Request<Body>| {
        let list = |items: Value| json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        let path = request.uri().path();
        let answer = match path.rsplit_once('/').unwrap().1 {
            _ if request.uri().query().is_some_and(|query| query.contains("watch=")) => None,
            "harbour" | "status" => Some(kyma.clone()),
            "kymas" => Some(list(json!([kyma]))),
            "secrets" => Some(list(json!([secret]))),
            _ if path.contains("/secrets/") => Some(secret.clone()),
            _ => Some(list(json!([]))),
        };
        async move {
            let Some(answer) = answer else { return future::pending().await };
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    kube::Client::new(SpanLayer.layer(service), "kcp-system")
}

fn intake(host: EngineHost) -> (Arc<Intake>, Drain) {
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let drain = Drain::new();
    let intake = Intake {
        host: Arc::new(host),
        deliveries: Deliveries::new(SessionId::from_bits(1)),
        metrics: tidewatch_listener::Metrics::register(&registry).unwrap(),
        admission: Admission::new(Limits::default(), Timestamp::now()),
        drain: drain.watch(),
        proxies: Arc::new(Proxies::none()),
        clock: Timestamp::now,
    };
    (Arc::new(intake), drain)
}

/// Two changes of the runtime's Kyma.
fn request() -> Request<Full<Bytes>> {
    let event = |seq| v3::Event {
        seq: Seq(seq),
        watch: "kyma".into(),
        group: tidewatch_api::names::GROUP.into(),
        version: "v1beta2".into(),
        kind: "Kyma".into(),
        namespace: "kyma-system".into(),
        name: "default".into(),
        uid: "u".into(),
        resource_version: seq.to_string().into(),
        change: v3::Change::Changed,
        listed: false,
        observed_at: Timestamp::UNIX_EPOCH,
    };
    let events = vec![event(1), event(2)];
    let awaiting = events.iter().map(|event| event.seq).collect();
    let request = v3::Request { events, awaiting, ..v3::Request::new(Epoch::from_bits(1)) };
    Request::post(v3::PATH).body(Full::new(serde_json::to_vec(&request).unwrap().into())).unwrap()
}

fn peer() -> Arc<Peer> {
    let identity = PeerIdentity {
        common_name: "r1".into(),
        dns_names: vec!["a.example".into()],
        ip_addrs: Vec::new(),
        uris: Vec::new(),
        not_before: Timestamp::UNIX_EPOCH,
        not_after: Timestamp::MAX,
        certificate: Arc::from(*b"der"),
    };
    Arc::new(Peer { leaf: None, identity: Ok(identity) })
}

#[tokio::test]
async fn event_spans_lead_from_the_intake_to_each_call() {
    let spans = Spans::default();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let (sender, mut ended) = mpsc::channel(64);
    let host = host_on(kcp(), Arc::new(Ends(sender)));
    let engine = host.engine.clone();
    let (intake, _drain) = intake(host);
    assert_eq!(intake.serve(peer(), request()).await.status(), 200);
    let ends = async { while ended.recv().await.unwrap() != "Kyma/harbour" {} };
    tokio::select! {
        () = ends => {}
        () = engine.run(CancellationToken::new(), || {}) => panic!("the engine has ended"),
    }

    let names = |name: &str| spans.named(name).into_iter().map(|span| span.names).collect::<Vec<_>>();
    assert_eq!(names("intake"), [["intake"], ["intake"]]);
    assert_eq!(names("queue"), [["queue", "intake"], ["queue", "intake"]]);
    let reconciles = spans.named("reconcile");
    let reconcile = reconciles.iter().find(|span| span.fields.contains("key=Kyma/harbour ")).unwrap();
    assert_eq!(
        (&reconcile.names[..], &reconcile.follows[..]),
        (&["reconcile", "intake"][..], &["intake"][..])
    );
    for field in ["runtime=\"r1\"", "kyma=\"harbour\"", "trigger=\"event\"", "attempt=0"] {
        assert!(reconcile.fields.contains(field), "{field}: {}", reconcile.fields);
    }
    let below = |name: &str| {
        spans
            .named(name)
            .into_iter()
            .filter(|span| span.names[1..] == ["reconcile", "intake"])
            .collect::<Vec<_>>()
    };
    let calls = below("kcp_call");
    for path in ["/kymas/harbour", "/secrets"] {
        assert!(calls.iter().any(|call| call.fields.contains(path)), "{path}: {calls:?}");
    }
    assert!(!below("runtime_call").is_empty());
    let secrets: Vec<_> = spans.0.lock().iter().filter(|span| span.fields.contains(TOKEN)).cloned().collect();
    assert!(secrets.is_empty(), "{secrets:?}");
}
