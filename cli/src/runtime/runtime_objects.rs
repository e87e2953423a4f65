//! The objects in a runtime that give the engine its access. Pure.

use anyhow::Context;
use serde_json::Value;

use crate::rights::Right;

/// One source for this command and for kubectl.
const OBJECTS: &str = include_str!("../../../deploy/runtime/engine.yaml");
/// Namespace of the service account.
pub(crate) const NAMESPACE: &str = "tidewatch-system";
/// Secret with the token.
pub(crate) const TOKEN: &str = "tidewatch-engine-token";

/// Returns the objects in the order of their creation. With `cluster_role`, the service account gets that
/// existing role instead of the shipped one.
pub(crate) fn objects(cluster_role: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let mut objects: Vec<Value> =
        serde_saphyr::from_multiple(OBJECTS).context("the engine's objects are no YAML")?;
    if let Some(name) = cluster_role {
        objects.retain(|object| object["kind"] != "ClusterRole");
        for binding in objects.iter_mut().filter(|object| object["kind"] == "ClusterRoleBinding") {
            binding["roleRef"]["name"] = name.into();
        }
    }
    Ok(objects)
}

/// Returns the engine's rights in a runtime.
pub(crate) fn engine_rights() -> anyhow::Result<Vec<Right>> {
    let objects = objects(None)?;
    let role = objects.iter().find(|object| object["kind"] == "ClusterRole");
    Ok(role.map(|role| Right::of_rules(&role["rules"], "")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(objects: &[Value]) -> Vec<String> {
        let name = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
        };
        objects.iter().map(name).collect()
    }

    #[test]
    fn the_namespace_comes_first_and_the_token_after_its_account() {
        let objects = objects(None).unwrap();
        let expected = [
            format!("Namespace {NAMESPACE}"),
            "ServiceAccount tidewatch-engine".to_owned(),
            "ClusterRole tidewatch-engine".to_owned(),
            "ClusterRoleBinding tidewatch-engine".to_owned(),
            format!("Secret {TOKEN}"),
        ];
        assert_eq!(names(&objects), expected);
        let namespaced = objects.iter().filter(|object| object["metadata"]["namespace"].is_string());
        assert!(namespaced.clone().all(|object| object["metadata"]["namespace"] == NAMESPACE));
        assert_eq!(namespaced.count(), 2);
    }

    #[test]
    fn another_role_replaces_the_shipped_one() {
        let objects = objects(Some("modules")).unwrap();
        assert!(!names(&objects).iter().any(|name| name.starts_with("ClusterRole ")), "{objects:?}");
        let binding = objects.iter().find(|object| object["kind"] == "ClusterRoleBinding").unwrap();
        assert_eq!(binding["roleRef"]["name"], "modules");
    }

    #[test]
    fn the_role_has_no_verb_that_the_engine_does_not_use() {
        let rights: Vec<_> = engine_rights().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            rights,
            [
                "get *.*",
                "list *.*",
                "create *.*",
                "patch *.*",
                "delete *.*",
                "escalate roles.rbac.authorization.k8s.io",
                "bind roles.rbac.authorization.k8s.io",
                "escalate clusterroles.rbac.authorization.k8s.io",
                "bind clusterroles.rbac.authorization.k8s.io",
                "approve signers.certificates.k8s.io tidewatch.kyma-project.io/agent",
                "sign signers.certificates.k8s.io tidewatch.kyma-project.io/agent",
            ]
        );
    }
}
