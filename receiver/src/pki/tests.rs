use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const LIMITS: rotation::Limits =
    rotation::Limits { patience: DAY, agents: SignedDuration::from_hours(7 * 24) };

/// Secrets by name, with versions.
#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<BTreeMap<String, Value>>>);

impl Secrets {
    fn client(&self) -> Client {
        let secrets = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let secrets = secrets.clone();
            async move {
                let (parts, body) = request.into_parts();
                #[expect(clippy::disallowed_methods, reason = "the body is limited")]
                let body = Limited::new(body, 1 << 20).collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (status, answer) = secrets.answer(&parts.method, parts.uri.path(), body);
                Ok::<_, Infallible>(
                    Response::builder()
                        .status(status)
                        .body(Body::from(answer.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        });
        Client::new(service, "kcp-system")
    }

    fn answer(&self, method: &Method, path: &str, mut body: Value) -> (StatusCode, Value) {
        let mut all = self.0.lock();
        let name = body["metadata"]["name"]
            .as_str()
            .map_or_else(|| path.rsplit('/').next().unwrap_or_default().to_owned(), str::to_owned);
        let version = all
            .get(&name)
            .and_then(|secret| secret["metadata"]["resourceVersion"].as_str())
            .map(str::to_owned);
        let status = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "reason": reason, "message": "", "code": code});
        match (method, version) {
            (&Method::GET, Some(_)) => (StatusCode::OK, all[&name].clone()),
            (&Method::GET, None) => (StatusCode::NOT_FOUND, status(404, "NotFound")),
            (&Method::POST, Some(_)) => (StatusCode::CONFLICT, status(409, "Conflict")),
            (_, version) => {
                let is_next = version.as_deref() == body["metadata"]["resourceVersion"].as_str();
                if !is_next {
                    return (StatusCode::CONFLICT, status(409, "Conflict"));
                }
                let next: u64 = version.map_or(1, |version| version.parse::<u64>().unwrap() + 1);
                body["metadata"]["resourceVersion"] = next.to_string().into();
                all.insert(name, body.clone());
                (StatusCode::OK, body)
            }
        }
    }
}

fn pki(secrets: &Secrets, names: &[&str]) -> Pki {
    let settings = PkiSettings {
        issuer: PkiIssuer::BuiltIn,
        server_names: names.iter().map(ToString::to_string).collect(),
        server_lifetime: DAY * 30,
        ca_lifetime: DAY * 730,
        rotation: LIMITS,
    };
    Pki::new(secrets.client(), "kcp-system", settings)
}

fn now() -> Timestamp {
    "2026-11-29T10:00:00Z".parse().unwrap()
}

#[tokio::test]
async fn a_first_start_creates_a_ca_and_a_usable_certificate() {
    let secrets = Secrets::default();
    let material = pki(&secrets, &["events.example", "127.0.0.1"]).load(now()).await.unwrap();
    let bundle = tidewatch_tls::Bundle::parse(&material.server).unwrap();
    bundle.check(now()).unwrap();
    assert_eq!(bundle.not_after(), now() + DAY * 30);
    assert_eq!(secrets.0.lock().keys().collect::<Vec<_>>(), [CA_SECRET, SERVER_SECRET]);
    assert!(material.renew_at > now() + DAY * 19 && material.renew_at < now() + DAY * 20);
}

#[tokio::test]
async fn a_restart_and_a_second_receiver_use_the_same_certificates() {
    let secrets = Secrets::default();
    let first = pki(&secrets, &["events.example"]).load(now()).await.unwrap();
    let second = pki(&secrets, &["events.example"]).load(now() + DAY * 19).await.unwrap();
    assert!(first.server == second.server);
    assert_eq!(first.ca.files, second.ca.files);
}

#[tokio::test]
async fn receivers_that_start_at_once_agree() {
    let secrets = Secrets::default();
    let (a, b) = (pki(&secrets, &["events.example"]), pki(&secrets, &["events.example"]));
    let (a, b) = tokio::join!(a.load(now()), b.load(now()));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(a.server == b.server);
    assert_eq!(a.ca.files, b.ca.files);
}

#[tokio::test]
async fn the_certificate_is_issued_again_when_it_is_due_or_its_names_or_ca_change() {
    let secrets = Secrets::default();
    let first = pki(&secrets, &["events.example"]).load(now()).await.unwrap();
    let due = pki(&secrets, &["events.example"])
        .load(now() + DAY * 20 + SignedDuration::from_mins(1))
        .await
        .unwrap();
    assert!(first.server != due.server);
    let renamed = pki(&secrets, &["other.example"]).load(now() + DAY * 21).await.unwrap();
    assert!(renamed.server != due.server);
    secrets.0.lock().remove(CA_SECRET);
    let other_ca = pki(&secrets, &["other.example"]).load(now() + DAY * 21).await.unwrap();
    assert!(other_ca.server.ca != renamed.server.ca && other_ca.server.cert != renamed.server.cert);
}

