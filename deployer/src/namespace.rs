//! Objects that are being deleted, above all namespaces.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tidewatch_api::object::ObjectRef;

/// Usual duration. Longer deletions need attention.
const DELETION_DEADLINE: SignedDuration = SignedDuration::from_mins(1);
/// Maximum finalizers, and conditions, in a message.
const MAX_LISTED: usize = 8;
/// Characters of a quoted text.
const MAX_QUOTE: usize = 200;

/// A terminating namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminating {
    /// Message for users.
    pub message: String,
    /// When the deletion takes too long; `None` if `deletionTimestamp` is unreadable.
    pub overdue_at: Option<Timestamp>,
}

/// Describes a terminating namespace; `None` if it is not being deleted.
#[must_use]
pub fn terminating(name: &str, namespace: &Value) -> Option<Terminating> {
    let since = namespace["metadata"]["deletionTimestamp"].as_str()?;
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(cut)).collect()
    };
    let mut finalizers = texts(&namespace["metadata"]["finalizers"]);
    finalizers.extend(texts(&namespace["spec"]["finalizers"]));
    finalizers.truncate(MAX_LISTED);
    let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
    let messages: Vec<String> = conditions
        .filter(|condition| condition["status"] == "True")
        .filter_map(|condition| condition["message"].as_str().map(cut))
        .take(MAX_LISTED)
        .collect();
    let blockers =
        if finalizers.is_empty() { String::new() } else { format!(", held by {}", finalizers.join(", ")) };
    let messages = if messages.is_empty() { String::new() } else { format!(" ({})", messages.join("; ")) };
    let overdue_at =
        since.parse::<Timestamp>().ok().and_then(|since| since.checked_add(DELETION_DEADLINE).ok());
    Some(Terminating {
        message: format!("namespace {name} is being deleted since {since}{blockers}{messages}"),
        overdue_at,
    })
}

/// Returns when a deletion begun at `since` takes too long.
#[must_use]
pub fn overdue_at(since: Timestamp) -> Timestamp {
    since.saturating_add(DELETION_DEADLINE).unwrap_or(Timestamp::MAX)
}

/// Describes a pending deletion; `None` if nothing is known to hold it.
#[must_use]
pub fn deletion_blockers(object: &ObjectRef, live: &Value) -> Option<String> {
    if (object.gvk.group.as_str(), object.gvk.kind.as_str()) == ("", "Namespace") {
        return terminating(&object.name, live).map(|found| found.message);
    }
    live["metadata"]["deletionTimestamp"].as_str()?;
    let finalizers = live["metadata"]["finalizers"].as_array().into_iter().flatten();
    let finalizers: Vec<String> = finalizers.filter_map(Value::as_str).map(cut).take(MAX_LISTED).collect();
    (!finalizers.is_empty()).then(|| format!("it is held by {}", finalizers.join(", ")))
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_QUOTE).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::object::Gvk;

    use super::*;

    #[test]
    fn a_deleting_object_names_its_finalizers() {
        let gvk = Gvk::of("v1", "PersistentVolumeClaim");
        let claim = ObjectRef { gvk, namespace: "n".into(), name: "store".into() };
        let mut live = json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}});
        assert_eq!(deletion_blockers(&claim, &live), None, "it is not being deleted");
        live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(deletion_blockers(&claim, &live).unwrap(), "it is held by kubernetes.io/pvc-protection");
        live["metadata"]["finalizers"] = json!([]);
        assert_eq!(deletion_blockers(&claim, &live), None);
        let namespace =
            ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "dock".into() };
        live["status"] = json!({"conditions": [{"status": "True", "message": "content remains: dev.x/keep in 1 resource instances"}]});
        assert!(deletion_blockers(&namespace, &live).unwrap().contains("dev.x/keep in 1 resource"));
        assert_eq!(
            overdue_at("2026-01-01T00:00:00Z".parse().unwrap()),
            "2026-01-01T00:01:00Z".parse().unwrap()
        );
    }

    #[test]
    fn a_terminating_namespace_names_its_finalizers_and_age() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let namespace = json!({
            "metadata": {"name": "dock", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["dev.x/keep"]},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"conditions": [
                {"type": "NamespaceContentRemaining", "status": "True", "message": "Some resources are remaining: beacons.x.dev has 1"},
                {"type": "NamespaceDeletionDiscoveryFailure", "status": "False", "message": "All resources discovered"}]}});
        let reported = terminating("dock", &namespace).unwrap();
        assert_eq!(
            reported.message,
            "namespace dock is being deleted since 2026-01-01T00:00:00Z, held by dev.x/keep, kubernetes \
             (Some resources are remaining: beacons.x.dev has 1)"
        );
        assert_eq!(reported.overdue_at, Some(at("2026-01-01T00:01:00Z")), "as a rule it is gone soon");
        assert_eq!(terminating("dock", &json!({"metadata": {"name": "dock"}})), None);
        let odd = json!({"metadata": {"deletionTimestamp": 7, "finalizers": {}}});
        assert_eq!(terminating("dock", &odd), None);
        let long = json!({"metadata": {"deletionTimestamp": "x", "finalizers": vec!["f".repeat(1000); 100]}});
        assert!(terminating("dock", &long).unwrap().message.len() < 2000);
    }
}
