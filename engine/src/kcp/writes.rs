//! Writes to KCP: server-side applies with the contract's field managers, only where values differ.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, KymaStatus, Manifest, ManifestStatus, names};
use tidewatch_deployer::adoption::has_stale_condition;
use tidewatch_planner::{
    kyma::is_written,
    writers::{has_entry, has_own_inventory, has_written_inventory, reclaim},
};

use super::Kcp;
use crate::{
    error::Error,
    gate::{DryRunWrite, Mode, Permit, Side},
    stages::{Stage, stage},
};

/// Whether applying `wanted` onto `present` would change a value. Fields that `wanted` omits belong to others; `null` equals absent.
pub(crate) fn differs(present: &Value, wanted: &Value) -> bool {
    match (present, wanted) {
        (_, Value::Null) => false,
        (Value::Object(present), Value::Object(wanted)) => {
            wanted.iter().any(|(key, value)| differs(present.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Null, Value::Object(wanted)) => wanted.values().any(|value| differs(&Value::Null, value)),
        (present, wanted) => present != wanted,
    }
}

/// The catalog condition that the Go manager applied with the Kyma's other conditions, as a separate status.
///
/// The catalog's field manager must apply it before the other one releases it, so that it never disappears.
pub(crate) fn catalog_condition_of(kyma: &Value) -> Option<Value> {
    let is_catalog = |type_: &str| type_ == names::conditions::MODULE_CATALOG;
    let others = has_stale_condition(kyma, names::field_managers::KCP, |type_| !is_catalog(type_));
    let all = kyma["status"]["conditions"].as_array().filter(|_| others)?;
    let kept = all.iter().find(|condition| condition["type"].as_str().is_some_and(is_catalog))?;
    Some(json!({"conditions": [kept]}))
}

/// Whether the installed objects were observed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inventory {
    Observed,
    Unobserved,
}

/// Returns the status to apply to a Manifest; `None` if it is up to date and engine-owned. Another manager's inventory becomes
/// engine-owned only once the installed objects were observed.
fn manifest_status(
    manifest: &Manifest,
    status: &ManifestStatus,
    inventory: Inventory,
    reclaimed: bool,
) -> Option<Value> {
    let is_own = has_own_inventory(manifest);
    let is_owned = !reclaimed
        && has_entry(&manifest.metadata, names::field_managers::APPLIER)
        && (has_written_inventory(manifest)
            || inventory == Inventory::Unobserved
            || status.synced.is_empty());
    if is_owned && manifest.status.as_ref() == Some(status) {
        return None;
    }
    let mut body = json!(status);
    if is_own || inventory == Inventory::Observed {
        // An empty inventory is written, too: nothing is installed.
        body["synced"] = json!(status.synced);
    } else if let Some(fields) = body.as_object_mut() {
        fields.remove("synced");
    }
    Some(body)
}

impl Kcp {
    /// Applies a body; `Ok(None)` if the object is gone.
    pub(crate) async fn apply<K>(
        &self,
        api: &Api<K>,
        name: &str,
        manager: &str,
        status: bool,
        body: &Value,
    ) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let permit = self.gate.kcp()?;
        let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::apply(manager).force() };
        let patch = Patch::Apply(body);
        let before = stored(api, name, &permit).await?;
        let result = if status {
            stage(Stage::WriteKcp, api.patch_status(name, &params, &patch)).await
        } else {
            stage(Stage::WriteKcp, api.patch(name, &params, &patch)).await
        };
        match result {
            Ok(object) if permit.is_dry() => {
                let operation = if status { "status" } else { "apply" };
                permit.record(|| {
                    dry_run_write(operation, &K::kind(&()), name, before, serde_json::to_value(&object))
                });
                Ok(Some(object))
            }
            Ok(object) => {
                self.index_mut().wrote(&K::kind(&()), name, object.resource_version());
                Ok(Some(object))
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(None),
            Err(error) => Err(Error::kcp(format!("applying {} {name}", K::kind(&())), error)),
        }
    }

    /// Merges fields into an object; `Ok(None)` if it is gone. If the fields name a version, a concurrent change is an error.
    pub(crate) async fn merge<K>(&self, api: &Api<K>, name: &str, fields: &Value) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let permit = self.gate.kcp()?;
        let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::default() };
        let before = stored(api, name, &permit).await?;
        match stage(Stage::WriteKcp, api.patch(name, &params, &Patch::Merge(fields))).await {
            Ok(object) if permit.is_dry() => {
                permit.record(|| {
                    dry_run_write("merge", &K::kind(&()), name, before, serde_json::to_value(&object))
                });
                // The dry-run version was not stored.
                Ok(None)
            }
            Ok(object) => {
                self.index_mut().wrote(&K::kind(&()), name, object.resource_version());
                Ok(Some(object))
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(None),
            Err(error) => Err(Error::kcp(format!("changing {} {name}", K::kind(&())), error)),
        }
    }

    /// Transfers other managers' fields of an engine-owned status to the engine's field manager, so that the next apply can remove or
    /// correct them. Returns whether there were any.
    async fn reclaim<K>(&self, api: &Api<K>, object: &K, main: &'static str) -> Result<bool, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let Some(entries) = reclaim(object.meta(), main) else { return Ok(false) };
        let fields =
            json!({"metadata": {"managedFields": entries, "resourceVersion": object.resource_version()}});
        self.merge(api, &object.name_any(), &fields).await?;
        Ok(true)
    }

    /// Writes a Kyma's status if it differs or has another field manager.
    pub(crate) async fn write_kyma_status(&self, kyma: &Kyma, status: &KymaStatus) -> Result<(), Error> {
        let mut present = kyma.status.clone().unwrap_or_default();
        let written = |condition: &str| is_written(status, condition);
        present.conditions.retain(|c| written(&c.type_));
        // Remove conditions of the Go manager, applied under the same field manager, that the engine does not write.
        let stale = || {
            let entries = serde_json::to_value(&kyma.metadata.managed_fields).unwrap_or_default();
            let object = json!({"metadata": {"managedFields": entries}});
            has_stale_condition(&object, names::field_managers::KCP, written)
        };
        let reclaimed = self.reclaim(&self.kymas(), kyma, names::field_managers::KCP).await?;
        let is_owned = !reclaimed && has_entry(&kyma.metadata, names::field_managers::KCP);
        if kyma.status.is_some() && present == *status && is_owned && !stale() {
            return Ok(());
        }
        let name = kyma.name_any();
        let body = json!({"apiVersion": names::API_VERSION, "kind": "Kyma", "metadata": {"name": name}, "status": status});
        let present = serde_json::to_value(kyma).unwrap_or_default();
        let mut body = body;
        if let Some(kept) = catalog_condition_of(&present) {
            if self.gate.kcp()?.is_dry()
                && let (Some(all), Some(kept)) =
                    (body["status"]["conditions"].as_array_mut(), kept["conditions"].as_array())
            {
                // In a dry run, the next write must report the result of this one, which is not stored.
                all.extend(kept.iter().cloned());
            }
            let kept = json!({"apiVersion": names::API_VERSION, "kind": "Kyma", "metadata": {"name": name}, "status": kept});
            self.apply(&self.kymas(), &name, names::field_managers::CATALOG_STATUS, true, &kept).await?;
        }
        self.apply(&self.kymas(), &name, names::field_managers::KCP, true, &body).await.map(drop)
    }

    /// Writes a Manifest's status if it differs or has another field manager.
    pub(crate) async fn write_manifest_status(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
    ) -> Result<(), Error> {
        self.apply_manifest_status(manifest, status, Inventory::Observed).await.map(drop)
    }

    /// Writes a Manifest's status during a reconcile and updates `manifest` for the next write.
    pub(crate) async fn write_manifest_status_in_place(
        &self,
        manifest: &mut Manifest,
        status: ManifestStatus,
    ) -> Result<(), Error> {
        let written = self.apply_manifest_status(manifest, &status, Inventory::Observed).await?;
        manifest.status = Some(status);
        if let Some(written) = written.filter(|_| !self.is_dry()) {
            manifest.metadata = written.metadata;
        }
        Ok(())
    }

    pub(crate) fn is_dry(&self) -> bool {
        matches!(self.gate.mode(), Mode::DryRun(_))
    }

    /// Writes a Manifest's status without an observed inventory.
    pub(crate) async fn write_manifest_status_unobserved(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
    ) -> Result<(), Error> {
        self.apply_manifest_status(manifest, status, Inventory::Unobserved).await.map(drop)
    }

    async fn apply_manifest_status(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
        inventory: Inventory,
    ) -> Result<Option<Manifest>, Error> {
        let reclaimed = self.reclaim(&self.manifests(), manifest, names::field_managers::APPLIER).await?;
        let Some(status) = manifest_status(manifest, status, inventory, reclaimed) else { return Ok(None) };
        let name = manifest.name_any();
        let body = json!({"apiVersion": names::API_VERSION, "kind": "Manifest", "metadata": {"name": name}, "status": status});
        self.apply(&self.manifests(), &name, names::field_managers::APPLIER, true, &body).await
    }

    /// Deletes an object in KCP; a missing one is no error.
    pub(crate) async fn delete<K>(&self, api: &Api<K>, name: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        self.delete_if_unchanged(api, name, None).await
    }

    /// Deletes an object in KCP unless it was replaced or changed since `seen`.
    pub(crate) async fn delete_if_unchanged<K>(
        &self,
        api: &Api<K>,
        name: &str,
        seen: Option<&K>,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let permit = self.gate.kcp()?;
        let preconditions =
            seen.map(|seen| Preconditions { uid: seen.uid(), resource_version: seen.resource_version() });
        let params = DeleteParams { dry_run: permit.is_dry(), preconditions, ..DeleteParams::background() };
        let before = stored(api, name, &permit).await?;
        match stage(Stage::WriteKcp, api.delete(name, &params)).await {
            Ok(_) => {
                permit.record(|| dry_run_write("delete", &K::kind(&()), name, before, Ok(Value::Null)));
                Ok(())
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(()),
            Err(error) => Err(Error::kcp(format!("deleting {} {name}", K::kind(&())), error)),
        }
    }

    /// Removes these finalizers, regardless of their origin. Fails on a concurrent change; the reconcile is retried.
    pub(crate) async fn drop_finalizers<K>(
        &self,
        api: &Api<K>,
        object: &K,
        finalizers: &[&str],
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        let remaining: Vec<&String> =
            object.finalizers().iter().filter(|f| !finalizers.contains(&f.as_str())).collect();
        if remaining.len() == object.finalizers().len() {
            return Ok(());
        }
        let name = object.name_any();
        let body =
            json!({"metadata": {"finalizers": remaining, "resourceVersion": object.resource_version()}});
        let permit = self.gate.kcp()?;
        let params = PatchParams { dry_run: permit.is_dry(), ..PatchParams::default() };
        let patch = Patch::Merge(body);
        match stage(Stage::WriteKcp, api.patch(&name, &params, &patch)).await {
            Ok(changed) => {
                let before = serde_json::to_value(object).unwrap_or_default();
                permit.record(|| {
                    dry_run_write("finalizers", &K::kind(&()), &name, before, serde_json::to_value(&changed))
                });
                Ok(())
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(()),
            Err(error) => {
                Err(Error::kcp(format!("removing the finalizers of {} {name}", K::kind(&())), error))
            }
        }
    }
}

/// The stored object before a dry-run write; null if there is none, and outside a dry run.
async fn stored<K>(api: &Api<K>, name: &str, permit: &Permit) -> Result<Value, Error>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    if !permit.is_dry() {
        return Ok(Value::Null);
    }
    let read = stage(Stage::ReadKcp, api.get_opt(name)).await;
    let read = read.map_err(|e| Error::kcp(format!("reading {name}"), e))?;
    Ok(read.and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default())
}

