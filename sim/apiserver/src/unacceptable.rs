//! Finds objects that every API server refuses; needs no cluster.

use serde_json::Value;

use crate::{
    kinds::{builtin, checks, validation::metadata},
    schema::{repeated, unreadable, validate},
};

/// The reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacceptable {
    /// Field path; empty if unknown.
    pub field: String,
    /// Cause.
    pub cause: String,
}

/// Checks types, names, labels and merge keys of a built-in kind's object. Returns `None` for other kinds.
///
/// Unknown fields pass: a newer API server may know them.
#[must_use]
pub fn unacceptable(object: &Value) -> Option<Unacceptable> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut kinds = builtin::kinds().iter();
    let kind = kinds.find(|kind| kind.kind == text("kind") && kind.api_version() == text("apiVersion"))?;
    let found = |field: &str, cause: String| Some(Unacceptable { field: field.to_owned(), cause });
    if let Some((field, is, wanted)) = validate::first_type_error(object, kind.schema()) {
        return found(
            &field,
            format!("it has to be of the type {}, and is {is}", wanted.replace(',', " or ")),
        );
    }
    if let Some(cause) = unreadable::find(object, kind.schema()) {
        return found("", cause);
    }
    if let Some((list, key)) = repeated::find(object, kind.schema()) {
        let cause = format!("{key} is there twice; server-side apply merges this list by that key");
        return found(list.trim_start_matches('.'), cause);
    }
    let mut causes = checks::name(object, kind);
    metadata::check(&object["metadata"], "metadata", &mut causes);
    let first = causes.into_iter().next()?;
    Some(Unacceptable { field: first.field, cause: first.message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(spec: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    }

    #[test]
    fn unacceptable_objects_are_named_by_field_and_cause() {
        let port = json!({"port": 80, "name": "a"});
        let duplicate = json!({"port": 80, "protocol": "TCP", "name": "b"});
        let named = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"a": "b c"}});
        for (object, field, cause) in [
            (
                service(&json!({"ports": [port, duplicate]})),
                "spec.ports",
                r#"[port=80,protocol="TCP"] is there twice"#,
            ),
            (service(&json!({"ports": [{"port": "80"}]})), "spec.ports.port", "type integer, and is string"),
            (named("a", json!({"v": 1})), "metadata.labels.v", "type string, and is integer"),
            (named("A_b", json!({})), "metadata.name", "lowercase"),
            (named("a", json!({"v": "a b"})), "metadata.labels", "a valid label"),
            (secret, "", "base64"),
        ] {
            let found_error = unacceptable(&object).unwrap();
            assert!(found_error.field == field && found_error.cause.contains(cause), "{found_error:?}");
        }
    }

    #[test]
    fn acceptable_objects_are_not_refused() {
        let udp = json!([{"port": 53, "name": "a"}, {"port": 53, "protocol": "UDP", "name": "b"}]);
        let newer = json!({"ports": [{"port": 80}], "fieldOfANewerVersion": 1});
        let custom =
            json!({"apiVersion": "example.org/v1", "kind": "Any", "metadata": {"name": "A_b"}, "spec": 1});
        for object in
            [service(&json!({ "ports": udp })), service(&newer), custom, json!({"kind": 1}), json!(null)]
        {
            assert_eq!(unacceptable(&object), None, "{object}");
        }
    }
}
