//! Content of both clusters, without varying values.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot(BTreeMap<String, Value>);

const KCP: [(&str, &str, &str); 4] = [
    ("operator.kyma-project.io/v1beta2", "Kyma", "kymas"),
    ("operator.kyma-project.io/v1beta2", "Manifest", "manifests"),
    ("v1", "Secret", "secrets"),
    ("cert-manager.io/v1", "Certificate", "certificates"),
];
const RUNTIME: [(&str, &str, &str); 15] = [
    ("operator.kyma-project.io/v1beta2", "Kyma", "kymas"),
    ("operator.kyma-project.io/v1beta2", "ModuleTemplate", "moduletemplates"),
    ("operator.kyma-project.io/v1beta2", "ModuleReleaseMeta", "modulereleasemetas"),
    ("sim.tidewatch.dev/v1", "Beacon", "beacons"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ("v1", "Service", "services"),
    ("v1", "Secret", "secrets"),
    ("v1", "Namespace", "namespaces"),
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "Deployment", "deployments"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings"),
];
const PASSING: [&str; 9] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "observedGeneration",
    "lastTransitionTime",
    "lastUpdateTime",
    "time",
    "kubeconfig",
];

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !PASSING.contains(&key.as_str()));
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => {
            list.iter_mut().for_each(strip);
            // `managedFields` are ordered by writes.
            if list.iter().any(|entry| entry.get("fieldsV1").is_some()) {
                list.sort_by_key(Value::to_string);
            }
        }
        _ => {}
    }
}

pub(crate) async fn snapshot(kcp: &Client, runtime: &Client) -> Result<Snapshot> {
    let mut all = BTreeMap::new();
    for (cluster, client, kinds) in [("kcp", kcp, KCP.as_slice()), ("runtime", runtime, RUNTIME.as_slice())] {
        for (api_version, kind, plural) in kinds {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let gvk = GroupVersionKind::gvk(group, version, kind);
            let api: Api<DynamicObject> =
                Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, plural));
            let list = match api.list(&ListParams::default()).await {
                Ok(list) => list.items,
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            for object in list {
                let key = format!(
                    "{cluster} {kind} {}/{}",
                    object.namespace().unwrap_or_default(),
                    object.name_any()
                );
                let mut value = serde_json::to_value(object)?;
                if *kind == "Secret" {
                    value["data"] = Value::Null;
                }
                strip(&mut value);
                all.insert(key, value);
            }
        }
    }
    Ok(Snapshot(all))
}

impl Snapshot {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, object: &str) -> bool {
        self.0.contains_key(object)
    }

    pub(crate) fn is_transient(&self) -> bool {
        self.0.iter().any(|(key, object)| {
            !object["metadata"]["deletionTimestamp"].is_null()
                || (key.starts_with("kcp Kyma") && object["status"]["state"] != "Ready")
        })
    }

    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let keys: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differing = keys.into_iter().filter(|key| self.0.get(*key) != other.0.get(*key));
        let text = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
        differing
            .map(|key| format!("{key}: expected {} found {}", text(self.0.get(key)), text(other.0.get(key))))
            .collect()
    }
}
