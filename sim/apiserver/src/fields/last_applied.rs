//! `kubectl`'s last-applied annotation in server-side apply.

use serde_json::{Map, Value};

use super::{merge::Difference, set::Set};
use crate::{object::meta, schema::View};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MANAGER: &str = "kubectl";
/// Total of all annotations, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// Fields that `manager` may take without conflict: last-applied, unchanged ones.
pub(crate) fn takes_over(manager: &str, live: &Value, api_version: &str, schema: View<'_>) -> Set {
    let applied = || -> Option<Value> {
        let text = annotations(live)?.get(ANNOTATION)?.as_str()?;
        let applied: Value = serde_json::from_str(text).ok()?;
        (applied.get("apiVersion")?.as_str()? == api_version).then_some(applied)
    };
    let applied = if manager == MANAGER { applied() } else { None };
    applied.map_or_else(Set::default, |applied| {
        let other = Difference::between(&applied, live, schema);
        Set::of(&applied, schema).without(&other.written()).without(&other.removed)
    })
}

/// Updates an existing annotation.
pub(crate) fn follow(manager: &str, object: &mut Value, sent: &Value) {
    let has = annotations(object).and_then(|all| all.get(ANNOTATION)).and_then(Value::as_str);
    if manager != MANAGER || has.is_none_or(str::is_empty) {
        return;
    }
    let mut sent = sent.clone();
    if let Some(Value::Object(all)) = sent.pointer_mut("/metadata/annotations") {
        all.remove(ANNOTATION);
    }
    // Go's JSON escapes.
    let text =
        sent.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026") + "\n";
    if let Some(Value::Object(all)) = meta::metadata_mut(object).get_mut("annotations") {
        all.insert(ANNOTATION.into(), text.into());
        let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
        if all.iter().map(size).sum::<usize>() > MAX_BYTES {
            all.remove(ANNOTATION);
        }
    }
}

fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/annotations")?.as_object()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    fn live(applied: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1", "b": "2"},
            "metadata": {"name": "c", "annotations": {ANNOTATION: applied.to_string()}}})
    }

    #[test]
    fn kubectl_takes_over_unchanged_client_side_applied_fields() {
        let schema = builtin::view("io.k8s.api.core.v1.ConfigMap");
        let live =
            live(&json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1", "b": "1", "c": "1"}}));
        let taken = takes_over("kubectl", &live, "v1", schema).to_json();
        assert_eq!(taken["f:data"], json!({"f:a": {}}));
        assert!(takes_over("another", &live, "v1", schema).is_empty());
        assert!(takes_over("kubectl", &live, "v2", schema).is_empty());
    }

    #[test]
    fn the_last_applied_annotation_follows_kubectls_apply() {
        let sent =
            json!({"kind": "ConfigMap", "data": {"a": "<"}, "metadata": {"annotations": {ANNOTATION: "x"}}});
        let mut object = live(&json!({}));
        follow("another", &mut object, &sent);
        assert_eq!(object, live(&json!({})));
        follow("kubectl", &mut object, &sent);
        let text = object["metadata"]["annotations"][ANNOTATION].as_str().map(str::to_owned);
        let expected =
            "{\"data\":{\"a\":\"\\u003c\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{}}}\n";
        assert_eq!(text.as_deref(), Some(expected));
    }
}
