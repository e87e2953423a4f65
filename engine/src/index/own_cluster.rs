//! The Kyma of KCP's own cluster, if that is the only runtime (single-cluster mode).

use kube::ResourceExt;

use super::{KcpState, Wanted};
use crate::trigger::Change;

impl KcpState {
    /// Makes KCP's own cluster the only runtime. Call it before the first Kyma is applied.
    pub(crate) fn serve_own_cluster(&mut self) {
        self.kymas.single_cluster = true;
    }

    /// The Kyma of KCP's own cluster: the oldest one without a kubeconfig Secret. Others without one have no cluster.
    ///
    /// A Kyma that is being deleted keeps the cluster until it is gone, because its modules are still there.
    #[must_use]
    pub fn own_kyma(&self) -> Option<&str> {
        if !self.kymas.single_cluster {
            return None;
        }
        let candidates = self.kymas.iter().filter(|(name, _)| self.secrets.of(name).is_empty());
        let oldest = candidates.min_by_key(|(name, kyma)| (kyma.creation_timestamp().map(|at| at.0), *name));
        oldest.map(|(name, _)| name.as_str())
    }

    /// Requests the Kymas that wait for the cluster of a Kyma, which has just got or lost a kubeconfig Secret.
    pub(super) fn own_cluster_left(&self, kyma: &str) -> Vec<Wanted> {
        if self.kymas.single_cluster {
            self.kymas.taken_wanted(kyma, Change::OtherKymaLeaves)
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::Kyma;

    use super::*;
    use crate::index::{KymaLookup, SecretRef, tests::keys};

    fn kyma(name: &str, second: u8) -> Kyma {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {}}))
            .unwrap()
    }

    fn single(kymas: &[Kyma]) -> KcpState {
        let mut state = KcpState::default();
        state.serve_own_cluster();
        for kyma in kymas {
            state.apply_kyma(kyma.clone());
        }
        state
    }

    fn secret() -> SecretRef {
        SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() }
    }

    #[test]
    fn the_oldest_kyma_without_a_secret_has_the_own_cluster() {
        let mut state = single(&[kyma("c", 2), kyma("b", 1), kyma("a", 1)]);
        assert_eq!(state.own_kyma(), Some("a"), "the name decides between equally old ones");
        state.apply_secret("a", "s", Some(secret()));
        assert_eq!(state.own_kyma(), Some("b"), "a kubeconfig names another cluster");
        state.delete_kyma("b");
        assert_eq!(state.own_kyma(), Some("c"));
        state.delete_kyma("c");
        assert_eq!(state.own_kyma(), None);
    }

    #[test]
    fn a_deleting_kyma_keeps_the_own_cluster_until_it_is_gone() {
        let mut state = single(&[kyma("a", 1), kyma("b", 2)]);
        let mut leaving = kyma("a", 1);
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        state.apply_kyma(leaving);
        assert_eq!(state.own_kyma(), Some("a"));
    }

    #[test]
    fn a_waiting_kyma_is_queued_when_the_own_cluster_is_free() {
        let mut state = single(&[kyma("a", 1), kyma("b", 2)]);
        state.kymas.set_taken_by("b", Some("a".to_owned()));
        assert_eq!(keys(state.apply_secret("a", "s", Some(secret()))), ["Kyma/a", "Kyma/b"]);
        assert_eq!(keys(state.delete_kyma("a")), ["Kyma/a", "Kyma/b"]);
    }

    #[test]
    fn a_kyma_without_a_label_is_found_by_its_name_in_a_single_cluster_only() {
        let state = single(&[kyma("a", 1)]);
        assert!(matches!(state.kymas.runtime("a"), KymaLookup::One { .. }));
        assert_eq!(state.kymas.runtime_id_of("a").as_deref(), Some("a"));
        let mut fleet = KcpState::default();
        fleet.apply_kyma(kyma("a", 1));
        assert_eq!((fleet.own_kyma(), fleet.kymas.runtime("a")), (None, KymaLookup::Unknown));
    }
}
