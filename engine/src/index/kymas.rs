//! Kymas, stored as differences ([`packed`](super::packed)).
//!
//! Object trees would fragment the heap during a fleet's installation (docs/concepts/scale.md).

use std::collections::HashMap;

use kube::ResourceExt;
use tidewatch_api::{Kyma, State};

use super::packed::{Packed, Patterns};

/// All Kymas share a pattern.
const KIND: u64 = 0;

#[derive(Debug, Default)]
pub(super) struct Kymas {
    held: HashMap<String, Held>,
    patterns: Patterns,
}

#[derive(Debug)]
struct Held {
    packed: Packed,
    /// Registered domain; each notification reads it.
    domain: Option<Box<str>>,
    leaving: bool,
}

impl Kymas {
    /// Returns the previous one.
    pub(super) fn insert(&mut self, kyma: &Kyma) -> Option<Kyma> {
        let settled = kyma.status.as_ref().is_some_and(|status| status.state == State::Ready);
        let held = Held {
            packed: self.patterns.pack(KIND, kyma, settled),
            domain: kyma.skr_domain().map(Into::into),
            leaving: kyma.metadata.deletion_timestamp.is_some(),
        };
        let old = self.held.insert(kyma.name_any(), held);
        self.let_go(old)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Kyma> {
        let old = self.held.remove(name);
        self.let_go(old)
    }

    fn let_go(&mut self, old: Option<Held>) -> Option<Kyma> {
        let Held { packed, .. } = old?;
        let kyma = self.patterns.unpack(&packed);
        self.patterns.let_go(packed);
        Some(kyma)
    }

    pub(super) fn get(&self, name: &str) -> Option<Kyma> {
        self.held.get(name).map(|held| self.patterns.unpack(&held.packed))
    }

    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.held.contains_key(name)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    pub(super) fn domain(&self, name: &str) -> Option<&str> {
        self.held.get(name)?.domain.as_deref()
    }

    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.held.get(name).is_some_and(|held| held.leaving)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kyma(name: &str, state: &str, plan: &str) -> Kyma {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "kcp-system", "uid": format!("5a1f-{name}"), "resourceVersion": "7", "generation": 3,
                "labels": {"kyma-project.io/runtime-id": format!("f00d-{name}"), "plan": plan},
                "annotations": {"skr-domain": format!("{name}.example.dev")}, "finalizers": ["operator.kyma-project.io/Kyma"]},
            "spec": {"channel": "regular", "skipMaintenanceWindows": false, "modules": [{"name": "crane", "managed": false}]},
            "status": {"state": state, "activeChannel": "regular", "conditions": [{"type": "Modules", "status": "True", "reason": "Ready",
                "message": "all modules are ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .unwrap()
    }

    #[test]
    fn what_is_kept_is_what_was_seen() {
        let mut kymas = Kymas::default();
        let all = [
            kyma("a", "Processing", "trial"),
            kyma("b", "Ready", "paid"),
            kyma("c", "Ready", "trial"),
            Kyma::default(),
        ];
        for one in &all {
            assert_eq!(kymas.insert(one), None);
        }
        for one in &all {
            assert_eq!(kymas.get(&one.name_any()).as_ref(), Some(one));
        }
        let newer = kyma("a", "Ready", "paid");
        assert_eq!(kymas.insert(&newer), Some(all[0].clone()));
        assert_eq!((kymas.get("a"), kymas.domain("a")), (Some(newer), Some("a.example.dev")));
        for one in &all {
            assert!(kymas.remove(&one.name_any()).is_some() && !kymas.contains_key(&one.name_any()));
        }
        assert!(kymas.keys().next().is_none() && kymas.patterns.is_empty());
    }

    #[test]
    fn one_that_goes_is_known_as_such() {
        let mut kymas = Kymas::default();
        let mut one = kyma("a", "Ready", "paid");
        kymas.insert(&one);
        assert!(!kymas.is_leaving("a") && !kymas.is_leaving("b"));
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        one.metadata.deletion_timestamp = Some(now);
        kymas.insert(&one);
        assert!(kymas.is_leaving("a"));
    }
}
