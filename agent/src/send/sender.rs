//! The task that owns the dirty set.

mod answers;
mod clock;
mod connection;
mod digest_store;
mod failures;
mod name_store;
mod progress;
mod requests;
mod schedule;
mod settings;
mod shutdown;
mod upkeep;

pub use progress::Progress;
pub use settings::Settings;

use super::{
    connect::Connector,
    control::{self, Control},
    link::{Event, Link},
    transport::Transport,
};
use crate::{
    digest::{Found, Memory},
    metrics::Metrics,
    observe::message::{Baseline, Message},
};
use clock::Clock;
use digest_store::{DigestStore, Stored};
use failures::Failures;
use jiff::Timestamp;
use name_store::NameStore;
use parking_lot::Mutex;
use schedule::Schedule;
use std::sync::Arc;
use tidewatch_delivery::outbox::{KeepNames, Observed, Outbox};
use tidewatch_drain::ShutdownSignal;
use tidewatch_telemetry::readiness;
use tidewatch_wire::{limits, v3::Health};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use upkeep::Upkeep;

/// Messages per turn of the loop.
const BATCH: usize = 256;

/// Keeps changes in the dirty set and sends them until acknowledged.
pub struct Sender<T: Transport = Connector> {
    outbox: Outbox,
    inputs: Inputs,
    baseline: watch::Sender<Baseline>,
    digests: DigestStore,
    names: NameStore,
    health: Option<Box<dyn Fn() -> Health + Send>>,
    connector: T,
    link: Link<T::Connection>,
    upkeep: Upkeep,
    schedule: Schedule,
    failures: Failures,
    settings: Settings,
    clock: Clock,
    metrics: Metrics,
    status: Status,
}

/// Sources of the loop's work.
struct Inputs {
    messages: mpsc::Receiver<Message>,
    control: Option<mpsc::Receiver<Control>>,
    /// Changes when health must be sent before the next heartbeat.
    health_changed: watch::Receiver<()>,
    /// Changes with the TLS files.
    renewed: watch::Receiver<()>,
    /// Changes after a pause of the process.
    resumed: watch::Receiver<u64>,
}

struct Status {
    progress: Arc<Mutex<Progress>>,
    /// Dropped at the first answer.
    unready: Option<readiness::Guard>,
}

impl<T: Transport> Sender<T> {
    /// Creates a sender. `resumed` changes after a pause of the process.
    #[expect(clippy::too_many_arguments, reason = "each is another part of the agent, wired in one place")]
    pub fn new(
        outbox: Outbox,
        messages: mpsc::Receiver<Message>,
        connector: T,
        settings: Settings,
        metrics: Metrics,
        clock: fn() -> Timestamp,
        unready: readiness::Guard,
        resumed: watch::Receiver<u64>,
    ) -> Self {
        let now = Instant::now();
        let (renewed, health_changed) = (connector.renewals(), watch::channel(()).1);
        Self {
            outbox,
            inputs: Inputs { messages, control: None, health_changed, renewed, resumed },
            baseline: watch::Sender::new(Baseline::default()),
            digests: DigestStore::new(None),
            names: NameStore::new(now),
            health: None,
            connector,
            link: Link::now(),
            upkeep: Upkeep::new(now),
            schedule: Schedule::new(now),
            failures: Failures::new(now),
            settings,
            clock: Clock::new(clock, now),
            metrics,
            status: Status { progress: Arc::default(), unready: Some(unready) },
        }
    }

    /// Accepts configuration changes.
    #[must_use]
    pub fn controlled_by(mut self, control: mpsc::Receiver<Control>) -> Self {
        self.inputs.control = Some(control);
        self
    }

    /// State for the watches to compare with.
    pub fn baseline(&self) -> watch::Receiver<Baseline> {
        self.baseline.subscribe()
    }

