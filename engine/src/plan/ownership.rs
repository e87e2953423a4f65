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

fn is_apply(entry: &Value, manager: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status"
}

fn union(into: &mut Map<String, Value>, from: &Map<String, Value>) {
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
