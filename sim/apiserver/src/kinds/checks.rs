//! Checks of names, metadata, kind rules and immutable fields.

use serde_json::{Value, json};

use super::{
    kind::{Kind, Origin},
    validation::{
        self, metadata,
        names::{self, Format},
    },
};
use crate::{object::meta, schema::cause::Cause};

pub(crate) fn name(object: &Value, kind: &Kind) -> Vec<Cause> {
    let form = form_of_names(kind);
    let (name, prefix) = (meta::name(object), meta::text(object, "generateName").unwrap_or_default());
    let mut causes = Vec::new();
    // Unlike names, prefixes may end with `-`.
    if !prefix.is_empty() {
        let masked =
            prefix.len().checked_sub(2).and_then(|end| prefix.get(..end)).filter(|_| prefix.ends_with('-'));
        let shown = masked.map_or_else(|| prefix.to_owned(), |start| format!("{start}a"));
        let wrong = form(&shown);
        causes.extend(wrong.iter().map(|why| Cause::invalid("metadata.generateName", &prefix.into(), why)));
    }
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        metadata::check_format(name, form, "metadata.name", &mut causes);
    }
    // Jobs append eleven characters to their CronJob's name.
    if kind.is("batch", "cronjobs") && name.len() > 52 {
        causes.push(Cause::invalid("metadata.name", &name.into(), "must be no more than 52 characters"));
    }
    causes
}

fn form_of_names(kind: &Kind) -> Format {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("rbac.authorization.k8s.io" | "certificates.k8s.io", _) => names::path_segment,
        ("", "namespaces" | "services") | ("apps", "statefulsets") => names::host_label,
        _ => names::subdomain,
    }
}

/// Skips the name. `live`: the previous object.
pub(crate) fn object(object: &Value, live: Option<&Value>, kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::check(&object["metadata"], "metadata", &mut causes);
    match &kind.origin {
        Origin::Builtin(_) => causes.extend(validation::check(object, kind)),
        Origin::Custom(version) => causes.extend(version.check(object, live)),
    }
    if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
        causes.extend(super::definition::check(object));
    }
    causes
}

const FIXED_OF_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

fn fixed_of_set(object: &Value) -> [Option<&Value>; 4] {
    ["selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"]
        .map(|field| object["spec"].get(field))
}

pub(crate) fn fixed_metadata(before: &Value, after: &Value) -> Vec<Cause> {
    let of = |object: &Value, field: &str| object["metadata"].get(field).cloned().unwrap_or_default();
    ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"]
        .into_iter()
        .filter(|field| !of(after, field).is_null() && of(after, field) != of(before, field))
        .map(|field| Cause::invalid(&format!("metadata.{field}"), &of(after, field), "field is immutable"))
        .collect()
}

/// `subresource`: the path of the update.
pub(crate) fn change(before: &Value, after: &Value, kind: &Kind, subresource: &str) -> Vec<Cause> {
    let fixed: &[&str] = match (kind.group.as_str(), kind.kind.as_str()) {
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet") => &["/spec/selector"],
        ("", "Secret") => &["/type"],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => &["/roleRef"],
        ("batch", "Job") => {
            &["/spec/selector", "/spec/template", "/spec/completions", "/spec/completionMode"]
        }
        ("scheduling.k8s.io", _) => &["/preemptionPolicy"],
        ("storage.k8s.io", _) => &["/provisioner", "/parameters", "/reclaimPolicy", "/volumeBindingMode"],
        ("apiextensions.k8s.io", _) => {
            &["/spec/group", "/spec/scope", "/spec/names/kind", "/spec/names/plural"]
        }
        _ => &[],
    };
    let mut causes = Vec::new();
    for path in fixed {
        let value = after.pointer(path);
        if value != before.pointer(path) {
            let field = path.trim_start_matches('/').replace('/', ".");
            let why = if *path == "/roleRef" { "cannot change roleRef" } else { "field is immutable" };
            causes.push(Cause::invalid(&field, value.unwrap_or(&Value::Null), why));
        }
    }
    let at = |object: &'_ Value, path: &str| object.pointer(path).cloned().unwrap_or_default();
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("scheduling.k8s.io", _) if before["value"] != after["value"] => {
            causes.push(Cause::forbidden("value", "may not be changed in an update."));
        }
        ("apps", "StatefulSet") if fixed_of_set(before) != fixed_of_set(after) => {
            causes.push(Cause::forbidden("spec", FIXED_OF_SET));
        }
        ("", "Pod") => {
            validation::change_of_pod(&before["spec"], &after["spec"], &mut causes);
            validation::status_of_pod(&before["status"], &after["status"], &mut causes);
        }
        ("", "PersistentVolumeClaim") => validation::change_of_claim(before, after, &mut causes),
        ("certificates.k8s.io", _) => {
            validation::change_of_request(&before["status"], &after["status"], subresource, &mut causes);
        }
        ("apiextensions.k8s.io", _) => causes.extend(super::definition::lost_versions(before, after)),
        ("", "Service") if at(after, "/spec/type") != "ExternalName" => {
            let (old, new) = (at(before, "/spec/clusterIP"), at(after, "/spec/clusterIP"));
            if [&old, &new].iter().all(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty())) && old != new {
                let why = "may not change once set";
                causes.push(Cause::invalid("spec.clusterIPs[0]", &at(after, "/spec/clusterIPs"), why));
            }
        }
        _ => {}
    }
    let immutable = before.get("immutable") == Some(&json!(true));
    if immutable && matches!(kind.kind.as_str(), "ConfigMap" | "Secret") {
        for field in ["data", "binaryData"] {
            if before.get(field) != after.get(field) {
                causes.push(Cause::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
        if after.get("immutable") != before.get("immutable") {
            causes.push(Cause::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_are_validated() {
        let kind = super::super::builtin::find("", "v1", "configmaps").unwrap();
        let of = |text: &str| name(&json!({"metadata": {"name": text}}), kind);
        assert!(of("a.b-c").is_empty());
        assert_eq!(of("A").len(), 1);
        assert_eq!(of("")[0].reason, "FieldValueRequired");
    }
}
