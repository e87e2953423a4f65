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
    /// The other Kyma in KCP that has this runtime: the runtime's Kyma names it as its owner, or it has KCP's own cluster.
    pub(super) fn successor(&self, kyma: &str, runtime: &Gated, remote: &Value) -> Option<String> {
        if runtime.is_own_cluster() {
            return self.kcp.index().own_kyma().filter(|owner| *owner != kyma).map(str::to_owned);
        }
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
            Ok(Some(other)) => Ok(Err(Outcome::waiting(shares_with(&runtime, &other)))),
            Err(error) => self.clusters.failed_at(kyma, error).map(Err),
        }
    }

    /// The other Kyma that owns this runtime. Two owners would delete each other's modules. Reads the runtime only if several Kymas in KCP
    /// name it.
    pub(super) async fn occupant(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        if runtime.is_own_cluster() {
            return Ok(self.successor(kyma, runtime, &Value::Null));
        }
        let others = self.kcp.index().kymas.others_of_runtime(kyma);
        if others.is_empty() {
            return Ok(None);
        }
        let remote = remote_kyma(runtime).await?;
        let owner = self.successor(kyma, runtime, &remote);
        Ok(owner.filter(|owner| others.contains(owner)))
    }

    /// Like [`Self::occupant`], but by the runtime's Kyma alone. Notes the result for other reconciles.
    pub(super) fn note_occupant(&self, kyma: &str, runtime: &Gated, remote: &Value) -> Option<String> {
        let owner = self.successor(kyma, runtime, remote);
        let (owner, is_known) = {
            let state = self.kcp.index();
            let owner = owner.filter(|owner| runtime.is_own_cluster() || state.kymas.stays(owner));
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
        Ok(self.successor(kyma, runtime, &remote))
    }
}

pub(super) fn shares_with(runtime: &Gated, other: &str) -> String {
    if runtime.is_own_cluster() {
        return format!(
            "the Kyma '{other}' has this cluster, and a single cluster has one Kyma; nothing is changed for this one; delete it, or \
             delete '{other}' and this one takes its place"
        );
    }
    format!(
        "the Kyma '{other}' of the control plane has this runtime: the Kyma in it says so (annotation {}); nothing is changed for this one; \
         delete it, or give it the id (label {}) and the kubeconfig of a runtime of its own; if '{other}' has another runtime by now, take \
         that annotation off",
        annotations::OWNED_BY,
        labels::RUNTIME_ID
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::Kyma;

    use super::*;
    use crate::{
        clusters::access::NoAccess,
        engine::Engine,
        index::SecretRef,
        reconcile::{
            runtime_kyma::{remote_kyma, runtime_kyma, write_runtime_status},
            tests::{engine_of_single_cluster, engine_on, not_found},
        },
        scripted,
    };

    fn add(engine: &Engine, name: &str, second: u8) {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let kyma = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "spec": {"channel": "regular"}});
        engine.state().write().apply_kyma(serde_json::from_value::<Kyma>(kyma).unwrap());
    }

    #[tokio::test]
    async fn without_a_secret_a_kyma_has_kcps_cluster_in_single_cluster_mode_only() {
        let (fleet, _) = engine_on(|_, _| not_found());
        add(&fleet, "default", 1);
        let access = fleet.dispatcher.clusters.access("default").await.unwrap();
        assert!(matches!(access, Err(NoAccess::NoSecret(_))));

        let (single, requests) = engine_of_single_cluster(|_, _| not_found());
        add(&single, "default", 1);
        let access = single.dispatcher.clusters.access("default").await.unwrap();
        let runtime = access.unwrap();
        assert!(runtime.is_own_cluster());
        assert_eq!(runtime_kyma(&runtime).to_string(), "Kyma.operator.kyma-project.io kcp-system/default");
        assert!(requests.lock().is_empty(), "no Secret is read");

        let secret = SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() };
        single.state().write().apply_secret("default", "s", Some(secret));
        let access = single.dispatcher.clusters.access("default").await.unwrap();
        assert!(matches!(access, Err(why @ NoAccess::OtherCluster(_)) if !why.cluster_is_gone()));
    }

    #[tokio::test]
    async fn of_two_kymas_without_a_secret_the_younger_is_refused() {
        let (engine, _) = engine_of_single_cluster(|_, _| not_found());
        add(&engine, "younger", 2);
        add(&engine, "older", 1);
        let owners = &engine.dispatcher.reconcilers.kyma.owners;
        let of = async |kyma: &str| {
            let runtime = engine.dispatcher.clusters.access(kyma).await.unwrap().unwrap();
            let noted = owners.note_occupant(kyma, &runtime, &Value::Null);
            assert_eq!(noted, owners.occupant(kyma, &runtime).await.unwrap());
            assert_eq!(noted, owners.owner(kyma, &runtime).await.unwrap());
            (noted.clone(), noted.map(|other| shares_with(&runtime, &other)))
        };
        assert_eq!(of("older").await, (None, None));
        let (other, message) = of("younger").await;
        assert_eq!(other.as_deref(), Some("older"));
        assert!(message.unwrap().contains("a single cluster has one Kyma"));
        assert_eq!(engine.state().read().kymas.taken_by("younger").unwrap(), "older");
    }

    #[tokio::test]
    async fn kcps_own_cluster_has_no_copies_to_write_or_delete() {
        let (engine, requests) = engine_of_single_cluster(|_, path| match path {
            "/api/v1" => scripted::kinds("v1", "configmaps", "ConfigMap", true),
            _ => not_found(),
        });
        add(&engine, "default", 1);
        let runtime = engine.dispatcher.clusters.access("default").await.unwrap().unwrap();
        let remote = json!({"metadata": {"name": "default"}, "spec": {}, "status": {"state": "Error"}});
        write_runtime_status(&runtime, &remote, &tidewatch_api::KymaStatus::default()).await.unwrap();
        let kyma = &engine.dispatcher.reconcilers.kyma;
        let found = kyma.deletion.left_in("default", &runtime).await.unwrap();
        let (_, left) = found.unwrap();
        assert!(left.kyma.is_none() && !left.kyma_crd && !left.template_crd && !left.release_crd);
        assert!(remote_kyma(&runtime).await.unwrap().is_null());
        let requests = requests.lock();
        assert!(requests.iter().all(|request| request.starts_with("GET")), "{requests:?}");
        assert!(
            !requests.iter().any(|request| request.contains("customresourcedefinitions/kymas")),
            "{requests:?}"
        );
    }
}