fn dry_run_write(
    operation: &'static str,
    kind: &str,
    name: &str,
    before: Value,
    after: serde_json::Result<Value>,
) -> DryRunWrite {
    let after = after.unwrap_or_default();
    DryRunWrite { side: Side::Kcp, operation, object: format!("{kind} {name}"), before, after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwritten_inventory_is_reclaimed_once_objects_are_known() {
        let entry = |fields: Value| {
            json!({"manager": names::field_managers::APPLIER, "operation": "Apply", "subresource": "status",
            "fieldsV1": {"f:status": fields}})
        };
        let manifest = |entries: &[Value]| -> Manifest {
            serde_json::from_value(json!({
                "metadata": {"name": "m", "finalizers": [names::finalizers::MANIFEST], "managedFields": entries},
                "spec": {"install": {"name": "raw-manifest", "source": {}}},
                "status": {"state": "Ready", "synced": [{"version": "v1", "kind": "ConfigMap", "name": "a", "namespace": "n"}]}
            }))
            .unwrap()
        };
        let own = manifest(&[entry(json!({"f:state": {}, "f:synced": {}}))]);
        let without_inventory = manifest(&[entry(json!({"f:state": {}}))]);
        let same = own.status.clone().unwrap();
        let other = ManifestStatus { state: tidewatch_api::State::Error, ..same.clone() };
        for inventory in [Inventory::Observed, Inventory::Unobserved] {
            assert_eq!(manifest_status(&own, &same, inventory, false), None);
            assert_eq!(
                manifest_status(&own, &same, inventory, true),
                Some(json!(same)),
                "the other manager loses its fields"
            );
            assert_eq!(manifest_status(&own, &other, inventory, false), Some(json!(other)));
        }
        assert_eq!(
            manifest_status(&without_inventory, &same, Inventory::Observed, false),
            Some(json!(same)),
            "the inventory is engine-owned from now on"
        );
        assert_eq!(manifest_status(&without_inventory, &same, Inventory::Unobserved, false), None);
        assert_eq!(
            manifest_status(&without_inventory, &other, Inventory::Unobserved, false),
            Some(json!({"state": "Error"}))
        );
        let empty = ManifestStatus { synced: std::sync::Arc::default(), ..other };
        let body = manifest_status(&own, &empty, Inventory::Observed, false).unwrap();
        assert_eq!(body, json!({"state": "Error", "synced": []}));
    }

    #[test]
    fn only_desired_fields_are_compared() {
        let present = json!({"a": 1, "b": {"c": [1, 2], "d": "other's"}});
        assert!(!differs(&present, &json!({"a": 1, "b": {"c": [1, 2]}, "e": null, "f": {"g": null}})));
        assert!(differs(&present, &json!({"b": {"c": [1]}})));
        assert!(differs(&present, &json!({"e": {"f": 1}})));
    }
}
