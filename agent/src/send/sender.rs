//! The task that owns the dirty set.

mod answers;
mod keep;
mod naming;
mod settings;
mod upkeep;

pub use settings::Settings;

use super::{
    Channel, Connector, Control, Transport, control,
    link::{Batch, Event, Link, Poll, Sent, Up},
};
use crate::{
    digest::Memory,
    jitter,
    metrics::Metrics,
    observe::told::{Baseline, Told},
};
use futures::FutureExt;
use jiff::Timestamp;
use naming::Naming;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tidewatch_delivery::{
    Tick,
    backoff::Backoff,
    outbox::{InFlight, KeepNames, May, Moved, Observation, Observed, Outbox, Revision},
    pace::Pace,
    repeats::{Repeated, Repeats},
};
use tidewatch_drain::Watch;
use tidewatch_telemetry::readiness;
use tidewatch_wire::{
    SessionId, limits,
    v3::{self, Health},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use upkeep::Upkeep;

const TAKE: usize = 256;

const MESSAGES: usize = 8;

/// Delay after polls that returned early without acknowledgements.
const FRUITLESS: Backoff =
    Backoff { base: Duration::from_secs(1), max: Duration::from_secs(limits::POLL_SECONDS) };

/// Sending state for the status page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the receiver has answered on the connection.
    pub connected: bool,
    /// The receiver's session.
    pub session: Option<SessionId>,
    /// Unacknowledged keys.
    pub dirty: usize,
    /// Number of the latest change.
    pub last_observed: u64,
    /// Highest acknowledged number.
    pub last_acknowledged: u64,
    /// Latest error; empty after a success.
    pub last_error: String,
    /// Repeated errors and demands.
    pub repeated: Vec<Repeated>,
}

/// Keeps changes in the dirty set and sends them until acknowledged.
pub struct Sender<T: Transport = Connector> {
    outbox: Outbox,
    changes: mpsc::Receiver<Told>,
    control: Option<mpsc::Receiver<Control>>,
    baseline: watch::Sender<Baseline>,
    memory: Option<Memory>,
    /// The earlier state is unknown; nothing is sent.
    searching: bool,
    /// Revision given to storage, and time of the next.
    given: Revision,
    give_at: Option<Instant>,
    naming: Naming,
    health: Option<Box<dyn Fn() -> Health + Send>>,
    /// Changes when health must be sent before the next heartbeat.
    news: watch::Receiver<()>,
    connector: T,
    settings: Settings,
    metrics: Metrics,
    progress: Arc<Mutex<Progress>>,
    clock: fn() -> Timestamp,
    jitter: fn() -> f64,
    /// Dropped at the first answer.
    unready: Option<readiness::Guard>,
    start: Instant,
    link: Link<T::Connection>,
    /// Failures since the last acknowledgement.
    failures: u32,
    failed_at: Instant,
    errors: Repeats,
    demands: Repeats,
    /// Delays events that were requested again.
    again: Pace,
    /// Delays events that wait for a turn.
    turns: Pace,
    /// Delays full reports if the receiver's session keeps changing.
    sessions: Pace,
    report_at: Option<Instant>,
    /// Delays fruitless polls.
    polls: Pace,
    /// The receiver wants no request or connection before.
    patience: Instant,
    upkeep: Upkeep,
    renewed: watch::Receiver<()>,
    resumed: watch::Receiver<u64>,
    batch_after: Instant,
    /// The canary may precede a delayed batch.
    canary_after: Instant,
    /// Delays full reports and events older than the session.
    older_after: Instant,
    health_at: Instant,
    poll_after: Instant,
    heartbeat_at: Instant,
}

