//! Reasons of refused changes, from an API server's message.

use serde_json::Value;

/// A refused field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Such as `FieldValueForbidden`.
    pub reason: String,
    /// Such as `spec.ports[0].nodePort`.
    pub field: String,
    /// Message.
    pub message: String,
}

/// Parts of refusals to change immutable fields. Invalid values have the same code (422 `Invalid`).
const IMMUTABLE: [&str; 9] = [
    "is immutable",
    "may not change once set",
    "cannot change roleRef",
    "updates to statefulset spec for fields other than",
    // PriorityClasses, StorageClasses and Pods.
    "may not be changed in an update",
    "updates to parameters are forbidden",
    "updates to provisioner are forbidden",
    "updates to reclaimPolicy are forbidden",
    "pod updates may not change fields other than",
];

/// Whether the changed field is immutable.
#[must_use]
pub fn is_immutable(message: &str) -> bool {
    IMMUTABLE.iter().any(|part| message.contains(part))
}

/// Returns the refused field with a value that `other` holds, such as a node port.
#[must_use]
pub fn contested_field<'a>(causes: &'a [Cause], other: &Value) -> Option<&'a str> {
    let cause = causes.iter().find(|cause| {
        let is_part = |c: char| !c.is_alphanumeric() && !".:/-_".contains(c);
        let texts: Vec<&str> = cause.message.split(is_part).map(|word| word.trim_matches(':')).collect();
        has_any(other, &parts(&cause.field), &texts)
    });
    cause.map(|cause| cause.field.as_str())
}

fn has_any(value: &Value, path: &[&str], texts: &[&str]) -> bool {
    match (value, path.split_first()) {
        (Value::Array(items), Some((_, rest))) => items.iter().any(|item| has_any(item, rest, texts)),
        (Value::Array(items), None) => items.iter().any(|item| has_any(item, path, texts)),
        (value, Some((part, rest))) => value.get(part).is_some_and(|value| has_any(value, rest, texts)),
        (Value::String(text), None) => texts.contains(&text.as_str()),
        (Value::Number(number), None) => texts.contains(&number.to_string().as_str()),
        _ => false,
    }
}

/// Splits an API server's path: `a.b[0].c[d.e]`.
pub(super) fn parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let part = if let Some(inner) = rest.strip_prefix('[') {
            let end = inner.find(']').unwrap_or(inner.len());
            rest = inner.get(end + 1..).unwrap_or_default();
            &inner[..end]
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let part = &rest[..end];
            rest = &rest[end..];
            part
        };
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_paths_are_parsed_as_api_servers_write_them() {
        assert_eq!(parts("spec.ports[12].name"), ["spec", "ports", "12", "name"]);
        assert_eq!(parts("metadata.labels[a.b/c].d"), ["metadata", "labels", "a.b/c", "d"]);
    }

    #[test]
    fn finds_the_field_holding_a_refused_value() {
        let cause = |field: &str, message: &str| {
            [Cause { field: field.into(), message: message.into(), ..Cause::default() }]
        };
        let port =
            cause("spec.ports[0].nodePort", "Invalid value: 30080: provided port is already allocated");
        let ports = |port: u16| json!({"spec": {"ports": [{"port": 1}, {"nodePort": port}]}});
        assert_eq!(contested_field(&port, &ports(30080)), Some("spec.ports[0].nodePort"));
        assert_eq!(contested_field(&port, &ports(3008)), None);
        let address = cause(
            "spec.clusterIPs",
            "Invalid value: [\"10.0.0.7\"]: failed to allocate IP 10.0.0.7: provided IP is already allocated",
        );
        assert!(contested_field(&address, &json!({"spec": {"clusterIPs": ["10.0.0.7"]}})).is_some());
        assert!(contested_field(&address, &json!({"spec": {"clusterIPs": ["10.0.0.77"]}})).is_none());
        for nonsense in [json!(null), json!({"spec": 7}), json!({"spec": {"clusterIPs": {}}})] {
            assert_eq!(contested_field(&address, &nonsense), None);
        }
    }

    #[test]
    fn other_refusals_are_not_immutable_fields() {
        assert!(is_immutable(
            "Deployment.apps \"a\" is invalid: spec.selector: Invalid value: …: field is immutable"
        ));
        assert!(is_immutable("updates to statefulset spec for fields other than 'replicas' are forbidden"));
        assert!(is_immutable("RoleBinding is invalid: roleRef: Invalid value: …: cannot change roleRef"));
        assert!(is_immutable(
            "PriorityClass \"a\" is invalid: value: Forbidden: may not be changed in an update."
        ));
        assert!(is_immutable(
            "StorageClass \"a\" is invalid: parameters: Forbidden: updates to parameters are forbidden."
        ));
        assert!(!is_immutable("Deployment.apps \"a\" is invalid: spec.replicas: must be greater than 0"));
    }
}
