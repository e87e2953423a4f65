//! Connection limits on a real port.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's helpers fail the test")]

mod http2_caps;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, StatusCode,
    body::{Frame, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rustls::{ClientConfig, pki_types::ServerName};
use tempfile::TempDir;
use tidewatch_certs::{Ca, ClientRequest, ServerRequest};
use tidewatch_drain::Drain;
use tidewatch_listener::{Events, Limits, Listener, Rate, RuntimeLookup};
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tidewatch_tls::{Files, Pem, Store, client_config};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const VALIDITY: SignedDuration = SignedDuration::from_hours(1);
const DOMAIN: &str = "a.example";
const HANG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(500);

struct Bench {
    addr: SocketAddr,
    ca: Ca,
    registry: Registry,
    _events: Events,
    _drain: Drain,
    _dir: TempDir,
}

type Sent = BoxBody<Bytes, std::convert::Infallible>;

struct Connection {
    requests: http2::SendRequest<Sent>,
    driver: JoinHandle<()>,
}

async fn bench(limits: Limits) -> Bench {
    let ca = Ca::create("test", VALIDITY, Timestamp::now()).unwrap();
    let request = ServerRequest {
        common_name: "listener".into(),
        dns_names: vec!["localhost".into()],
        ip_addrs: vec![],
        validity: VALIDITY,
    };
    let own = ca.issue_server(&request, Timestamp::now()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let files =
        Files { ca: dir.path().join("ca"), cert: dir.path().join("cert"), key: dir.path().join("key") };
    std::fs::write(&files.ca, ca.cert_pem()).unwrap();
    std::fs::write(&files.cert, &own.cert_pem).unwrap();
    std::fs::write(&files.key, own.key_pem.as_str()).unwrap();
    let tls = Arc::new(Store::server(&files.read().await.unwrap(), Timestamp::now()).unwrap());
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let lookup =
        |_: &str| RuntimeLookup::One { kyma: "k".into(), domain: Some(DOMAIN.into()), registered: None };
    let drain = Drain::new();
    let listener =
        Listener::new("127.0.0.1:0".parse().unwrap(), tls, lookup).limits(limits).metrics(&registry);
    let (addr, events) = listener.start(&drain).await.unwrap();
    Bench { addr, ca, registry, _events: events, _drain: drain, _dir: dir }
}

impl Bench {
    fn identity(&self, id: &str, validity: SignedDuration) -> Arc<ClientConfig> {
        let request = ClientRequest {
            runtime_id: id.into(),
            dns_names: vec![DOMAIN.into()],
            organizations: vec![],
            validity,
        };
        let own = self.ca.issue_client(&request, Timestamp::now()).unwrap();
        let pem = Pem {
            ca: self.ca.cert_pem().into(),
            cert: own.cert_pem.clone().into(),
            key: own.key_pem.as_str().into(),
        };
        client_config(&pem.ca, &pem.cert, &pem.key).unwrap()
    }

    async fn connect(&self, id: &str) -> Connection {
        self.connect_as(self.identity(id, VALIDITY)).await
    }

    async fn connect_as(&self, identity: Arc<ClientConfig>) -> Connection {
        self.connect_from("127.0.0.1", identity).await
    }

    async fn tls_from(&self, address: &str, identity: Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        let stream = socket.connect(self.addr).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(identity).connect(name, stream).await.unwrap()
    }

    async fn connect_from(&self, address: &str, identity: Arc<ClientConfig>) -> Connection {
        let connect = async {
            let stream = self.tls_from(address, identity).await;
            let (requests, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            let driver = tokio::spawn(async move {
                let _ = connection.await;
            });
            Connection { requests, driver }
        };
        tokio::time::timeout(HANG, connect).await.expect("a connection")
    }

    fn shows(&self, line: &str) -> bool {
        self.registry.encode().unwrap().lines().any(|l| l == line)
    }

    async fn until(&self, line: &str) {
        let wait = async {
            while !self.shows(line) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG, wait)
            .await
            .unwrap_or_else(|_| panic!("{line} in {}", self.registry.encode().unwrap()));
    }
}

impl Connection {
    async fn ask(&mut self) -> hyper::Result<hyper::Response<Incoming>> {
        let body = format!("{{\"epoch\":\"{}\",\"awaiting\":[]}}", "1".repeat(32));
        self.post(Full::new(body.into()).boxed()).await
    }

    async fn post(&mut self, body: Sent) -> hyper::Result<hyper::Response<Incoming>> {
        let request = Request::post("https://localhost/v3/events").body(body).unwrap();
        self.requests.ready().await?;
        let answer = tokio::time::timeout(HANG, self.requests.send_request(request)).await;
        answer.expect("an answer in time")
    }

    fn begin(&mut self) -> JoinHandle<()> {
        let begun = futures::stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
        let body = StreamBody::new(futures::StreamExt::chain(begun, futures::stream::pending())).boxed();
        let request = Request::post("https://localhost/v3/events").body(body).unwrap();
        let answer = self.requests.send_request(request);
        tokio::spawn(async move {
            let _ = answer.await;
        })
    }

    async fn status(&mut self) -> StatusCode {
        self.ask().await.unwrap().status()
    }

    async fn ended(self) {
        tokio::time::timeout(HANG, self.driver).await.expect("the end of the connection").unwrap();
    }
}

#[tokio::test]
async fn the_oldest_connection_of_an_identity_is_ended() {
    let bench = bench(Limits { per_identity: 2, ..Limits::default() }).await;
    let mut first = bench.connect("one").await;
    assert_eq!(first.status().await, StatusCode::OK);
    let mut other = bench.connect("two").await;
    let mut second = bench.connect("one").await;
    assert_eq!(second.status().await, StatusCode::OK);
    let mut third = bench.connect("one").await;
    assert_eq!(third.status().await, StatusCode::OK);
    first.ended().await;
    bench.until("t_connections_ended_total{reason=\"superseded\"} 1").await;
    for connection in [&mut second, &mut third, &mut other] {
        assert_eq!(connection.status().await, StatusCode::OK);
    }
    bench.until("t_connections 3").await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_ends() {
    let bench = bench(Limits { connections: 1, ..Limits::default() }).await;
    let first = bench.connect("one").await;
    let ((), ()) = tokio::join!(
        async {
            let mut second = bench.connect("two").await;
            assert_eq!(second.status().await, StatusCode::OK);
        },
        async {
            bench.until("t_connections 1").await;
            first.driver.abort();
            drop(first.requests);
        }
    );
}

#[tokio::test]
async fn a_stalled_handshake_blocks_others_until_its_deadline() {
    let bench = bench(Limits { handshakes: 1, handshake: SHORT, ..Limits::default() }).await;
    let _silent = TcpStream::connect(bench.addr).await.unwrap();
    bench.until("t_connections 1").await;
    assert_eq!(bench.connect("one").await.status().await, StatusCode::OK);
    assert!(bench.shows("t_handshake_failures_total{reason=\"timeout\"} 1"), "the silent one was first");
}

#[tokio::test]
async fn silent_connections_of_one_address_leave_room_for_others() {
    // No timeout during the test.
    let bench = bench(Limits { handshakes: 4, handshake: HANG * 3, ..Limits::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(TcpStream::connect(bench.addr).await.unwrap());
    }
    bench.until("t_handshake_failures_total{reason=\"address_share\"} 4").await;
    let closed = tokio::time::timeout(HANG, silent[5].read(&mut [0])).await.expect("closed at once");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let identity = bench.identity("one", VALIDITY);
    let mut other = bench.connect_from("127.0.0.2", identity).await;
    assert_eq!(other.status().await, StatusCode::OK);

    // The address is accepted again.
    silent.clear();
    bench.until("t_connections 1").await;
    assert_eq!(bench.connect("two").await.status().await, StatusCode::OK);
}

#[tokio::test]
async fn a_connection_without_requests_is_ended() {
    let bench = bench(Limits { headers: SHORT, ..Limits::default() }).await;
    bench.connect("one").await.ended().await;
    assert!(bench.shows("t_connections_ended_total{reason=\"no_request\"} 1"));
}

#[tokio::test]
async fn an_idle_connection_is_ended() {
    let bench = bench(Limits { idle: SHORT, ..Limits::default() }).await;
    let mut connection = bench.connect("one").await;
    assert_eq!(connection.status().await, StatusCode::OK);
    connection.ended().await;
    assert!(bench.shows("t_connections_ended_total{reason=\"idle\"} 1"));
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let bench = bench(Limits::default()).await;
    let mut connection = bench.connect_as(bench.identity("one", SignedDuration::from_secs(3))).await;
    assert_eq!(connection.status().await, StatusCode::OK);
    connection.ended().await;
    assert!(bench.shows("t_connections_ended_total{reason=\"certificate_expired\"} 1"));
}

#[tokio::test]
async fn unfinished_bodies_of_one_runtime_do_not_block_others() {
    // No timeout during the test.
    let limits =
        Limits { bodies: 8, per_identity: 2, body: HANG * 3, farewell: HANG * 3, ..Limits::default() };
    let bench = bench(limits).await;
    let (mut kept, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut connection = bench.connect("one").await;
        for _ in 0..4 {
            connection.requests.ready().await.unwrap();
            answers.push(connection.begin());
        }
        kept.push(connection);
    }
    // Half stay free. Superseded connections count.
    bench.until("t_throttled_requests_total{limit=\"bodies_by_runtime\"} 12").await;
    bench.until("t_connections_ended_total{reason=\"superseded\"} 2").await;
    assert_eq!(bench.connect("two").await.status().await, StatusCode::OK);
    answers.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn too_many_requests_get_a_retry_after() {
    let rate = Rate { per_second: 0.01, burst: 2.0 };
    let bench = bench(Limits { requests: rate, ..Limits::default() }).await;
    let mut connection = bench.connect("one").await;
    assert_eq!((connection.status().await, connection.status().await), (StatusCode::OK, StatusCode::OK));
    let answer = connection.ask().await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((90..=100).contains(&wait), "{wait}");
    assert!(bench.shows("t_throttled_requests_total{limit=\"requests\"} 1"));
    assert_eq!(bench.connect("two").await.status().await, StatusCode::OK, "another runtime has its own rate");
}

#[tokio::test]
async fn constant_fields_are_accepted_in_headers() {
    let bench = bench(Limits::default()).await;
    let mut connection = bench.connect("one").await;
    let full = connection.ask().await.unwrap();
    assert!(full.headers().get("date").is_none(), "it would be another one in each answer");
    let session = full.headers()["tidewatch-session"].to_str().unwrap().to_owned();
    let full = body(full).await;
    assert!(full.contains("\"epoch\"") && full.contains(&session), "{full}");

    let brief = |epoch: &str| {
        Request::post("https://localhost/v3/events")
            .header("tidewatch-epoch", epoch)
            .header("tidewatch-session", &session)
            .header("tidewatch-configuration", "c")
            .body(Full::new(Bytes::from_static(b"{}")).boxed())
            .unwrap()
    };
    let answer = connection.requests.send_request(brief(&"1".repeat(32))).await.unwrap();
    assert_eq!(
        (answer.status(), answer.headers()["tidewatch-session"].to_str().unwrap()),
        (StatusCode::OK, &*session)
    );
    assert_eq!(body(answer).await, "{}");

    let answer = connection.requests.send_request(brief("one")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let without_epoch = connection.post(Full::new(Bytes::from_static(b"{}")).boxed()).await.unwrap();
    assert_eq!(without_epoch.status(), StatusCode::BAD_REQUEST, "an epoch is needed");
}

async fn body(answer: hyper::Response<Incoming>) -> String {
    #[allow(clippy::disallowed_methods, reason = "our own answer")]
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.into()).unwrap()
}