impl<T: Transport> Sender<T> {
    /// Creates a sender. `resumed` changes after a pause of the process.
    #[expect(clippy::too_many_arguments, reason = "each is another part of the agent, wired in one place")]
    pub fn new(
        outbox: Outbox,
        changes: mpsc::Receiver<Told>,
        connector: T,
        settings: Settings,
        metrics: Metrics,
        clock: fn() -> Timestamp,
        unready: readiness::Guard,
        resumed: watch::Receiver<u64>,
    ) -> Self {
        let now = Instant::now();
        let renewed = connector.renewals();
        Self {
            outbox,
            changes,
            control: None,
            baseline: watch::Sender::new(Baseline::default()),
            memory: None,
            searching: false,
            given: Revision::default(),
            give_at: None,
            naming: Naming::new(now),
            health: None,
            news: watch::channel(()).1,
            connector,
            settings,
            metrics,
            progress: Arc::default(),
            clock,
            jitter: jitter::random,
            unready: Some(unready),
            start: now,
            link: Link::now(),
            failures: 0,
            failed_at: now,
            errors: Repeats::of(MESSAGES),
            demands: Repeats::of(MESSAGES),
            again: Pace::default(),
            turns: Pace::default(),
            sessions: Pace::default(),
            report_at: None,
            polls: Pace::default(),
            patience: now,
            upkeep: Upkeep::new(now),
            renewed,
            resumed,
            batch_after: now,
            canary_after: now,
            older_after: now,
            health_at: now,
            poll_after: now,
            heartbeat_at: now,
        }
    }

    /// Accepts configuration changes.
    #[must_use]
    pub fn controlled_by(mut self, control: mpsc::Receiver<Control>) -> Self {
        self.control = Some(control);
        self
    }

    /// State for the watches to compare with.
    pub fn baseline(&self) -> watch::Receiver<Baseline> {
        self.baseline.subscribe()
    }

    /// Stores digest and names. Otherwise each start reports everything, and only the engine notices deletions while
    /// the agent is down.
    #[must_use]
    pub fn with_memory(self, memory: Memory, names: KeepNames) -> Self {
        Self { memory: Some(memory), searching: true, naming: self.naming.of(names), ..self }
    }

    /// Supplies each watch's last sign of life; names never expire without it.
    #[must_use]
    pub fn with_watches(mut self, heard_at: impl Fn(&str) -> Option<Instant> + Send + 'static) -> Self {
        self.naming.heard_at = Box::new(heard_at);
        self
    }

    /// Sends health with heartbeats, and at once on `news`.
    #[must_use]
    pub fn with_health(
        self,
        health: impl Fn() -> Health + Send + 'static,
        news: watch::Receiver<()>,
    ) -> Self {
        Self { health: Some(Box::new(health)), news, ..self }
    }

    /// Sets the source of numbers in `[0, 1)`, for reproducible runs.
    #[must_use]
    pub fn with_jitter(self, jitter: fn() -> f64) -> Self {
        Self { jitter, ..self }
    }

    /// Returns the shared sending state.
    pub fn progress(&self) -> Arc<Mutex<Progress>> {
        Arc::clone(&self.progress)
    }

