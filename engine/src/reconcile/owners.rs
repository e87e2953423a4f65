//! The Kyma in KCP that owns a runtime, where several name the same one.

use std::sync::Arc;

use serde_json::Value;
use tidewatch_api::names::{annotations, labels};

use super::runtime_kyma::marked_by;
use crate::{
    clusters::{Clusters, Gated, objects::ObjectError},
    kcp::Kcp,
    outcome::{Lost, Outcome},
    reconcile::runtime_kyma::remote_kyma,
};

/// Finds the owners of runtimes.
pub(crate) struct Owners {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl Owners {
    /// Another Kyma of KCP that has a runtime by now, by what the Kyma in it says.
    pub(super) fn successor(&self, kyma: &str, remote: &Value) -> Option<String> {
        let (namespace, owner) = marked_by(remote)?.split_once('/')?;
        let is_other = *namespace == *self.kcp.namespace && owner != kyma;
        (is_other && self.kcp.index().kyma(owner).is_some()).then(|| owner.to_owned())
    }

    /// The runtime of a Kyma, if no other Kyma has it; else how a reconcile of something in it ends.
    pub(super) async fn own_runtime(&self, kyma: &str) -> Result<Result<Gated, Outcome>, Lost> {
        let runtime = match self.clusters.access(kyma).await? {
            Ok(runtime) => runtime,
            // The Kyma's status says so, and its reconcile asks for this again.
            Err(why) => return Ok(Err(Outcome::waiting(why.message()))),
        };
        match self.occupant(kyma, &runtime).await {
            Ok(None) => Ok(Ok(runtime)),
            Ok(Some(other)) => Ok(Err(Outcome::waiting(shares_with(&other)))),
            Err(error) => self.clusters.failed_at(kyma, error).map(Err),
        }
    }

    /// Another Kyma of KCP that stays and has the runtime of this one, by what both are called and by what the Kyma in it says. Two that
    /// write there would take each other's modules away. The runtime is asked only if KCP names it twice.
    pub(super) async fn occupant(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        let others = self.kcp.index().others_of_runtime(kyma);
        if others.is_empty() {
            return Ok(None);
        }
        let remote = remote_kyma(runtime).await?;
        let owner = self.successor(kyma, &remote);
        Ok(owner.filter(|owner| others.contains(owner)))
    }

    /// The same by what the Kyma in the runtime says alone, whatever KCP calls both: what was found is known to all that is done in it from
    /// then on.
    pub(super) fn note_occupant(&self, kyma: &str, remote: &Value) -> Option<String> {
        let owner = self.successor(kyma, remote);
        let (owner, is_known) = {
            let state = self.kcp.index();
            let owner = owner.filter(|owner| state.stays(owner));
            let is_known = state.taken_by(kyma) == owner.as_ref();
            (owner, is_known)
        };
        if !is_known {
            self.kcp.index_mut().note_taken(kyma, owner.clone());
        }
        owner
    }

    /// Another Kyma of KCP that has a runtime by now: what is known by its name alone may be of its modules.
    pub(super) async fn owner(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        let remote = remote_kyma(runtime).await?;
        Ok(self.successor(kyma, &remote))
    }
}

/// Why nothing is done for a Kyma whose runtime is another one's.
pub(super) fn shares_with(other: &str) -> String {
    format!(
        "the Kyma '{other}' of the control plane has this runtime: the Kyma in it says so (annotation {}); nothing is changed for this one; \
         delete it, or give it the id (label {}) and the kubeconfig of a runtime of its own; if '{other}' has another runtime by now, take \
         that annotation off",
        annotations::OWNED_BY,
        labels::RUNTIME_ID
    )
}
