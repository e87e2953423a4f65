//! What the Go manager has written by Update, taken over (mission: one owner for each field).
//!
//! An Update leaves an entry in `metadata.managedFields` that no server-side apply of ours can take fields away from: what it names
//! and we do not write stays for ever. So its fields become part of our own entry, once; the next apply then lets go of what is not ours.

use serde_json::{Map, Value, json};

/// Field managers by which the Go manager is known to update: its binary has had these names.
const UPDATERS: [&str; 3] = ["klm", "lifecycle-manager", "manager"];

/// Who owns what, with the status that the Go manager has written by Update made part of `ours`; `None` if there is none. Only of
/// entries that are about nothing but the status.
#[must_use]
pub fn take_over_status(object: &Value, ours: &str) -> Option<Value> {
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
    match kept.iter_mut().find(|entry| is_apply(entry, ours) && entry["apiVersion"] == *version) {
        Some(entry) => union(entry["fieldsV1"].as_object_mut()?, &fields),
        None => {
            // One in another version would be a second entry of ours, which an API server does not take apart.
            kept.retain(|entry| !is_apply(entry, ours));
            kept.push(json!({
                "manager": ours, "operation": "Apply", "subresource": "status", "apiVersion": version,
                "time": newest["time"], "fieldsType": "FieldsV1", "fieldsV1": fields
            }));
        }
    }
    Some(Value::Array(kept))
}

/// Who owns what, with what `other` has applied of an object's spec and marks, and with what the Go manager has updated of its spec, made
/// part of `ours`; `None` if there is none of either. Finalizers stay whose they are.
#[must_use]
pub fn take_over_spec(object: &Value, other: &str, ours: &str) -> Option<Value> {
    let mut entries = object["metadata"]["managedFields"].as_array()?.clone();
    let is_whole = |entry: &Value| entry["subresource"].as_str().unwrap_or_default().is_empty();
    let place =
        entries.iter().position(|e| e["operation"] == "Apply" && e["manager"] == ours && is_whole(e))?;
    let version = entries.get(place)?["apiVersion"].clone();
    let mut taken = Map::new();
    for entry in &mut entries {
        let is_apply = entry["operation"] == "Apply" && entry["manager"] == other;
        let is_update =
            entry["operation"] == "Update" && UPDATERS.iter().any(|name| entry["manager"] == *name);
        // One in another version would be taken for what it is not.
        if !(is_apply || is_update) || !is_whole(entry) || entry["apiVersion"] != version {
            continue;
        }
        let Some(fields) = entry["fieldsV1"].as_object_mut() else { continue };
        let before = fields.len();
        if let Some(spec) = fields.remove("f:spec") {
            union(&mut taken, &Map::from_iter([("f:spec".to_owned(), spec)]));
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
                union(&mut taken, &Map::from_iter([("f:metadata".to_owned(), Value::Object(marks))]));
            }
        }
        if before > 0 && fields.is_empty() {
            *entry = Value::Null;
        }
    }
    if taken.is_empty() {
        return None;
    }
    union(entries.get_mut(place)?["fieldsV1"].as_object_mut()?, &taken);
    entries.retain(|entry| !entry.is_null());
    Some(Value::Array(entries))
}

fn is_apply(entry: &Value, manager: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status"
}

pub(super) fn union(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.entry(key.clone()).or_insert_with(|| json!({})), value) {
            (Value::Object(into), Value::Object(from)) => union(into, from),
            (into, from) => *into = from.clone(),
        }
    }
}

