//! Finds objects that API servers reject, before a push.

use anyhow::bail;
use serde_json::Value;
use tidewatch_fake_apiserver::{Unacceptable, unacceptable};
use tidewatch_oci::manifests_of;

/// Reported objects, at most.
const MAX_REPORTED: usize = 10;

pub(super) fn check(yaml: &str) -> anyhow::Result<()> {
    let objects = manifests_of(yaml.as_bytes(), "")?;
    let wrong: Vec<String> = objects
        .iter()
        .filter_map(|object| Some(described(object, &unacceptable(object)?)))
        .take(MAX_REPORTED)
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("no API server takes {}", wrong.join("; "))
}

fn described(object: &Value, unacceptable: &Unacceptable) -> String {
    let Unacceptable { field, cause } = unacceptable;
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, namespace, name) = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    let colon = if field.is_empty() { "" } else { ": " };
    format!("{kind} {namespace}{slash}{name}: {field}{colon}{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unacceptable_object_is_named_with_field_and_cause() {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {ports: [{name: a, port: 80}, {name: b, port: 80}]}\n";
        assert_eq!(
            check(service).unwrap_err().to_string(),
            "no API server takes Service shop/web: spec.ports: [port=80,protocol=\"TCP\"] is there twice; \
             server-side apply merges this list by that key"
        );
        let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: once-}\n";
        let message = check(job).unwrap_err().to_string();
        assert!(
            message.contains("document 1 (line 1)") && message.contains("metadata.generateName 'once-'"),
            "{message}"
        );
        check("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n").unwrap();
    }
}
