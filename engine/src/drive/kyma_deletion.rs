//! A Kyma that is being deleted: one step after the other, each repeatable.

use kube::{ResourceExt, api::ListParams};
use serde_json::json;
use tidewatch_api::{
    Kyma, KymaStatus, State,
    names::{self, field_managers, finalizers, labels},
};

use super::{
    Finish, Lost, Shared, agent,
    apply::{self, Deleted, ObjectError},
    gate::Gated,
    kcp_writes::lost,
    kyma::runtime_kyma,
    prepare::RUNTIME_CRDS,
};
use crate::{
    plan::{
        deletion::{self, Left, Runtime, Step},
        object::{Gvk, ObjectRef},
        status,
    },
    stages::{Stage, stage},
};

fn crd(name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        namespace: String::new(),
        name: name.into(),
    }
}

/// What is left of ours in a runtime.
async fn left_in(runtime: &Gated) -> Result<Runtime, ObjectError> {
    let kyma = match apply::get(runtime, &runtime_kyma()).await {
        Ok(found) => found.is_some(),
        Err(error) if error.is_kind_missing() => false,
        Err(error) => return Err(error),
    };
    let mut crds = 0;
    for name in RUNTIME_CRDS {
        crds += usize::from(apply::get(runtime, &crd(name)).await?.is_some());
    }
    let mut agent = 0;
    for object in agent::objects() {
        agent += usize::from(apply::get(runtime, &object).await?.is_some());
    }
    Ok(Runtime::There { kyma, crds, agent })
}

impl Shared {
    pub(super) async fn delete_kyma(&self, kyma: &Kyma) -> Result<Finish, Lost> {
        let name = kyma.name_any();
        let manifests = self.state.read().manifests_of(&name);
        let deleting = manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_some()).count();
        let runtime = match self.access(&name).await? {
            Ok(runtime) => Some(runtime),
            Err(why) if why.cluster_is_gone() => match self.doubts(&name).await? {
                None => None,
                Some(wait) => return Ok(wait),
            },
            // A kubeconfig that cannot be used says nothing about the cluster: it is not taken as gone.
            Err(why) => {
                let message = why.message();
                self.say_deleting(kyma, &message).await?;
                return Ok(Finish::Settled(super::error_report(message)));
            }
        };
        let in_runtime = match &runtime {
            None => Runtime::Gone,
            Some(client) => match stage(Stage::ReadRuntime, left_in(client)).await {
                Ok(left) => left,
                Err(error) => return self.runtime_failed(kyma, &error).await,
            },
        };
        let left =
            Left { manifests: manifests.len() - deleting, manifests_deleting: deleting, runtime: in_runtime };
        let step = deletion::next(left);
        tracing::info!(kyma = name, ?step, "the Kyma is being deleted");
        match (step, &runtime) {
            (Step::DeleteManifests, _) => {
                self.say_deleting(kyma, "waiting for the modules to be removed").await?;
                if let Some(client) =
                    runtime.as_ref().filter(|_| matches!(in_runtime, Runtime::There { kyma: true, .. }))
                {
                    // The user should see it too; that it cannot be shown holds nothing up.
                    if let Err(error) = say_deleting_in_runtime(client).await {
                        tracing::debug!(
                            kyma = name,
                            error = error.message(),
                            "the runtime's status stays as it is"
                        );
                    }
                }
                for manifest in manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_none()) {
                    self.delete_kcp(&self.manifests(), &manifest.name_any()).await?;
                }
                Ok(Finish::Waiting("the modules are being removed".into()))
            }
            (Step::AwaitManifests, _) => Ok(Finish::Waiting("the modules are being removed".into())),
            (Step::DeleteRuntimeKyma, Some(client)) => self.deleted(kyma, client, &[runtime_kyma()]).await,
            (Step::DeleteRuntimeCrds, Some(client)) => {
                let crds: Vec<ObjectRef> = RUNTIME_CRDS.iter().map(|name| crd(name)).collect();
                self.deleted(kyma, client, &crds).await
            }
            (Step::DeleteAgentConfiguration, Some(client)) => {
                self.agents.forget(&name);
                self.deleted(kyma, client, &agent::objects()).await
            }
            _ => {
                if self.has_manifests(&name).await? {
                    // The watch has not shown it yet.
                    return Ok(Finish::Recheck("waiting for a Manifest that was just made".into()));
                }
                self.drop_finalizers(&self.kymas(), kyma, &[finalizers::KYMA, finalizers::LEGACY_PURGE])
                    .await?;
                self.runtimes.invalidate(&name);
                Ok(Finish::Done)
            }
        }
    }

    /// Whether KCP has a Manifest of the Kyma, by a list of now.
    async fn has_manifests(&self, kyma: &str) -> Result<bool, Lost> {
        let params = ListParams::default().labels(&format!("{}={kyma}", labels::KYMA_NAME)).limit(1);
        let list = stage(Stage::ReadKcp, self.manifests().list_metadata(&params)).await;
        list.map(|list| !list.items.is_empty())
            .map_err(|e| lost(format!("listing the Manifests of {kyma}"), e))
    }

    async fn deleted(&self, kyma: &Kyma, runtime: &Gated, objects: &[ObjectRef]) -> Result<Finish, Lost> {
        let mut going = Vec::new();
        for object in objects {
            match apply::delete(runtime, object).await {
                Ok(Deleted::Gone) => {}
                Ok(Deleted::Going) => going.push(object.to_string()),
                Err(error) => return self.runtime_failed(kyma, &error).await,
            }
        }
        // Either way the next look decides: nothing in the runtime reports these to us any more.
        let what = if going.is_empty() { "the next step".to_owned() } else { going.join(", ") };
        Ok(Finish::Recheck(format!("waiting for {what}")))
    }

    async fn say_deleting(&self, kyma: &Kyma, message: &str) -> Result<(), Lost> {
        let before = kyma.status.clone().unwrap_or_default();
        let operation = status::operation(before.last_operation.as_ref(), message.to_owned(), self.now());
        let status = KymaStatus { state: State::Deleting, last_operation: Some(operation), ..before };
        self.write_kyma_status(kyma, &status).await
    }
}

async fn say_deleting_in_runtime(runtime: &Gated) -> Result<(), ObjectError> {
    let body = json!({
        "apiVersion": names::API_VERSION, "kind": "Kyma",
        "metadata": {"name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE},
        "status": {"state": State::Deleting}
    });
    apply::apply_status(runtime, &body, field_managers::LIFECYCLE_MANAGER).await
}
