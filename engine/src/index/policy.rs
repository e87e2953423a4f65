//! The platform's central policy of modules.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::Kyma;
use tidewatch_planner::{
    access::selects,
    policy::{self, Policy, PolicyError},
};

use super::{KcpState, Wanted, kyma_key};
use crate::trigger::Change;

/// The policy in force.
#[derive(Debug, Default)]
pub struct CentralPolicy {
    /// Last valid one. An invalid one changes nothing, or forbidden modules would appear everywhere.
    valid: Option<Arc<Policy>>,
    /// Whether a policy or its absence was read.
    is_known: bool,
    /// Error of the present text.
    fault: Option<PolicyError>,
}

impl CentralPolicy {
    /// The policy in force; `None` without a ConfigMap. Fails only before the first valid one.
    pub fn get(&self) -> Result<Option<Arc<Policy>>, PolicyError> {
        match &self.fault {
            Some(fault) if !self.is_known => Err(fault.clone()),
            _ => Ok(self.valid.clone()),
        }
    }

    /// Error of the present policy.
    pub const fn fault(&self) -> Option<&PolicyError> {
        self.fault.as_ref()
    }

    /// Sets the policy, if it is valid; returns whether it is. `None`: there is no ConfigMap.
    fn set(&mut self, policy: Result<Option<Policy>, PolicyError>) -> bool {
        match policy.map(|policy| policy.map(Arc::new)) {
            Ok(policy) => *self = Self { valid: policy, is_known: true, fault: None },
            Err(fault) => {
                let detail = fault.detail();
                tracing::error!(error = %fault, detail, "the central policy cannot be used; the one before stays in force");
                self.fault = Some(fault);
                return false;
            }
        }
        true
    }
}

/// A policy's rules for a Kyma.
fn rules<'a>(policy: Option<&'a Policy>, kyma: &Kyma) -> Vec<&'a policy::Rule> {
    let rules = policy.into_iter().flat_map(|policy| &policy.rules);
    rules.filter(|rule| selects(&rule.selector, kyma.labels())).collect()
}

impl KcpState {
    /// Applies the policy's text (`Some(None)`: without its key) or removal. Requests Kymas with different rules.
    pub fn apply_policy(&mut self, text: Option<Option<&str>>) -> Vec<Wanted> {
        let was_unreadable = self.policy.get().is_err();
        let old = self.policy.valid.clone();
        let read = match text {
            None => Ok(None),
            Some(None) => Err(PolicyError::NoKey),
            Some(Some(text)) => policy::read(text).map(Some),
        };
        if !self.policy.set(read) {
            return Vec::new();
        }
        let new = self.policy.valid.as_deref();
        // Users' lists are in the runtimes, so compare the rules.
        let differs = |kyma: &Kyma| was_unreadable || rules(old.as_deref(), kyma) != rules(new, kyma);
        let kymas: BTreeSet<&String> =
            self.kymas.iter().filter(|(_, kyma)| differs(kyma)).map(|(name, _)| name).collect();
        kymas.into_iter().map(|kyma| (kyma_key(kyma), Change::CentralPolicy)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state() -> KcpState {
        let mut state = KcpState::default();
        for (name, plan) in [("a", "trial"), ("b", "paid")] {
            let kyma =
                json!({"metadata": {"name": name, "labels": {"plan": plan}}, "spec": {"channel": "regular"}});
            state.apply_kyma(serde_json::from_value(kyma).unwrap());
        }
        state
    }

    fn asked(wanted: &[Wanted]) -> Vec<String> {
        wanted.iter().map(|(key, _)| key.to_string()).collect()
    }

    #[test]
    fn a_policy_change_requeues_only_affected_kymas() {
        let mut state = state();
        let trial = "rules: [{match: {matchLabels: {plan: trial}}, forbid: [crane]}]";
        assert_eq!(asked(&state.apply_policy(Some(Some(trial)))), ["Kyma/a"]);
        assert!(state.apply_policy(Some(Some(trial))).is_empty());
        let all = "rules: [{match: {matchLabels: {plan: trial}}, forbid: [crane]}, {require: [gauge]}]";
        assert_eq!(asked(&state.apply_policy(Some(Some(all)))), ["Kyma/a", "Kyma/b"]);
        assert_eq!(asked(&state.apply_policy(None)), ["Kyma/a", "Kyma/b"]);
        assert_eq!(state.policy.get(), Ok(None));
    }

    #[test]
    fn an_unreadable_policy_leaves_the_last_one_in_force() {
        let mut state = state();
        assert!(state.apply_policy(Some(Some("rules: {"))).is_empty());
        assert!(state.policy.get().is_err(), "none was read yet: nobody knows what is forbidden");
        assert_eq!(state.apply_policy(Some(Some("rules: []"))).len(), 2, "all have waited for it");
        state.apply_policy(Some(Some("rules: [{forbid: [crane]}]")));
        assert!(state.apply_policy(Some(None)).is_empty());
        assert_eq!(state.policy.fault(), Some(&PolicyError::NoKey));
        assert_eq!(state.policy.get().unwrap().unwrap().rules[0].forbid, ["crane"]);
        // A missing ConfigMap stays in force over an invalid text.
        assert_eq!(state.apply_policy(None).len(), 2);
        assert!(state.apply_policy(Some(Some("rules: {"))).is_empty());
        assert_eq!((state.policy.get(), state.policy.fault().is_some()), (Ok(None), true));
    }
}
