//! The one-event body of the Go watcher: `POST /v2/<manager>/event`.
//!
//! An admission webhook sends it before the change is committed, without number or version. So the receiver must look
//! twice.

use serde::{Deserialize, Serialize};

/// The body, with the Go listener's field names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// The changed object.
    pub watched: ObjectKey,
    /// Its kind.
    #[serde(rename = "watchedGvk")]
    pub watched_gvk: GroupVersionKind,
}

/// Namespace and name, capitalised on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Empty if cluster-scoped.
    #[serde(rename = "Namespace", default)]
    pub namespace: String,
    /// Name.
    #[serde(rename = "Name")]
    pub name: String,
}

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupVersionKind {
    /// Empty for core.
    #[serde(default)]
    pub group: String,
    /// For example `v1beta2`.
    pub version: String,
    /// For example `Kyma`.
    pub kind: String,
}

/// Manager in a v2 event path.
pub fn manager_of_path(path: &str) -> Option<&str> {
    let manager = path.strip_prefix("/v2/")?.strip_suffix("/event")?;
    (!manager.is_empty() && !manager.contains('/')).then_some(manager)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_go_agents_body() {
        let body = r#"{"watched":{"Namespace":"kyma-system","Name":"default"},
            "watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Kyma"}}"#;
        let event: WatchEvent = serde_json::from_str(body).unwrap();
        assert_eq!(event.watched.name, "default");
        assert_eq!(event.watched_gvk.kind, "Kyma");
    }

    #[test]
    fn event_paths_name_their_manager() {
        assert_eq!(manager_of_path("/v2/lifecycle-manager/event"), Some("lifecycle-manager"));
        for bad in ["/v2//event", "/v2/a/b/event", "/v2/a", "/v3/events", "/v2/a/event/"] {
            assert_eq!(manager_of_path(bad), None, "{bad}");
        }
    }
}
