//! Finds duplicate keys, which server-side apply forbids.

use serde_json::Value;

use super::View;
use crate::{
    fields::set::{self, shown},
    json::DEEPEST,
};

/// First list and duplicate key: `.spec.ports` and `[port=80,protocol="TCP"]`.
pub(crate) fn find(value: &Value, schema: View<'_>) -> Option<(String, String)> {
    at(value, schema, "", 0)
}

fn at(value: &Value, schema: View<'_>, path: &str, depth: usize) -> Option<(String, String)> {
    if depth > DEEPEST || schema.is_unknown() {
        return None;
    }
    match value {
        Value::Object(map) => map.iter().find_map(|(name, child)| {
            at(child, schema.field_or_unknown(name), &format!("{path}.{name}"), depth + 1)
        }),
        Value::Array(items) => {
            let list = schema.list();
            let mut seen = std::collections::HashSet::new();
            items.iter().enumerate().find_map(|(index, item)| {
                let key = set::item(item, &list, schema);
                let step = key.as_deref().map_or_else(|| format!("[{index}]"), shown);
                if key.is_some_and(|key| !seen.insert(key)) {
                    return Some((path.to_owned(), step));
                }
                at(item, schema.items(), &format!("{path}{step}"), depth + 1)
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[test]
    fn a_duplicate_list_key_is_named_with_its_list() {
        let deployment = |ports: Value| {
            let container = json!({"name": "web", "ports": ports});
            json!({"spec": {"template": {"spec": {"containers": [container]}}}})
        };
        let found = |ports| find(&deployment(ports), builtin::view("io.k8s.api.apps.v1.Deployment"));
        let ports = json!([{"containerPort": 80, "name": "a"}, {"containerPort": 80, "protocol": "TCP", "name": "b"}]);
        let list = r#".spec.template.spec.containers[name="web"].ports"#;
        assert_eq!(found(ports), Some((list.to_owned(), r#"[containerPort=80,protocol="TCP"]"#.to_owned())));
        assert_eq!(found(json!([{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}])), None);
        let command =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "args": ["x", "x"]}]}}}});
        assert_eq!(find(&command, builtin::view("io.k8s.api.apps.v1.Deployment")), None);
    }
}
