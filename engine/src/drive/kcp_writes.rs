//! Writes to KCP: server-side applies with the field managers of the contract, and only of what differs.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, KymaStatus, Manifest, ManifestStatus, names};

use super::{
    Lost, Shared,
    gate::{Side, Tried},
};
use crate::{
    plan::{kyma::is_written, ownership::has_stale_condition},
    stages::{Stage, stage},
};

/// Whether applying `wanted` onto `present` would change a value. Fields of `present` that `wanted` does
/// not mention are others' and do not count; `null` and absent are the same.
pub(super) fn differs(present: &Value, wanted: &Value) -> bool {
    match (present, wanted) {
        (_, Value::Null) => false,
        (Value::Object(present), Value::Object(wanted)) => {
            wanted.iter().any(|(key, value)| differs(present.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Null, Value::Object(wanted)) => wanted.values().any(|value| differs(&Value::Null, value)),
        (present, wanted) => present != wanted,
    }
}

impl Shared {
    pub(super) fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.kcp.clone(), &self.config.namespace)
    }

    pub(super) fn manifests(&self) -> Api<Manifest> {
        Api::namespaced(self.kcp.clone(), &self.config.namespace)
    }

    /// Applies a body; `Ok(None)` if the object went away meanwhile.
    pub(super) async fn apply_kcp<K>(
        &self,
        api: &Api<K>,
        name: &str,
        manager: &str,
        status: bool,
        body: &Value,
    ) -> Result<Option<K>, Lost>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let permit = self.gate.kcp()?;
        let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::apply(manager).force() };
        let patch = Patch::Apply(body);
        let result = if status {
            stage(Stage::WriteKcp, api.patch_status(name, &params, &patch)).await
        } else {
            stage(Stage::WriteKcp, api.patch(name, &params, &patch)).await
        };
        match result {
            Ok(object) if permit.is_dry() => {
                let operation = if status { "status" } else { "apply" };
                permit.tried(|| tried(operation, &K::kind(&()), name, serde_json::to_value(&object)));
                Ok(Some(object))
            }
            Ok(object) => {
                self.journal.change(&self.state).await.wrote(&K::kind(&()), name, object.resource_version());
                Ok(Some(object))
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(None),
            Err(error) => Err(lost(format!("applying {} {name}", K::kind(&())), error)),
        }
    }

    /// Writes a Kyma's status if it differs.
    pub(super) async fn write_kyma_status(&self, kyma: &Kyma, status: &KymaStatus) -> Result<(), Lost> {
        let mut present = kyma.status.clone().unwrap_or_default();
        let written = |condition: &str| is_written(status, condition);
        present.conditions.retain(|c| written(&c.type_));
        // What the Go manager has applied under the same name and we do not write is taken away.
        let stale = || {
            let entries = serde_json::to_value(&kyma.metadata.managed_fields).unwrap_or_default();
            let object = json!({"metadata": {"managedFields": entries}});
            has_stale_condition(&object, names::field_managers::KCP, written)
        };
        if kyma.status.is_some() && present == *status && !stale() {
            return Ok(());
        }
        let name = kyma.name_any();
        let body = json!({"apiVersion": names::API_VERSION, "kind": "Kyma", "metadata": {"name": name}, "status": status});
        self.apply_kcp(&self.kymas(), &name, names::field_managers::KCP, true, &body).await.map(drop)
    }

    /// Writes a Manifest's status if it differs.
    pub(super) async fn write_manifest_status(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
    ) -> Result<(), Lost> {
        if manifest.status.as_ref() == Some(status) {
            return Ok(());
        }
        let name = manifest.name_any();
        let body = json!({"apiVersion": names::API_VERSION, "kind": "Manifest", "metadata": {"name": name}, "status": status});
        self.apply_kcp(&self.manifests(), &name, names::field_managers::APPLIER, true, &body).await.map(drop)
    }

    /// Deletes an object in KCP; one that is gone already is fine.
    pub(super) async fn delete_kcp<K>(&self, api: &Api<K>, name: &str) -> Result<(), Lost>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.delete_seen(api, name, None).await
    }

    /// The same, unless it is another one than was `seen`, or has changed since.
    pub(super) async fn delete_seen<K>(&self, api: &Api<K>, name: &str, seen: Option<&K>) -> Result<(), Lost>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let permit = self.gate.kcp()?;
        let preconditions =
            seen.map(|seen| Preconditions { uid: seen.uid(), resource_version: seen.resource_version() });
        let params = DeleteParams { dry_run: permit.is_dry(), preconditions, ..DeleteParams::background() };
        match stage(Stage::WriteKcp, api.delete(name, &params)).await {
            Ok(_) => {
                permit.tried(|| tried("delete", &K::kind(&()), name, Ok(Value::Null)));
                Ok(())
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(()),
            Err(error) => Err(lost(format!("deleting {} {name}", K::kind(&())), error)),
        }
    }

    /// Takes finalizers off an object, whoever put them there. Fails on a concurrent change, and is tried
    /// again then.
    pub(super) async fn drop_finalizers<K>(&self, api: &Api<K>, object: &K, ours: &[&str]) -> Result<(), Lost>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let left: Vec<&String> = object.finalizers().iter().filter(|f| !ours.contains(&f.as_str())).collect();
        if left.len() == object.finalizers().len() {
            return Ok(());
        }
        let name = object.name_any();
        let body = json!({"metadata": {"finalizers": left, "resourceVersion": object.resource_version()}});
        let permit = self.gate.kcp()?;
        let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::default() };
        let patch = Patch::Merge(body);
        match stage(Stage::WriteKcp, api.patch(&name, &params, &patch)).await {
            Ok(_) => {
                permit.tried(|| tried("finalizers", &K::kind(&()), &name, Ok(Value::Null)));
                Ok(())
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(()),
            Err(error) => Err(lost(format!("removing the finalizers of {} {name}", K::kind(&())), error)),
        }
    }
}

fn tried(operation: &'static str, kind: &str, name: &str, answer: serde_json::Result<Value>) -> Tried {
    Tried { side: Side::Kcp, operation, object: format!("{kind} {name}"), answer: answer.unwrap_or_default() }
}

pub(super) fn lost(what: String, source: kube::Error) -> Lost {
    if matches!(&source, kube::Error::Api(status) if status.code == 409) {
        return Lost::Behind(what);
    }
    Lost::Kcp { what, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_compared() {
        let present = json!({"a": 1, "b": {"c": [1, 2], "d": "other's"}});
        assert!(!differs(&present, &json!({"a": 1, "b": {"c": [1, 2]}, "e": null, "f": {"g": null}})));
        assert!(differs(&present, &json!({"b": {"c": [1]}})));
        assert!(differs(&present, &json!({"e": {"f": 1}})));
    }
}
