//! Syncs the platform's image pull Secret to runtimes.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};
use tidewatch_api::{
    names::{self, annotations, field_managers, labels},
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::drift::{self, Ignored};

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    error::Error,
    kcp::Kcp,
    stages::{Stage, stage},
};

fn in_runtime(name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of("v1", "Secret"), namespace: names::RUNTIME_NAMESPACE.into(), name: name.into() }
}

fn wanted(secret: &Secret, name: &str, owner: &str) -> Value {
    let mut wanted = json!({
        "apiVersion": "v1", "kind": "Secret", "type": secret.type_, "data": secret.data,
        "metadata": {
            "name": name, "namespace": names::RUNTIME_NAMESPACE,
            "labels": {labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME},
            "annotations": {annotations::OWNED_BY: owner}
        }
    });
    if let Some(members) = wanted.as_object_mut() {
        members.retain(|_, member| !member.is_null());
    }
    wanted
}

pub(crate) struct PullSecrets {
    pub(crate) kcp: Kcp,
    pub(crate) name: Option<String>,
}

impl PullSecrets {
    fn owner(&self, kyma: &str) -> String {
        format!("{}/{kyma}", self.kcp.namespace)
    }

    /// Syncs the Secret, if configured; writes only a difference. `Some(Err)` is the failure message.
    pub(super) async fn sync(
        &self,
        kyma: &str,
        runtime: &Gated,
    ) -> Result<Option<Result<(), String>>, Error> {
        let Some(name) = &self.name else { return Ok(None) };
        let api: Api<Secret> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        let read = stage(Stage::ReadKcp, api.get_opt(name)).await;
        let secret = read.map_err(|e| Error::kcp(format!("reading Secret {name}"), e))?;
        let Some(secret) = secret else {
            return Ok(Some(Err(format!("there is no Secret '{name}' in the control plane"))));
        };
        if runtime.is_own_cluster() && *self.kcp.namespace == *names::RUNTIME_NAMESPACE {
            return Ok(Some(Ok(())));
        }
        let wanted = wanted(&secret, name, &self.owner(kyma));
        match stage(Stage::Prepare, bring(runtime, &wanted)).await {
            Ok(()) => Ok(Some(Ok(()))),
            Err(ObjectError::Held(held)) => Err(held.into()),
            Err(error) => Ok(Some(Err(error.message()))),
        }
    }

    pub(super) async fn remove(&self, kyma: &str, runtime: &Gated) -> Result<(), ObjectError> {
        let Some(name) = &self.name else { return Ok(()) };
        let id = in_runtime(name);
        let Some(there) = objects::find(runtime, &id).await? else { return Ok(()) };
        if there.marks.owned_by.as_deref() == Some(self.owner(kyma).as_str()) && !there.deleting {
            objects::delete(runtime, &id, &there.uid).await?;
        }
        Ok(())
    }
}

async fn bring(runtime: &Gated, wanted: &Value) -> Result<(), ObjectError> {
    // Also used by the Go manager, so that fields keep one owner.
    let manager = field_managers::KCP;
    let Some(id) = ObjectRef::of(wanted) else { return Err(ObjectError::Malformed("a Secret".into())) };
    let live = objects::get(runtime, &id).await?;
    let stands =
        live.is_some_and(|live| drift::difference(&live, wanted, manager, &Ignored::default()).is_none());
    if !stands {
        objects::apply(runtime, wanted, manager).await?;
    }
    Ok(())
}
