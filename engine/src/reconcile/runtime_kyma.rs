//! The Kyma in a runtime: its list of modules, owner marks and status.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, KymaStatus,
    names::{self, annotations, conditions, field_managers, labels},
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::adoption::{has_stale_condition, take_over_status};
use tidewatch_planner::{
    kyma::{is_written, runtime_status},
    watches::KYMA_LABELS,
};

use crate::{
    clusters::{
        Clusters, Gated,
        objects::{self, ObjectError},
    },
    error::Error,
    kcp::writes::catalog_condition_of,
    stages::{Stage, stage},
};

/// The Kyma in a runtime. In KCP's own cluster it is the Kyma in KCP.
pub(crate) fn runtime_kyma(runtime: &Gated) -> ObjectRef {
    runtime.own_kyma().cloned().unwrap_or_else(copied_kyma)
}

pub(crate) fn copied_kyma() -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of(names::API_VERSION, "Kyma"),
        namespace: names::RUNTIME_NAMESPACE.into(),
        name: names::RUNTIME_KYMA_NAME.into(),
    }
}

pub(crate) async fn remote_kyma(runtime: &Gated) -> Result<Value, ObjectError> {
    match objects::get(runtime, &runtime_kyma(runtime)).await {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(error) if error.is_kind_missing() => Ok(Value::Null),
        Err(error) => Err(error),
    }
}

/// Reads the module names of the runtime's Kyma; `None` if they are unavailable.
pub(crate) async fn list_now(clusters: &Clusters, kyma: &str) -> Result<Option<BTreeSet<String>>, Error> {
    let Ok(runtime) = clusters.access(kyma).await? else { return Ok(None) };
    let read = stage(Stage::ReadRuntime, objects::get(&runtime, &runtime_kyma(&runtime))).await;
    let remote = match read {
        Ok(remote) => remote,
        Err(error) => {
            if error.discredits_client() {
                clusters.discredit(kyma);
            }
            None
        }
    };
    let list = remote.and_then(|remote| wishes(&remote).ok());
    Ok(list.map(|list| list.modules.into_iter().map(|module| module.name).collect()))
}

/// Longest part of a parser's message, in characters: it may quote its input.
const MAX_REASON: usize = 200;

/// Parses the user's spec; the error is a message for the user. A missing or invalid spec is never an empty list: that would remove all
/// modules. The CRD forbids an invalid spec, but users can change the CRD.
pub(crate) fn wishes(remote: &Value) -> Result<KymaSpec, String> {
    let kyma = || ObjectRef::of(remote).unwrap_or_else(copied_kyma);
    match &remote["spec"] {
        Value::Null => Err(format!(
            "{} in the runtime has no spec; nothing was changed; write one, with an empty list of modules if it is to \
             have none, or delete the Kyma to get the defaults",
            kyma()
        )),
        spec => serde_json::from_value(spec.clone()).map_err(|error| {
            let reason: String = error.to_string().chars().take(MAX_REASON).collect();
            let what = kyma();
            format!(
                "the spec of {what} in the runtime cannot be read: {reason}; nothing was changed; tried again \
                 when it changes"
            )
        }),
    }
}

/// Labels and annotations of the runtime's Kyma.
pub(crate) fn runtime_mark(kyma: &Kyma, namespace: &str) -> Value {
    let mut marks: Value = KYMA_LABELS.iter().copied().collect();
    for label in [labels::RUNTIME_ID, labels::GLOBAL_ACCOUNT_ID, labels::SUBACCOUNT_ID] {
        if let Some(value) = kyma.labels().get(label) {
            marks[label] = value.as_str().into();
        }
    }
    json!({
        "apiVersion": names::API_VERSION, "kind": "Kyma",
        "metadata": {
            "name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE, "labels": marks,
            "annotations": {annotations::OWNED_BY: format!("{namespace}/{}", kyma.name_any())}
        }
    })
}

/// The owner in KCP, as `<namespace>/<name>`.
pub(crate) fn marked_by(remote: &Value) -> Option<&str> {
    remote["metadata"]["annotations"][annotations::OWNED_BY].as_str()
}

/// Writes the status in the runtime if it differs, and takes over the Go manager's fields. Writes nothing in KCP's own cluster, where it is
/// the status in KCP.
pub(crate) async fn write_runtime_status(
    runtime: &Gated,
    remote: &Value,
    status: &KymaStatus,
) -> Result<(), ObjectError> {
    if runtime.is_own_cluster() {
        return Ok(());
    }
    let mut status = runtime_status(status);
    for condition in &mut status.conditions {
        // Of the runtime's Kyma: `kubectl wait` compares it with that generation.
        condition.observed_generation = remote["metadata"]["generation"].as_i64();
    }
    let taken = take_over_status(remote, field_managers::KCP);
    if let Some(entries) = &taken {
        let version = &remote["metadata"]["resourceVersion"];
        let fields = json!({"metadata": {"managedFields": entries, "resourceVersion": version}});
        match objects::merge(runtime, &copied_kyma(), &fields).await {
            // Another writer was faster: the next reconcile takes the rest over.
            Err(error) if error.held().is_none() && error.is_transient() => {}
            result => drop(result?),
        }
    }
    if taken.is_none() && !differs_from(remote, &status) {
        return Ok(());
    }
    let body = |status: Value| {
        json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE},
            "status": status
        })
    };
    let mut owned = json!({"status": remote["status"], "metadata": {"managedFields": remote["metadata"]["managedFields"]}});
    let is_taken = taken.is_some();
    if let Some(entries) = taken {
        owned["metadata"]["managedFields"] = entries;
    }
    if let Some(kept) = catalog_condition_of(&owned) {
        objects::apply_subresource(runtime, "status", &body(kept), field_managers::CATALOG_STATUS).await?;
    }
    let written = |type_: &str| is_written(&status, type_) || type_ == conditions::MODULE_CATALOG;
    if let Some(left) = with_conditions(remote, written).filter(|_| is_taken) {
        // In a dry run, the next write must report the result of the others, which are not stored.
        objects::record_dry_run(runtime, "status", &copied_kyma(), remote, &left)?;
    }
    let status = serde_json::to_value(&status).unwrap_or_default();
    objects::apply_subresource(runtime, "status", &body(status), field_managers::KCP).await
}