    /// Stores digest and names. Otherwise each start reports everything, and only the engine notices deletions while
    /// the agent is down.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory, names: KeepNames) -> Self {
        self.digests = DigestStore::new(Some(memory));
        self.names.set_keep(names);
        self
    }

    /// Supplies the time of each watch's latest data; names never expire without it.
    #[must_use]
    pub fn with_watches(mut self, last_data: impl Fn(&str) -> Option<Instant> + Send + 'static) -> Self {
        self.names.set_last_data(Box::new(last_data));
        self
    }

    /// Sends health with heartbeats, and at once when `changed` changes.
    #[must_use]
    pub fn with_health(
        mut self,
        health: impl Fn() -> Health + Send + 'static,
        changed: watch::Receiver<()>,
    ) -> Self {
        self.health = Some(Box::new(health));
        self.inputs.health_changed = changed;
        self
    }

    /// Sets the source of numbers in `[0, 1)`, for reproducible runs.
    #[must_use]
    pub fn with_jitter(self, jitter: fn() -> f64) -> Self {
        Self { clock: self.clock.with_jitter(jitter), ..self }
    }

    /// Returns the shared sending state.
    pub fn progress(&self) -> Arc<Mutex<Progress>> {
        Arc::clone(&self.status.progress)
    }

    /// Sends until shutdown or until the messages end. At the next start, unacknowledged changes differ from the
    /// digest.
    pub async fn run(mut self, shutdown: ShutdownSignal) {
        let mut taken = Vec::with_capacity(BATCH);
        if self.digests.memory().is_none() {
            self.baseline.send_replace(Baseline::nothing_known());
        }
        loop {
            self.do_due_work();
            let wake = self.wake();
            // Fixed order, for reproducible runs. All but the messages is paced, so nothing starves.
            tokio::select! {
                biased;
                () = shutdown.signaled() => return self.shut_down().await,
                event = self.link.next() => self.handle(event),
                Some(control) = control::next(&mut self.inputs.control) => self.reconfigure(control),
                stored = self.digests.next() => self.handle_stored(stored),
                Ok(()) = self.inputs.renewed.changed() => {
                    if self.trust_differs() {
                        self.schedule.heartbeat_at = Instant::now();
                    }
                    self.link.retry_now();
                    self.check_connection();
                }
                Ok(()) = self.inputs.resumed.changed() => self.reconnect_after_pause(),
                Ok(()) = self.inputs.health_changed.changed() => self.schedule.heartbeat_at = Instant::now(),
                count = self.inputs.messages.recv_many(&mut taken, BATCH), if self.has_capacity() => {
                    if count == 0 {
                        return;
                    }
                    taken.drain(..).for_each(|message| self.receive(message));
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn do_due_work(&mut self) {
        self.maintain_connection();
        self.report_if_due();
        self.start_due_requests();
        self.digests.submit_if_due(&self.outbox, &self.schedule, &self.settings, &self.clock);
        if let Some(memory) = self.digests.memory() {
            let start = self.clock.instant(tidewatch_delivery::Tick::ZERO);
            self.names.submit_if_due(memory, &mut self.outbox, &self.settings, start, &self.metrics);
        }
        self.publish_progress();
    }

    /// Whether the receiver has another report of the trusted CAs: a rotation waits for it.
    fn trust_differs(&self) -> bool {
        let now = self.health.as_ref().map(|health| health().trust);
        now.as_ref() != self.outbox.health().map(|health| &health.trust)
    }

    /// Limits memory while a batch is in flight and the next is full.
    fn has_capacity(&self) -> bool {
        let sending = matches!(&self.link, Link::Up(up) if up.batch.is_some());
        let dirty = self.outbox.dirty();
        dirty.len() < self.settings.max_dirty && !(sending && dirty.unsent() >= limits::V3_EVENTS)
    }

    /// Drains the channel first: removed watches leave nothing behind.
    fn reconfigure(&mut self, control: Control) {
        for _ in 0..self.inputs.messages.len() {
            let Ok(message) = self.inputs.messages.try_recv() else { break };
            self.receive(message);
        }
        let Control { routes, complete, forget, done } = control;
        self.connector.set_routes(&routes);
        self.outbox.set_routes(routes);
        if let Some(watches) = complete {
            self.names.set_watches(watches, &mut self.outbox);
        }
        let forgotten = forget.iter().map(|watch| self.outbox.forget(watch)).sum();
        let _ = done.send(forgotten);
    }

    fn receive(&mut self, message: Message) {
        let now = self.clock.tick();
        match message {
            Message::Changed(observation, moved) => {
                let (watch, name) = (observation.key.watch.clone(), observation.key.name.clone());
                let (Observed::New(seq) | Observed::Coalesced(seq)) =
                    self.outbox.observe_moved(observation, moved, now);
                tracing::debug!(%seq, %watch, %name, "observed");
                self.status.progress.lock().last_observed = seq.0;
                return;
            }
            Message::Moved(key, moved) => return self.outbox.moved(&key, moved),
            Message::Compared { watch, section, unnamed } => {
                self.outbox.baseline(&watch, section, unnamed, now);
            }
            Message::Listed(watch, present) => self.outbox.listed(&watch, present, now),
        }
        self.status.progress.lock().last_observed = self.outbox.serial();
    }

    fn handle_stored(&mut self, stored: Stored) {
        match stored {
            Stored::Found(found) => self.begin(found),
            Stored::Names(revision) => self.names.stored(revision, &mut self.outbox),
            Stored::Digest(serial) => {
                tracing::debug!(serial, "the digest is stored");
                self.outbox.digest_stored(serial);
                if self.outbox.declares() {
                    self.schedule.heartbeat_at = Instant::now();
                }
            }
        }
    }

    /// Claims an earlier run's digest, or reports everything without one.
    fn begin(&mut self, found: Found) {
        let Found { digest, names } = found;
        self.digests.loaded();
        let kinds = Arc::new(self.names.load(names, &mut self.outbox, self.settings.max_names));
        let Some((claim, digest)) = digest else {
            self.baseline.send_replace(Baseline { kinds, ..Baseline::nothing_known() });
            return;
        };
        tracing::info!(epoch = %claim.epoch, serial = claim.serial, "an earlier run has left a digest");
        self.baseline.send_modify(|baseline| baseline.kinds = kinds);
        self.outbox.begin(claim, digest);
    }

    fn handle(&mut self, event: Event<T::Connection>) {
        match event {
            Event::Connected(Ok(connection)) => self.connected(connection),
            Event::Connected(Err(error)) => self.failed("connect", &error, None),
            Event::Closed(error) => self.failed("connection", &error, None),
            Event::Replaced(replacement) => self.replaced(replacement),
            Event::Batch(sent, answer) => self.batch_ended(&sent, answer),
            Event::Poll { since, ranges, answer } => self.poll_ended(since, ranges, answer),
        }
    }

    fn publish_progress(&self) {
        let connected = matches!(&self.link, Link::Up(up) if up.answered);
        let dirty = self.outbox.dirty();
        self.metrics.connected.set(i64::from(connected));
        let count = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        self.metrics.dirty.set(count(dirty.len()));
        self.metrics.unsent.set(count(dirty.unsent() + dirty.withheld()));
        self.metrics.names_kept.set(count(self.names.kept()));
        let mut progress = self.status.progress.lock();
        progress.connected = connected;
        progress.session = self.outbox.session();
        progress.dirty = dirty.len();
        if progress.repeated.is_empty() && self.failures.repeated().next().is_none() {
            return;
        }
        progress.repeated = self.failures.repeated().cloned().collect();
    }
}
