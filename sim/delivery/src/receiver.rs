//! Production intake, ledgers and work queue with simulated workers.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use tidewatch_drain::Drain;
use tidewatch_engine::{
    WorkKey,
    queue::{
        Class, Ended, Push,
        worker::{Lease, WorkQueue},
    },
};
use tidewatch_listener::{
    Admission, Deliveries, Fate, Guard, Host, Intake, Limits, Manager, Rate, Runtime, RuntimeLookup, Ticket,
    intake::Peer,
};
use tidewatch_receiver::{
    claims::ClaimBook,
    forward::lane,
    route,
    sessions::{SessionRecord, Sessions},
};
use tidewatch_tls::{IdentityError, PeerIdentity, Proxies};
use tidewatch_wire::{Route, SessionId, limits, v2, v3};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    control,
    forward::Forward,
    mistake::Mistake,
    net::Raw,
    oracle::{MANAGER, Object, WATCHES, all_targets, number, objects_of, runtime_name, targets},
    step::{Kind, Point},
    world::{Certificate, Process, RECEIVERS, State, Tasks, World, clock, jitter},
};

const WORKERS: usize = 3;
/// Concurrent reconciles per runtime.
const PER_RUNTIME: usize = 2;
/// Numbers that a small ledger remembers.
const SMALL_LEDGER: usize = 3;

type Queue = WorkQueue<WorkKey, (), Guard>;

pub(crate) struct Receiver {
    number: usize,
    session: SessionId,
    claims: ClaimBook,
    deliveries: Deliveries,
    queue: Queue,
    forward: Arc<Forward>,
    intake: Arc<Intake>,
    /// Requests wait until the session is recorded.
    recorded: Arc<Recorded>,
    tasks: Arc<Tasks>,
    drain: Drain,
}

impl Receiver {
    pub(crate) fn start(world: &Arc<World>, number: usize) {
        let (session, small, not_ready) = {
            let mut state = world.lock();
            if state.receivers[number].is_some() {
                return;
            }
            let session = SessionId::from_bits(state.rng.bits());
            (session, state.rng.per_mille(300), state.oracle.not_ready())
        };
        let deliveries = Deliveries::new(session);
        let deliveries = if small { deliveries.remembering(SMALL_LEDGER) } else { deliveries };
        let (queue, drain) = (Queue::new(PER_RUNTIME), Drain::new());
        let (sessions, forward) = (Sessions::default(), Forward::new(small));
        let claims = ClaimBook::new(session, sessions.clone());
        let host = Engine {
            world: Arc::downgrade(world),
            queue: queue.clone(),
            forward: Arc::clone(&forward),
            claims: claims.clone(),
        };
        let intake = Intake {
            host: Arc::new(host),
            deliveries: deliveries.clone(),
            metrics: world.listener.clone(),
            admission: Admission::new(limits(), clock()).with_jitter(jitter),
            drain: drain.watch(),
            proxies: Arc::new(Proxies::none()),
            clock,
        };
        let recorded = Arc::<Recorded>::default();
        let receiver = Arc::new(Self {
            number,
            session,
            claims: claims.clone(),
            deliveries,
            queue: queue.clone(),
            forward: Arc::clone(&forward),
            intake: Arc::new(intake),
            recorded: Arc::clone(&recorded),
            tasks: Arc::default(),
            drain,
        });
        let place = SessionRecord {
            client: control::client(world, number),
            namespace: control::NAMESPACE.into(),
            session,
        };
        let (restarts, this) = (Arc::clone(world), Arc::downgrade(&receiver));
        receiver.tasks.spawn(async move {
            sessions.record(&place).await;
            recorded.set();
            sessions.keep(&place).await;
            restarts.restart_stale_receiver(&this);
        });
        let tasks = Arc::downgrade(&receiver.tasks);
        receiver.tasks.spawn(forward.run(Arc::clone(world), number, tasks));
        if world.mistake != Some(Mistake::FailuresAreForgotten) {
            for key in not_ready {
                queue.push(key, Push { class: Class::Resync, trigger: None, guards: Vec::new() });
            }
        }
        for _ in 0..WORKERS {
            receiver.tasks.spawn(work(Arc::clone(world), number, queue.clone(), claims.clone()));
        }
        world.lock().receivers[number] = Some(receiver);
    }

    pub(crate) fn kill(&self) {
        self.tasks.kill();
    }

    pub(crate) fn end(&self) {
        self.drain.begin();
    }

