//! Prepares runtimes: the namespace `kyma-system` and the engine's CRDs.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionSpec,
};
use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, crds,
    names::{self, annotations, field_managers, labels},
    object::ObjectRef,
};
use tidewatch_deployer::drift::{self, Difference, Ignored};
use tidewatch_planner::engine_owned::CRDS;

use super::{restore::Drifted, suspended::Suspended};
use crate::{
    clusters::{
        Clusters, Gated,
        objects::{self, ObjectError},
        record::Prepared,
    },
    gate::Mode,
    kcp::{Kcp, writes::differs},
    key::WorkKey,
    reconcile::{echoes::EchoFilter, restore::Restorer},
    trigger::Trigger,
};

const CRD: &str = "CustomResourceDefinition";

const SCHEMA_FRESH: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schema {
    /// The engine's CRD: absent modules were removed by the user.
    Ours,
    /// Possibly the previous CRD, until this time.
    Mended(Timestamp),
    /// Another CRD, which the next reconcile corrects. API servers drop fields that a CRD does not define.
    Other,
}

/// Built once: building the CRDs costs more than a whole reconcile.
static WANTED: LazyLock<Wanted> = LazyLock::new(|| {
    let objects: Vec<_> =
        wanted().into_iter().filter_map(|body| Some((ObjectRef::of(&body)?, body))).collect();
    let bodies: Vec<&Value> = objects.iter().map(|(_, body)| body).collect();
    let hash = xxhash_rust::xxh3::xxh3_64(&serde_json::to_vec(&bodies).unwrap_or_default());
    let names = objects.iter().flat_map(|(object, _)| [object.unversioned(), object.all_of_kind()]);
    Wanted { names: names.collect(), objects, hash }
});

struct Wanted {
    objects: Vec<(ObjectRef, Value)>,
    hash: u64,
    /// Names as in events: each object, and all of its kind.
    names: BTreeSet<ObjectRef>,
}

pub(crate) fn is_of_prepared(cause: &Trigger) -> bool {
    cause.object().is_some_and(|object| {
        let object = if object.is_all_of_kind() { object.all_of_kind() } else { object.unversioned() };
        WANTED.names.contains(&object)
    })
}

fn wanted() -> Vec<Value> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": names::RUNTIME_NAMESPACE, "labels": {
            labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME,
            labels::ISTIO_INJECTION: labels::ENABLED, labels::WARDEN_VALIDATE: labels::ENABLED}}
    });
    let mut all = vec![namespace];
    for crd in crds::all() {
        if crd.metadata.name.as_deref().is_some_and(|name| CRDS.contains(&name)) {
            all.push(with_kind(&crd));
        }
    }
    all
}

/// Completes a CRD for an apply, which needs apiVersion and kind. The status belongs to the API server.
fn with_kind(crd: &CustomResourceDefinition) -> Value {
    let mut body = serde_json::to_value(crd).unwrap_or_default();
    body["apiVersion"] = "apiextensions.k8s.io/v1".into();
    body["kind"] = CRD.into();
    body["metadata"]["labels"][labels::MANAGED_BY] = labels::MANAGED_BY_RUNTIME.into();
    if let Some(body) = body.as_object_mut() {
        body.remove("status");
    }
    without_empty_lists(&mut body);
    body
}

/// API servers do not store empty lists; they would differ forever.
fn without_empty_lists(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.as_array().is_some_and(Vec::is_empty));
            members.values_mut().for_each(without_empty_lists);
        }
        Value::Array(items) => items.iter_mut().for_each(without_empty_lists),
        _ => {}
    }
}

/// The Go manager's field manager for this object, so that each field keeps one owner.
fn manager_of(body: &Value) -> &'static str {
    if body["kind"] == CRD { field_managers::KCP } else { field_managers::KYMA_SYNC }
}

/// The difference that an apply would change. Equal CRD specs count as equal with any field manager: the Go manager copies KCP's CRDs with
/// API server defaults.
fn difference(live: Option<&Value>, body: &Value) -> Option<Difference> {
    let Some(live) = live else { return Some(Difference::NotApplied) };
    if body["kind"] == CRD && !differs(&live["metadata"]["labels"], &body["metadata"]["labels"]) {
        let (present, wanted) = (definition(live), definition(body));
        if present.is_some() && present == wanted {
            return None;
        }
    }
    drift::difference(live, body, manager_of(body), &Ignored::default())
}

/// A CRD's spec without defaults.
fn definition(crd: &Value) -> Option<CustomResourceDefinitionSpec> {
    let mut spec: CustomResourceDefinitionSpec = serde_json::from_value(crd["spec"].clone()).ok()?;
    spec.conversion = spec.conversion.filter(|conversion| conversion.strategy != "None");
    spec.preserve_unknown_fields = spec.preserve_unknown_fields.filter(|preserve| *preserve);
    spec.names.list_kind.get_or_insert_with(|| format!("{}List", spec.names.kind));
    spec.names.singular.get_or_insert_with(|| spec.names.kind.to_lowercase());
    Some(spec)
}

pub(crate) struct Preparer {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) restorer: Arc<Restorer>,
    pub(crate) echoes: Arc<EchoFilter>,
}

