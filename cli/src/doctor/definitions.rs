//! Compares installed CRDs with those of this version. Pure.

use serde_json::Value;
use tidewatch_api::names::VERSION;

/// Fields that a message names.
const NAMED: usize = 3;

/// Returns the problem of an installed definition.
pub(super) fn problem(expected: &Value, installed: &Value) -> Option<String> {
    let conditions = installed.pointer("/status/conditions").and_then(Value::as_array);
    let is_established = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    if !is_established {
        return Some("it is not established".to_owned());
    }
    let Some(version) = version(installed) else { return Some(format!("it does not serve {VERSION}")) };
    let mut missing = Vec::new();
    let (wanted, has) = (self::version(expected).map(schema), schema(version));
    if let Some(wanted) = wanted {
        compare("", wanted, has, &mut missing);
    }
    if missing.is_empty() {
        return None;
    }
    let more = missing.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    missing.truncate(NAMED);
    Some(format!(
        "it is older than this tidewatch, and API servers drop the fields {}{more}",
        missing.join(", ")
    ))
}

fn version(definition: &Value) -> Option<&Value> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    versions?.iter().find(|version| version["name"] == VERSION && version["served"] != false)
}

fn schema(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

/// Collects the paths of fields that `has` lacks.
fn compare(path: &str, wanted: &Value, has: &Value, missing: &mut Vec<String>) {
    if has["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, field) in wanted["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match has["properties"].get(name) {
            Some(has) => compare(&path, field, has, missing),
            None => missing.push(path),
        }
    }
    for part in ["items", "additionalProperties"] {
        if wanted[part].is_object() && has[part].is_object() {
            compare(path, &wanted[part], &has[part], missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::crds;

    use super::*;

    fn definition(properties: &Value) -> Value {
        json!({"spec": {"versions": [{"name": "v1beta2", "served": true, "schema": {"openAPIV3Schema": {
                   "properties": properties}}}]},
               "status": {"conditions": [{"type": "Established", "status": "True"}]}})
    }

    #[test]
    fn a_definition_without_new_fields_is_older() {
        let list =
            |fields: &Value| json!({"spec": {"properties": {"list": {"items": {"properties": fields}}}}});
        let expected = definition(&list(&json!({"a": {}, "b": {}})));
        assert_eq!(problem(&expected, &expected), None);
        let older = problem(&expected, &definition(&list(&json!({"a": {}})))).unwrap();
        assert!(older.contains("drop the fields spec.list.b"), "{older}");
        let none = problem(&expected, &definition(&json!({}))).unwrap();
        assert!(none.ends_with("drop the fields spec"), "{none}");
        let open = definition(&json!({"spec": {"x-kubernetes-preserve-unknown-fields": true}}));
        assert_eq!(problem(&expected, &open), None);
    }

    #[test]
    fn an_unusable_definition_is_found() {
        let expected = definition(&json!({}));
        let mut waiting = expected.clone();
        waiting["status"] = json!({});
        assert_eq!(problem(&expected, &waiting).as_deref(), Some("it is not established"));
        let mut old = expected.clone();
        old["spec"]["versions"][0]["name"] = "v1beta1".into();
        assert_eq!(problem(&expected, &old).as_deref(), Some("it does not serve v1beta2"));
    }

    #[test]
    fn own_definitions_are_up_to_date() {
        for definition in crds::all() {
            let expected = serde_json::to_value(&definition).unwrap();
            let mut installed = expected.clone();
            installed["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
            assert_eq!(problem(&expected, &installed), None, "{:?}", definition.metadata.name);
        }
    }
}
