//! What of API objects may stand in a record. Pure.

use serde_json::{Map, Value};

use crate::plan::refusal;

/// What stands in place of a Secret's data: `redacted`, in base64, so that it still is data.
pub const DATA: &str = "cmVkYWN0ZWQ=";
/// What stands in place of text.
const TEXT: &str = "redacted";
/// Reasons of refusals that say nothing of what the object has in it.
const WITHOUT_QUOTES: [&str; 9] = [
    "AlreadyExists",
    "Conflict",
    "Expired",
    "NotFound",
    "ServerTimeout",
    "ServiceUnavailable",
    "Timeout",
    "TooManyRequests",
    "Unauthorized",
];
/// kubectl writes the whole object into it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether a path of an API server is of Secrets. Says yes too often rather than too seldom.
#[must_use]
pub fn is_of_secrets(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.split('/').any(|part| part == "secrets")
}

/// Takes the data out of all Secrets in an answer or a request, wherever they stand in it. With `secrets`, what is no Secret by
/// its kind is taken for one: the items of a list do not say what they are.
pub fn redact(value: &mut Value, secrets: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, secrets)),
        Value::Object(object) => {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
            let is_secret = kind == "Secret" || secrets && kind != "Status";
            let of_secrets = secrets || kind == "SecretList";
            if kind == "Status" && secrets {
                hide_quotes(object);
            }
            if is_secret {
                hide_data(object);
            }
            for (key, inner) in object.iter_mut() {
                // Metadata says whose it is, and has no objects in it.
                if key != "metadata" {
                    redact(inner, of_secrets && key == "items");
                }
            }
        }
        _ => {}
    }
}

/// A refusal quotes what it refuses, in its message and in its causes. What else stands in its details names the object, and says when to come
/// again.
fn hide_quotes(status: &mut Map<String, Value>) {
    let reason = status.get("reason").and_then(Value::as_str).unwrap_or_default();
    let quotes = !WITHOUT_QUOTES.contains(&reason);
    if let Some(message) = status.get_mut("message").filter(|_| quotes) {
        // What is decided by a message has to be decided so by what is left of it.
        let kept = message.as_str().and_then(refusal::immutable_words);
        *message = kept.map_or_else(|| TEXT.to_owned(), |words| format!("{TEXT}: {words}")).into();
    }
    if let Some(details) = status.get_mut("details").and_then(Value::as_object_mut) {
        details.retain(|key, _| key != "causes");
    }
}

fn hide_data(secret: &mut Map<String, Value>) {
    for (field, shown) in [("data", DATA), ("stringData", TEXT)] {
        match secret.get_mut(field) {
            Some(Value::Object(data)) => data.values_mut().for_each(|value| *value = shown.into()),
            Some(Value::Null) | None => {}
            Some(other) => *other = Value::Null,
        }
    }
    // What a Secret does not have may be its data under a name that is misspelt. What has no metadata only names one, as discovery does.
    let is_object = secret.get("metadata").is_some_and(Value::is_object);
    let known = ["apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData", "items"];
    for (_, value) in secret.iter_mut().filter(|(field, _)| is_object && !known.contains(&field.as_str())) {
        hide_texts(value);
    }
    let annotation = secret.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
    if let Some(applied) = annotation.and_then(|annotations| annotations.get_mut(LAST_APPLIED)) {
        *applied = TEXT.into();
    }
}

