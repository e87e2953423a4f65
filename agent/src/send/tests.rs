use super::{proxy::Proxy, *};
use crate::{
    digest::{Found, Memory, Shelf, Snapshot, memory},
    metrics::Metrics,
    observe::{
        condition::Conditions,
        message::{Baseline, Message},
    },
};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rustls::ServerConfig;
use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tempfile::TempDir;
use tidewatch_certs::{Ca, ClientRequest, ServerRequest};
use tidewatch_delivery::{
    backoff::Backoff,
    digest::{Digest, Section},
    names::{Listed, Names},
    outbox::{KeepNames, Key, Observation, Outbox, Present},
};
use tidewatch_drain::{Drain, Outcome};
use tidewatch_telemetry::{BuildInfo, Readiness, metrics::Registry};
use tidewatch_tls::{Files, Store, server_config};
use tidewatch_wire::{
    Epoch, ErrorBody, Route, Seq, SeqSet, SessionId,
    header_fields::{self, HeaderFields},
    limits,
    v3::{self, Change, Resume, RouteAck},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

mod capacity;
mod idle;
mod loops;
mod memory;
mod names;
mod overload;
mod reconnect;
mod refused;
mod scripted;
mod wakeups;

const VALIDITY: SignedDuration = SignedDuration::from_hours(1);

fn new_ca() -> Ca {
    Ca::create("test", VALIDITY, Timestamp::now()).unwrap()
}

struct Asked {
    connection: u64,
    request: v3::Request<'static>,
    brief: bool,
    reply: oneshot::Sender<Reply>,
}

enum Reply {
    Http(Response<Full<Bytes>>),
    Break,
}

struct Peer {
    addr: SocketAddr,
    asked: mpsc::Receiver<Asked>,
}

async fn peer(ca: &Ca) -> Peer {
    let request = ServerRequest {
        common_name: "receiver".into(),
        dns_names: vec![],
        ip_addrs: vec!["127.0.0.1".parse().unwrap()],
        validity: VALIDITY,
    };
    let own = ca.issue_server(&request, Timestamp::now()).unwrap();
    let tls =
        server_config(ca.cert_pem().as_bytes(), own.cert_pem.as_bytes(), own.key_pem.as_str().as_bytes());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (ask, asked) = mpsc::channel(100);
    tokio::spawn(accept(listener, tls.unwrap(), ask));
    Peer { addr, asked }
}

async fn accept(listener: TcpListener, tls: Arc<ServerConfig>, ask: mpsc::Sender<Asked>) {
    let mut connection = 0;
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(stream) = TlsAcceptor::from(Arc::clone(&tls)).accept(stream).await else { continue };
        connection += 1;
        let (ask, number, gone) = (ask.clone(), connection, Arc::new(tokio::sync::Notify::new()));
        let stop = Arc::clone(&gone);
        let service = service_fn(move |request| answer(request, number, ask.clone(), Arc::clone(&stop)));
        tokio::spawn(async move {
            let serve =
                http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = serve => {}
                () = gone.notified() => {}
            }
        });
    }
}

async fn answer(
    request: http::Request<Incoming>,
    connection: u64,
    ask: mpsc::Sender<Asked>,
    stop: Arc<tokio::sync::Notify>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v3/events"));
    let headers = request.headers().clone();
    let header_fields =
        HeaderFields::read(|name| headers.get(name).map(http::HeaderValue::as_bytes)).unwrap();
    let brief = header_fields.epoch.is_some();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let body = Limited::new(request.into_body(), limits::V3_BODY_BYTES).collect().await.unwrap().to_bytes();
    let mut request = serde_json::from_slice::<v3::Request<'_>>(&body).unwrap().into_owned();
    assert_eq!(request.epoch.is_nil(), brief);
    header_fields.give(&mut request);
    request.check().unwrap();
    let (reply, replied) = oneshot::channel();
    ask.send(Asked { connection, request, brief, reply }).await.unwrap();
    match replied.await {
        Ok(Reply::Http(response)) => Ok(response),
        // Keep unanswered requests open.
        Err(_) => std::future::pending().await,
        Ok(Reply::Break) => {
            stop.notify_one();
            std::future::pending().await
        }
    }
}

impl Peer {
    async fn next(&mut self) -> Asked {
        let next = tokio::time::timeout(Duration::from_secs(20), self.asked.recv()).await;
        next.expect("a request in time").expect("a running server")
    }
}

impl Asked {
    fn seqs(&self) -> Vec<u64> {
        self.request.events.iter().map(|event| event.seq.0).collect()
    }