    /// Queues a reconcile without an event.
    pub(crate) fn reconcile(&self, key: WorkKey) {
        self.queue.push(key, Push { class: Class::UserEdit, trigger: Some(()), guards: Vec::new() });
    }

    pub(crate) fn unfinished(&self) -> Option<String> {
        let (ready, delayed, working) = self.queue.inspect(|queue| {
            (queue.ready().map(|(_, n)| n).sum::<usize>(), queue.delayed(), queue.working())
        });
        let (held, waiting) = (self.deliveries.held(), self.forward.waiting());
        (ready + delayed + working + held + waiting > 0).then(|| {
            format!(
                "receiver {}: {ready} ready, {delayed} delayed, {working} in work, {held} held, {waiting} wait for the \
                 other manager",
                self.number
            )
        })
    }

    pub(crate) fn recorded(&self) -> (SessionId, u64) {
        (self.session, self.claims.mark())
    }

    pub(crate) fn take(
        self: &Arc<Self>,
        world: &Arc<World>,
        runtime: usize,
        body: Vec<u8>,
        reply: Option<oneshot::Sender<Raw>>,
    ) {
        let (world, intake, process) =
            (Arc::clone(world), Arc::clone(&self.intake), Process::Receiver(self.number));
        let recorded = Arc::clone(&self.recorded);
        self.tasks.spawn(async move {
            recorded.wait().await;
            world.point(Point::ReceiverRead, process, 2).await;
            let serve = async {
                let answer = serve(&world, intake, runtime, body).await;
                world.point(Point::ReceiverProcessed, process, 2).await;
                answer
            };
            let Some(mut reply) = reply else {
                let _: Option<Raw> = serve.await;
                return;
            };
            let notices = world.lock().rng.per_mille(500);
            tokio::select! {
                biased;
                answer = serve => if let Some(answer) = answer {
                    // The agent may have stopped waiting.
                    let _ = reply.send(answer);
                },
                () = reply.closed(), if notices => {}
            }
        });
    }
}

/// Whether the session is recorded. Unlike a `watch`, it wakes waiters in order.
#[derive(Debug, Default)]
struct Recorded {
    is_recorded: AtomicBool,
    notify: Notify,
}

impl Recorded {
    fn set(&self) {
        self.is_recorded.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    async fn wait(&self) {
        while !self.is_recorded.load(Ordering::Acquire) {
            self.notify.notified().await;
        }
    }
}

async fn serve(world: &World, intake: Arc<Intake>, runtime: usize, body: Vec<u8>) -> Option<Raw> {
    let certificate = world.lock().runtimes[runtime].certificate;
    let identity = match certificate {
        Certificate::Missing => Err(IdentityError::NoCertificate),
        _ => Ok(identity(runtime)),
    };
    let peer = Peer { leaf: None, identity };
    let request = Request::builder().method(Method::POST).uri(v3::PATH);
    let request =
        request.header(header::CONTENT_TYPE, "application/json").body(Full::new(body.into())).ok()?;
    let (parts, body) = intake.serve(Arc::new(peer), request).await.into_parts();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let body = Limited::new(body, limits::V3_BODY_BYTES).collect().await.ok()?;
    Some(Raw { status: parts.status, headers: parts.headers, body: body.to_bytes().to_vec() })
}

fn domain(runtime: usize) -> String {
    format!("{}.example", runtime_name(runtime))
}

fn identity(runtime: usize) -> PeerIdentity {
    PeerIdentity {
        common_name: runtime_name(runtime),
        dns_names: vec![domain(runtime)],
        ip_addrs: Vec::new(),
        uris: Vec::new(),
        not_before: jiff::Timestamp::UNIX_EPOCH,
        not_after: jiff::Timestamp::MAX,
        certificate: Arc::from([]),
    }
}

struct Engine {
    world: Weak<World>,
    queue: Queue,
    forward: Arc<Forward>,
    claims: ClaimBook,
}

impl Engine {
    /// Forwards an event only to that manager.
    fn forward(&self, world: &World, runtime: &Runtime, event: &v3::Event<'_>, ticket: &mut Ticket) -> Fate {
        let route = Route::manager(MANAGER);
        if event.change == v3::Change::Resync {
            // A resync names no object.
            ticket.done(route);
            return Fate::Unowned;
        }
        let object = route::object(&event.group, &event.version, &event.kind, &event.namespace, &event.name);
        let key = lane::Key { runtime: Arc::from(runtime.id.as_str()), object };
        let Some(guard) = ticket.hold(route, 1).next() else { return Fate::Full };
        let taken = self.forward.take(world, key, (event.watch.to_string(), guard));
        if taken { Fate::Forwarded } else { Fate::Full }
    }
}

impl Host for Engine {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        let runtime = number(common_name);
        let certificate = self.world.upgrade().map(|world| world.lock().runtimes[runtime].certificate);
        let domain = match certificate {
            Some(Certificate::OtherDomain) => "other.example".into(),
            _ => domain(runtime),
        };
        RuntimeLookup::One { kyma: common_name.into(), domain: Some(domain), registered: None }
    }