/// Another process, as after a crash, for each step.
#[tokio::test]
async fn a_rotation_goes_on_after_a_crash_at_each_step() {
    let secrets = Secrets::default();
    let load = |at: Timestamp| {
        let pki = pki(&secrets, &["events.example"]);
        async move { (pki.load(at).await.unwrap(), pki) }
    };
    let certificates = |pem: &[u8]| String::from_utf8_lossy(pem).matches("BEGIN CERTIFICATE").count();
    let (old, pki) = load(now()).await;
    assert!(!pki.rotate(&old.ca, true, now()).await.unwrap(), "it is not due");
    secrets.0.lock().get_mut(CA_SECRET).unwrap()["metadata"]["annotations"][ROTATE_CA] = "now".into();
    let (requested, pki) = load(now()).await;
    assert!(pki.rotate(&requested.ca, false, now()).await.unwrap());

    let (published, pki) = load(now()).await;
    assert_eq!((published.ca.rotation.step, certificates(&published.server.ca)), (Step::Publishing, 2));
    assert!(published.server.cert == old.server.cert, "the next CA is not trusted by all yet");
    assert!(!published.ca.rotation.requested);
    assert!(!pki.rotate(&published.ca, false, now()).await.unwrap());
    assert!(pki.rotate(&published.ca, true, now()).await.unwrap());
    assert!(!pki.rotate(&published.ca, true, now()).await.unwrap(), "another receiver has done the step");

    let (switched, pki) = load(now()).await;
    assert_eq!((switched.ca.rotation.step, &switched.server.ca), (Step::Retiring, &published.server.ca));
    assert!(switched.server.cert != old.server.cert, "the next CA signs");
    assert!(!pki.rotate(&switched.ca, true, now() + LIMITS.agents).await.unwrap());
    assert!(pki.rotate(&switched.ca, true, now() + LIMITS.agents * 2).await.unwrap());

    let (retired, _) = load(now()).await;
    assert_eq!((retired.ca.rotation.step, certificates(&retired.server.ca)), (Step::Stable, 1));
    assert!(retired.server.cert == switched.server.cert);
    tidewatch_tls::Bundle::parse(&retired.server).unwrap().check(now()).unwrap();
}

#[tokio::test]
async fn a_ca_that_has_ended_in_any_step_is_replaced_at_the_next_start() {
    for steps in 0..=2 {
        let secrets = Secrets::default();
        let pki = pki(&secrets, &["events.example"]);
        let first = pki.load(now()).await.unwrap();
        secrets.0.lock().get_mut(CA_SECRET).unwrap()["metadata"]["annotations"][ROTATE_CA] = "now".into();
        for _ in 0..steps {
            let ca = pki.load(now()).await.unwrap().ca;
            assert!(pki.rotate(&ca, true, now()).await.unwrap());
        }
        let late = now() + DAY * 800;
        let material = pki.load(late).await.unwrap();
        assert!(material.server.ca != first.server.ca && material.renew_at > late, "after {steps} steps");
        assert_eq!(material.ca.rotation.step, Step::Stable);
        tidewatch_tls::Bundle::parse(&material.server).unwrap().check(late).unwrap();
    }
}

#[tokio::test]
async fn a_certificate_that_ends_with_its_ca_is_not_issued_again_and_again() {
    let secrets = Secrets::default();
    let pki = pki(&secrets, &["events.example"]);
    pki.load(now()).await.unwrap();
    let almost = now() + DAY * 730 - SignedDuration::from_mins(1);
    let first = pki.load(almost).await.unwrap();
    let second = pki.load(almost + SignedDuration::from_secs(50)).await.unwrap();
    assert!(first.server == second.server);
}

#[tokio::test]
async fn an_unusable_ca_stops_the_start_and_its_key_is_in_no_message() {
    let secrets = Secrets::default();
    pki(&secrets, &["events.example"]).load(now()).await.unwrap();
    {
        let mut all = secrets.0.lock();
        // The key of another pair: base64 of a text.
        all.get_mut(CA_SECRET).unwrap()["data"]["tls.key"] = "c2VjcmV0LWtleQ==".into();
    }
    let error = pki(&secrets, &["events.example"]).load(now()).await.err().unwrap();
    let message = tidewatch_telemetry::chain(&error).to_string();
    assert!(matches!(error, PkiError::Ca(_)), "{message}");
    assert!(message.contains(CA_SECRET) && !message.contains("secret-key"), "{message}");
}

#[tokio::test]
async fn certificates_of_cert_manager_are_read_and_never_written() {
    let secrets = Secrets::default();
    let settings =
        PkiSettings { issuer: PkiIssuer::CertManager, ..pki(&secrets, &["events.example"]).settings };
    let reader = Pki::new(secrets.client(), "kcp-system", settings);
    assert!(matches!(reader.load(now()).await, Err(PkiError::Missing(CA_SECRET))));
    assert!(secrets.0.lock().is_empty());

    let issued = pki(&secrets, &["events.example"]).load(now()).await.unwrap();
    let before = secrets.0.lock().clone();
    // Long after the renewal is due.
    let late = now() + DAY * 700;
    let read = reader.load(late).await.unwrap();
    assert!(read.server == issued.server);
    assert!(!reader.rotate(&read.ca, true, late).await.unwrap());
    assert_eq!(*secrets.0.lock(), before);
    secrets.0.lock().remove(SERVER_SECRET);
    assert!(matches!(reader.load(now()).await, Err(PkiError::Missing(SERVER_SECRET))));
}