impl Preparer {
    /// Applies missing or differing objects and returns the suspended ones. Does nothing if the record is up to date. In KCP's own cluster
    /// the CRDs are KCP's, which the engine does not change.
    pub(crate) async fn prepare(&self, kyma: &Kyma, runtime: &Gated) -> Result<Vec<Suspended>, ObjectError> {
        let Wanted { objects, hash, .. } = &*WANTED;
        let name = kyma.name_any();
        let before = self.clusters.records.read(&name, |record| record.prepared);
        if before.hash == Some(*hash) {
            return Ok(Vec::new());
        }
        let (work, again) = (WorkKey::Kyma { kyma: name.clone() }, before.before);
        let (mut mended, mut lost, mut suspended) = (None, false, Vec::new());
        let is_here = |object: &ObjectRef| !(runtime.is_own_cluster() && object.gvk.is_crd());
        for (object, body) in objects.iter().filter(|(object, _)| is_here(object)) {
            let live = objects::get(runtime, object).await?;
            if let Some(live) = &live {
                self.echoes.record_read(&work, object, live);
            }
            let is_kymas = object.name == CRDS[0];
            // The note stays until the Kyma exists, so that it survives a crash.
            let notes = is_kymas && live.as_ref().map_or_else(|| had_list(kyma), is_lost);
            let wanted = if notes { &noting_loss(body) } else { body };
            lost |= notes;
            let Some(difference) = difference(live.as_ref(), wanted) else {
                suspended.extend(self.restorer.on_trial(&work, object));
                continue;
            };
            tracing::info!(kyma = name, %object, %difference, "applied, to prepare the runtime");
            let drifted = Drifted { object, wanted, manager: manager_of(body), live: live.as_ref(), again };
            suspended.extend(self.restorer.restore(&work, runtime, drifted).await?);
            if is_kymas && live.is_some() {
                mended = Some(self.kcp.now());
            }
            if live.is_none() && again {
                // Its objects are gone, too.
                self.clusters.records.change_existing(&name, |record| record.doubt_catalog(None));
            }
        }
        let hash = suspended.is_empty().then_some(*hash);
        self.clusters.records.change(&name, |record| {
            let mended = mended.or(record.prepared.mended);
            record.prepared = Prepared { hash, before: true, mended, lost };
        });
        Ok(suspended)
    }

    /// The CRD by which the list of modules was read. `Ours` in a dry run, which cannot correct it, and in KCP's own cluster.
    pub(crate) async fn schema_of_list(&self, kyma: &str, runtime: &Gated) -> Result<Schema, ObjectError> {
        let mended = self.clusters.records.read(kyma, |record| record.prepared.mended);
        if let Some(at) = mended.filter(|at| self.kcp.now().duration_since(*at).abs() < SCHEMA_FRESH) {
            return Ok(Schema::Mended(at + SCHEMA_FRESH));
        }
        let is_dry = matches!(self.kcp.gate.mode(), Mode::DryRun(_));
        let Some((id, crd)) = kyma_crd().filter(|_| !is_dry && !runtime.is_own_cluster()) else {
            return Ok(Schema::Ours);
        };
        if difference(objects::get(runtime, id).await?.as_ref(), crd).is_none() {
            return Ok(Schema::Ours);
        }
        self.clusters.records.change_existing(kyma, |record| record.prepared.hash = None);
        Ok(Schema::Other)
    }

    /// Removes the note of a loss once the Kyma exists.
    pub(crate) async fn found_kyma(&self, kyma: &str, runtime: &Gated) -> Result<(), ObjectError> {
        if let Some((_, crd)) = kyma_crd() {
            objects::apply(runtime, crd, manager_of(crd)).await?;
        }
        self.clusters.records.change_existing(kyma, |record| record.prepared.lost = false);
        Ok(())
    }
}

pub(crate) fn had_list(kyma: &Kyma) -> bool {
    kyma.status.as_ref().is_some_and(|status| !status.active_channel.is_empty())
}

/// Whether the CRD notes that its Kyma was lost and not recreated.
fn is_lost(crd: &Value) -> bool {
    crd["metadata"]["annotations"][annotations::KYMA_LOST].is_string()
}

fn noting_loss(crd: &Value) -> Value {
    let mut noting = crd.clone();
    noting["metadata"]["annotations"][annotations::KYMA_LOST] = "true".into();
    noting
}

fn kyma_crd() -> Option<&'static (ObjectRef, Value)> {
    WANTED.objects.iter().find(|(object, _)| object.name == CRDS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_recorded_and_cleared_by_one_field_manager() {
        let (_, crd) = kyma_crd().unwrap();
        let noting = noting_loss(crd);
        assert!(is_lost(&noting) && !is_lost(crd));
        assert_eq!(manager_of(&noting), manager_of(crd), "what one has written the other takes away");
    }

    #[test]
    fn desired_objects_have_no_fields_an_api_server_drops() {
        let all = wanted();
        assert_eq!(all.len(), 4, "the namespace and three CRDs");
        for body in all {
            let text = body.to_string();
            assert!(!text.contains("[]") && !text.contains(":null"), "{text}");
        }
    }

    /// The Go manager copies CRDs with API server defaults and its own field manager.
    #[test]
    fn an_equal_definition_is_not_rewritten() {
        for body in wanted().iter().filter(|body| body["kind"] == CRD) {
            let mut live = body.clone();
            live["spec"]["conversion"] = json!({"strategy": "None"});
            live["spec"]["preserveUnknownFields"] = false.into();
            live["metadata"]["managedFields"] = json!([{"manager": "lifecycle-manager", "operation": "Apply",
                "apiVersion": "apiextensions.k8s.io/v1", "fieldsV1": {"f:spec": {"f:conversion": {"f:strategy": {}}}}}]);
            assert_eq!(difference(Some(&live), body), None);
            let mut other = live.clone();
            other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["description"] =
                "theirs".into();
            assert!(difference(Some(&other), body).is_some());
            live["metadata"]["labels"] = Value::Null;
            assert!(difference(Some(&live), body).is_some());
            assert!(difference(None, body).is_some());
        }
    }
}
