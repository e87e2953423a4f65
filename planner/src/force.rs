//! Forced deletions: field manager, time and reason.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use tidewatch_api::names::annotations;

use super::notice::{About, Notice};

/// Event reason.
pub const REASON: &str = "DeletionForced";
/// Quoted characters of the annotation.
const MAX_REASON: usize = 200;

/// Force annotation and its manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// Shortened value.
    pub reason: String,
    /// Field manager and its last write, if known.
    pub by: Option<String>,
}

/// Returns the force annotation; `None` unless the object is being deleted.
pub fn forced(object: &impl ResourceExt) -> Option<Forced> {
    object.meta().deletion_timestamp.as_ref()?;
    let reason = object.annotations().get(annotations::FORCE_DELETE)?;
    let by = object.managed_fields().iter().find(|entry| sets_annotation(entry)).map(|entry| {
        let manager = entry.manager.as_deref().unwrap_or("unknown");
        entry.time.as_ref().map_or_else(|| manager.to_owned(), |time| format!("{manager} at {}", time.0))
    });
    Some(Forced { reason: reason.chars().take(MAX_REASON).collect(), by })
}

fn sets_annotation(entry: &ManagedFieldsEntry) -> bool {
    let field = format!("f:{}", annotations::FORCE_DELETE);
    entry.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:metadata"]["f:annotations"][&field].is_null())
}

impl Forced {
    /// Names an object that is not waited for, but is being deleted.
    #[must_use]
    pub fn deleting_label(object: &impl std::fmt::Display) -> String {
        format!("{object} (being deleted)")
    }

    /// Notice about the deletion and the objects in `left`: not waited for, or left behind.
    #[must_use]
    pub fn notice(&self, about: About, object: &str, abandoned: &[String]) -> Notice {
        let by = self.by.as_deref().map_or_else(String::new, |by| format!(" by {by}"));
        let reason = if self.reason.is_empty() { "no reason given" } else { self.reason.as_str() };
        let list = if abandoned.is_empty() {
            "nothing was left behind".to_owned()
        } else {
            let more = if abandoned.len() > 10 { ", …" } else { "" };
            let names: Vec<&str> = abandoned.iter().take(10).map(String::as_str).collect();
            format!("not waited for or left behind: {}{more} ({})", names.join(", "), abandoned.len())
        };
        Notice::warning(about, REASON, format!("the deletion of {object} was forced{by} ({reason}); {list}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidewatch_api::Manifest;

    use super::*;

    fn manifest(metadata: Value) -> Manifest {
        Manifest { metadata: serde_json::from_value(metadata).unwrap(), ..Manifest::default() }
    }

    #[test]
    fn force_counts_only_during_deletion_and_names_its_writer() {
        let mut metadata = json!({"name": "m",
            "annotations": {"tidewatch.kyma-project.io/force-delete": "the operator is gone"},
            "managedFields": [
                {"manager": "lifecycle-manager", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:annotations": {"f:other": {}}}}},
                {"manager": "kubectl-annotate", "operation": "Update", "apiVersion": "v1", "time": "2026-01-02T03:04:05Z",
                 "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:annotations": {"f:tidewatch.kyma-project.io/force-delete": {}}}}}]});
        assert_eq!(forced(&manifest(metadata.clone())), None);
        metadata["deletionTimestamp"] = "2026-01-02T03:04:00Z".into();
        let found = forced(&manifest(metadata.clone())).unwrap();
        let notice = found.notice(About::Manifest("m".into()), "Manifest m", &["Beacon quay/b0".into()]);
        assert_eq!(
            notice.message,
            "the deletion of Manifest m was forced by kubectl-annotate at 2026-01-02T03:04:05Z (the operator is gone); \
             not waited for or left behind: Beacon quay/b0 (1)"
        );
        metadata["annotations"] = json!({});
        assert_eq!(forced(&manifest(metadata)), None);
    }

    #[test]
    fn a_force_reason_is_optional_and_truncated() {
        let metadata = |why: &str| {
            json!({"name": "m", "deletionTimestamp": "2026-01-02T03:04:00Z",
            "annotations": {"tidewatch.kyma-project.io/force-delete": why}})
        };
        let none = forced(&manifest(metadata(""))).unwrap().notice(About::Kyma, "Kyma k", &[]);
        assert_eq!(
            none.message,
            "the deletion of Kyma k was forced (no reason given); nothing was left behind"
        );
        let long = forced(&manifest(metadata(&"ü".repeat(5000)))).unwrap();
        assert_eq!(long.reason.chars().count(), MAX_REASON);
    }
}
