//! Transfers fields to the engine's entry in `managedFields`. Functions return all entries; `None` if nothing
//! changes.
//!
//! An apply cannot remove fields in other managers' Update entries. After the transfer, the next apply removes
//! unwanted ones.

use serde_json::{Map, Value, json};
use tidewatch_api::managed_fields::union;

use super::drift::Leftover;

/// Field managers of the Go manager's updates.
const UPDATERS: [&str; 3] = ["klm", "lifecycle-manager", "manager"];

/// Transfers the Go manager's status updates. Entries with other fields stay.
#[must_use]
pub fn take_over_status(object: &Value, manager: &str) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array()?;
    let is_old = |entry: &Value| {
        entry["operation"] == "Update"
            && entry["subresource"] == "status"
            && UPDATERS.iter().any(|name| entry["manager"] == *name)
            && entry["fieldsV1"].as_object().is_some_and(|fields| fields.keys().all(|key| key == "f:status"))
    };
    let (old, mut kept): (Vec<_>, Vec<Value>) = entries.iter().cloned().partition(is_old);
    let newest = old.last()?;
    let mut fields = Map::new();
    for entry in &old {
        union(&mut fields, entry["fieldsV1"].as_object()?);
    }
    let version = &newest["apiVersion"];
    match kept.iter_mut().find(|entry| is_apply(entry, manager) && entry["apiVersion"] == *version) {
        Some(entry) => union(entry["fieldsV1"].as_object_mut()?, &fields),
        None => {
            // An API server does not distinguish one manager's applies by version.
            kept.retain(|entry| !is_apply(entry, manager));
            kept.push(json!({
                "manager": manager, "operation": "Apply", "subresource": "status", "apiVersion": version,
                "time": newest["time"], "fieldsType": "FieldsV1", "fieldsV1": fields
            }));
        }
    }
    Some(Value::Array(kept))
}

/// Transfers spec and marks that `other` applied, and the Go manager's spec updates. Finalizers keep their owners.
#[must_use]
pub fn take_over_spec(object: &Value, other: &str, manager: &str) -> Option<Value> {
    let mut entries = object["metadata"]["managedFields"].as_array()?.clone();
    let is_whole = |entry: &Value| entry["subresource"].as_str().unwrap_or_default().is_empty();
    let index =
        entries.iter().position(|e| e["operation"] == "Apply" && e["manager"] == manager && is_whole(e))?;
    let version = entries.get(index)?["apiVersion"].clone();
    let mut transferred = Map::new();
    for entry in &mut entries {
        let is_apply = entry["operation"] == "Apply" && entry["manager"] == other;
        let is_update =
            entry["operation"] == "Update" && UPDATERS.iter().any(|name| entry["manager"] == *name);
        // Fields may differ between versions.
        if !(is_apply || is_update) || !is_whole(entry) || entry["apiVersion"] != version {
            continue;
        }
        let Some(fields) = entry["fieldsV1"].as_object_mut() else { continue };
        let before = fields.len();
        if let Some(spec) = fields.remove("f:spec") {
            union(&mut transferred, &Map::from_iter([("f:spec".to_owned(), spec)]));
        }
        if let Some(metadata) =
            fields.get_mut("f:metadata").and_then(Value::as_object_mut).filter(|_| is_apply)
        {
            let (kept, marks) =
                std::mem::take(metadata).into_iter().partition(|(key, _)| key == "f:finalizers");
            *metadata = kept;
            if metadata.is_empty() {
                fields.remove("f:metadata");
            }
            if !Map::is_empty(&marks) {
                union(&mut transferred, &Map::from_iter([("f:metadata".to_owned(), Value::Object(marks))]));
            }
        }
        if before > 0 && fields.is_empty() {
            *entry = Value::Null;
        }
    }
    if transferred.is_empty() {
        return None;
    }
    union(entries.get_mut(index)?["fieldsV1"].as_object_mut()?, &transferred);
    entries.retain(|entry| !entry.is_null());
    Some(Value::Array(entries))
}

