use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;

const COMPONENT: &str = "example.org/module/tide";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Blobs differ from their digest.
    Damage,
    /// HTTP 429 with `Retry-After: 17`.
    Limit,
    /// Endless blobs without `Content-Length`.
    Endless,
    /// No answer for blobs.
    Hang,
    /// Requires a token, which requires a password.
    Token,
    /// Returns a token that is invalid in headers.
    EvilToken,
}

struct FakeRegistry {
    address: String,
    state: Arc<State>,
    server: JoinHandle<()>,
}

struct State {
    fault: Mutex<Fault>,
    blobs: Mutex<BTreeMap<String, Bytes>>,
    manifests: Mutex<BTreeMap<String, Bytes>>,
    blob_reads: AtomicUsize,
    token_reads: AtomicUsize,
    limited: AtomicUsize,
    address: Mutex<String>,
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeRegistry {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            fault: Mutex::new(Fault::None),
            blobs: Mutex::default(),
            manifests: Mutex::default(),
            blob_reads: AtomicUsize::new(0),
            token_reads: AtomicUsize::new(0),
            limited: AtomicUsize::new(0),
            address: Mutex::new(address.clone()),
        });
        let shared = Arc::clone(&state);
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&state), request));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, state, server }
    }

    fn fault(&self, fault: Fault) {
        *self.state.fault.lock() = fault;
    }

    fn blob_reads(&self) -> usize {
        self.state.blob_reads.load(Ordering::SeqCst)
    }
}

type Body = http_body_util::Either<Full<Bytes>, Endless>;

struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(&[b'x'; 16384])))))
    }
}

fn reply(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let fault = *state.fault.lock();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().clone();
    let authorization = request.headers().get("authorization").cloned();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let body = Limited::new(request.into_body(), 1 << 20).collect().await.unwrap().to_bytes();
    let (_, last) = path.rsplit_once('/').unwrap();

    if path == "/token" {
        state.token_reads.fetch_add(1, Ordering::SeqCst);
        // "user:pass"
        if authorization.as_ref().is_none_or(|value| value != "Basic dXNlcjpwYXNz") {
            return Ok(reply(StatusCode::UNAUTHORIZED, "unauthorized"));
        }
        assert!(query.contains("scope=repository%3Acomponent-descriptors"), "{query}");
        let token = if fault == Fault::EvilToken { "evil\\ntoken" } else { "good-token" };
        return Ok(reply(StatusCode::OK, format!("{{\"access_token\": \"{token}\", \"expires_in\": 300}}")));
    }
    let wants_token = matches!(fault, Fault::Token | Fault::EvilToken);
    if wants_token && authorization.as_ref().is_none_or(|value| value != "Bearer good-token") {
        let mut response = reply(StatusCode::UNAUTHORIZED, "no token");
        let challenge = format!("Bearer realm=\"http://{}/token\",service=\"fake\"", state.address.lock());
        response.headers_mut().insert("www-authenticate", challenge.parse().unwrap());
        return Ok(response);
    }
    if fault == Fault::Limit {
        state.limited.fetch_add(1, Ordering::SeqCst);
        let mut response = reply(StatusCode::TOO_MANY_REQUESTS, "slow down");
        response.headers_mut().insert("retry-after", "17".parse().unwrap());
        return Ok(response);
    }
    let response = match (method, path.as_str()) {
        (Method::GET, "/v2/") => reply(StatusCode::OK, "{}"),
        (Method::POST, _) if path.ends_with("/blobs/uploads/") => {
            let mut response = reply(StatusCode::ACCEPTED, "");
            response.headers_mut().insert("location", format!("{path}session").parse().unwrap());
            response
        }
        (Method::PUT, _) if path.contains("/blobs/uploads/") => {
            let digest = query.trim_start_matches("digest=").replace("%3A", ":");
            state.blobs.lock().insert(digest, body);
            created(&path)
        }
        (Method::PUT, _) if path.contains("/manifests/") => {
            state.manifests.lock().insert(path.clone(), body);
            created(&path)
        }
        (Method::GET, _) if path.contains("/manifests/") => match state.manifests.lock().get(&path) {
            Some(manifest) => reply(StatusCode::OK, manifest.clone()),
            None => reply(StatusCode::NOT_FOUND, "{}"),
        },
        (method, _) if path.contains("/blobs/") => {
            let blob = state.blobs.lock().get(last).cloned();
            if method == Method::GET {
                state.blob_reads.fetch_add(1, Ordering::SeqCst);
                match fault {
                    Fault::Hang => std::future::pending::<()>().await,
                    Fault::Endless => return Ok(Response::new(Body::Right(Endless))),
                    Fault::Damage => return Ok(reply(StatusCode::OK, "damaged")),
                    _ => {}
                }
            }
            blob.map_or_else(|| reply(StatusCode::NOT_FOUND, ""), |blob| reply(StatusCode::OK, blob))
        }
        _ => reply(StatusCode::NOT_FOUND, ""),
    };
    Ok(response)
}

