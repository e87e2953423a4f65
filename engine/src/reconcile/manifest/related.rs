//! Reads the pods, claims, storage classes and Events that may explain an unready object.

use std::{collections::BTreeSet, time::Duration};

use kube::api::ListParams;
use serde_json::Value;
use tidewatch_api::{
    Manifest,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::readiness::{self, ObjectReadiness};

use crate::clusters::{
    Gated,
    objects::{self, ObjectError},
};

/// Limit of objects per reconcile: one cause is reported.
pub(super) const OBJECTS: usize = 4;
/// Limit of pods per object.
const PODS: u32 = 20;
/// Limit of claims per object.
const CLAIMS: usize = 3;
/// Limit of Events of a workload without pods: its controller repeats one of them.
const EVENTS: u32 = 20;

/// The related objects to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Related {
    Pods,
    StorageClass,
}

pub(super) fn related(gvk: &Gvk) -> Option<Related> {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet") | ("batch", "Job") => Some(Related::Pods),
        ("", "PersistentVolumeClaim") => Some(Related::StorageClass),
        _ => None,
    }
}

/// Whether more can be found about an object. A claim without a volume does not report whether it waits.
pub(super) fn has_related(object: &Value, judged: &ObjectReadiness) -> bool {
    *judged != ObjectReadiness::Ready && ObjectRef::of(object).is_some_and(|id| related(&id.gvk).is_some())
}

/// Pods, claims' causes by name, and the cause of missing pods.
pub(super) type RelatedObjects = (Vec<Value>, Vec<(String, String)>, Option<String>);

/// The module's readiness deadline.
pub(super) fn deadline(manifest: &Manifest) -> Duration {
    manifest.terms().map_or(readiness::DEADLINE, |terms| readiness::deadline_of(&terms))
}

/// Returns the previous message if it extends `now` with a cause: a kubelet in backoff may omit it.
pub(super) fn more_detailed<'a>(before: &'a str, now: &'a str) -> &'a str {
    if before.strip_prefix(now).is_some_and(|why| why.starts_with(": ")) { before } else { now }
}

/// Reads a workload's pods, its claims' causes, and the cause of missing pods.
pub(super) async fn read_related(
    runtime: &Gated,
    id: &ObjectRef,
    workload: &Value,
) -> Result<RelatedObjects, ObjectError> {
    let pods = pods(runtime, id, workload).await?;
    let claims = claims(runtime, id, &pods).await?;
    let refused = refused(runtime, id, workload, &pods).await?;
    Ok((pods, claims, refused))
}

/// Returns `None` if unreadable, an error if the runtime does not answer.
fn unless_cut_off<T>(read: Result<T, ObjectError>) -> Result<Option<T>, ObjectError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_cut_off() => Err(error),
        Err(_) => Ok(None),
    }
}

async fn pods(runtime: &Gated, id: &ObjectRef, workload: &Value) -> Result<Vec<Value>, ObjectError> {
    let Some(selector) = readiness::selector(workload) else { return Ok(Vec::new()) };
    let api = objects::api(runtime, &Gvk::of("v1", "Pod"), &id.namespace).await?;
    let params = ListParams::default().labels(&selector).limit(PODS);
    let list = runtime.call(&format!("listing the pods of {id}"), api.list(&params)).await?;
    Ok(list.items.into_iter().filter_map(|pod| serde_json::to_value(pod).ok()).collect())
}

/// Returns why claims have no volume, by name, without unreadable ones.
async fn claims(
    runtime: &Gated,
    id: &ObjectRef,
    pods: &[Value],
) -> Result<Vec<(String, String)>, ObjectError> {
    let names: BTreeSet<String> = pods.iter().flat_map(readiness::claims_of_unscheduled).collect();
    let mut found = Vec::new();
    for name in names.into_iter().take(CLAIMS) {
        let gvk = Gvk::of("v1", "PersistentVolumeClaim");
        let object = ObjectRef { gvk, namespace: id.namespace.clone(), name: name.clone() };
        let Some(Some(claim)) = unless_cut_off(objects::get(runtime, &object).await)? else { continue };
        let Some(class) = unless_cut_off(storage_class(runtime, &claim).await)? else { continue };
        found.extend(readiness::unbound(&claim, &class).map(|why| (name, why)));
    }
    Ok(found)
}

/// Returns the last error of a workload's controller in creating pods.
///
/// A Deployment reports it itself; others only in Events.
async fn refused(
    runtime: &Gated,
    id: &ObjectRef,
    workload: &Value,
    pods: &[Value],
) -> Result<Option<String>, ObjectError> {
    let Some(uid) = workload["metadata"]["uid"].as_str() else { return Ok(None) };
    if !pods.is_empty() || id.gvk.kind == "Deployment" {
        return Ok(None);
    }
    let listed = async {
        let api = objects::api(runtime, &Gvk::of("v1", "Event"), &id.namespace).await?;
        let fields = format!("involvedObject.uid={uid},reason=FailedCreate");
        let params = ListParams::default().fields(&fields).limit(EVENTS);
        let message = format!("listing the Events of {id}");
        Ok(runtime.call(&message, api.list(&params)).await?)
    };
    let newest = unless_cut_off(listed.await)?
        .and_then(|list| list.items.into_iter().max_by_key(|event| event.data["lastTimestamp"].to_string()));
    Ok(newest.and_then(|event| event.data["message"].as_str().map(str::to_owned)))
}

/// Returns the claim's storage class, or null.
pub(super) async fn storage_class(runtime: &Gated, claim: &Value) -> Result<Value, ObjectError> {
    let Some(name) = claim["spec"]["storageClassName"].as_str().filter(|name| !name.is_empty()) else {
        return Ok(Value::Null);
    };
    let gvk = Gvk::of("storage.k8s.io/v1", "StorageClass");
    let class = ObjectRef { gvk, namespace: String::new(), name: name.to_owned() };
    Ok(objects::get(runtime, &class).await?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use tidewatch_deployer::readiness::Facts;

    use super::*;

    #[test]
    fn a_pending_claim_is_examined_further() {
        let claim = |phase: &str| {
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "n"},
                   "spec": {"storageClassName": "s"}, "status": {"phase": phase}})
        };
        let tells_more = |object: &Value| {
            has_related(object, &readiness::readiness(object, &Facts::default(), Timestamp::UNIX_EPOCH))
        };
        assert!(tells_more(&claim("Pending")) && !tells_more(&claim("Bound")));
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}});
        assert!(!tells_more(&map), "there is nothing to look into");
    }

    #[test]
    fn a_known_cause_outlives_a_shorter_one() {
        let (with, without) = (
            "a cannot pull its image i (ErrImagePull): not found",
            "a cannot pull its image i (ErrImagePull)",
        );
        assert_eq!((more_detailed(with, without), more_detailed(without, with)), (with, with));
        assert_eq!(
            more_detailed(with, "a cannot pull its image"),
            "a cannot pull its image",
            "another image"
        );
        assert_eq!(more_detailed("", without), without);
    }
}