/// Keeps only some conditions; `None` if there are none. Users can change the CRD, so the status may have any shape.
fn with_conditions(kyma: &Value, kept: impl Fn(&str) -> bool) -> Option<Value> {
    let mut left = kyma.clone();
    let all = left.pointer_mut("/status/conditions")?.as_array_mut()?;
    all.retain(|condition| condition["type"].as_str().is_some_and(&kept));
    Some(left)
}

/// Whether applying the status would change the Kyma. Other writers' conditions do not count.
fn differs_from(remote: &Value, status: &KymaStatus) -> bool {
    let mut before: KymaStatus = serde_json::from_value(remote["status"].clone()).unwrap_or_default();
    let written = |condition: &str| is_written(status, condition);
    before.conditions.retain(|condition| written(&condition.type_));
    before != *status || has_stale_condition(remote, field_managers::KCP, written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_module_list_is_not_an_empty_one() {
        let wanted = |remote: Value| wishes(&remote).map(|spec| spec.modules.len());
        assert_eq!(wanted(json!({"spec": {"channel": "regular", "modules": [{"name": "a"}]}})), Ok(1));
        assert_eq!(wanted(json!({"spec": {"channel": "regular"}})), Ok(0), "an empty list is one");
        for none in [json!({"metadata": {}}), json!({"spec": null})] {
            assert!(wanted(none).unwrap_err().contains("has no spec"), "no spec is not an empty list");
        }
        for bad in [json!("m".repeat(10_000)), json!([{"name": 7}]), json!({"name": "a"})] {
            let why = wanted(json!({"spec": {"channel": "regular", "modules": bad}})).unwrap_err();
            assert!(why.contains("cannot be read") && why.len() < 500, "{why}");
        }
        assert!(wanted(json!({"spec": "everything"})).is_err());
    }

    #[test]
    fn malformed_runtime_kyma_statuses_do_not_panic() {
        for odd in [json!(null), json!("Ready"), json!([7]), json!({"conditions": "none"})] {
            let remote = json!({"metadata": {"name": "default"}, "status": odd});
            assert_eq!(with_conditions(&remote, |_| true), None, "{remote}");
            assert!(
                differs_from(
                    &remote,
                    &KymaStatus { state: tidewatch_api::State::Ready, ..KymaStatus::default() }
                ),
                "{remote}"
            );
        }
        let remote = json!({"status": {"conditions": [{"type": "a"}, {"type": "b"}, 7]}});
        let left = with_conditions(&remote, |type_| type_ == "b").unwrap();
        assert_eq!(left["status"]["conditions"], json!([{"type": "b"}]));
    }

    /// The Go manager's conditions come from an Update, so an apply does not remove them.
    #[test]
    fn conditions_left_by_others_cause_no_status_write() {
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status: KymaStatus = serde_json::from_value(
            json!({"state": "Ready", "conditions": [condition("CRDsSync"), condition("Modules")]}),
        )
        .unwrap();
        let mut remote = json!({"status": serde_json::to_value(&status).unwrap()});
        for left in ["SKRWebhook", "ModuleCatalog", "RuntimeEvents", "SKRImagePullSecretSync"] {
            remote["status"]["conditions"].as_array_mut().unwrap().push(condition(left));
        }
        assert!(!differs_from(&remote, &status));
        assert!(differs_from(&remote, &KymaStatus::default()));
        // Written by the engine, it is engine-owned.
        let mut ours = status.clone();
        ours.conditions.push(serde_json::from_value(condition("SKRImagePullSecretSync")).unwrap());
        assert!(!differs_from(&remote, &ours));
        ours.conditions[2].status = "False".into();
        assert!(differs_from(&remote, &ours));
        let fields = json!({"f:status": {"f:conditions": {"k:{\"type\":\"SKRWebhook\"}": {}}}});
        remote["metadata"]["managedFields"] = json!([{"manager": field_managers::KCP, "operation": "Apply",
            "subresource": "status", "apiVersion": names::API_VERSION, "fieldsV1": fields}]);
        assert!(differs_from(&remote, &status), "it is ours by now, and an apply takes it away");
    }
}
