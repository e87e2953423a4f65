//! Simulated network between agents and receivers, without TLS.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use tidewatch_agent::send::{Channel, Fate as ConnectionFate, SendError, Transport};
use tidewatch_tls::HandshakeFailure;
use tidewatch_wire::{Route, SeqSet, v3};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    mistake::Mistake,
    receiver::Receiver,
    step::{Kind, Point},
    world::{Certificate, LastAnswer, Process, World},
};

const CONNECT: Duration = Duration::from_secs(10);

pub(crate) struct Raw {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Net {
    world: Weak<World>,
    runtime: usize,
}

pub(crate) struct Wire {
    receiver: Weak<Receiver>,
    broken: watch::Sender<bool>,
}

pub(crate) struct Connection {
    net: Net,
    wire: Arc<Wire>,
    material: u64,
    broken: watch::Receiver<bool>,
}

enum Fate {
    Arrives(Duration),
    Twice(Duration, Duration),
    Lost,
    Breaks,
}

impl Wire {
    pub(crate) fn leads_to(&self, receiver: &Arc<Receiver>) -> bool {
        self.receiver.upgrade().is_some_and(|own| Arc::ptr_eq(&own, receiver))
    }

    pub(crate) fn break_now(&self) {
        self.broken.send_replace(true);
    }
}

impl Net {
    pub(crate) fn new(world: &Arc<World>, runtime: usize) -> Self {
        Self { world: Arc::downgrade(world), runtime }
    }

    fn world(&self) -> Result<Arc<World>, SendError> {
        self.world.upgrade().ok_or(SendError::Closed)
    }

    async fn connect_now(&self) -> Result<Connection, SendError> {
        let (world, runtime) = (self.world()?, self.runtime);
        match fate(&world, runtime, true) {
            Fate::Arrives(delay) | Fate::Twice(delay, _) => tokio::time::sleep(delay).await,
            Fate::Lost => std::future::pending().await,
            Fate::Breaks => return Err(refused(io::ErrorKind::ConnectionReset)),
        }
        world.point(Point::AgentConnecting, Process::Agent(runtime), 15).await;
        let distrusted = world.lock().runtimes[runtime].certificate == Certificate::Distrusted;
        if distrusted || world.happens(runtime, Kind::Handshake, 180) {
            if distrusted {
                world.step(Kind::Certificate, runtime, 0);
            }
            let source = io::Error::from(io::ErrorKind::InvalidData);
            let failure =
                if distrusted { HandshakeFailure::BadCertificate } else { HandshakeFailure::Timeout };
            return Err(SendError::Handshake { failure, source });
        }
        let mut state = world.lock();
        let state = &mut *state;
        let Some(receiver) = &state.receivers[state.active] else {
            return Err(refused(io::ErrorKind::ConnectionRefused));
        };
        let (broken, is_broken) = watch::channel(false);
        let wire = Arc::new(Wire { receiver: Arc::downgrade(receiver), broken });
        let wires = &mut state.runtimes[runtime].wires;
        wires.retain(|wire| wire.strong_count() > 0);
        wires.push(Arc::downgrade(&wire));
        let material = state.runtimes[runtime].material;
        Ok(Connection { net: self.clone(), wire, material, broken: is_broken })
    }
}

impl Transport for Net {
    type Connection = Connection;

    async fn connect(self) -> Result<Connection, SendError> {
        tokio::time::timeout(CONNECT, self.connect_now()).await.unwrap_or(Err(SendError::Timeout))
    }

    fn renewals(&self) -> watch::Receiver<()> {
        let world = self.world.upgrade();
        world.map_or_else(
            || watch::channel(()).1,
            |world| world.lock().runtimes[self.runtime].renewed.subscribe(),
        )
    }

    fn fate(&self, connection: &Connection) -> ConnectionFate {
        let Some(world) = self.world.upgrade() else { return ConnectionFate::Keep };
        let state = world.lock();
        let own = &state.runtimes[self.runtime];
        if own.certificate == Certificate::Distrusted {
            ConnectionFate::End("untrusted")
        } else if own.material == connection.material {
            ConnectionFate::Keep
        } else {
            ConnectionFate::Replace
        }
    }

