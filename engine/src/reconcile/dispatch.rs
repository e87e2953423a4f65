//! One reconcile, from the lease of its key to its end: the outcome decides when the key is due again, and which events are acknowledged.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tracing::Instrument;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Reconcilers,
    applied::AppliedStates,
    echoes::{self, Completeness, EchoFilter},
    kyma::failures::Failures,
    paused::PauseNotice,
};
use crate::{
    clusters::{Admission, Clusters, Refusal},
    config::EngineConfig,
    error::{Error, chain},
    gate::Mode,
    history::{Observer, ReconcileHistory, Record},
    index::Suspected,
    kcp::Kcp,
    key::{Acknowledge, Guard, OutcomeKind, Queue, WorkKey},
    outcome::{Ending, Next, Outcome},
    pace::{self, RETRY, backoff, until},
    queue::{Class, Ended, RetryDelay, worker::Lease},
    spans,
    stages::{self, StageTime},
    trigger::{Change, Reason, Trigger, Triggers},
    watch::OVERWRITE_DELAY,
};

pub(crate) struct Dispatcher {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) queue: Queue,
    pub(crate) echoes: Arc<EchoFilter>,
    pub(crate) states: Arc<AppliedStates>,
    pub(crate) failures: Arc<Failures>,
    pub(crate) pause: PauseNotice,
    pub(crate) reconcilers: Reconcilers,
    pub(crate) history: ReconcileHistory,
    pub(crate) observer: Arc<dyn Observer>,
}

/// A reconcile in flight, for events that come meanwhile. Dropping it (after a panic or a cancelled task) ends it, too: events that may be
/// changes are queued, and the guards of echoes are dropped, so that agents send these events again.
pub(crate) struct RunningReconcile<'a> {
    echoes: &'a EchoFilter,
    queue: &'a Queue,
    key: &'a WorkKey,
    ended: bool,
}

impl<'a> RunningReconcile<'a> {
    pub(crate) fn begin(echoes: &'a EchoFilter, queue: &'a Queue, key: &'a WorkKey) -> Self {
        echoes.begin(key);
        Self { echoes, queue, key, ended: false }
    }

    /// Queues the events that are changes. Returns the guards of echoes.
    pub(crate) fn end(&mut self, end: Completeness) -> Vec<Guard> {
        self.ended = true;
        let echoes::Released { waiting, changes } = self.echoes.end(self.key, end);
        for (ask, since) in changes {
            self.queue.push_since(self.key.clone(), ask, since);
        }
        waiting
    }
}

impl Drop for RunningReconcile<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.end(Completeness::Incomplete));
        }
    }
}

/// When a key is due again without an event.
#[derive(Default)]
struct Due {
    retry: Option<(RetryDelay, Reason)>,
    plan: Option<(Duration, Timestamp)>,
}

impl Due {
    fn first(&self) -> Option<Duration> {
        self.retry
            .map(|(delay, _)| delay.backoff.max(delay.at_least))
            .into_iter()
            .chain(self.plan.map(|(delay, _)| delay))
            .min()
    }
}

impl Dispatcher {
    /// Reconciles the key of a lease, and ends the lease.
    pub(crate) async fn work(self: Arc<Self>, mut lease: Lease<WorkKey, Trigger, Guard>) {
        let key = lease.key().clone();
        lease.if_dropped = Some(Trigger::retry(&key, Reason::Panic));
        // Declared after the lease, so that it ends first: then the key may be leased again.
        let mut running = RunningReconcile::begin(&self.echoes, &self.queue, &key);
        lease.triggers = numbered(&lease);
        let runtime = || self.kcp.index().kymas.runtime_id_of(key.kyma());
        let span = spans::reconcile(&lease, runtime);
        let triggers = Triggers { listed: &lease.triggers, count: lease.trigger_count };
        let (result, stages) = self.attempt(&key, lease.class, triggers).instrument(span.clone()).await;
        let due = self.due(&key, lease.attempt, &result);
        spans::ended(&span, kind(&result));
        span.in_scope(|| log(&key, &result));
        let echoes = running.end(self.completeness(&result));
        self.observer.echoes(echoes.len());
        let remaining =
            result.as_ref().err().map(|error| error.remaining(&lease.triggers)).unwrap_or_default();
        self.record(&mut lease, &result, stages, &due);
        let guards = acknowledge(lease.take_guards().into_iter().chain(echoes), result.is_ok());
        if let Some((delay, at)) = due.plan {
            self.queue.push_later(key.clone(), Class::Rollout, Some(Trigger::Due { at }), delay);
        }
        lease.end(match due.retry {
            None => Ended::Done,
            Some((delay, reason)) => {
                let triggers = std::iter::once(Trigger::retry(&key, reason)).chain(remaining).collect();
                Ended::Retry { delay, guards, triggers }
            }
        });
    }