fn created(path: &str) -> Response<Body> {
    let mut response = reply(StatusCode::CREATED, "");
    response.headers_mut().insert("location", path.parse().unwrap());
    response
}

fn package() -> ModulePackage {
    ModulePackage {
        sources: Vec::new(),
        component_name: COMPONENT.to_owned(),
        version: "1.2.3".to_owned(),
        raw_manifest: "apiVersion: v1\nkind: Namespace\nmetadata: {name: tide}\n".to_owned(),
        default_cr: None,
        images: vec!["example.org/tide:1.2.3".to_owned()],
    }
}

fn registry(config: RegistryConfig) -> Registry {
    Registry::new(config).unwrap()
}

async fn pushed() -> (FakeRegistry, Registry, Pushed) {
    let fake = FakeRegistry::start().await;
    let pushed = push(&registry(RegistryConfig::default()), &fake.address, &package()).await.unwrap();
    (fake, registry(RegistryConfig::default()), pushed)
}

#[tokio::test]
async fn a_pushed_component_can_be_pulled() {
    let (fake, registry, pushed) = pushed().await;
    let descriptor = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap();
    let (digest, media_type) = descriptor.raw_manifest().unwrap().local_blob().unwrap();
    assert_eq!(digest, &pushed.raw_manifest_digest);
    let layer = registry.layer(&fake.address, COMPONENT, digest).await.unwrap();
    let objects = manifests_of(&layer, media_type).unwrap();
    assert_eq!(objects[0]["metadata"]["name"], "tide");
    assert_eq!(descriptor.images().collect::<Vec<_>>(), ["example.org/tide:1.2.3"]);
    let missing = registry.component_descriptor(&fake.address, COMPONENT, "9.9.9").await.unwrap_err();
    assert_eq!(missing.metric_label(), "not_found");
    assert!(missing.to_string().contains("example.org/module/tide:9.9.9"), "{missing}");
    push(&registry, &fake.address, &package()).await.unwrap();
}

#[tokio::test]
async fn push_new_refuses_to_replace_different_content() {
    let fake = FakeRegistry::start().await;
    let registry = registry(RegistryConfig::default());
    let first = push_new(&registry, &fake.address, &package()).await.unwrap();
    assert_eq!(
        push_new(&registry, &fake.address, &package()).await.unwrap().digest,
        first.digest,
        "it is the same"
    );
    let other = ModulePackage { images: Vec::new(), ..package() };
    let refused = push_new(&registry, &fake.address, &other).await.unwrap_err();
    assert!(matches!(refused, OciError::Exists { .. }), "{refused}");
    assert!(refused.to_string().contains("example.org/module/tide:1.2.3"), "{refused}");
    assert_ne!(
        push(&registry, &fake.address, &other).await.unwrap().digest,
        first.digest,
        "overwrite moves the tag"
    );
}

#[tokio::test]
async fn a_layer_is_downloaded_once() {
    let (fake, registry, pushed) = pushed().await;
    let digest = &pushed.raw_manifest_digest;
    let calls = (0..20).map(|_| registry.layer(&fake.address, COMPONENT, digest));
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    registry.layer(&fake.address, COMPONENT, digest).await.unwrap();
    assert_eq!(fake.blob_reads(), 1);
}