/// Whether `manager` has applied a condition that it does not write any more (`writes`): an apply takes it away.
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

    const OURS: &str = "lifecycle-manager";

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
    fn what_was_updated_becomes_part_of_our_apply() {
        for name in UPDATERS {
            let theirs = entry(name, "Update", &conditions(&["Modules", "SKRWebhook"]));
            let user = json!({"manager": "kubectl", "operation": "Update", "apiVersion": "g/v1", "fieldsV1": {"f:spec": {}}});
            let ours = entry(OURS, "Apply", &conditions(&["CRDsSync"]));
            let taken = take_over_status(&object(&[user.clone(), theirs.clone(), ours]), OURS).unwrap();
            let all = entry(OURS, "Apply", &conditions(&["CRDsSync", "Modules", "SKRWebhook"]));
            assert_eq!(taken, json!([user, all]));
            let alone = take_over_status(&object(&[theirs]), OURS).unwrap();
            assert_eq!(alone, json!([entry(OURS, "Apply", &conditions(&["Modules", "SKRWebhook"]))]));
            assert_eq!(take_over_status(&object(alone.as_array().unwrap()), OURS), None, "once");
        }
    }

    #[test]
    fn what_is_not_known_as_the_go_managers_stays() {
        let other = entry("kubectl", "Update", &conditions(&["Modules"]));
        let mut spec = entry("klm", "Update", &json!({"f:status": {}, "f:spec": {}}));
        assert_eq!(take_over_status(&object(&[other, spec.clone()]), OURS), None);
        spec["subresource"] = Value::Null;
        assert_eq!(take_over_status(&object(&[spec]), OURS), None);
        for nonsense in [json!(null), json!({"metadata": {"managedFields": "x"}}), object(&[json!(7)])] {
            assert_eq!(take_over_status(&nonsense, OURS), None);
        }
    }

    /// A Manifest that the Go manager has applied by two names, and annotated by a third.
    #[test]
    fn what_another_has_applied_of_a_spec_is_taken_over_and_finalizers_are_not() {
        let of = |manager: &str, operation: &str, subresource: &str, fields: Value| json!({"manager": manager, "operation": operation, "subresource": subresource, "apiVersion": "g/v1", "fieldsV1": fields});
        let ours =
            of(OURS, "Apply", "", json!({"f:spec": {"f:version": {}}, "f:metadata": {"f:labels": {}}}));
        let status = of("applier", "Apply", "status", json!({"f:status": {"f:state": {}}}));
        let marks = json!({"f:spec": {"f:resource": {}}, "f:metadata": {"f:labels": {}, "f:finalizers": {"v:\"a\"": {}}}});
        let note =
            of("manager", "Update", "", json!({"f:metadata": {"f:annotations": {"f:sync-oci-ref": {}}}}));
        let spec = of("manager", "Update", "", json!({"f:spec": {"f:version": {}}}));
        let user = of("kubectl", "Update", "", json!({"f:spec": {"f:resource": {}}}));
        let entries = [
            ours.clone(),
            of("applier", "Apply", "", marks),
            status.clone(),
            note.clone(),
            spec,
            user.clone(),
        ];
        let kept = of("applier", "Apply", "", json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}}}));
        let all = json!({"f:spec": {"f:version": {}, "f:resource": {}}, "f:metadata": {"f:labels": {}}});
        let left = take_over_spec(&object(&entries), "applier", OURS).unwrap();
        assert_eq!(left, json!([of(OURS, "Apply", "", all), kept, status, note, user]));
        assert_eq!(take_over_spec(&object(left.as_array().unwrap()), "applier", OURS), None, "once");
        assert_eq!(take_over_spec(&object(&entries[1..]), "applier", OURS), None, "nothing is ours yet");
        for nonsense in [json!(null), json!({"metadata": {"managedFields": "x"}}), object(&[json!(7)])] {
            assert_eq!(take_over_spec(&nonsense, "applier", OURS), None);
        }
    }

    #[test]
    fn a_condition_that_is_ours_and_not_written_is_noticed() {
        let is_own = |type_: &str| type_ == "Modules";
        let has = |entries: &[Value]| has_stale_condition(&object(entries), OURS, is_own);
        assert!(has(&[entry(OURS, "Apply", &conditions(&["Modules", "SKRWebhook"]))]));
        assert!(!has(&[entry(OURS, "Apply", &conditions(&["Modules"]))]));
        assert!(!has(&[entry("tidewatch-catalog", "Apply", &conditions(&["ModuleCatalog"]))]));
        assert!(!has(&[]));
    }
}