    fn manager(&self, _name: &str) -> Manager {
        Manager::Unknown
    }

    fn received(&self, runtime: &Runtime, request: &v3::Request<'_>) -> bool {
        let Some(world) = self.world.upgrade() else { return true };
        let unmarked = world.mistake == Some(Mistake::MarksAreIgnored);
        let request = v3::Request { mark: if unmarked { 0 } else { request.mark }, ..request.clone() };
        let resync = self.claims.must_resync(&runtime.kyma, &runtime.id, &request);
        resync && world.mistake != Some(Mistake::EveryClaimIsConfirmed)
    }

    fn mark(&self) -> u64 {
        self.claims.mark()
    }

    fn take_v3(
        &self,
        runtime: &Runtime,
        _request: &v3::Request<'_>,
        event: &v3::Event<'_>,
        mut ticket: Ticket,
    ) -> Fate {
        let Some(world) = self.world.upgrade() else { return Fate::Overloaded };
        if world.lock().overloaded.is_some() {
            return Fate::Overloaded;
        }
        if event.watch == WATCHES[1] {
            return self.forward(&world, runtime, event, &mut ticket);
        }
        let runtime = number(&runtime.id);
        let targets = match event.change {
            v3::Change::Resync if world.mistake == Some(Mistake::ResyncIsIgnored) => Vec::new(),
            v3::Change::Resync => all_targets(runtime),
            v3::Change::Changed | v3::Change::Gone => {
                targets(Object { runtime, number: number(&event.name) })
            }
        };
        let mut guards = if world.mistake == Some(Mistake::AcknowledgeOnReceipt) {
            ticket.done(Route::engine());
            None
        } else {
            Some(ticket.hold(Route::engine(), targets.len()))
        };
        for key in targets {
            let guards = guards.as_mut().and_then(Iterator::next).into_iter().collect();
            self.queue.push(key, Push { class: Class::UserEdit, trigger: Some(()), guards });
        }
        Fate::Queued
    }

    fn take_v2(&self, _runtime: &Runtime, _manager: &str, _event: &v2::WatchEvent) -> Fate {
        Fate::Unowned
    }
}

/// Low, so that full reports and resent events take turns.
fn limits() -> Limits {
    Limits { resent: Rate { per_second: 20.0, burst: 40.0 }, ..Limits::default() }
}

/// Simulated course of a reconcile.
struct Plan {
    delay: Duration,
    end: End,
    retry: Duration,
}

enum End {
    Done,
    Failed,
    Lost,
    Dropped,
}

async fn work(world: Arc<World>, receiver: usize, queue: Queue, claims: ClaimBook) {
    loop {
        let lease = queue.next().await;
        let kyma = lease.key().kyma().to_owned();
        reconcile(&world, Process::Receiver(receiver), lease, || claims.touched(&kyma)).await;
    }
}