#[tokio::test]
async fn a_layer_on_disk_is_not_downloaded_again() {
    let (fake, _, pushed) = pushed().await;
    let folder = tempfile::tempdir().unwrap();
    let fresh =
        || registry(RegistryConfig { disk: Some(folder.path().to_owned()), ..RegistryConfig::default() });
    for _ in 0..2 {
        fresh().layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap();
    }
    assert_eq!(fake.blob_reads(), 1);
    for _ in 0..2 {
        fresh().component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap();
    }
    assert_eq!(fake.blob_reads(), 2, "the descriptor is cached too; the tag is resolved each time");
}

#[tokio::test]
async fn damaged_layers_are_refused_by_name() {
    let (fake, registry, pushed) = pushed().await;
    fake.fault(Fault::Damage);
    let error = registry.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap_err();
    let OciError::DigestMismatch { expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!((expected, found), (&pushed.raw_manifest_digest, &Digest::of(b"damaged")));
    assert!(error.to_string().contains(expected.as_str()) && error.to_string().contains(found.as_str()));
    assert!(!error.is_retryable());
    let descriptor = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert_eq!(descriptor.metric_label(), "digest_mismatch");
    fake.fault(Fault::None);
    registry.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap();
}

#[tokio::test]
async fn a_rate_limit_stops_requests_until_its_retry_after() {
    let (fake, registry, pushed) = pushed().await;
    fake.fault(Fault::Limit);
    let error = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert_eq!((error.metric_label(), error.retry_after()), ("rate_limited", Some(Duration::from_secs(17))));
    // No further requests are sent.
    for _ in 0..100 {
        for error in [
            registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err(),
            registry.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap_err(),
        ] {
            assert_eq!(error.metric_label(), "left_alone");
            let wait = error.retry_after().unwrap();
            assert!((10..=17).contains(&wait.as_secs()), "{wait:?}");
        }
    }
    assert_eq!(fake.state.limited.load(Ordering::SeqCst), 1);
    assert_eq!(registry.open_circuits(), [fake.address.as_str()]);
    assert_eq!(fake.blob_reads(), 0, "no retry inside");
}

#[tokio::test]
async fn endless_answers_stop_at_the_limit() {
    let (fake, registry, pushed) = pushed().await;
    fake.fault(Fault::Endless);
    let error = registry.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap_err();
    assert!(matches!(error, OciError::TooLarge { limit, .. } if limit == 32 * 1024 * 1024), "{error}");
    let path = format!("/v2/component-descriptors/{COMPONENT}/manifests/1.2.3");
    fake.state.manifests.lock().insert(path, Bytes::from(vec![b' '; 1024 * 1024 + 1]));
    let error = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert!(matches!(error, OciError::TooLarge { limit, .. } if limit == 1024 * 1024), "{error}");
}

#[tokio::test]
async fn a_hanging_registry_hits_the_deadline() {
    let (fake, _, pushed) = pushed().await;
    fake.fault(Fault::Hang);
    let deadline = Duration::from_millis(50);
    let registry = registry(RegistryConfig { deadline, ..RegistryConfig::default() });
    let digest = &pushed.raw_manifest_digest;
    let (first, second) = tokio::join!(
        registry.layer(&fake.address, COMPONENT, digest),
        registry.layer(&fake.address, COMPONENT, digest)
    );
    assert!(matches!(first.unwrap_err(), OciError::Timeout { after, .. } if after == deadline));
    assert_eq!(second.unwrap_err().metric_label(), "timeout");
    let descriptor = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert_eq!(descriptor.metric_label(), "timeout");
    fake.fault(Fault::None);
    let patient = self::registry(RegistryConfig::default());
    patient.layer(&fake.address, COMPONENT, digest).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_registry_is_reported_as_unreachable() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let error = registry(RegistryConfig::default())
        .component_descriptor(&gone, COMPONENT, "1.2.3")
        .await
        .unwrap_err();
    assert_eq!(error.metric_label(), "unreachable");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn tokens_are_fetched_once_and_secrets_stay_out_of_errors() {
    let (fake, anonymous, pushed) = pushed().await;
    fake.fault(Fault::Token);
    let with = |password: &str| {
        let basic = Credentials::Basic { username: "user".to_owned(), password: password.to_owned() };
        let credentials = BTreeMap::from([(fake.address.clone(), basic)]);
        registry(RegistryConfig { credentials, ..RegistryConfig::default() })
    };
    let known = with("pass");
    known.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap();
    known.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap();
    assert_eq!(fake.state.token_reads.load(Ordering::SeqCst), 1);
    push(&known, &fake.address, &package()).await.unwrap();
    for refused in [anonymous, with("wrong-secret")] {
        let error = refused.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
        assert_eq!(error.metric_label(), "unauthorized");
        assert!(!format!("{error}{error:?}").contains("wrong-secret"));
    }
    // New credentials count at once.
    let changed = with("wrong-secret");
    let credentials = |password: &str| {
        let basic = Credentials::Basic { username: "user".to_owned(), password: password.to_owned() };
        BTreeMap::from([(fake.address.clone(), basic)])
    };
    changed.set_credentials(credentials("pass"));
    changed.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap();
    changed.set_credentials(credentials("wrong-secret"));
    let error = changed.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert_eq!(error.metric_label(), "unauthorized");
    fake.fault(Fault::EvilToken);
    let error = with("pass").component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
    assert_eq!(error.metric_label(), "malformed");
}

#[tokio::test]
async fn artifacts_other_than_components_are_refused() {
    let (fake, registry, _) = pushed().await;
    let path = format!("/v2/component-descriptors/{COMPONENT}/manifests/1.2.3");
    let original = String::from_utf8(fake.state.manifests.lock()[&path].to_vec()).unwrap();
    let swap = |from: &str, to: &str| original.replace(from, to);
    for (manifest, reason) in [
        ("{}".to_owned(), "no image manifest"),
        (swap("component.config.v1", "component.config.v9"), "no OCM component"),
        (swap("component-descriptor.v2+", "component-descriptor.v3+"), "exactly one component descriptor"),
        (swap("\"schemaVersion\":2", "\"schemaVersion\":1"), "schema version"),
    ] {
        assert_ne!(manifest, original);
        fake.state.manifests.lock().insert(path.clone(), Bytes::from(manifest));
        let error = registry.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let other = format!("/v2/component-descriptors/{COMPONENT}/manifests/1.2.4");
    fake.state.manifests.lock().insert(other, Bytes::from(original));
    let error = registry.component_descriptor(&fake.address, COMPONENT, "1.2.4").await.unwrap_err();
    assert!(error.to_string().contains("it describes example.org/module/tide:1.2.3"), "{error}");
}

#[tokio::test]
async fn tenant_registries_use_no_engine_credentials_or_cache() {
    let (fake, _, pushed) = pushed().await;
    fake.fault(Fault::Token);
    let basic = Credentials::Basic { username: "user".to_owned(), password: "pass".to_owned() };
    let config = RegistryConfig {
        credentials: BTreeMap::from([(fake.address.clone(), basic)]),
        disk: Some("cache".into()),
        ..RegistryConfig::default()
    };
    let tenants = config.for_tenants();
    assert!(tenants.disk.is_none() && tenants.memory_budget < config.memory_budget);
    let (operators, tenants) = (registry(RegistryConfig { disk: None, ..config }), registry(tenants));
    operators.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap();
    operators.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap();
    for refused in [
        tenants.component_descriptor(&fake.address, COMPONENT, "1.2.3").await.unwrap_err(),
        tenants.layer(&fake.address, COMPONENT, &pushed.raw_manifest_digest).await.unwrap_err(),
    ] {
        assert_eq!(refused.metric_label(), "unauthorized");
    }
}