    /// Sends until shutdown or until `changes` closes. At the next start, unacknowledged changes differ from the
    /// digest.
    pub async fn run(mut self, shutdown: Watch) {
        let mut taken = Vec::with_capacity(TAKE);
        if self.memory.is_none() {
            self.baseline.send_replace(Baseline::nothing_known());
        }
        loop {
            self.keep_up();
            self.report_what_is_due();
            self.begin_what_is_due();
            self.give_what_is_due();
            self.give_names();
            self.show();
            let wake = self.wake();
            // Fixed order, for reproducible runs. All but the changes is paced, so nothing starves.
            tokio::select! {
                biased;
                () = shutdown.signaled() => return self.farewell().await,
                event = self.link.next() => self.happened(event),
                Some(control) = control::next(&mut self.control) => self.reconfigure(control),
                remembered = keep::remembered(&mut self.memory, self.searching) => self.remember(remembered),
                Ok(()) = self.renewed.changed() => self.look(),
                Ok(()) = self.resumed.changed() => self.resumed(),
                Ok(()) = self.news.changed() => self.heartbeat_at = Instant::now(),
                count = self.changes.recv_many(&mut taken, TAKE), if self.has_room() => {
                    if count == 0 {
                        return;
                    }
                    taken.drain(..).for_each(|told| self.hear(told));
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Limits memory while a batch is in flight and the next is full.
    fn has_room(&self) -> bool {
        let sending = matches!(&self.link, Link::Up(up) if up.batch.is_some());
        self.outbox.len() < self.settings.max_dirty && !(sending && self.outbox.unsent() >= limits::V3_EVENTS)
    }

    /// Drains the channel first: removed watches leave nothing behind.
    fn reconfigure(&mut self, control: Control) {
        for _ in 0..self.changes.len() {
            let Ok(told) = self.changes.try_recv() else { break };
            self.hear(told);
        }
        let Control { routes, complete, forget, done } = control;
        self.connector.set_routes(&routes);
        self.outbox.set_routes(routes);
        if let Some(watches) = complete {
            self.naming.watches = Some(watches);
            self.drop_names();
        }
        let forgotten = forget.iter().map(|watch| self.outbox.forget(watch)).sum();
        let _ = done.send(forgotten);
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Changed(observation, moved) => self.observe(observation, moved),
            Told::Moved(key, moved) => self.outbox.moved(&key, moved),
            Told::Compared { watch, section, unnamed } => {
                let now = self.tick();
                self.outbox.baseline(&watch, section, unnamed, now);
                self.progress.lock().last_observed = self.outbox.serial();
            }
            Told::Listed(watch, present) => {
                let now = self.tick();
                self.outbox.listed(&watch, present, now);
                self.progress.lock().last_observed = self.outbox.serial();
            }
        }
    }

    fn observe(&mut self, observation: Observation, moved: Moved) {
        let now = self.tick();
        let (watch, name) = (observation.key.watch.clone(), observation.key.name.clone());
        let (Observed::New(seq) | Observed::Coalesced(seq)) =
            self.outbox.observe_moved(observation, moved, now);
        tracing::debug!(%seq, %watch, %name, "observed");
        self.progress.lock().last_observed = seq.0;
    }

    fn begin_what_is_due(&mut self) {
        let now = Instant::now();
        let urgent = !self.outbox.is_calm();
        match &mut self.link {
            Link::Down(pause) if pause.until(urgent).max(self.patience) <= now => {
                self.link = Link::Connecting(self.connector.clone().connect().boxed());
            }
            Link::Up(_) if self.searching => {}
            Link::Up(up) if up.batch.is_none() => {
                let mut due = None;
                // With a heartbeat or the canary.
                let calm = self.outbox.unsent() > 0 && self.outbox.is_calm();
                if (self.heartbeat_at.min(self.health_at) <= now || calm)
                    && let Some(health) = &self.health
                {
                    // While keys are held, polls carry health.
                    self.outbox.set_health(Some(health()));
                    self.health_at = now + self.settings.heartbeat / 2;
                }
                if self.batch_after <= now {
                    let tick = now.duration_since(self.start);
                    let may = May { again: self.again.until() <= tick, older: self.older_after <= now };
                    due = self.outbox.next_batch_of(may, tick);
                    let lull = self.outbox.is_empty() || self.outbox.is_claiming();
                    // A heartbeat is the replacement's first request.
                    if lull && self.heartbeat_at <= now && up.replacement.is_none() {
                        due = Some((self.outbox.heartbeat(), InFlight::default()));
                    }
                } else if self.canary_after <= now {
                    due = self.outbox.next_canary(now.duration_since(self.start));
                }
                if let Some((request, in_flight)) = due {
                    let changes = request.events.iter().filter(|event| event.watch != v3::CANARY);
                    let observed = changes.map(|event| event.observed_at).collect();
                    let seqs = request.events.first().zip(request.events.last()).map(|(a, b)| (a.seq, b.seq));
                    let ranges = request.awaiting.range_count();
                    let exchange = up.connection.post(&request, self.settings.answer).boxed();
                    let sent = Sent { in_flight, ranges, observed, seqs, elsewhere: false };
                    up.batch = Some(Batch { sent, exchange });
                } else if self.poll_after <= now && up.poll.as_ref().is_none_or(|poll| poll.stale) {
                    // Dropping a stale poll resets its stream.
                    up.poll = self.outbox.poll().map(|request| Poll {
                        since: now,
                        stale: false,
                        ranges: request.awaiting.range_count(),
                        exchange: up.connection.post(&request, self.settings.poll).boxed(),
                    });
                    if up.poll.is_some() {
                        self.poll_after = now + self.settings.poll_pause;
                    }
                }
            }
            Link::Down(_) | Link::Connecting(_) | Link::Up(_) => {}
        }
    }

    fn wake(&self) -> Instant {
        let wake = self.wake_link();
        let wake = self.report_at.map_or(wake, |report_at| wake.min(report_at));
        let wake = self.give_at.map_or(wake, |give_at| wake.min(give_at));
        self.naming.wake().map_or(wake, |at| wake.min(at))
    }

    fn wake_link(&self) -> Instant {
        let now = Instant::now();
        let idle = (now + self.settings.heartbeat).min(self.upkeep.wake());
        match &self.link {
            Link::Down(pause) => pause.until(!self.outbox.is_calm()).max(self.patience),
            Link::Up(_) if self.searching => idle,
            Link::Up(up) if up.batch.is_none() => {
                let batch = self.batch_at().unwrap_or(idle);
                let canary = if self.outbox.has_new_canary() { self.canary_after } else { idle };
                // A poll needs sent events.
                let sent = self.outbox.len() > self.outbox.unsent() + self.outbox.withheld();
                let polls = up.poll.as_ref().map_or(sent, |poll| poll.stale);
                let poll = if polls { self.poll_after } else { idle };
                let lull = self.outbox.is_empty() || self.outbox.is_claiming();
                let lull = lull && up.replacement.is_none();
                let heartbeat = if lull { self.heartbeat_at.max(self.batch_after) } else { idle };
                // Avoids a busy loop: due work has begun, or waits.
                batch.min(canary).min(poll).min(heartbeat).max(now + Duration::from_millis(1))
            }
            Link::Connecting(_) | Link::Up(_) => idle,
        }
    }

    fn batch_at(&self) -> Option<Instant> {
        let may = [(false, false), (true, false), (false, true), (true, true)];
        let at = may.into_iter().filter(|&(again, older)| self.outbox.has_unsent(May { again, older })).map(
            |(again, older)| {
                let again = if again { self.start + self.again.until() } else { self.batch_after };
                let older = if older { self.older_after } else { self.batch_after };
                self.batch_after.max(again).max(older)
            },
        );
        at.min()
    }

    fn happened(&mut self, event: Event<T::Connection>) {
        match event {
            Event::Connected(Ok(connection)) => {
                self.metrics.connections.inc();
                let up = Up { connection, answered: false, replacement: None, batch: None, poll: None };
                self.link = Link::Up(Box::new(up));
                let now = Instant::now();
                let begin = now.max(self.patience);
                (self.batch_after, self.poll_after, self.heartbeat_at) = (begin, begin, begin);
                self.canary_after = begin;
                self.upkeep.made(now, self.settings.connection_age, (self.jitter)());
                self.look();
            }
            Event::Connected(Err(error)) => self.failed("connect", &error, None),
            Event::Closed(error) => self.failed("connection", &error, None),
            Event::Replaced(made) => self.replaced(made),
            Event::Batch(sent, answer) => {
                let what = if sent.in_flight.is_empty() { "heartbeat" } else { "batch" };
                match answer.and_then(|response| self.take(&response)) {
                    Ok(_) => {
                        self.outbox.passed(&sent.in_flight);
                        self.sent(&sent);
                    }
                    Err(error) => self.failed(what, &error, Some(&sent)),
                }
            }
            Event::Poll(since, ranges, answer) => match answer.and_then(|response| self.take(&response)) {
                Ok(true) => {}
                // Avoids a loop if the receiver answers early.
                Ok(false) => {
                    let (asked, now) = (since.duration_since(self.start), self.tick());
                    self.polls.fruitless(&FRUITLESS, (self.jitter)(), asked, now);
                    self.poll_after = self.poll_after.max(self.start + self.polls.until());
                }
                Err(error) => {
                    if error.is_too_large() {
                        self.outbox.too_large(&InFlight::default(), ranges);
                    }
                    self.failed("poll", &error, None);
                }
            },
        }
    }

    fn show(&self) {
        let connected = matches!(&self.link, Link::Up(up) if up.answered);
        self.metrics.connected.set(i64::from(connected));
        let count = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        self.metrics.dirty.set(count(self.outbox.len()));
        self.metrics.unsent.set(count(self.outbox.unsent() + self.outbox.withheld()));
        self.metrics.names_kept.set(count(self.naming.kept));
        let mut progress = self.progress.lock();
        progress.connected = connected;
        progress.session = self.outbox.session();
        progress.dirty = self.outbox.len();
        if progress.repeated.is_empty() && self.repeated().next().is_none() {
            return;
        }
        progress.repeated = self.repeated().cloned().collect();
    }

    fn repeated(&self) -> impl Iterator<Item = &Repeated> {
        self.errors.repeated().chain(self.demands.repeated())
    }

    fn tick(&self) -> Tick {
        self.start.elapsed()
    }
}
