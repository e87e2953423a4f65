//! A watch: resolves its kind, lists, watches and reports changes.

mod errors;
mod event;
mod metadata;
mod pump;
mod replay;
mod report;
mod session;
mod settings;
mod source;
mod verify;

pub use metadata::Metadata;
pub use settings::{Shared, Wanted};
pub use verify::Beside;

use super::{
    condition::Reason,
    fingerprint,
    index::Index,
    resolve::{self, ResolveError, Resolved},
    tap::tapped,
};
use crate::{
    config::{self, Field},
    jitter,
};
use event::{ObjectEvent, StopReason};
use futures::{Stream, StreamExt};
use kube::{Client, api::ApiResource, runtime::watcher};
use replay::Replay;
use session::{Checks, Session};
use settings::renewed;
use source::{observed_metadata, part_of, stream};
use std::{sync::Arc, time::Duration};
use tidewatch_delivery::backoff::Backoff;
use tidewatch_telemetry::readiness;
use tokio::sync::watch;
use verify::Check;

/// Short, to find new CRDs quickly.
const RESOLVE_BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(15) };

/// A running watch.
#[derive(Debug)]
pub struct Watcher {
    spec: config::Watch,
    labels: Labels,
    shared: Shared,
    index: Index,
    wanted: Option<watch::Receiver<Wanted>>,
    /// Dropped after the first list or failure.
    unready: Option<readiness::Guard>,
    /// New objects above the limit since the last list.
    overflow: u64,
    /// Consecutive checks that found a missed event.
    missed: u32,
    comparison: Comparison,
    /// Whether to request streaming lists, which save memory; old servers lack them.
    streaming: bool,
    /// Versions with failed conversion, latest last.
    unconverted: Vec<String>,
}

/// Texts shared by a watch's observations.
#[derive(Debug)]
struct Labels {
    name: Arc<str>,
    group: Arc<str>,
    version: Arc<str>,
    kind: Arc<str>,
}

/// State of the comparison with the baseline.
#[derive(Debug, Default)]
struct Comparison {
    /// Whether a list has ended.
    listed: bool,
    /// The compared baseline; at 0 nothing is reported.
    round: u64,
    /// Buckets changed between the first list and the comparison.
    early: u64,
    /// The kind was not served at first, so all objects are new.
    appears: bool,
}

/// State between connections of a watch.
#[derive(Debug)]
struct Retry {
    attempt: u32,
    /// Whether to watch whole objects.
    whole: bool,
    /// The vanished kind, until another version is ruled out.
    gone: Option<ApiResource>,
}

/// Clients of the runtime.
struct Clients {
    /// Its data counts as a sign of life of the watch.
    watch: Client,
    /// For checks, which are no sign of life.
    checks: Client,
}

impl Watcher {
    /// Creates a watch of at most `max_objects` objects.
    pub fn new(spec: config::Watch, max_objects: usize, shared: Shared, unready: readiness::Guard) -> Self {
        shared.conditions.set(&spec.name, Reason::Starting, "", (shared.clock)());
        Self {
            labels: Labels {
                name: spec.name.as_str().into(),
                group: spec.group.as_str().into(),
                version: Arc::default(),
                kind: Arc::default(),
            },
            spec,
            shared,
            index: Index::new(max_objects),
            wanted: None,
            unready: Some(unready),
            overflow: 0,
            missed: 0,
            comparison: Comparison::default(),
            streaming: true,
            unconverted: Vec::new(),
        }
    }

    /// Follows changed settings. The index survives, so deselected objects are reported as gone.
    #[must_use]
    pub fn following(mut self, wanted: watch::Receiver<Wanted>) -> Self {
        self.wanted = Some(wanted);
        self
    }

    /// Takes changed settings. Returns whether the watch must start again.
    fn renew(&mut self) -> bool {
        let Some(wanted) = &mut self.wanted else { return false };
        let Wanted { spec, max_objects } = wanted.borrow_and_update().clone();
        self.index.set_limit(max_objects);
        std::mem::replace(&mut self.spec, spec) != self.spec
    }

    fn needs_whole(&self) -> bool {
        self.spec.field == Field::Status || !fingerprint::counts_changes(&self.spec.group)
    }