    async fn attempt(
        &self,
        key: &WorkKey,
        class: Class,
        triggers: Triggers<'_>,
    ) -> (Result<Outcome, Error>, Vec<StageTime>) {
        // Boxed: its future is large.
        let reconcile = Box::pin(self.reconcile(key, class, triggers));
        let (result, stages) =
            stages::noted(tokio::time::timeout(self.config.limits.deadline, reconcile)).await;
        (result.unwrap_or(Err(Error::Deadline(self.config.limits.deadline))), stages)
    }

    async fn reconcile(&self, key: &WorkKey, class: Class, triggers: Triggers<'_>) -> Result<Outcome, Error> {
        let (is_suspected, is_in_doubt) = {
            let index = self.kcp.index();
            let told = matches!(key, WorkKey::Kyma { .. }) && triggers.are_all(is_manifest_status_overwrite);
            (index.is_suspected(key), told && index.doubts_manifests_of(key.kyma()))
        };
        if let Err(held) = self.kcp.gate.begin(key) {
            if let WorkKey::Kyma { kyma } = key {
                Box::pin(self.pause.publish(kyma)).await?;
            }
            return Err(held.into());
        }
        // The Manifest's reconcile first corrects its status, which then triggers the Kyma.
        if is_in_doubt {
            let cause = triggers.listed.first().cloned();
            self.queue.push_later(key.clone(), Class::Resync, cause, OVERWRITE_DELAY);
            return Ok(Outcome::unneeded());
        }
        // The engine wrote this status itself: the response came after the event.
        if !is_suspected && triggers.are_all(is_status_overwrite) {
            return Ok(Outcome::unneeded());
        }
        let _admission = Box::pin(self.admit(key, triggers)).await?;
        if is_suspected {
            self.take_suspicion(key);
        }
        if let WorkKey::Manifest { name, .. } = key {
            let mut index = self.kcp.index_mut();
            // A time is due only for a Manifest that is not Ready. A suspected status says nothing about that.
            if is_due(triggers) && !is_suspected && index.manifests.is_ready(name) {
                return Ok(Outcome::unneeded());
            }
            index.manifests.set_class(name, class);
        }
        let outcome = self.reconcilers.reconcile(key, class, triggers).await;
        if let WorkKey::Kyma { kyma } = key
            && !self.kcp.index().kymas.contains(kyma)
        {
            self.history.forget(kyma);
        }
        outcome
    }

    /// Permission to begin a reconcile, by the cost of its runtime's last calls.
    async fn admit(&self, key: &WorkKey, triggers: Triggers<'_>) -> Result<Admission, Error> {
        match self.clusters.admit(key, triggers.listed) {
            Ok(admission) => Ok(admission),
            Err(Refusal::Crowded(why)) => Err(Error::Crowded(why)),
            Err(Refusal::Suspended(suspension)) => {
                if let WorkKey::Kyma { kyma } = key {
                    self.failures.suspended(kyma, &suspension).await?;
                }
                Err(Error::Suspended(suspension.message, suspension.left))
            }
        }
    }

    /// Another client may have written the status: this reconcile takes a full look.
    fn take_suspicion(&self, key: &WorkKey) {
        self.states.forget_sync(key);
        match self.kcp.index_mut().take_suspicion(key) {
            Some(Suspected { by: Some(by) }) => {
                tracing::warn!(%key, by, "another client has written the status; it is checked");
            }
            Some(Suspected { by: None }) => {
                tracing::info!(%key, "another client has removed a part of the status; it is checked");
            }
            None => {}
        }
    }

    /// When the key is due again without an event. A dry run tries each key once, unless the index was behind or there was no capacity.
    fn due(&self, key: &WorkKey, attempt: u32, result: &Result<Outcome, Error>) -> Due {
        let spread = xxh3_64(key.to_string().as_bytes());
        let retry = self.retry(key, result, attempt, spread);
        if self.kcp.is_dry() {
            let is_unseen = matches!(result, Err(Error::Outdated(_) | Error::Crowded(_)));
            return Due { retry: retry.filter(|_| is_unseen), plan: None };
        }
        let plan = result.as_ref().ok().and_then(|outcome| outcome.due);
        Due { retry, plan: plan.map(|at| (until(self.kcp.now(), at, spread), at)) }
    }