async fn reconcile(
    world: &Arc<World>,
    process: Process,
    mut lease: Lease<WorkKey, (), Guard>,
    ended: impl Fn(),
) {
    let key = lease.key().clone();
    let runtime = number(key.kyma());
    if world.mistake == Some(Mistake::WorkIsSkipped) && world.happens(runtime, Kind::WorkDone, 100) {
        lease.take_guards().into_iter().for_each(Guard::finished);
        return lease.end(Ended::Done);
    }
    if world.mistake == Some(Mistake::AcknowledgeAtTheStart) {
        lease.take_guards().into_iter().for_each(Guard::finished);
    }
    world.point(Point::WorkBegun, process, 5).await;
    let mut read: Vec<(Object, u64)> = Vec::new();
    for object in objects_of(&key) {
        let delay = world.lock().rng.millis(0, 100);
        tokio::time::sleep(delay).await;
        read.push((object, read_version(world, object)));
    }
    world.point(Point::WorkRead, process, 5).await;
    let Plan { delay, end, retry } = plan(&mut world.lock(), runtime, lease.attempt);
    tokio::time::sleep(delay).await;
    world.point(Point::WorkApplied, process, 5).await;
    if !matches!(end, End::Dropped) {
        ended();
    }
    match end {
        End::Done => {
            world.step(Kind::WorkDone, runtime, lease.trigger_count as u64);
            world.lock().oracle.ended(&key, &read, true);
            lease.take_guards().into_iter().for_each(Guard::finished);
            lease.end(Ended::Done);
        }
        End::Failed => {
            world.step(Kind::WorkFailed, runtime, lease.trigger_count as u64);
            world.lock().oracle.ended(&key, &read, false);
            world.point(Point::WorkPersisted, process, 250).await;
            lease.take_guards().into_iter().for_each(Guard::finished);
            lease.end(Ended::Retry { delay: retry.into(), guards: Vec::new(), triggers: Vec::new() });
        }
        End::Lost => {
            world.step(Kind::WorkLost, runtime, lease.trigger_count as u64);
            let guards = lease.take_guards();
            let kept = if world.mistake == Some(Mistake::LostWorkForgetsItsGuards) {
                guards.into_iter().for_each(std::mem::forget);
                Vec::new()
            } else {
                guards.into_iter().filter(Guard::is_wanted).collect()
            };
            lease.end(Ended::Retry { delay: retry.into(), guards: kept, triggers: Vec::new() });
        }
        End::Dropped => {
            world.step(Kind::WorkDropped, runtime, lease.trigger_count as u64);
            if world.mistake == Some(Mistake::DroppedWorkAcknowledges) {
                lease.take_guards().into_iter().for_each(Guard::finished);
            }
            drop(lease);
        }
    }
}

fn read_version(world: &World, object: Object) -> u64 {
    let mut state = world.lock();
    let actual = state.oracle.actual(object);
    let is_stale = world.mistake == Some(Mistake::StaleRead) && state.rng.per_mille(300);
    if is_stale { actual.saturating_sub(1) } else { actual }
}

fn plan(state: &mut State, runtime: usize, attempt: u32) -> Plan {
    let slow = if state.rng.per_mille(100) { 8_000 } else { 400 };
    let delay = state.rng.millis(1, slow);
    let retry = Duration::from_millis(500 << attempt.min(5)) + state.rng.millis(0, 200);
    // A partition may cut the engine's path, too.
    let is_cut = state.runtimes[runtime].partitioned.is_some_and(|until| until > Instant::now());
    let end = match state.rng.below(100) {
        _ if state.directed.fails => End::Failed,
        _ if state.quiet => End::Done,
        0..=13 => End::Failed,
        14..=26 => End::Lost,
        27..=40 => End::Dropped,
        41..=70 if is_cut => End::Failed,
        _ => End::Done,
    };
    Plan { delay, end, retry }
}

impl World {
    /// Activates the other receiver; the previous one keeps working.
    pub(crate) fn switch(self: &Arc<Self>) {
        let next = (self.lock().active + 1) % RECEIVERS;
        let before = self.lock().receivers[next].take();
        if let Some(before) = before {
            before.kill();
            self.lost_receiver(&before);
        }
        Receiver::start(self, next);
        self.lock().active = next;
    }

    /// Restarts a receiver that detected a restored control plane.
    fn restart_stale_receiver(self: &Arc<Self>, receiver: &Weak<Receiver>) {
        let Some(receiver) = receiver.upgrade() else { return };
        let number = receiver.number;
        let current = self.lock().receivers[number].clone();
        if current.is_some_and(|now| Arc::ptr_eq(&now, &receiver)) {
            self.restart_receiver(number);
        }
    }

    pub(crate) fn restart_receiver(self: &Arc<Self>, number: usize) {
        let (receiver, pause) = {
            let mut state = self.lock();
            (state.receivers[number].clone(), state.rng.millis(1, 200))
        };
        let Some(receiver) = receiver else { return };
        receiver.end();
        let world = Arc::clone(self);
        tokio::spawn(async move {
            // Grace for open polls.
            tokio::time::sleep(pause).await;
            let same = world.lock().receivers[number].as_ref().is_some_and(|now| Arc::ptr_eq(now, &receiver));
            if same {
                world.crash(Point::ReceiverAnywhere, Process::Receiver(number));
            }
        });
    }
}
