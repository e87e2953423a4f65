//! A TLS server that acts as an API server.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use super::{Ca, Leaf};

#[derive(Default)]
pub(super) struct Seen {
    pub(super) connections: AtomicUsize,
    pub(super) requests: AtomicUsize,
    pub(super) protocols: Mutex<Vec<Vec<u8>>>,
    pub(super) tokens: Mutex<Vec<String>>,
    pub(super) program: Mutex<String>,
    pub(super) client_certificates: AtomicUsize,
    pub(super) apps_gone: Mutex<bool>,
}

pub(super) struct ApiServer {
    pub(super) port: u16,
    pub(super) seen: Arc<Seen>,
    server: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ApiServer {
    pub(super) async fn start(ca: &Ca, leaf: &Leaf) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(leaf.chain.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
                seen.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let connection = stream.get_ref().1;
                    seen.protocols.lock().push(connection.alpn_protocol().unwrap_or_default().to_vec());
                    let certificates = usize::from(connection.peer_certificates().is_some());
                    seen.client_certificates.fetch_add(certificates, Ordering::SeqCst);
                    let service = service_fn(move |request| answer(Arc::clone(&seen), request));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, seen, server }
    }
}

pub(super) struct Endless;

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

const APPS: &str = r#"{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1", "resources": [
    {"name": "deployments", "singularName": "deployment", "namespaced": true, "kind": "Deployment", "verbs": ["get"]},
    {"name": "deployments/status", "singularName": "", "namespaced": true, "kind": "Deployment", "verbs": ["get"]}]}"#;
const CORE: &str = r#"{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [
    {"name": "namespaces", "singularName": "namespace", "namespaced": false, "kind": "Namespace", "verbs": ["get"]}]}"#;

async fn answer(
    seen: Arc<Seen>,
    request: Request<Incoming>,
) -> Result<Response<Either<Full<Bytes>, Endless>>, Infallible> {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let token = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    seen.tokens.lock().extend(token);
    let program = request.headers().get("user-agent").map(|value| value.to_str().unwrap().to_owned());
    *seen.program.lock() = program.unwrap_or_default();
    let text = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Either::Left(Full::from(text)));
        *response.status_mut() = status;
        response
    };
    Ok(match request.uri().path() {
        "/version" => text(StatusCode::OK, "{}"),
        "/api/v1" => text(StatusCode::OK, CORE),
        "/apis/apps/v1" if !*seen.apps_gone.lock() => text(StatusCode::OK, APPS),
        "/apis/broken.example/v1" => text(StatusCode::SERVICE_UNAVAILABLE, "no backend"),
        "/kib" => Response::new(Either::Left(Full::from(vec![b'x'; 1024]))),
        "/endless" => Response::new(Either::Right(Endless)),
        "/hang" => std::future::pending().await,
        "/busy" => {
            let mut response = text(StatusCode::TOO_MANY_REQUESTS, "try again later");
            response.headers_mut().insert("retry-after", "3".parse().unwrap());
            response
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    })
}
