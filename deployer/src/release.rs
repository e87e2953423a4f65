//! Makes engine-owned objects user-owned.

use serde_json::{Map, Value, json};
use tidewatch_api::names::{annotations, labels};

use crate::ownership::Marks;

/// Returns the merge patch that removes the engine's marks; `None` without marks.
///
/// `namespace`: namespace of this KCP's Manifests. Other KCPs' marks stay.
#[must_use]
pub fn unmark(namespace: &str, metadata: &Value) -> Option<Value> {
    let marks = Marks::of(metadata);
    let (owner_namespace, owner) = marks.owned_by.as_deref()?.split_once('/')?;
    if !marks.managed || owner_namespace != namespace {
        return None;
    }
    let mark_removal =
        |key: &str, value: &str| (metadata["labels"][key] == value).then(|| (key.to_owned(), Value::Null));
    let off_labels: Map<String, Value> = [
        (labels::MANAGED_BY, labels::MANAGED_BY_RUNTIME),
        (labels::WATCHED_BY, labels::WATCHED_BY_KYMA),
        (labels::COMPONENT, owner),
        (labels::PART_OF, labels::PART_OF_KYMA),
    ]
    .into_iter()
    .filter_map(|(key, value)| mark_removal(key, value))
    .collect();
    let off_annotations: Map<String, Value> =
        [annotations::OWNED_BY, annotations::MANAGED_DISCLAIMER, annotations::APPLIED]
            .into_iter()
            .filter(|key| !metadata["annotations"][*key].is_null())
            .map(|key| (key.to_owned(), Value::Null))
            .collect();
    // The `uid` protects an object recreated meanwhile.
    Some(json!({"metadata": {"uid": metadata["uid"], "labels": off_labels, "annotations": off_annotations}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::mark;

    fn patched(mut object: Value, patch: &Value) -> Value {
        for field in ["labels", "annotations"] {
            for (key, value) in patch["metadata"][field].as_object().unwrap() {
                assert!(value.is_null(), "{key} is set");
                object["metadata"][field].as_object_mut().unwrap().remove(key);
            }
        }
        object
    }

    #[test]
    fn unmarking_removes_all_engine_marks_and_nothing_else() {
        let before = json!({"metadata": {"name": "a", "uid": "u", "labels": {"mine": "1"}, "annotations": {"his": "2"}},
            "data": {"a": "1"}});
        let mut marked = before.clone();
        mark(&mut marked, ("kcp-system", "m"));
        marked["metadata"]["labels"][labels::WATCHED_BY] = json!(labels::WATCHED_BY_KYMA);
        marked["metadata"]["annotations"][annotations::APPLIED] = "0123456789abcdef".into();
        let patch = unmark("kcp-system", &marked["metadata"]).unwrap();
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patched(marked.clone(), &patch), before);
        assert_eq!(unmark("kcp-system", &before["metadata"]), None, "once");
        assert_eq!(unmark("elsewhere", &marked["metadata"]), None, "of another KCP");
        // A label that the user changed stays.
        marked["metadata"]["labels"][labels::COMPONENT] = json!("theirs");
        let patch = unmark("kcp-system", &marked["metadata"]).unwrap();
        assert_eq!(patched(marked, &patch)["metadata"]["labels"][labels::COMPONENT], "theirs");
    }
}