    fn is_poll_for(&self, seqs: &[u64]) -> bool {
        let awaiting = seqs.iter().map(|seq| Seq(*seq)).collect::<SeqSet>();
        self.request.poll && self.request.events.is_empty() && self.request.awaiting == awaiting
    }

    fn answer(self, change: impl FnOnce(&mut v3::Response)) {
        let mut response = v3::Response::new(self.request.epoch, SessionId::from_bits(7));
        change(&mut response);
        let session = response.session.to_string();
        if self.brief && response.epoch == self.request.epoch {
            (response.epoch, response.session) = (Epoch::default(), SessionId::default());
        }
        let body = serde_json::to_vec(&response).unwrap();
        let response = Response::builder().header(header_fields::SESSION, session);
        assert!(self.reply.send(Reply::Http(response.body(Full::new(body.into())).unwrap())).is_ok());
    }

    /// As without header support.
    fn answer_in_full(self, seqs: &[u64]) {
        let response = v3::Response {
            acks: acks(seqs),
            ..v3::Response::new(self.request.epoch, SessionId::from_bits(7))
        };
        let body = serde_json::to_vec(&response).unwrap();
        assert!(self.reply.send(Reply::Http(Response::new(Full::new(body.into())))).is_ok());
    }

    fn held(self) {
        self.answer(|_| ());
    }

    fn done(self, seqs: &[u64]) {
        self.answer(|response| response.acks = acks(seqs));
    }

    fn fail(self, status: StatusCode) {
        let body = ErrorBody { error: "no".into(), message: "not now".into() };
        let body = Full::new(serde_json::to_vec(&body).unwrap().into());
        let mut response = Response::new(body);
        *response.status_mut() = status;
        assert!(self.reply.send(Reply::Http(response)).is_ok());
    }

    fn break_connection(self) {
        assert!(self.reply.send(Reply::Break).is_ok());
    }
}

fn acks(seqs: &[u64]) -> Vec<RouteAck> {
    let done = seqs.iter().map(|seq| Seq(*seq)).collect();
    vec![RouteAck { route: Route::engine(), done, refused: SeqSet::new() }]
}

struct Agent {
    changes: mpsc::Sender<Message>,
    control: mpsc::Sender<Control>,
    progress: Arc<Mutex<Progress>>,
    registry: Registry,
    readiness: Readiness,
    files: Files,
    connector: Connector,
    resume: watch::Sender<u64>,
    baseline: watch::Receiver<Baseline>,
    _dir: TempDir,
    drain: Drain,
}

/// `ca` issued the agent's certificate.
async fn agent(addr: SocketAddr, trust: &Ca, ca: &Ca, max_dirty: usize) -> Agent {
    agent_with(addr, trust, ca, None, |_, settings| settings.max_dirty = max_dirty).await
}

async fn target(addr: SocketAddr, trust: &Ca, ca: &Ca) -> (TempDir, Target) {
    let dir = tempfile::tempdir().unwrap();
    let files =
        Files { ca: dir.path().join("ca"), cert: dir.path().join("cert"), key: dir.path().join("key") };
    write(&files, trust.cert_pem(), ca, Timestamp::now());
    let tls = Store::client(&files.read().await.unwrap(), Timestamp::now()).unwrap();
    (
        dir,
        Target {
            host: addr.ip().to_string(),
            port: addr.port(),
            proxy: None,
            tls: Some(tls),
            source: files.into(),
        },
    )
}

async fn agent_with(
    addr: SocketAddr,
    trust: &Ca,
    ca: &Ca,
    memory: Option<Memory>,
    change: impl FnOnce(&mut Target, &mut Settings),
) -> Agent {
    let (dir, mut target) = target(addr, trust, ca).await;
    let Source::Files(files) = target.source.clone() else { unreachable!("the target has files") };
    let mut settings = settings();
    change(&mut target, &mut settings);
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let connector = Connector::new(target, Duration::from_secs(10), Timestamp::now, metrics.clone()).unwrap();
    let (resume, resumed) = watch::channel(0);
    let outbox = Outbox::new(Epoch::random(), BTreeMap::new());
    let (changes, taken) = mpsc::channel(8);
    let (control, controlled) = mpsc::channel(1);
    let (drain, readiness) = (Drain::new(), Readiness::new());
    let guard = readiness.register("receiver");
    let sender =
        Sender::new(outbox, taken, connector.clone(), settings, metrics, Timestamp::now, guard, resumed)
            .controlled_by(controlled);
    let sender = match memory {
        Some(memory) => sender.with_memory(memory, KeepNames::OfOthers),
        None => sender,
    };
    let (progress, baseline) = (sender.progress(), sender.baseline());
    drain.spawn("sender", sender.run(drain.watch()));
    Agent {
        changes,
        control,
        progress,
        baseline,
        registry,
        readiness,
        files,
        connector,
        resume,
        _dir: dir,
        drain,
    }
}

