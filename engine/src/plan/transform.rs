//! What is added to every object of a module before it is applied (contract, section 5.2).

use serde_json::{Map, Value, json};
use tidewatch_api::names::{annotations, labels};

/// The text that tells a cluster user whose object this is. The wording is the ecosystem's: tools look
/// for the annotation's key, people read its first line.
pub const DISCLAIMER: &str = "DO NOT EDIT - This resource is managed by Kyma.\n\
                              Any modifications are discarded and the resource is reverted to the original state.";

/// Marks an object as installed by us for one Manifest.
///
/// `manifest` is `(namespace, name)`. Labels: managed-by, component, part-of; annotations: owned-by and
/// the disclaimer. Values the module has set for the same keys are overwritten, since watches and pruning
/// depend on them.
pub fn mark(object: &mut Value, manifest: (&str, &str)) {
    let (namespace, name) = manifest;
    merge(
        object,
        "labels",
        &[
            (labels::MANAGED_BY, labels::MANAGED_BY_RUNTIME),
            (labels::COMPONENT, name),
            (labels::PART_OF, labels::PART_OF_KYMA),
        ],
    );
    merge(
        object,
        "annotations",
        &[
            (annotations::OWNED_BY, &format!("{namespace}/{name}")),
            (annotations::MANAGED_DISCLAIMER, DISCLAIMER),
        ],
    );
}

fn merge(object: &mut Value, field: &str, entries: &[(&str, &str)]) {
    let metadata = &mut object["metadata"];
    if !metadata[field].is_object() {
        metadata[field] = Value::Object(Map::new());
    }
    if let Some(map) = metadata[field].as_object_mut() {
        map.extend(entries.iter().map(|(k, v)| ((*k).to_owned(), json!(v))));
    }
}

/// Removes what a rendered manifest must not carry into a server-side apply: the status, and metadata
/// that only a server sets.
pub fn strip(object: &mut Value) {
    if let Some(top) = object.as_object_mut() {
        top.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for key in ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"]
        {
            metadata.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_strips() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "labels": {"mine": "1", "app.kubernetes.io/component": "x"}, "uid": "u",
                         "creationTimestamp": null},
            "status": {"x": 1}
        });
        strip(&mut object);
        mark(&mut object, ("kcp-system", "m"));
        assert!(object.get("status").is_none() && object["metadata"].get("uid").is_none());
        assert_eq!(object["metadata"]["labels"]["mine"], "1");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/component"], "m");
        assert_eq!(
            object["metadata"]["annotations"]["deprecated-operator.kyma-project.io/owned-by"],
            "kcp-system/m"
        );
    }
}