/// The same shape, without what it says.
fn hide_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(hide_texts),
        Value::Array(items) => items.iter_mut().for_each(hide_texts),
        Value::String(_) | Value::Number(_) => *value = TEXT.into(),
        Value::Bool(_) | Value::Null => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut value: Value, secrets: bool) -> String {
        redact(&mut value, secrets);
        value.to_string()
    }

    #[test]
    fn no_data_of_a_secret_is_left_wherever_it_stands() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "a", "annotations": {LAST_APPLIED: "{\"data\":{\"k\":\"aHVudGVyMg==\"}}", "b": "kept"}},
            "data": {"k": "aHVudGVyMg=="}, "stringData": {"l": "hunter2"}});
        let list = json!({"kind": "List", "items": [secret, {"kind": "ConfigMap", "data": {"k": "kept"}}]});
        let nested = json!({"kind": "X", "spec": {"template": secret}});
        for value in [secret.clone(), list.clone(), nested, json!([secret])] {
            let text = redacted(value, false);
            assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
        }
        assert!(redacted(list, false).contains("kept"));
        let text = redacted(secret, false);
        assert!(text.contains("\"k\":\"cmVkYWN0ZWQ=\"") && text.contains("\"b\":\"kept\""), "{text}");
    }

    #[test]
    fn items_of_a_list_of_secrets_do_not_say_what_they_are() {
        let list = json!({"kind": "SecretList", "metadata": {"resourceVersion": "7"}, "items": [{"data": {"k": "aHVudGVyMg=="}}]});
        assert!(!redacted(list, false).contains("aHVudGVyMg"));
        let partial =
            json!({"kind": "PartialObjectMetadata", "metadata": {"annotations": {LAST_APPLIED: "hunter2"}}});
        assert!(!redacted(partial, true).contains("hunter2"));
        assert_eq!(
            redacted(json!({"kind": "Secret", "data": "hunter2"}), false),
            r#"{"data":null,"kind":"Secret"}"#
        );
    }

    #[test]
    fn a_refusal_of_a_secret_quotes_nothing() {
        let refusal = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "hunter2",
                             "details": {"causes": [{"message": "hunter2"}]}});
        let text = redacted(refusal.clone(), true);
        assert!(!text.contains("hunter2") && text.contains("422"), "{text}");
        assert_eq!(redacted(refusal.clone(), false), refusal.to_string(), "of anything else it stays");
    }

    #[test]
    fn data_under_a_name_that_is_misspelt_is_no_less_a_secret() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "type": "Opaque",
            "xstringData": {"k": "hunter2", "l": ["hunter2", {"m": 7}]}});
        let text = redacted(secret, false);
        assert!(!text.contains("hunter2") && !text.contains('7'), "{text}");
        assert!(text.contains("Opaque") && text.contains(r#""k":"redacted""#), "{text}");
        // What names a Secret, or its kind, stays as it is.
        for named in [
            json!({"kind": "APIResourceList", "resources": [{"name": "secrets", "kind": "Secret", "namespaced": true}]}),
            json!({"kind": "Manifest", "status": {"synced": [{"version": "v1", "kind": "Secret", "name": "a", "namespace": "b"}]}}),
            json!({"kind": "Event", "involvedObject": {"apiVersion": "v1", "kind": "Secret", "name": "a", "uid": "u"}}),
        ] {
            assert_eq!(redacted(named.clone(), false), named.to_string());
        }
    }

    #[test]
    fn what_is_decided_by_a_refusals_message_is_decided_so_by_what_is_left_of_it() {
        let refusal = json!({"kind": "Status", "code": 422, "reason": "Invalid",
            "message": "Secret \"a\" is invalid: data: Forbidden: hunter2: field is immutable when `immutable` is set"});
        let mut left = refusal.clone();
        redact(&mut left, true);
        let message = left["message"].as_str().unwrap_or_default();
        assert!(refusal::is_immutable(message) && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn when_to_come_again_is_kept_of_a_refusal_and_so_is_a_message_that_quotes_nothing() {
        let busy = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "too many requests",
                          "details": {"retryAfterSeconds": 3}});
        assert_eq!(redacted(busy.clone(), true), busy.to_string());
        let denied = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "hunter2 is too short",
                            "details": {"name": "a", "causes": [{"message": "hunter2"}], "retryAfterSeconds": 3}});
        let text = redacted(denied, true);
        assert!(!text.contains("hunter2") && text.contains(r#""retryAfterSeconds":3"#), "{text}");
    }

    #[test]
    fn paths_of_secrets() {
        for path in
            ["/api/v1/secrets?limit=1", "/api/v1/namespaces/a/secrets/b", "/api/v1/namespaces/a/secrets"]
        {
            assert!(is_of_secrets(path), "{path}");
        }
        for path in ["/api/v1/namespaces/a/configmaps/secret", "/api/v1/configmaps?labelSelector=secrets"] {
            assert!(!is_of_secrets(path), "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_secret_looks_like_its_data_is_gone(
            depth in 0..5_usize,
            keys in proptest::collection::vec("[a-z]{1,6}", 1..4),
        ) {
            let data: Map<String, Value> = keys.into_iter().map(|k| (k, Value::from("hunter2"))).collect();
            let mut value = json!({"kind": "Secret", "data": data.clone(), "stringData": data});
            for level in 0..depth {
                value = if level % 2 == 0 { json!([value]) } else { json!({"kind": "Any", "spec": {"deep": value}}) };
            }
            proptest::prop_assert!(!redacted(value, false).contains("hunter2"));
        }
    }
}