fn write(files: &Files, trust: &str, ca: &Ca, issued: Timestamp) {
    let request = ClientRequest {
        runtime_id: "runtime-1".into(),
        dns_names: vec![],
        organizations: vec![],
        validity: VALIDITY,
    };
    let own = ca.issue_client(&request, issued).unwrap();
    std::fs::write(&files.ca, trust).unwrap();
    std::fs::write(&files.cert, &own.cert_pem).unwrap();
    std::fs::write(&files.key, own.key_pem.as_str()).unwrap();
}

fn settings() -> Settings {
    let backoff = Backoff { base: Duration::from_millis(5), max: Duration::from_millis(50) };
    let window = Window { first: backoff.base, max: backoff.max };
    Settings {
        backoff,
        spread: Spread { calm: window, urgent: window },
        heartbeat: Duration::from_mins(10),
        max_dirty: 100,
        store: Duration::from_millis(20),
        ..Settings::default()
    }
}

impl Agent {
    async fn see(&self, name: &str) {
        self.changes.send(observation(name).into()).await.unwrap();
    }

    async fn until(&self, state: &str, condition: impl Fn(&Progress) -> bool) {
        let wait = async {
            while !condition(&self.progress.lock()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(state);
    }

    async fn reload(&self) {
        self.connector.to.material.reload().await;
    }

    async fn until_metric(&self, line: &str) {
        let wait = async {
            while !self.registry.encode().unwrap().lines().any(|l| l == line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(line);
    }

    fn metric(&self, line: &str) {
        let text = self.registry.encode().unwrap();
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
}

fn observation(name: &str) -> Observation {
    Observation {
        key: Key { watch: "w".into(), namespace: "n".into(), name: name.into() },
        group: "g.example".into(),
        version: "v1".into(),
        kind: "Thing".into(),
        uid: "u".into(),
        resource_version: "1".into(),
        change: Change::Changed,
        listed: false,
        at: Timestamp::now(),
    }
}

#[tokio::test]
async fn events_are_resent_until_acknowledged_on_one_connection() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    let hello = peer.next().await;
    assert!(hello.seqs().is_empty() && hello.request.session.is_none(), "a new connection is tried at once");
    assert_eq!(agent.readiness.unready(), ["receiver"]);
    hello.held();
    agent.until("readiness", |_| agent.readiness.unready().is_empty()).await;

    agent.see("a").await;
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS, StatusCode::NOT_FOUND] {
        let asked = peer.next().await;
        assert_eq!(asked.seqs(), [1]);
        asked.fail(status);
    }
    let asked = peer.next().await;
    assert_eq!((asked.seqs(), asked.request.session), (vec![1], Some(SessionId::from_bits(7))));
    asked.held();
    let asked = peer.next().await;
    assert!(asked.is_poll_for(&[1]), "received is not reconciled");
    asked.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0 && p.last_acknowledged == 1).await;

    for seq in 2..=30 {
        agent.see("a").await;
        let asked = peer.next().await;
        assert_eq!((asked.seqs(), asked.connection), (vec![seq], 1));
        asked.done(&[seq]);
        agent.until("the acknowledgement", |p| p.dirty == 0 && p.last_acknowledged == seq).await;
    }
    agent.metric("t_connections_total 1");
    agent.metric("t_batches_sent_total 30");
    agent.metric("t_events_acknowledged_total 30");
    agent.metric("t_send_failures_total{reason=\"status_5xx\",what=\"batch\"} 1");
    agent.metric("t_send_failures_total{reason=\"status_429\",what=\"batch\"} 1");
    agent.metric("t_send_failures_total{reason=\"status_4xx\",what=\"batch\"} 1");
    agent.metric("t_observed_to_acknowledged_seconds_count 30");
    agent.metric("t_dirty_keys 0");
}

#[tokio::test]
async fn a_connection_with_a_refused_certificate_is_replaced() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    peer.next().await.fail(StatusCode::FORBIDDEN);
    let again = peer.next().await;
    assert_eq!(again.connection, 2, "the certificate belongs to the connection");
    again.held();
    agent.until("a connection", |p| p.connected).await;
}

#[tokio::test]
async fn an_answer_for_another_epoch_is_ignored() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    peer.next().await.answer(|response| {
        response.epoch = Epoch::from_bits(99);
        response.acks = acks(&[1]);
    });
    let again = peer.next().await;
    assert_eq!(again.seqs(), [1], "not let go, and sent again");
    again.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    agent.metric("t_send_failures_total{reason=\"other_epoch\",what=\"batch\"} 1");
}

