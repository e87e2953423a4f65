//! Objects that an agent needs before it starts. Pure.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;

use crate::modules::Id;

/// Returns the namespace and the objects of a YAML text.
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
        // Correct for this role.
        resource: format!("{}s", text("kind")?.to_lowercase()),
        namespace: object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use tidewatch_fake_apiserver::{
        Cluster, Options, Outcome, PatchKind, Query, Request, Target, User, Verb,
    };

    use super::*;

    fn code(cluster: &mut Cluster, user: User, verb: Verb, id: &Id) -> u16 {
        let Id { group, version, resource, namespace, name } = id.clone();
        let target = Target { group, version, resource, namespace, name, subresource: String::new() };
        let query = Query { field_manager: "test".into(), ..Query::default() };
        let request = Request { user: Arc::new(user), agent: "test".into(), verb, target, query };
        match cluster.apply(&request, Timestamp::UNIX_EPOCH) {
            Outcome::Object(answer) => answer.code,
            Outcome::Refused(refusal) => refusal.code,
            Outcome::List(_) | Outcome::Watch(_) => 200,
        }
    }

    #[test]
    fn an_agent_may_do_only_as_its_role_allows() {
        let mut cluster = Cluster::new(Options::default(), Timestamp::UNIX_EPOCH);
        let objects = objects(tidewatch_demo::fleet::AGENT_ROLE).unwrap();
        let agent = tidewatch_demo::simulated::agent_user;
        let of = |resource: &str, namespace: &str, name: &str| {
            id(&json!({"apiVersion": "v1", "kind": resource, "metadata": {"name": name, "namespace": namespace}}))
                .unwrap()
        };
        let digest = of("ConfigMap", RUNTIME_NAMESPACE, "tidewatch-agent-digest");
        let memory = || {
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": digest.name}});
            Verb::Patch(PatchKind::Apply, body)
        };
        for (number, (id, object)) in objects.iter().enumerate() {
            if number > 0 {
                assert_eq!(code(&mut cluster, agent(), memory(), &digest), 403, "before {}", id.resource);
            }
            let apply = Verb::Patch(PatchKind::Apply, object.clone());
            assert_eq!(code(&mut cluster, User::admin("admin"), apply, id), 201);
        }
        assert_eq!(code(&mut cluster, agent(), memory(), &digest), 201);
        assert_eq!(code(&mut cluster, agent(), Verb::List, &of("Namespace", "", "")), 200);
        for resource in ["Secret", "ConfigMap", "ServiceAccount"] {
            let all = of(resource, RUNTIME_NAMESPACE, "");
            assert_eq!(code(&mut cluster, agent(), Verb::List, &all), 403, "{resource}");
        }
        assert_eq!(code(&mut cluster, agent(), Verb::Delete(Value::Null), &digest), 403);
    }

    #[test]
    fn the_shipped_role_comes_with_its_namespace() {
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