/// Field managers of install tools. Manual changes (`kubectl-edit`, `kubectl-patch`, `kubectl-scale`) are never
/// transferred.
const INSTALLERS: [&str; 3] = ["kubectl-client-side-apply", "kubectl-create", "helm"];
/// Fields older than field tracking.
const UNKNOWN: &str = "before-first-apply";
/// Distinguishes old kubectl's applies from its other operations.
const LAST_APPLIED: &str = "f:kubectl.kubernetes.io/last-applied-configuration";

/// Whether an entry belongs to an installer, and to no subresource.
#[must_use]
pub fn is_installer_entry(entry: &Value) -> bool {
    let is = |name: &str| entry["manager"] == name;
    let updates = entry["operation"] == "Update";
    let is_old_kubectl =
        is("kubectl") && updates && !entry["fieldsV1"]["f:metadata"]["f:annotations"][LAST_APPLIED].is_null();
    let by_name = is(UNKNOWN) || INSTALLERS.into_iter().any(is) && (updates || is("helm"));
    entry["subresource"].as_str().unwrap_or_default().is_empty() && (by_name || is_old_kubectl)
}

/// Transfers fields of installers that already share one with the engine.
///
/// An equal value shows that the installer came first. Later installers change values and take the fields.
///
/// Metadata of only an installer, and fields older than field tracking, lose their owner and stay. Users or
/// controllers may need them.
#[must_use]
pub fn take_over_installed(object: &Value, manager: &str) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array()?;
    let index = entries.iter().position(|entry| is_whole_apply(entry, manager))?;
    let own = entries.get(index)?;
    let mut fields = own["fieldsV1"].as_object()?.clone();
    let is_earlier =
        |entry: &Value| is_installer_entry(entry) && shares(&own["fieldsV1"], &entry["fieldsV1"]);
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        if !is_earlier(entry) {
            kept.push(entry.clone());
        } else if entry["apiVersion"] == own["apiVersion"] && entry["manager"] != UNKNOWN {
            let mut installer_fields = entry["fieldsV1"].as_object()?.clone();
            installer_fields.remove("f:metadata");
            union(&mut fields, &installer_fields);
        }
    }
    if kept.len() == entries.len() {
        return None;
    }
    let own = kept.iter_mut().find(|entry| is_whole_apply(entry, manager))?;
    own["fieldsV1"] = Value::Object(fields);
    Some(Value::Array(kept))
}

/// Transfers leftovers, which the next apply removes.
#[must_use]
pub fn adopt(object: &Value, version: &Value, manager: &str, leftovers: &[Leftover]) -> Value {
    let mut entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    for entry in entries.iter_mut().filter(|entry| is_installer_entry(entry)) {
        for leftover in leftovers {
            release(&mut entry["fieldsV1"], &leftover.keys);
        }
    }
    entries.retain(|entry| entry["fieldsV1"].as_object().is_none_or(|fields| !fields.is_empty()));
    let index = entries.iter().position(|entry| is_whole_apply(entry, manager));
    let index = index.unwrap_or_else(|| {
        entries.push(json!({"manager": manager, "operation": "Apply", "apiVersion": version,
                            "fieldsType": "FieldsV1", "fieldsV1": {}}));
        entries.len() - 1
    });
    for leftover in leftovers.iter().filter(|leftover| !leftover.keys.is_empty()) {
        let mut fields = &mut entries[index]["fieldsV1"];
        for key in &leftover.keys {
            if !fields.is_object() {
                *fields = json!({});
            }
            fields = &mut fields[key];
        }
        let is_item = leftover.keys.last().is_some_and(|key| key.starts_with("k:"));
        *fields = if is_item { json!({".": {}}) } else { json!({}) };
    }
    Value::Array(entries)
}