    fn set_routes(&self, _routes: &BTreeMap<String, Vec<Route>>) {}
}

impl Channel for Connection {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) -> SendError {
        // `wire` holds the sender, so this cannot fail.
        let _ = self.broken.wait_for(|broken| *broken).await;
        SendError::Closed
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let (net, wire, request) = (self.net.clone(), Arc::clone(&self.wire), request.clone());
        async move {
            let answered = exchange(&net, wire, &request);
            tokio::time::timeout(deadline, answered).await.unwrap_or(Err(SendError::Timeout))
        }
    }
}

async fn exchange(
    net: &Net,
    wire: Arc<Wire>,
    request: &v3::Request<'static>,
) -> Result<v3::Response, SendError> {
    let (world, runtime) = (net.world()?, net.runtime);
    let body = serde_json::to_vec(request).map_err(|e| SendError::Request(Box::new(e)))?;
    world.lock().oracle.sent(runtime, request);
    let (reply, replied) = oneshot::channel();
    match fate(&world, runtime, false) {
        Fate::Arrives(delay) => deliver(&world, &wire, runtime, body, delay, Some(reply)),
        Fate::Twice(delay, again) => {
            deliver(&world, &wire, runtime, body.clone(), delay, Some(reply));
            deliver(&world, &wire, runtime, body, again, None);
        }
        Fate::Lost => return lost(&world, request).await,
        Fate::Breaks => {
            wire.break_now();
            return Err(SendError::Closed);
        }
    }
    world.point(Point::AgentSent, Process::Agent(runtime), 2).await;
    let Ok(raw) = replied.await else {
        if world.is_partitioned(runtime) {
            std::future::pending::<()>().await;
        }
        return Err(SendError::Closed);
    };
    world.point(Point::AgentAnswered, Process::Agent(runtime), 2).await;
    answer_fate(&world, &wire, runtime, raw.status, &raw.body).await?;
    let mut response = read(&raw)?;
    if request.resume.is_some() {
        let counts = &mut world.lock().trace.counts;
        *(if response.resync { &mut counts.refused } else { &mut counts.confirmed }) += 1;
    }
    {
        let own = &mut world.lock().runtimes[runtime];
        if own.epoch == Some(response.epoch) {
            let session = response.session;
            let before = own.last_answer.filter(|last| last.session == session).map_or(0, |last| last.mark);
            own.last_answer = Some(LastAnswer { session, mark: before.max(response.mark) });
        }
    }
    let violation = world.lock().oracle.answered(&response);
    if let Some(violation) = violation {
        world.violated(|| violation);
    }
    apply_mistake(&world, &mut response);
    Ok(response)
}

async fn lost(world: &World, request: &v3::Request<'static>) -> Result<v3::Response, SendError> {
    if world.mistake == Some(Mistake::FailedRequestIsForgotten)
        && let Some(session) = request.session
        && !request.events.is_empty()
    {
        let mut state = world.lock();
        state.forgotten.extend(request.events.iter().map(|event| (request.epoch, event.seq)));
        let answer = serde_json::json!({ "epoch": request.epoch, "session": session });
        return serde_json::from_value(answer).map_err(|e| SendError::Malformed(Box::new(e)));
    }
    std::future::pending().await
}

fn deliver(
    world: &Arc<World>,
    wire: &Arc<Wire>,
    runtime: usize,
    body: Vec<u8>,
    delay: Duration,
    reply: Option<oneshot::Sender<Raw>>,
) {
    let (world, wire) = (Arc::clone(world), Arc::downgrade(wire));
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let receiver = wire.upgrade().and_then(|wire| wire.receiver.upgrade());
        if let Some(receiver) = receiver {
            receiver.take(&world, runtime, body, reply);
        }
    });
}

