//! Certificates and an agent.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use rustls::{ClientConfig, pki_types::ServerName};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tidewatch_tls::{Files, Pem, Store};
use tidewatch_wire::{
    Epoch, Seq,
    v3::{self, Change, Event, Response},
};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

pub(crate) const RUNTIME: &str = "runtime-anchor";
pub(crate) const DOMAIN: &str = "anchor.example.org";
const MAX_ANSWER: usize = 1024 * 1024;
const VALIDITY: SignedDuration = SignedDuration::from_hours(1);

pub(crate) async fn certificates(folder: &Path) -> Result<(Files, Pem)> {
    let now = Timestamp::now();
    let ca = Ca::create("example CA", VALIDITY, now)?;
    let server = ServerRequest {
        common_name: "listener".to_owned(),
        dns_names: vec!["localhost".to_owned()],
        ip_addrs: Vec::new(),
        validity: VALIDITY,
    };
    let agent = ClientRequest {
        runtime_id: RUNTIME.to_owned(),
        dns_names: vec![DOMAIN.to_owned()],
        organizations: Vec::new(),
        validity: VALIDITY,
    };
    let server = ca.issue_server(&server, now)?;
    let Issued { cert_pem, key_pem, .. } = ca.issue_client(&agent, now)?;
    let files = Files { ca: folder.join("ca"), cert: folder.join("cert"), key: folder.join("key") };
    tokio::fs::write(&files.ca, ca.cert_pem()).await?;
    tokio::fs::write(&files.cert, &server.cert_pem).await?;
    tokio::fs::write(&files.key, server.key_pem.as_str()).await?;
    let agent = Pem { ca: ca.cert_pem().into(), cert: cert_pem.into(), key: key_pem.as_str().into() };
    Ok((files, agent))
}

pub(crate) fn request(epoch: Epoch, names: &[&str], poll: bool) -> v3::Request<'static> {
    let event = |(name, seq): (&&str, u64)| Event {
        seq: Seq(seq),
        watch: "configuration".into(),
        group: "".into(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "default".into(),
        name: (*name).to_owned().into(),
        uid: "".into(),
        resource_version: "".into(),
        change: Change::Changed,
        listed: false,
        observed_at: Timestamp::now(),
    };
    let events: Vec<_> = names.iter().zip(1..).map(event).collect();
    let awaiting = events.iter().map(|e| e.seq).collect();
    v3::Request { events: if poll { Vec::new() } else { events }, awaiting, poll, ..v3::Request::new(epoch) }
}

pub(crate) struct Agent {
    sender: http1::SendRequest<Full<Bytes>>,
    // Drives the connection; ends with it.
    _driver: JoinSet<()>,
}

impl Agent {
    pub(crate) async fn connect(address: SocketAddr, pem: &Pem) -> Result<Self> {
        let tls = Store::<ClientConfig>::client(pem, Timestamp::now())?;
        // HTTP/1.1 is sufficient; the store prefers HTTP/2.
        let mut config = (*tls.current()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tcp = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost")?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        // The pending request reports errors.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { sender, _driver: driver })
    }

    #[allow(clippy::disallowed_methods, reason = "the body is limited here")]
    pub(crate) async fn post(&mut self, request: &v3::Request<'_>) -> Result<Response> {
        let body = Full::new(Bytes::from(serde_json::to_vec(request)?));
        let request = Request::post(v3::PATH).header(HOST, "localhost").body(body)?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|e| anyhow::anyhow!(e))?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }
}
