//! An aggregated API server behind an `APIService`. It serves a group without kinds.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use tidewatch_certs::{Ca, ServerRequest};
use tidewatch_tls::provider;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// The running server. Dropping it ends it.
#[derive(Debug)]
pub struct Aggregated {
    /// The port on `localhost`. No client can verify its certificate.
    pub port: u16,
    serves: Arc<AtomicBool>,
    _accepting: JoinSet<()>,
}

impl Aggregated {
    /// Starts a server that answers 503 to every request.
    ///
    /// # Errors If it cannot listen on 127.0.0.1.
    pub async fn start(group: &str) -> Result<Self> {
        let tls = TlsAcceptor::from(Arc::new(config()?));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot bind 127.0.0.1")?;
        let port = listener.local_addr()?.port();
        let serves = Arc::<AtomicBool>::default();
        let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"), "resources": []});
        let (told, body) = (Arc::clone(&serves), Bytes::from(resources.to_string()));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (tls, told, body) = (tls.clone(), Arc::clone(&told), body.clone());
                let service = service_fn(move |_| {
                    let mut answer = Response::new(Full::new(body.clone()));
                    answer
                        .headers_mut()
                        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
                    if !told.load(Ordering::SeqCst) {
                        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    }
                    async move { Ok::<_, Infallible>(answer) }
                });
                connections.spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                    }
                });
            }
        });
        Ok(Self { port, serves, _accepting: accepting })
    }

    /// Starts serving the group.
    pub fn serve(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }
}

fn config() -> Result<ServerConfig> {
    let now = Timestamp::now();
    let validity = SignedDuration::from_hours(24);
    let request = ServerRequest {
        common_name: "aggregated".to_owned(),
        dns_names: vec!["localhost".to_owned()],
        ip_addrs: Vec::new(),
        validity,
    };
    let issued = Ca::create("aggregated", validity, now)?.issue_server(&request, now)?;
    let chain = CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_str().as_bytes())?;
    Ok(ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?)
}