/// Also removes empty parents.
fn release(fields: &mut Value, keys: &[String]) {
    let (Some((first, rest)), Some(members)) = (keys.split_first(), fields.as_object_mut()) else { return };
    let Some(below) = members.get_mut(first) else { return };
    if !rest.is_empty() {
        release(below, rest);
    }
    if rest.is_empty() || below.as_object().is_some_and(Map::is_empty) {
        members.remove(first);
    }
}

/// Common ownership of a map itself does not count.
fn shares(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    a.iter().filter(|(key, _)| *key != ".").any(|(key, a)| {
        let is_leaf = |fields: &Value| fields.as_object().is_none_or(|f| f.keys().all(|key| key == "."));
        b.get(key).is_some_and(|b| is_leaf(a) || is_leaf(b) || shares(a, b))
    })
}

fn is_whole_apply(entry: &Value, manager: &str) -> bool {
    entry["manager"] == manager
        && entry["operation"] == "Apply"
        && entry["subresource"].as_str().unwrap_or_default().is_empty()
}

fn is_apply(entry: &Value, manager: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status"
}

/// Whether an applied condition is no longer written. The next apply removes it.
#[must_use]
pub fn has_stale_condition(object: &Value, manager: &str, writes: impl Fn(&str) -> bool) -> bool {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let conditions = entries
        .filter(|entry| is_apply(entry, manager))
        .filter_map(|entry| entry["fieldsV1"]["f:status"]["f:conditions"].as_object());
    let keys = conditions.flat_map(Map::keys).filter_map(|key| key.strip_prefix("k:"));
    let mut types = keys.filter_map(|key| serde_json::from_str::<Value>(key).ok());
    types.any(|key| key["type"].as_str().is_some_and(|type_| !writes(type_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: &str = "lifecycle-manager";

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "subresource": "status", "apiVersion": "g/v1",
               "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn conditions(types: &[&str]) -> Value {
        let all: Map<String, Value> = types
            .iter()
            .map(|t| (format!("k:{{\"type\":\"{t}\"}}"), json!({".": {}, "f:status": {}})))
            .collect();
        json!({"f:status": {"f:conditions": all, "f:state": {}}})
    }

    fn object(entries: &[Value]) -> Value {
        json!({"metadata": {"managedFields": entries}})
    }

    #[test]
    fn updated_status_fields_join_the_engines_apply() {
        for name in UPDATERS {
            let user_owned = entry(name, "Update", &conditions(&["Modules", "SKRWebhook"]));
            let user = json!({"manager": "kubectl", "operation": "Update", "apiVersion": "g/v1", "fieldsV1": {"f:spec": {}}});
            let engine_owned = entry(MANAGER, "Apply", &conditions(&["CRDsSync"]));
            let taken = take_over_status(&object(&[user.clone(), user_owned.clone(), engine_owned]), MANAGER)
                .unwrap();
            let all = entry(MANAGER, "Apply", &conditions(&["CRDsSync", "Modules", "SKRWebhook"]));
            assert_eq!(taken, json!([user, all]));
            let alone = take_over_status(&object(&[user_owned]), MANAGER).unwrap();
            assert_eq!(alone, json!([entry(MANAGER, "Apply", &conditions(&["Modules", "SKRWebhook"]))]));
            assert_eq!(take_over_status(&object(alone.as_array().unwrap()), MANAGER), None, "once");
        }
    }

    #[test]
    fn status_of_unknown_managers_is_not_taken_over() {
        let other = entry("kubectl", "Update", &conditions(&["Modules"]));
        let mut spec = entry("klm", "Update", &json!({"f:status": {}, "f:spec": {}}));
        assert_eq!(take_over_status(&object(&[other, spec.clone()]), MANAGER), None);
        spec["subresource"] = Value::Null;
        assert_eq!(take_over_status(&object(&[spec]), MANAGER), None);
        for nonsense in [json!(null), json!({"metadata": {"managedFields": "x"}}), object(&[json!(7)])] {
            assert_eq!(take_over_status(&nonsense, MANAGER), None);
        }
    }

    #[test]
    fn applied_spec_fields_are_adopted_finalizers_are_not() {
        let of = |manager: &str, operation: &str, subresource: &str, fields: Value| json!({"manager": manager, "operation": operation, "subresource": subresource, "apiVersion": "g/v1", "fieldsV1": fields});
        let engine_owned =
            of(MANAGER, "Apply", "", json!({"f:spec": {"f:version": {}}, "f:metadata": {"f:labels": {}}}));
        let status = of("applier", "Apply", "status", json!({"f:status": {"f:state": {}}}));
        let marks = json!({"f:spec": {"f:resource": {}}, "f:metadata": {"f:labels": {}, "f:finalizers": {"v:\"a\"": {}}}});
        let note =
            of("manager", "Update", "", json!({"f:metadata": {"f:annotations": {"f:sync-oci-ref": {}}}}));
        let spec = of("manager", "Update", "", json!({"f:spec": {"f:version": {}}}));
        let user = of("kubectl", "Update", "", json!({"f:spec": {"f:resource": {}}}));
        let entries = [
            engine_owned.clone(),
            of("applier", "Apply", "", marks),
            status.clone(),
            note.clone(),
            spec,
            user.clone(),
        ];
        let kept = of("applier", "Apply", "", json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}}}));
        let all = json!({"f:spec": {"f:version": {}, "f:resource": {}}, "f:metadata": {"f:labels": {}}});
        let left = take_over_spec(&object(&entries), "applier", MANAGER).unwrap();
        assert_eq!(left, json!([of(MANAGER, "Apply", "", all), kept, status, note, user]));
        assert_eq!(take_over_spec(&object(left.as_array().unwrap()), "applier", MANAGER), None, "once");
        assert_eq!(take_over_spec(&object(&entries[1..]), "applier", MANAGER), None, "nothing is ours yet");
        for nonsense in [json!(null), json!({"metadata": {"managedFields": "x"}}), object(&[json!(7)])] {
            assert_eq!(take_over_spec(&nonsense, "applier", MANAGER), None);
        }
    }

    fn whole(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn containers(names: &[&str]) -> Value {
        let of = |name: &&str| {
            (format!("k:{{\"name\":\"{name}\"}}"), json!({".": {}, "f:name": {}, "f:image": {}}))
        };
        json!({"f:spec": {"f:containers": names.iter().map(of).collect::<Map<_, _>>()}})
    }

    #[test]
    fn an_earlier_installers_spec_fields_are_taken_over() {
        let engine_owned = whole(MANAGER, "Apply", containers(&["main"]));
        let mut user_owned = containers(&["main", "sidecar"]);
        user_owned["f:metadata"] = json!({"f:labels": {"f:team": {}}});
        let all = whole(MANAGER, "Apply", containers(&["main", "sidecar"]));
        let controller = whole("kube-controller-manager", "Update", json!({"f:status": {}}));
        for (manager, operation) in [
            ("kubectl-client-side-apply", "Update"),
            ("kubectl-create", "Update"),
            ("helm", "Update"),
            ("helm", "Apply"),
        ] {
            let entries =
                [whole(manager, operation, user_owned.clone()), engine_owned.clone(), controller.clone()];
            let left = take_over_installed(&object(&entries), MANAGER).unwrap();
            assert_eq!(left, json!([all, controller]), "{manager}");
            assert_eq!(take_over_installed(&object(left.as_array().unwrap()), MANAGER), None, "once");
        }
        let mut old = user_owned.clone();
        old["f:metadata"] = json!({"f:annotations": {LAST_APPLIED: {}}});
        let left =
            take_over_installed(&object(&[whole("kubectl", "Update", old), engine_owned.clone()]), MANAGER);
        assert_eq!(left, Some(json!([all])), "an old kubectl");
    }

    #[test]
    fn entries_before_first_apply_and_old_versions_are_removed() {
        let engine_owned = whole(MANAGER, "Apply", containers(&["main"]));
        let user_owned = containers(&["main", "sidecar"]);
        let mut beta = whole("helm", "Update", user_owned.clone());
        beta["apiVersion"] = "apps/v1beta1".into();
        for earlier in [whole("before-first-apply", "Update", user_owned), beta] {
            let left = take_over_installed(&object(&[earlier, engine_owned.clone()]), MANAGER);
            assert_eq!(left, Some(json!([engine_owned])));
        }
    }

    #[test]
    fn users_controllers_and_later_installers_keep_their_fields() {
        let engine_owned = whole(MANAGER, "Apply", containers(&["main"]));
        let user_owned = containers(&["main", "sidecar"]);
        for (manager, operation) in [
            ("kubectl-edit", "Update"),
            ("kubectl-patch", "Update"),
            ("kubectl-scale", "Update"),
            ("kubectl", "Update"),
            ("kubectl", "Apply"),
            ("kubectl-client-side-apply", "Apply"),
            ("controller", "Update"),
        ] {
            let entries = [engine_owned.clone(), whole(manager, operation, user_owned.clone())];
            assert_eq!(take_over_installed(&object(&entries), MANAGER), None, "{manager} {operation}");
        }
        let mut status = whole("helm", "Update", user_owned.clone());
        status["subresource"] = "status".into();
        let later = whole("kubectl-client-side-apply", "Update", containers(&["sidecar"]));
        for kept in [status, later.clone()] {
            assert_eq!(take_over_installed(&object(&[engine_owned.clone(), kept]), MANAGER), None);
        }
        assert_eq!(take_over_installed(&object(&[later]), MANAGER), None, "nothing is ours yet");
        for nonsense in [json!(null), json!({"metadata": {"managedFields": "x"}}), object(&[json!(7)])] {
            assert_eq!(take_over_installed(&nonsense, MANAGER), None);
        }
    }

    #[test]
    fn a_leftover_moves_from_the_installer_to_the_engine() {
        let leftover = |keys: &[&str]| Leftover {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            path: String::new(),
            by: None,
        };
        let item = "k:{\"port\":80}";
        let leftovers =
            [leftover(&["f:spec", "f:strategy", "f:rollingUpdate"]), leftover(&["f:spec", "f:ports", item])];
        let adopted = json!({"f:spec": {"f:strategy": {"f:type": {}, "f:rollingUpdate": {}}, "f:ports": {item: {".": {}}}}});
        let engine_owned = whole(MANAGER, "Apply", json!({"f:spec": {"f:strategy": {"f:type": {}}}}));
        let user_owned = |manager: &str| {
            whole(
                manager,
                "Update",
                json!({"f:spec": {"f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}}}),
            )
        };
        let entries = object(&[engine_owned, user_owned("helm"), user_owned("other")]);
        let left = adopt(&entries, &json!("apps/v1"), MANAGER, &leftovers);
        assert_eq!(left, json!([whole(MANAGER, "Apply", adopted), user_owned("other")]));

        let first = adopt(&object(&[]), &json!("apps/v1"), MANAGER, &leftovers[..1]);
        let only = json!({"f:spec": {"f:strategy": {"f:rollingUpdate": {}}}});
        assert_eq!(first, json!([whole(MANAGER, "Apply", only)]), "an object that we have never applied");
    }

    #[test]
    fn a_stale_engine_owned_condition_is_detected() {
        let is_own = |type_: &str| type_ == "Modules";
        let has = |entries: &[Value]| has_stale_condition(&object(entries), MANAGER, is_own);
        assert!(has(&[entry(MANAGER, "Apply", &conditions(&["Modules", "SKRWebhook"]))]));
        assert!(!has(&[entry(MANAGER, "Apply", &conditions(&["Modules"]))]));
        assert!(!has(&[entry("tidewatch-catalog", "Apply", &conditions(&["ModuleCatalog"]))]));
        assert!(!has(&[]));
    }
}
