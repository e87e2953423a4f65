//! The policy of maintenance windows, and the Kymas waiting for a window.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidewatch_planner::{rollout, windows::Policy};

use crate::{
    key::{Queue, WorkKey},
    queue::{Class, Push},
    reconcile::kyma::KymaReconciler,
    trigger::{Change, Trigger},
};

/// The current policy and its waiting Kymas. One lock for both, so that a new policy finds all Kymas that wait by an old one. Bounded by
/// the number of Kymas.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    policy: Option<Arc<Policy>>,
    waiting: BTreeSet<String>,
}

impl Windows {
    pub(crate) fn policy(&self) -> Option<Arc<Policy>> {
        self.0.lock().policy.clone()
    }

    /// Records whether a Kyma waits. Returns whether its plan `used` the current policy.
    pub(crate) fn note(&self, kyma: &str, used: Option<&Arc<Policy>>, waits: bool) -> bool {
        let mut known = self.0.lock();
        if waits {
            known.waiting.insert(kyma.to_owned());
        } else {
            known.waiting.remove(kyma);
        }
        known.policy.as_ref().map(Arc::as_ptr) == used.map(Arc::as_ptr)
    }

    pub(crate) fn forget(&self, kyma: &str) {
        self.0.lock().waiting.remove(kyma);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Sets the policy. If it differs, returns the Kymas that wait.
    pub(crate) fn set(&self, policy: Option<Policy>) -> BTreeSet<String> {
        let mut known = self.0.lock();
        if known.policy.as_deref() == policy.as_ref() {
            return BTreeSet::new();
        }
        known.policy = policy.map(Arc::new);
        known.waiting.clone()
    }
}

/// Queues a Kyma for a new policy, at its turn in the rollout window.
pub(crate) fn ask_for_plan(queue: &Queue, rollout_window: Duration, kyma: String, policy: &str) {
    let delay = rollout::delay(&kyma, policy, rollout_window);
    let key = WorkKey::Kyma { kyma };
    let cause = Some(Trigger::Kcp { object: key.clone(), change: Change::MaintenancePolicy });
    if delay.is_zero() {
        queue.push(key, Push { class: Class::Rollout, trigger: cause, guards: Vec::new() });
    } else {
        queue.push_later(key, Class::Rollout, cause, delay);
    }
}

impl KymaReconciler {
    /// Records whether a Kyma waits. Requeues it if the policy was replaced during its reconcile.
    pub(crate) fn note_window(&self, kyma: &str, used: Option<&Arc<Policy>>, waits: bool) {
        if !self.windows.note(kyma, used, waits) && waits {
            ask_for_plan(&self.queue, self.config.rollout_window, kyma.to_owned(), "changed meanwhile");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(day: &str) -> Policy {
        let text = format!(
            r#"{{"rules": [], "default": {{"days": ["{day}"], "begin": "01:00:00Z", "end": "02:00:00Z"}}}}"#
        );
        Policy::parse(&text).unwrap()
    }

    #[test]
    fn a_new_policy_queues_kymas_waiting_for_windows() {
        let windows = Windows::default();
        assert!(
            windows.note("a", None, true) && windows.note("b", None, true) && windows.note("c", None, false)
        );
        assert!(windows.note("b", None, false), "its user has not waited");
        assert_eq!(windows.set(Some(policy("Mon"))), BTreeSet::from(["a".to_owned()]));
        assert!(windows.set(Some(policy("Mon"))).is_empty(), "it says the same");
        assert!(!windows.note("d", None, true), "planned before, and would wait for ever");
        let used = windows.policy();
        assert!(windows.note("d", used.as_ref(), true));
        assert_eq!(windows.set(Some(policy("Tue"))).len(), 2);
        windows.forget("a");
        assert_eq!(windows.set(None), BTreeSet::from(["d".to_owned()]));
    }
}