fn fate(world: &World, runtime: usize, is_connect: bool) -> Fate {
    let at = world.at_ms();
    let mut state = world.lock();
    let state = &mut *state;
    let rng = &mut state.rng;
    let own = &state.runtimes[runtime];
    let (kind, fate) = if own.partitioned.is_some() {
        (Kind::Partitioned, Fate::Lost)
    } else if state.quiet {
        (Kind::Delivered, Fate::Arrives(rng.millis(1, 20)))
    } else if own.slow.is_some() {
        (Kind::Slow, Fate::Arrives(rng.millis(50, 4_000)))
    } else {
        match rng.below(100) {
            0..=6 => (Kind::RequestLost, Fate::Lost),
            7..=18 if !is_connect => {
                (Kind::Duplicated, Fate::Twice(rng.millis(1, 20), rng.millis(1, 30_000)))
            }
            19..=23 => (Kind::Reset, Fate::Breaks),
            24..=26 => (Kind::Slow, Fate::Arrives(rng.millis(500, 60_000))),
            _ => (Kind::Delivered, Fate::Arrives(rng.millis(1, 20))),
        }
    };
    state.trace.add(at, kind, runtime, u64::from(is_connect));
    fate
}

async fn answer_fate(
    world: &World,
    wire: &Wire,
    runtime: usize,
    status: StatusCode,
    body: &[u8],
) -> Result<(), SendError> {
    let at = world.at_ms();
    let fate = {
        let mut state = world.lock();
        let state = &mut *state;
        let rng = &mut state.rng;
        let own = &state.runtimes[runtime];
        let (kind, fate) = if own.partitioned.is_some() {
            (Kind::Partitioned, Fate::Lost)
        } else if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            (Kind::Certificate, Fate::Arrives(Duration::ZERO))
        } else if state.quiet {
            (Kind::Delivered, Fate::Arrives(rng.millis(1, 20)))
        } else if own.slow.is_some() {
            (Kind::Slow, Fate::Arrives(rng.millis(50, 4_000)))
        } else {
            match rng.below(100) {
                0..=14 => (Kind::AnswerLost, Fate::Lost),
                15..=19 => (Kind::Reset, Fate::Breaks),
                20..=22 => (Kind::Slow, Fate::Arrives(rng.millis(500, 60_000))),
                _ => (Kind::Delivered, Fate::Arrives(rng.millis(1, 20))),
            }
        };
        let text = String::from_utf8_lossy(body);
        let is_overload = text.contains("retryAfterMs") || text.contains("\"older\"");
        let kind = if is_overload && kind == Kind::Delivered { Kind::Overload } else { kind };
        state.trace.add(at, kind, runtime, body.len() as u64);
        fate
    };
    match fate {
        Fate::Arrives(delay) | Fate::Twice(delay, _) => {
            // An answer in flight survives a crash.
            tokio::time::sleep_until(Instant::now() + delay).await;
            Ok(())
        }
        Fate::Lost => std::future::pending().await,
        Fate::Breaks => {
            wire.break_now();
            Err(SendError::Closed)
        }
    }
}

fn read(raw: &Raw) -> Result<v3::Response, SendError> {
    let Raw { status, headers, body } = raw;
    if *status == StatusCode::OK {
        return serde_json::from_slice(body).map_err(|e| SendError::Malformed(Box::new(e)));
    }
    let wait = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    Err(SendError::Status {
        status: status.as_u16(),
        message: String::from_utf8_lossy(body).into_owned(),
        retry_after: wait.map(Duration::from_secs),
    })
}

fn apply_mistake(world: &World, response: &mut v3::Response) {
    if world.mistake == Some(Mistake::UnknownIsIgnored) {
        response.unknown = SeqSet::new();
    }
    if world.mistake == Some(Mistake::FailedRequestIsForgotten) {
        let (unknown, state) = (std::mem::take(&mut response.unknown), world.lock());
        let numbers = unknown.ranges().flat_map(|(from, to)| (from..=to).map(tidewatch_wire::Seq));
        response.unknown = numbers.filter(|seq| !state.forgotten.contains(&(response.epoch, *seq))).collect();
    }
}

fn refused(kind: io::ErrorKind) -> SendError {
    SendError::Connect(kind.into())
}
