//! Watcher: the changes in runtimes that a manager in KCP receives.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::labels;
use crate::schema;
use crate::state::State;
use crate::time;

/// Watched kind, and the Service that gets its events.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.kyma-project.io",
    version = "v1beta2",
    kind = "Watcher",
    plural = "watchers",
    namespaced,
    status = "WatcherStatus",
    doc = "Watcher selects the changes in runtimes that a manager in KCP receives.",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default), schemars(!default))",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct WatcherSpec {
    /// Service in KCP that gets the events.
    pub service_info: Service,
    /// Labels that an object must have; empty for all objects.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels_to_watch: BTreeMap<String, String>,
    /// Watched kind.
    pub resource_to_watch: WatchableGvr,
    /// Part of the object that is watched for changes.
    pub field: WatchedField,
    /// Gateway that receives the events.
    pub gateway: GatewayConfig,
    /// Name of the manager; part of the events' address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manager: String,
}

/// A Service in KCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Service {
    /// Port of the Service.
    pub port: i64,
    /// Name of the Service.
    pub name: String,
    /// Namespace of the Service.
    pub namespace: String,
}

/// A kind by its plural name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct WatchableGvr {
    /// API group; empty for the core group.
    pub group: String,
    /// API version, or `*` for any.
    pub version: String,
    /// Plural name of the kind.
    pub resource: String,
}

/// Part of an object that is watched for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WatchedField {
    /// Desired state.
    #[default]
    Spec,
    /// Actual state.
    Status,
}

/// Gateway that receives the events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct GatewayConfig {
    /// Selects the Gateway object.
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: LabelSelector,
}

/// Observed state of a Watcher.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct WatcherStatus {
    /// State of the route.
    pub state: State,
    /// One condition per aspect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "time::conditions")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Watcher {
    /// Name of the receiving manager; older objects carry it as a label only.
    pub fn manager_name(&self) -> Option<&str> {
        [Some(&self.spec.manager), self.labels().get(labels::MANAGED_BY)]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .find(|name| !name.is_empty())
    }
}