    fn retry(
        &self,
        key: &WorkKey,
        result: &Result<Outcome, Error>,
        attempt: u32,
        spread: u64,
    ) -> Option<(RetryDelay, Reason)> {
        let (next, reason) = match result {
            Ok(outcome) => (outcome.next, Reason::Waiting),
            Err(Error::Held(_)) if !self.kcp.gate.hold(key) => (Next::After(RETRY.first), Reason::Held),
            Err(error) => (error.retry(), error.reason()),
        };
        match next {
            Next::OnEvent => None,
            Next::After(wait) => Some((wait.into(), reason)),
            Next::Backoff { pace, reason, at_least } => {
                let at_least = pace::requested(at_least, spread);
                Some((RetryDelay { backoff: backoff(pace, attempt, spread), at_least }, reason))
            }
        }
    }

    /// How far the reconcile came with the object versions that it has seen.
    fn completeness(&self, result: &Result<Outcome, Error>) -> Completeness {
        let Ok(outcome) = result else { return Completeness::Incomplete };
        match outcome.state {
            _ if !matches!(self.kcp.gate.mode(), Mode::Live) => Completeness::Incomplete,
            Ending::Unneeded | Ending::Done => Completeness::Complete,
            Ending::Waiting(_) => Completeness::Waiting,
            Ending::Failed(_) => Completeness::Incomplete,
        }
    }

    fn record(
        &self,
        lease: &mut Lease<WorkKey, Trigger, Guard>,
        result: &Result<Outcome, Error>,
        stages: Vec<StageTime>,
        due: &Due,
    ) {
        let report = result.as_ref().ok().and_then(Outcome::report);
        let queued = lease.started_at.saturating_sub(lease.queued_at);
        let work = self.queue.now().saturating_sub(lease.started_at);
        let (outcome, message) = summary(result);
        let key = lease.key().clone();
        let record = Record {
            key: key.to_string(),
            triggers: std::mem::take(&mut lease.triggers).into_iter().map(Trigger::without_span).collect(),
            trigger_count: lease.trigger_count,
            class: lease.class.label(),
            outcome,
            state: report.map(|report| report.state),
            is_found: report.is_some_and(|report| report.is_found),
            has_read: !matches!(result, Ok(Outcome { state: Ending::Unneeded, .. })),
            message,
            finished_at: self.kcp.now(),
            queued_seconds: queued.as_secs_f64(),
            work_seconds: work.as_secs_f64(),
            stages,
            next_try_seconds: due.first().map(|delay| delay.as_secs_f64()),
            next_try_for: due.retry.map(|(_, reason)| reason),
        };
        self.observer.reconciled(&key, &record);
        self.history.add(&key, record);
    }
}

/// Acknowledges the events of a reconcile that has written down how it ended. Returns the guards that wait for a retry otherwise.
fn acknowledge(guards: impl Iterator<Item = Guard>, is_finished: bool) -> Vec<Guard> {
    if !is_finished {
        return guards.filter(|guard| guard.is_wanted()).collect();
    }
    guards.for_each(Acknowledge::finished);
    Vec::new()
}

fn kind(result: &Result<Outcome, Error>) -> OutcomeKind {
    result.as_ref().map_or_else(Error::kind, Outcome::kind)
}

fn summary(result: &Result<Outcome, Error>) -> (OutcomeKind, String) {
    match result {
        Ok(outcome) => (kind(result), outcome.message().to_owned()),
        Err(error) => (kind(result), chain(error)),
    }
}

fn log(key: &WorkKey, result: &Result<Outcome, Error>) {
    let (outcome, detail) = summary(result);
    match outcome {
        OutcomeKind::Failed => tracing::warn!(%key, detail, "reconcile failed"),
        OutcomeKind::Unreported => {
            tracing::error!(%key, detail, "reconcile failed and could not say so in KCP");
        }
        OutcomeKind::Done | OutcomeKind::Waiting => tracing::debug!(%key, ?outcome, detail, "reconciled"),
    }
}

fn is_due(triggers: Triggers<'_>) -> bool {
    triggers.are_all(|cause| matches!(cause, Trigger::Due { .. }))
}

/// Whether a status that another client may have written asks for a reconcile.
fn is_status_overwrite(cause: &Trigger) -> bool {
    cause.is_change(Change::StatusOverwritten)
}

/// Whether the status of a Manifest that another client may have written asks for a reconcile.
fn is_manifest_status_overwrite(cause: &Trigger) -> bool {
    cause.is_change(Change::ManifestStatusOverwritten)
}

/// The causes of a lease, with the number of the attempt.
fn numbered(lease: &Lease<WorkKey, Trigger, Guard>) -> Vec<Trigger> {
    lease.triggers.iter().map(|cause| cause.clone().numbered(lease.key(), lease.attempt)).collect()
}
