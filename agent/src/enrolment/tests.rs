use std::{collections::HashMap, sync::Arc};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use jiff::SignedDuration;
use k8s_openapi::ByteString;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_certs::{AgentRequest, Ca, ClientRequest};
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tokio::time::Instant;

use super::*;
use crate::observe::condition::Conditions;

const SECRET: &str = "/api/v1/namespaces/kyma-system/secrets/identity";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// The control plane's decision about every request.
#[derive(Clone, Copy, PartialEq)]
enum Decides {
    Sign,
    Deny,
}

/// A runtime's API server with one Secret and one request.
struct Runtime {
    decides: Mutex<Decides>,
    ca: Ca,
    folder: tempfile::TempDir,
    secret: Mutex<Value>,
    request: Mutex<Option<Value>>,
    calls: Mutex<HashMap<String, usize>>,
}

impl Runtime {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            decides: Mutex::new(Decides::Sign),
            ca: Ca::create("test", DAY * 90, Timestamp::now()).unwrap(),
            folder: tempfile::tempdir().unwrap(),
            secret: Mutex::new(
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity"}}),
            ),
            request: Mutex::default(),
            calls: Mutex::default(),
        })
    }

    fn client(self: &Arc<Self>) -> Client {
        let this = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = Arc::clone(&this);
            async move { Ok::<_, std::convert::Infallible>(this.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn calls(&self, method: &Method, path: &str) -> usize {
        self.calls.lock().get(&format!("{method} {path}")).copied().unwrap_or_default()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        #[expect(clippy::disallowed_methods, reason = "the body is limited")]
        let body = Limited::new(body, 1 << 20).collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path();
        *self.calls.lock().entry(format!("{} {path}", parts.method)).or_default() += 1;
        let not_found =
            json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "", "code": 404});
        let (status, body) = match (&parts.method, path) {
            (&Method::GET, SECRET) => (StatusCode::OK, self.secret.lock().clone()),
            (&Method::PATCH, SECRET) => {
                self.secret.lock()["data"] = body["data"].clone();
                (StatusCode::OK, self.secret.lock().clone())
            }
            (&Method::POST, REQUESTS) => {
                *self.request.lock() = Some(self.decide(body.clone()));
                (StatusCode::CREATED, body)
            }
            (&Method::GET, REQUESTS) => {
                let items: Vec<Value> = self.request.lock().iter().cloned().collect();
                let list = json!({"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
                                  "metadata": {"resourceVersion": "1"}, "items": items});
                (StatusCode::OK, list)
            }
            (&Method::DELETE, _) if self.request.lock().take().is_some() => {
                (StatusCode::OK, json!({"kind": "Status"}))
            }
            _ => (StatusCode::NOT_FOUND, not_found),
        };
        Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
    }

    fn decide(&self, mut request: Value) -> Value {
        if *self.decides.lock() == Decides::Deny {
            request["status"] =
                json!({"conditions": [{"type": "Denied", "status": "True", "message": "revoked"}]});
            return request;
        }
        let pem: ByteString = serde_json::from_value(request["spec"]["request"].clone()).unwrap();
        let client = ClientRequest {
            runtime_id: "r1".into(),
            dns_names: vec!["r1.example.com".into()],
            organizations: vec![],
            validity: DAY,
        };
        let signed = self.ca.sign_client(
            &AgentRequest::parse(&pem.0).unwrap(),
            &client,
            Timestamp::MIN,
            Timestamp::now(),
        );
        let certificate = ByteString(signed.unwrap().cert_pem.into_bytes());
        request["status"] = json!({"certificate": certificate});
        request
    }
}

fn enroller(runtime: &Arc<Runtime>) -> Enroller {
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let config = Enrolment {
        namespace: "kyma-system".into(),
        secret: "identity".into(),
        signing_request: "tidewatch-agent".into(),
    };
    let ca = runtime.folder.path().join("ca.crt");
    std::fs::write(&ca, runtime.ca.cert_pem()).unwrap();
    Enroller::new(runtime.client(), config, "r1".into(), ca, Timestamp::now, metrics)
}

#[tokio::test]
async fn an_agent_requests_a_certificate_and_stores_it_with_its_key() {
    let runtime = Runtime::new();
    let enroller = enroller(&runtime);
    assert_eq!(enroller.step(0.5, false).await.unwrap(), Duration::ZERO);
    let identity = enroller.identity().borrow().clone().unwrap();
    let pem = tidewatch_tls::Pem {
        ca: runtime.ca.cert_pem().into(),
        cert: identity.cert.clone(),
        key: identity.key.clone(),
    };
    tidewatch_tls::Bundle::parse(&pem).unwrap().check(Timestamp::now()).unwrap();
    assert_eq!(enroller.store.read().await.unwrap(), Some(identity));
    assert!(runtime.request.lock().is_none(), "a used request is deleted");
    assert!(
        enroller.step(0.5, false).await.unwrap() > Duration::ZERO,
        "the certificate is good for some hours"
    );
}

#[tokio::test]
async fn a_restarted_agent_uses_the_stored_certificate() {
    let runtime = Runtime::new();
    enroller(&runtime).step(0.5, false).await.unwrap();
    let restarted = enroller(&runtime);
    let identity = restarted.identity();
    assert!(restarted.step(0.5, false).await.unwrap() > Duration::ZERO);
    assert!(identity.borrow().is_some());
    assert_eq!(runtime.calls(&Method::POST, REQUESTS), 1);
}

#[tokio::test]
async fn an_agent_of_a_runtime_from_another_control_plane_enrols_again() {
    let (before, now) = (Runtime::new(), Runtime::new());
    enroller(&before).step(0.5, false).await.unwrap();
    *now.secret.lock() = before.secret.lock().clone();
    let enroller = enroller(&now);
    assert_eq!(enroller.step(0.5, false).await.unwrap(), Duration::ZERO);
    assert_eq!(now.calls(&Method::POST, REQUESTS), 1);
    assert_eq!(enroller.store.read().await.unwrap(), *enroller.identity().borrow());
}

#[tokio::test(start_paused = true)]
async fn a_denied_agent_asks_again_with_backoff_until_it_is_admitted() {
    let runtime = Runtime::new();
    *runtime.decides.lock() = Decides::Deny;
    let enroller = enroller(&runtime);
    let mut identity = enroller.identity();
    let task = tokio::spawn(enroller.run());
    let began = Instant::now();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(identity.borrow().is_none());
    let requests = runtime.calls(&Method::POST, REQUESTS);
    assert!((4..=12).contains(&requests), "{requests} requests in 10 minutes");
    *runtime.decides.lock() = Decides::Sign;
    identity.changed().await.unwrap();
    assert!(identity.borrow().is_some());
    assert!(began.elapsed() < Duration::from_mins(16));
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_refused_certificate_is_replaced_with_backoff() {
    let runtime = Runtime::new();
    let enroller = enroller(&runtime);
    let (mut identity, refused) = (enroller.identity(), enroller.refused());
    let task = tokio::spawn(enroller.run());
    identity.changed().await.unwrap();
    let first = identity.borrow_and_update().clone();
    let began = Instant::now();
    refused.notify_one();
    identity.changed().await.unwrap();
    assert!(*identity.borrow_and_update() != first && began.elapsed() < Duration::from_secs(5));
    while began.elapsed() < Duration::from_mins(10) {
        refused.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let requests = runtime.calls(&Method::POST, REQUESTS);
    assert!((4..=12).contains(&requests), "{requests} requests in 10 minutes");
    task.abort();
}
