//! Compares a cluster's objects over time.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client, Discovery, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    discovery::verbs,
};
use tidewatch_api::names::AGENT_CONFIG_MAP;

const AT_ONCE: usize = 8;
/// Kinds that the control plane writes continuously.
const RESTLESS: [&str; 7] =
    ["ComponentStatus", "Endpoints", "EndpointSlice", "Event", "Lease", "LeaseCandidate", "Node"];
/// Prefix of the harness' own namespaces.
const OF_THE_HARNESS: &str = "harness-";
/// Prefix of the agent's own ConfigMaps.
const OF_THE_AGENT: &str = "tidewatch-agent-";

/// Identities and versions of listable objects, except restless kinds and agents' own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, String>);

impl Snapshot {
    /// Lists all objects, not atomically.
    pub async fn take(client: &Client) -> Result<Self> {
        let discovery = Discovery::new(client.clone()).run().await.context("cannot ask for the kinds")?;
        let kinds: Vec<ApiResource> = discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::resources_by_stability)
            .filter(|(kind, can)| {
                can.supports_operation(verbs::LIST) && !RESTLESS.contains(&kind.kind.as_str())
            })
            .map(|(kind, _)| kind)
            .collect();
        let objects = stream::iter(kinds)
            .map(|kind| list(client, kind))
            .buffer_unordered(AT_ONCE)
            .try_concat()
            .await?
            .into_iter()
            .collect();
        Ok(Self(objects))
    }

    /// Returns a line per difference.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let gone = self.0.iter().filter(|(key, _)| !later.0.contains_key(*key));
        let changed = later.0.iter().filter(|(key, now)| self.0.get(*key).is_some_and(|was| was != *now));
        gone.map(|(key, was)| format!("gone: {key} {was}"))
            .chain(self.added(later).into_iter().map(|key| format!("new: {key}")))
            .chain(changed.map(|(key, now)| format!("changed: {key} {now}")))
            .collect()
    }

    /// Returns objects only in `later`.
    pub fn added(&self, later: &Self) -> Vec<String> {
        later.0.keys().filter(|key| !self.0.contains_key(*key)).cloned().collect()
    }
}

async fn list(client: &Client, kind: ApiResource) -> Result<Vec<(String, String)>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let objects = match api.list_metadata(&ListParams::default()).await {
        Ok(list) => list.items,
        // The CRD was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", kind.plural)),
    };
    Ok(objects
        .iter()
        .filter(|object| counts(&kind.kind, &object.namespace().unwrap_or_default(), &object.name_any()))
        .map(|object| {
            let key = format!(
                "{}/{} {}/{}",
                kind.group,
                kind.kind,
                object.namespace().unwrap_or_default(),
                object.name_any()
            );
            let uid = object.uid().unwrap_or_default();
            (key, format!("{uid}@{}", object.resource_version().unwrap_or_default()))
        })
        .collect())
}

fn counts(kind: &str, namespace: &str, name: &str) -> bool {
    let harness =
        namespace.starts_with(OF_THE_HARNESS) || (kind == "Namespace" && name.starts_with(OF_THE_HARNESS));
    let agent = kind == "ConfigMap" && (name == AGENT_CONFIG_MAP || name.starts_with(OF_THE_AGENT));
    !harness && !agent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(objects: &[(&str, &str)]) -> Snapshot {
        Snapshot(objects.iter().map(|(key, version)| ((*key).to_owned(), (*version).to_owned())).collect())
    }

    #[test]
    fn each_change_between_snapshots_is_reported() {
        let before =
            snapshot(&[("/Secret a/stays", "u@1"), ("/Secret a/goes", "u@2"), ("/Secret a/moves", "u@3")]);
        let after =
            snapshot(&[("/Secret a/stays", "u@1"), ("/Secret a/moves", "u@4"), ("/Secret a/comes", "u@5")]);
        assert_eq!(
            before.changes(&after),
            ["gone: /Secret a/goes u@2", "new: /Secret a/comes", "changed: /Secret a/moves u@4"]
        );
        assert_eq!(before.added(&after), ["/Secret a/comes"]);
        assert!(before.changes(&before.clone()).is_empty());
    }

    #[test]
    fn objects_of_the_harness_and_agent_are_left_out() {
        assert!(counts("ConfigMap", "kyma-system", "mine"));
        assert!(counts("ClusterRole", "", "tidewatch-agent-watches"));
        assert!(!counts("ConfigMap", "kyma-system", "tidewatch-agent-config"));
        assert!(!counts("Pod", "harness-deployment", "web"));
        assert!(!counts("Namespace", "", "harness-deployment"));
    }
}