    /// Watches until the channel of changes closes or the future is dropped.
    pub async fn run(mut self, client: Client) {
        let (conditions, name) = (self.shared.conditions.clone(), self.spec.name.clone());
        let watch = tapped(&client, move || conditions.received(&name));
        let clients = Clients { watch, checks: client };
        let mut retry = Retry { attempt: 0, whole: self.needs_whole(), gone: None };
        loop {
            if self.renew() {
                (retry.whole, retry.attempt) = (self.needs_whole(), 0);
            }
            let resolved = tokio::select! {
                resolved = resolve::resolve(&clients.watch, &self.spec, &self.unconverted) => resolved,
                () = renewed(&mut self.wanted) => continue,
            };
            let waits = match resolved {
                Ok(resolved) => self.watch_kind(&clients, &resolved, &mut retry).await,
                Err(error) => self.unresolved(&error, &mut retry).await.map(|()| true),
            };
            match waits {
                Err(_) => return,
                Ok(false) => continue,
                Ok(true) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(RESOLVE_BACKOFF.delay(retry.attempt, jitter::random())) => {}
                () = renewed(&mut self.wanted) => {}
            }
            retry.attempt = retry.attempt.saturating_add(1);
        }
    }

    /// Watches a resolved kind until its stream stops. Returns whether to wait before the next try.
    async fn watch_kind(
        &mut self,
        clients: &Clients,
        resolved: &Resolved,
        retry: &mut Retry,
    ) -> Result<bool, StopReason> {
        let kind = &resolved.resource;
        // Discovery still lists it.
        if let Some(gone) = retry.gone.take()
            && gone == *kind
        {
            self.all_gone(&gone.version, &gone.kind).await?;
        }
        self.shared.conditions.set_resolved(&self.spec.name, format!("{}/{}", kind.api_version, kind.kind));
        let mut resumed = self.shared.resumed.clone();
        resumed.mark_unchanged();
        let pause = async move {
            if resumed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let events = stream(&clients.watch, &self.spec, resolved, retry.whole, self.streaming);
        let events = events.take_until(Box::pin(pause));
        let list = Check::new(&clients.checks, &self.spec, resolved, retry.whole);
        let checks = Checks {
            list: list.every(self.shared.check_every),
            replay: Replay::new(&clients.checks, &self.spec, resolved, retry.whole),
        };
        match self.pump(events, resolved, checks, &mut retry.attempt).await {
            StopReason::Closed => return Err(StopReason::Closed),
            StopReason::Renewed => return Ok(false),
            StopReason::NeedsWhole => {
                retry.whole = true;
                return Ok(false);
            }
            StopReason::NoStreaming => {
                tracing::info!(watch = self.spec.name, "the API server does not stream lists");
                self.streaming = false;
                return Ok(false);
            }
            StopReason::KindGone => {
                self.condition(
                    Reason::WaitingForKind,
                    "the API server does not serve the kind in this version any more; waiting for it",
                );
                retry.gone = Some(kind.clone());
            }
            StopReason::Unconverted => {
                self.unconverted.retain(|version| *version != kind.version);
                self.unconverted.push(kind.version.clone());
            }
            StopReason::Broken => {}
        }
        Ok(true)
    }

    /// Processes `events` like [`run`](Self::run), until they end or a check `beside` finds a missed one. Returns
    /// whether changes are still received. For simulations.
    pub async fn feed(
        &mut self,
        events: impl Stream<Item = watcher::Result<watcher::Event<Metadata>>> + Unpin,
        resolved: &Resolved,
        beside: Option<Beside>,
    ) -> bool {
        let part = part_of(&self.spec);
        let observed = move |object: Metadata| observed_metadata(part, object);
        let events = events.map(|event| event.map(|event| ObjectEvent::new(event, &observed)));
        let list = beside.map_or_else(Check::never, |beside| Check::beside(beside, part));
        let checks = Checks { list, replay: Replay::never() };
        self.pump(events, resolved, checks, &mut 0).await != StopReason::Closed
    }

    async fn pump(
        &mut self,
        events: impl Stream<Item = watcher::Result<ObjectEvent>> + Unpin,
        resolved: &Resolved,
        checks: Checks,
        attempt: &mut u32,
    ) -> StopReason {
        let baseline = self.shared.baseline.clone();
        let mut session = Session::new(events, resolved, checks, baseline, attempt);
        loop {
            if let Err(stop) = self.step(&mut session).await {
                return stop;
            }
        }
    }

    /// Reports why a kind cannot be watched, and objects that are gone with it.
    async fn unresolved(&mut self, error: &ResolveError, retry: &mut Retry) -> Result<(), StopReason> {
        let (reason, message) = errors::condition_of(error);
        self.condition(reason, &message);
        if !matches!(error, ResolveError::NotServed { .. }) {
            return Ok(());
        }
        match retry.gone.take() {
            Some(gone) => self.all_gone(&gone.version, &gone.kind).await,
            None => self.never_served().await,
        }
    }

    /// Sets the condition; the first one ends the start.
    fn condition(&mut self, reason: Reason, message: &str) {
        self.set(reason, message);
        self.unready = None;
    }

    fn set(&self, reason: Reason, message: &str) {
        self.shared.conditions.set(&self.spec.name, reason, message, (self.shared.clock)());
    }
}

#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod tests;
