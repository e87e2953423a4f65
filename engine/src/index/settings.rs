//! Central settings in KCP.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::Manifest;
use tidewatch_deployer::transform::DEPLOYER;
use tidewatch_planner::policy::{self, Policy, PolicyError};

use super::{KcpState, Wanted, kyma_key, manifest_key};
use crate::trigger::Change;

#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Last valid one. An invalid one changes nothing, or forbidden modules would appear everywhere.
    policy: Option<Arc<Policy>>,
    /// Whether a policy or its absence was read.
    is_known: bool,
    /// Error of the present text.
    fault: Option<PolicyError>,
}

impl KcpState {
    /// The policy in force; `None` without a ConfigMap. Fails only before the first valid one.
    pub fn policy(&self) -> Result<Option<Arc<Policy>>, PolicyError> {
        match &self.policy.fault {
            Some(fault) if !self.policy.is_known => Err(fault.clone()),
            _ => Ok(self.policy.policy.clone()),
        }
    }

    /// Requests every Kyma: all runtimes get the pull Secret.
    pub fn pull_secret_changed(&self) -> Vec<Wanted> {
        self.kymas.keys().map(|kyma| (kyma_key(kyma), Change::PullSecret)).collect()
    }

    /// Requests the deployer's Manifests, the only ones with Secret data.
    pub fn module_secret_changed(&self) -> Vec<Wanted> {
        let of = |manifest: Manifest| {
            let kyma = manifest.kyma_name()?.to_owned();
            Some((manifest_key(&kyma, &manifest.name_any()), Change::ModuleSecret))
        };
        self.manifests.of_module(DEPLOYER).filter_map(of).collect()
    }

    /// Error of the present policy.
    pub fn policy_fault(&self) -> Option<&PolicyError> {
        self.policy.fault.as_ref()
    }

    /// Applies the policy's text (`Some(None)`: without its key) or removal. Requests Kymas with different rules.
    pub fn apply_policy(&mut self, text: Option<Option<&str>>) -> Vec<Wanted> {
        let read = match text {
            None => Ok(None),
            Some(None) => Err(PolicyError::NoKey),
            Some(Some(text)) => policy::read(text).map(|policy| Some(Arc::new(policy))),
        };
        let new = match read {
            Ok(new) => new,
            Err(fault) => {
                let detail = fault.detail();
                tracing::error!(error = %fault, detail, "the central policy cannot be used; the one before stays in force");
                self.policy.fault = Some(fault);
                return Vec::new();
            }
        };
        let unread = !self.policy.is_known && self.policy.fault.is_some();
        (self.policy.is_known, self.policy.fault) = (true, None);
        let old = std::mem::replace(&mut self.policy.policy, new.clone());
        let rules = |policy: &Option<Arc<Policy>>, kyma: &tidewatch_api::Kyma| -> Vec<policy::Rule> {
            let rules = policy.iter().flat_map(|p| &p.rules);
            rules.filter(|r| tidewatch_planner::access::selects(&r.of, kyma.labels())).cloned().collect()
        };
        // Users' lists are in the runtimes, so compare the rules.
        let differs = |kyma: &tidewatch_api::Kyma| unread || rules(&old, kyma) != rules(&new, kyma);
        let kymas: BTreeSet<&String> =
            self.kymas.keys().filter(|name| self.kymas.get(name).as_ref().is_some_and(differs)).collect();
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
    fn a_policy_reaches_those_of_whom_it_says_something_else() {
        let mut state = state();
        let trial = "rules: [{match: {matchLabels: {plan: trial}}, forbid: [crane]}]";
        assert_eq!(asked(&state.apply_policy(Some(Some(trial)))), ["Kyma/a"]);
        assert!(state.apply_policy(Some(Some(trial))).is_empty());
        let all = "rules: [{match: {matchLabels: {plan: trial}}, forbid: [crane]}, {require: [gauge]}]";
        assert_eq!(asked(&state.apply_policy(Some(Some(all)))), ["Kyma/a", "Kyma/b"]);
        assert_eq!(asked(&state.apply_policy(None)), ["Kyma/a", "Kyma/b"]);
        assert_eq!(state.policy(), Ok(None));
    }

    #[test]
    fn one_that_cannot_be_read_leaves_the_last_one_in_force() {
        let mut state = state();
        assert!(state.apply_policy(Some(Some("rules: {"))).is_empty());
        assert!(state.policy().is_err(), "none was read yet: nobody knows what is forbidden");
        assert_eq!(state.apply_policy(Some(Some("rules: []"))).len(), 2, "all have waited for it");
        state.apply_policy(Some(Some("rules: [{forbid: [crane]}]")));
        assert!(state.apply_policy(Some(None)).is_empty());
        assert_eq!(state.policy_fault(), Some(&PolicyError::NoKey));
        assert_eq!(state.policy().unwrap().unwrap().rules[0].forbid, ["crane"]);
        // A missing ConfigMap stays in force over an invalid text.
        assert_eq!(state.apply_policy(None).len(), 2);
        assert!(state.apply_policy(Some(Some("rules: {"))).is_empty());
        assert_eq!((state.policy(), state.policy_fault().is_some()), (Ok(None), true));
    }
}
