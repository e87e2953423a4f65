//! What an agent needs in its runtime before it starts: its namespace and the role that ships. Pure.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;

use crate::modules::Id;

/// The namespace, and the objects of a YAML text of several documents.
pub fn objects(yaml: &str) -> Result<Vec<(Id, Value)>> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}});
    let role: Vec<Value> = serde_saphyr::from_multiple(yaml).context("the agent's role cannot be read")?;
    [namespace].into_iter().chain(role).map(|object| Ok((id(&object)?, object))).collect()
}

fn id(object: &Value) -> Result<Id> {
    let text = |field: &str| object[field].as_str().with_context(|| format!("an object has no {field}"));
    let api_version = text("apiVersion")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let name = object["metadata"]["name"].as_str().context("an object has no name")?;
    Ok(Id {
        group: group.to_owned(),
        version: version.to_owned(),
        // As all kinds in it have it.
        resource: format!("{}s", text("kind")?.to_lowercase()),
        namespace: object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_that_ships_has_a_namespace_before_it() {
        let objects = objects(tidewatch_demo::fleet::AGENT_ROLE).unwrap();
        let ids: Vec<(&str, &str)> =
            objects.iter().map(|(id, _)| (id.resource.as_str(), id.namespace.as_str())).collect();
        assert_eq!(
            ids,
            [
                ("namespaces", ""),
                ("serviceaccounts", "kyma-system"),
                ("clusterroles", ""),
                ("clusterrolebindings", ""),
                ("roles", "kyma-system"),
                ("rolebindings", "kyma-system"),
            ]
        );
        assert_eq!(objects[2].0.group, "rbac.authorization.k8s.io");
    }
}
