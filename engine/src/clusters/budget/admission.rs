//! Admits reconciles of a runtime by its budget.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{AdmissionDecision, Budget, Budgets, Origin, PROBE_WAIT, Remaining, requeue};
use crate::{
    clusters::access::Clusters,
    key::WorkKey,
    pace::next_try,
    trigger::{Change, Reason, Trigger},
};

/// Permission to begin a reconcile. Dropping it ends its probe.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The capacity that a suspect uses.
    capacity: Option<OwnedSemaphorePermit>,
    /// The Kyma whose runtime is probed.
    probe: Option<(Arc<Budgets>, String)>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some((budgets, kyma)) = &self.probe {
            let mut runtimes = budgets.runtimes.lock();
            // Reconciles that were refused meanwhile requeue themselves.
            if runtimes.get_mut(kyma).is_some_and(Budget::end_probe) {
                runtimes.remove(kyma);
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspension {
    pub(crate) message: String,
    pub(crate) left: Duration,
    /// Whether the runtime answers reads, and only writes get no answer.
    pub(crate) answers_reads: bool,
}

impl Suspension {
    /// Whether it ends so soon that no status mentions it.
    pub(crate) fn is_short(&self) -> bool {
        self.left <= PROBE_WAIT
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The runtime's last call got no answer, and the capacity for suspects is used up.
    Crowded(String),
    Suspended(Suspension),
}

impl Clusters {
    pub(crate) fn admit(&self, key: &WorkKey, triggers: &[Trigger]) -> Result<Admission, Refusal> {
        let kyma = key.kyma();
        let origin = Origin::of(triggers);
        if matches!(key, WorkKey::EventPath { .. }) && origin == Origin::Runtime {
            // A canary has returned.
            requeue(&self.queue, self.budgets.allow_probe(kyma), Reason::Suspended);
        }
        let unlimited = Admission { capacity: None, probe: None };
        if !key.calls_runtime() {
            return Ok(unlimited);
        }
        let (verdict, answers_reads) = {
            let mut runtimes = self.budgets.runtimes.lock();
            let Some(budget) = runtimes.get_mut(kyma) else { return Ok(unlimited) };
            if triggers.iter().any(|trigger| trigger.is_change(Change::Kubeconfig)) {
                // It may lead to another cluster.
                budget.suspended_until = budget.suspended_until.map(|_| Instant::now());
            }
            (budget.admit(key, Instant::now(), origin), budget.answers_reads)
        };
        match verdict {
            AdmissionDecision::Wait(time) => {
                Err(Refusal::Suspended(self.suspension(kyma, Remaining { time, answers_reads })))
            }
            AdmissionDecision::Admit { is_probe } => {
                let probe = is_probe.then(|| (Arc::clone(&self.budgets), kyma.to_owned()));
                // Dropped without capacity, it ends its probe.
                let mut admission = Admission { capacity: None, probe };
                let Ok(capacity) = Arc::clone(&self.budgets.suspects).try_acquire_owned() else {
                    let reason = format!("the last call to the runtime of {kyma} got no answer");
                    return Err(Refusal::Crowded(reason));
                };
                admission.capacity = Some(capacity);
                Ok(admission)
            }
        }
    }

    /// Describes a suspension. Its end is a whole minute, so that the message stays the same.
    fn suspension(&self, kyma: &str, remaining: Remaining) -> Suspension {
        let at =
            self.kcp.now().saturating_add(remaining.time + Duration::from_secs(59)).unwrap_or(Timestamp::MAX);
        let at = at.strftime("%Y-%m-%dT%H:%MZ");
        let answers = if remaining.answers_reads {
            "answers reads, but no writes (check its etcd and its webhooks)"
        } else {
            "does not answer"
        };
        let message = format!(
            "the runtime of {kyma} {answers}, and is suspended until {at}, or until its agent reports an event or its \
             kubeconfig changes"
        );
        Suspension { message, left: remaining.time, answers_reads: remaining.answers_reads }
    }

    pub(crate) fn is_suspended(&self, kyma: &str) -> bool {
        self.budgets.suspension(kyma).is_some()
    }

    /// The part of a message about the next try after a failure in a runtime.
    pub(crate) fn next_try(&self, runtime: &str, retry_after: Option<Duration>) -> String {
        match self.budgets.suspension(runtime) {
            Some(remaining) => self.suspension(runtime, remaining).message,
            None => next_try(self.kcp.now(), retry_after),
        }
    }
}
