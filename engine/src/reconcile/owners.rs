//! Finds the owner of a runtime that several Kymas in KCP name.

use std::sync::Arc;

use serde_json::Value;
use tidewatch_api::names::{annotations, labels};

use super::runtime_kyma::marked_by;
use crate::{
    clusters::{Clusters, Gated, objects::ObjectError},
    error::Error,
    kcp::Kcp,
    outcome::Outcome,
    reconcile::runtime_kyma::remote_kyma,
};

pub(crate) struct RuntimeOwners {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl RuntimeOwners {
    /// The other Kyma in KCP that the runtime's Kyma names as its owner.
    pub(super) fn successor(&self, kyma: &str, remote: &Value) -> Option<String> {
        let (namespace, owner) = marked_by(remote)?.split_once('/')?;
        let is_other = *namespace == *self.kcp.namespace && owner != kyma;
        (is_other && self.kcp.index().kymas.contains(owner)).then(|| owner.to_owned())
    }

    /// Returns a Kyma's runtime unless another Kyma owns it; otherwise the outcome of the reconcile.
    pub(super) async fn own_runtime(&self, kyma: &str) -> Result<Result<Gated, Outcome>, Error> {
        let runtime = match self.clusters.access(kyma).await? {
            Ok(runtime) => runtime,
            // The Kyma's status reports this, and its reconcile requests this again.
            Err(why) => return Ok(Err(Outcome::waiting(why.message()))),
        };
        match self.occupant(kyma, &runtime).await {
            Ok(None) => Ok(Ok(runtime)),
            Ok(Some(other)) => Ok(Err(Outcome::waiting(shares_with(&other)))),
            Err(error) => self.clusters.failed_at(kyma, error).map(Err),
        }
    }

    /// The other Kyma that owns this runtime. Two owners would delete each other's modules. Reads the runtime only if several Kymas in KCP
    /// name it.
    pub(super) async fn occupant(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        let others = self.kcp.index().kymas.others_of_runtime(kyma);
        if others.is_empty() {
            return Ok(None);
        }
        let remote = remote_kyma(runtime).await?;
        let owner = self.successor(kyma, &remote);
        Ok(owner.filter(|owner| others.contains(owner)))
    }

    /// Like [`Self::occupant`], but by the runtime's Kyma alone. Notes the result for other reconciles.
    pub(super) fn note_occupant(&self, kyma: &str, remote: &Value) -> Option<String> {
        let owner = self.successor(kyma, remote);
        let (owner, is_known) = {
            let state = self.kcp.index();
            let owner = owner.filter(|owner| state.kymas.stays(owner));
            let is_known = state.kymas.taken_by(kyma) == owner.as_ref();
            (owner, is_known)
        };
        if !is_known {
            self.kcp.index_mut().kymas.set_taken_by(kyma, owner.clone());
        }
        owner
    }

    /// The successor by a fresh read. Objects known by name alone may belong to its modules.
    pub(super) async fn owner(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        let remote = remote_kyma(runtime).await?;
        Ok(self.successor(kyma, &remote))
    }
}

pub(super) fn shares_with(other: &str) -> String {
    format!(
        "the Kyma '{other}' of the control plane has this runtime: the Kyma in it says so (annotation {}); nothing is changed for this one; \
         delete it, or give it the id (label {}) and the kubeconfig of a runtime of its own; if '{other}' has another runtime by now, take \
         that annotation off",
        annotations::OWNED_BY,
        labels::RUNTIME_ID
    )
}
