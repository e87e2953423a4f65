use super::*;
use crate::{
    digest::{Memory, Snapshot},
    metrics::Metrics,
    observe::{
        condition::Conditions,
        told::{Baseline, Told},
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
    outbox::{Key, Observation, Outbox},
};
use tidewatch_drain::{Drain, Outcome};
use tidewatch_telemetry::{BuildInfo, Readiness, metrics::Registry};
use tidewatch_tls::{Files, Store, server_config};
use tidewatch_wire::{
    Epoch, ErrorBody, Route, Seq, SeqSet, SessionId, limits,
    v3::{self, Change, Resume, RouteAck},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

const VALIDITY: SignedDuration = SignedDuration::from_hours(1);

fn new_ca() -> Ca {
    Ca::create("test", VALIDITY, Timestamp::now()).unwrap()
}

/// A request that waits for what the test answers.
struct Asked {
    connection: u64,
    request: v3::Request,
    reply: oneshot::Sender<Reply>,
}

enum Reply {
    Http(Response<Full<Bytes>>),
    Break,
}

/// A receiver whose every answer is given by the test.
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
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let body = Limited::new(request.into_body(), limits::V3_BODY_BYTES).collect().await.unwrap().to_bytes();
    let request: v3::Request = serde_json::from_slice(&body).unwrap();
    request.check().unwrap();
    let (reply, replied) = oneshot::channel();
    ask.send(Asked { connection, request, reply }).await.unwrap();
    match replied.await {
        Ok(Reply::Http(response)) => Ok(response),
        // A test that does not answer keeps the request open.
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

/// A sender at work.
struct Agent {
    changes: mpsc::Sender<Told>,
    progress: Arc<Mutex<Progress>>,
    registry: Registry,
    readiness: Readiness,
    files: Files,
    baseline: watch::Receiver<Baseline>,
    _dir: TempDir,
    drain: Drain,
}

/// `trust` is what the agent believes; `ca` issued its certificate.
async fn agent(addr: SocketAddr, trust: &Ca, ca: &Ca, max_dirty: usize) -> Agent {
    agent_with(addr, trust, ca, max_dirty, None).await
}

async fn agent_with(
    addr: SocketAddr,
    trust: &Ca,
    ca: &Ca,
    max_dirty: usize,
    memory: Option<Memory>,
) -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let files =
        Files { ca: dir.path().join("ca"), cert: dir.path().join("cert"), key: dir.path().join("key") };
    let request = ClientRequest {
        runtime_id: "runtime-1".into(),
        dns_names: vec![],
        organizations: vec![],
        validity: VALIDITY,
    };
    let own = ca.issue_client(&request, Timestamp::now()).unwrap();
    std::fs::write(&files.ca, trust.cert_pem()).unwrap();
    std::fs::write(&files.cert, &own.cert_pem).unwrap();
    std::fs::write(&files.key, own.key_pem.as_str()).unwrap();
    let tls = Store::client(&files.read().await.unwrap().0, Timestamp::now()).unwrap();
    let target = Target { host: addr.ip().to_string(), port: addr.port(), tls, files: files.clone() };
    let connector = Connector::new(target, Duration::from_secs(10), Timestamp::now);

    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let backoff = Backoff { base: Duration::from_millis(5), max: Duration::from_millis(50) };
    let settings = Settings {
        backoff,
        heartbeat: Duration::from_mins(10),
        max_dirty,
        store: Duration::from_millis(20),
        ..Settings::default()
    };
    let outbox = Outbox::new(Epoch::random(), BTreeMap::new());
    let (changes, taken) = mpsc::channel(8);
    let (drain, readiness) = (Drain::new(), Readiness::new());
    let guard = readiness.register("receiver");
    let sender = Sender::new(outbox, taken, connector, settings, metrics, Timestamp::now, guard);
    let sender = match memory {
        Some(memory) => sender.with_memory(memory),
        None => sender,
    };
    let (progress, baseline) = (sender.progress(), sender.baseline());
    drain.spawn("sender", sender.run(drain.watch()));
    Agent { changes, progress, baseline, registry, readiness, files, _dir: dir, drain }
}

impl Agent {
    async fn see(&self, name: &str) {
        self.changes.send(observation(name).into()).await.unwrap();
    }

    async fn until(&self, what: &str, condition: impl Fn(&Progress) -> bool) {
        let wait = async {
            while !condition(&self.progress.lock()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(what);
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
        at: Timestamp::now(),
    }
}

#[tokio::test]
async fn sent_again_until_acknowledged_on_one_connection() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    let hello = peer.next().await;
    assert!(hello.seqs().is_empty() && hello.request.session.is_none(), "a new connection is tried at once");
    assert_eq!(agent.readiness.unready(), ["receiver"]);
    hello.held();
    agent.until("readiness", |_| agent.readiness.unready().is_empty()).await;

    agent.see("a").await;
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS, StatusCode::FORBIDDEN] {
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
async fn a_poll_is_opened_anew_for_later_numbers() {
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
async fn a_broken_connection_is_made_again_and_all_is_sent() {
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
async fn the_receivers_wish_for_a_pause_is_honoured() {
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
async fn a_distrusted_receiver_gets_nothing_until_the_files_change() {
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
async fn a_full_dirty_set_takes_no_more_until_something_is_let_go() {
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

/// The other end of a sender's memory.
struct Kept {
    found: oneshot::Sender<Option<Snapshot>>,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    stored: watch::Sender<Option<u64>>,
}

fn memory() -> (Memory, Kept) {
    let (tell_found, found) = oneshot::channel();
    let (snapshots, take) = watch::channel(None);
    let (tell_stored, stored) = watch::channel(None);
    (Memory { found, snapshots, stored }, Kept { found: tell_found, snapshots: take, stored: tell_stored })
}

fn left_behind() -> Snapshot {
    let mut digest = Digest::new();
    digest.insert("w", Section { stale: 0, ..Section::unknown(1, "v1", "Thing") });
    (Resume { session: SessionId::from_bits(7), epoch: Epoch::from_bits(1), serial: 5 }, digest)
}

/// The next digest to store with this serial.
async fn given(snapshots: &mut watch::Receiver<Option<Arc<Snapshot>>>, serial: u64) -> Arc<Snapshot> {
    let is = |snapshot: &Option<Arc<Snapshot>>| snapshot.as_ref().is_some_and(|s| s.0.serial == serial);
    let given = tokio::time::timeout(Duration::from_secs(20), snapshots.wait_for(is)).await;
    given.unwrap().unwrap().clone().unwrap()
}

#[tokio::test]
async fn a_digest_is_claimed_kept_and_declared() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (memory, kept) = memory();
    let mut agent = agent_with(peer.addr, &ca, &ca, 100, Some(memory)).await;
    agent.until("a connection", |p| p.connected).await;
    agent.see("early").await;
    assert_eq!(agent.baseline.borrow().round, 0, "nothing is known yet");
    let Kept { found, mut snapshots, stored } = kept;
    found.send(Some(left_behind())).unwrap();
    let hello = peer.next().await;
    assert_eq!(
        (hello.seqs(), hello.request.resume),
        (vec![], Some(left_behind().0)),
        "no event before the answer"
    );
    hello.fail(StatusCode::SERVICE_UNAVAILABLE);
    let hello = peer.next().await;
    assert_eq!(hello.request.resume, Some(left_behind().0), "and again until it is answered");
    hello.held();
    agent.baseline.wait_for(|baseline| baseline.round == 1).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, left_behind().1);
    let batch = peer.next().await;
    assert_eq!((batch.seqs(), batch.request.resume), (vec![1], None));
    batch.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;

    // Stored, then declared at once.
    let first = given(&mut snapshots, 1).await;
    assert_eq!((first.0.session, &first.1), (SessionId::from_bits(7), &left_behind().1));
    stored.send_replace(Some(1));
    let heartbeat = peer.next().await;
    assert_eq!((heartbeat.seqs(), heartbeat.request.digest), (vec![], Some(1)));
    heartbeat.answer(|response| {
        response.resync = true;
        response.session = SessionId::from_bits(8);
    });
    agent.baseline.wait_for(|baseline| baseline.round == 2).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, Digest::new(), "everything is reported");

    // At the end the digest is stored and declared once more.
    agent.see("late").await;
    let batch = peer.next().await;
    assert_eq!((batch.seqs(), batch.request.digest), (vec![2], None));
    batch.done(&[2]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    let ended = tokio::spawn(async move { agent.drain.shutdown(Duration::from_secs(10)).await });
    given(&mut snapshots, 2).await;
    stored.send_replace(Some(2));
    let farewell = peer.next().await;
    assert_eq!((farewell.seqs(), farewell.request.digest), (vec![], Some(2)));
    farewell.held();
    assert_eq!(ended.await.unwrap(), Outcome::Finished);
}

#[tokio::test]
async fn without_a_digest_everything_is_reported() {
    let ca = new_ca();
    let peer = peer(&ca).await;
    let (memory, kept) = memory();
    let mut agent = agent_with(peer.addr, &ca, &ca, 100, Some(memory)).await;
    kept.found.send(None).unwrap();
    agent.baseline.wait_for(|baseline| baseline.round == 1).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, Digest::new());
}