#[tokio::test]
async fn a_poll_is_reopened_for_later_numbers() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    peer.next().await.held();
    let open = peer.next().await;
    assert!(open.is_poll_for(&[1]));
    agent.see("b").await;
    let batch = peer.next().await;
    assert_eq!(batch.seqs(), [2], "a batch does not wait for the poll");
    batch.held();
    let poll = peer.next().await;
    assert!(poll.is_poll_for(&[1, 2]));
    poll.done(&[1, 2]);
    agent.until("the acknowledgements", |p| p.dirty == 0).await;
    agent.metric("t_connections_total 1");
    drop(open);
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_events_are_resent() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    peer.next().await.break_connection();
    let asked = peer.next().await;
    assert_eq!((asked.seqs(), asked.connection), (vec![1], 2));
    asked.held();
    peer.next().await.break_connection();
    let asked = peer.next().await;
    assert!(asked.is_poll_for(&[1]) && asked.connection == 3, "what was sent is asked for");
    asked.answer(|response| response.unknown = [Seq(1)].into_iter().collect());
    let asked = peer.next().await;
    assert_eq!(asked.seqs(), [1], "and sent again when it is not known");
    asked.answer(|response| response.session = SessionId::from_bits(8));
    let asked = peer.next().await;
    assert_eq!(asked.seqs(), [1], "and again to another session");
    asked.answer(|response| (response.session, response.acks) = (SessionId::from_bits(8), acks(&[1])));
    agent.until("the acknowledgement", |p| p.dirty == 0 && p.session == Some(SessionId::from_bits(8))).await;
}

#[tokio::test]
async fn the_receivers_retry_after_is_honoured() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    let asked = peer.next().await;
    let answered = Instant::now();
    asked.answer(|response| (response.acks, response.retry_after_ms) = (acks(&[1]), Some(300)));
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    agent.see("b").await;
    assert_eq!(peer.next().await.seqs(), [2]);
    assert!(answered.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn an_untrusted_receiver_gets_nothing_until_the_files_change() {
    let (ca, other) = (new_ca(), new_ca());
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &other, &ca, 100).await;
    agent.see("a").await;
    agent.until("a failure", |p| p.last_error.contains("unknown_ca")).await;
    assert!(!agent.progress.lock().connected);
    std::fs::write(&agent.files.ca, ca.cert_pem()).unwrap();
    let asked = peer.next().await;
    assert_eq!((asked.seqs(), asked.connection), (vec![1], 1));
    asked.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0 && p.last_error.is_empty()).await;
}

#[tokio::test]
async fn a_full_dirty_set_blocks_watches_until_an_acknowledgement() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 1).await;
    agent.see("a").await;
    let hello_or_batch = peer.next().await;
    let batch = if hello_or_batch.seqs().is_empty() {
        hello_or_batch.held();
        peer.next().await
    } else {
        hello_or_batch
    };
    assert_eq!(batch.seqs(), [1]);
    for n in 0..8 {
        agent.see(&format!("b{n}")).await;
    }
    assert!(agent.changes.try_send(observation("one too many").into()).is_err(), "the watches wait");
    batch.done(&[1]);
    agent.until("the rest to be taken", |p| p.last_observed == 9).await;
}

#[tokio::test]
async fn events_of_a_removed_watch_are_released() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 1).await;
    agent.see("sent").await;
    let asked = peer.next().await;
    assert_eq!(asked.seqs(), [1]);
    asked.held();
    let mut other = observation("kept");
    other.key.watch = "other".into();
    agent.changes.send(other.into()).await.unwrap();
    // Both stay in the channel, as the set is full.
    agent.see("late").await;
    let (done, dropped) = oneshot::channel();
    let watch = observation("").key.watch.to_string();
    let control = Control { routes: BTreeMap::new(), complete: None, forget: vec![watch], done };
    agent.control.send(control).await.unwrap();
    assert_eq!(dropped.await.unwrap(), 2);
    agent.until("only the other watch's key is left", |progress| progress.dirty == 1).await;
}
