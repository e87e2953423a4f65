//! ModuleReleaseMeta: the version of a module in each channel.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, time};

/// OCM component names: a DNS name and at least one path segment, in lower case.
const COMPONENT_NAME: &str =
    "^[a-z][-a-z0-9]*([.][a-z][-a-z0-9]*)*[.][a-z]{2,}(/[a-z][-a-z0-9_]*([.][a-z][-a-z0-9_]*)*)+$";

/// A full semantic version with pre-release and build parts.
const SEMVER: &str = concat!(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)",
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?",
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
);

/// Versions of the module's channels.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.kyma-project.io",
    version = "v1beta2",
    kind = "ModuleReleaseMeta",
    plural = "modulereleasemetas",
    shortname = "mrm",
    namespaced,
    doc = "ModuleReleaseMeta maps channels to versions; it has the name of its module.",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default), schemars(!default))",
    printcolumn(name = "Channels", type_ = "string", json_path = ".spec.channels"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.mandatory) && !has(self.channels)) || (!has(self.mandatory) && has(self.channels))",
    "message": "exactly one of 'mandatory' or 'channels' must be specified"
}]))]
pub struct ModuleReleaseMetaSpec {
    /// Name of the module.
    #[schemars(length(max = 64), regex(pattern = schema::MODULE_NAME))]
    pub module_name: String,
    /// OCM component of the module; the registry stores its descriptor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255), regex(pattern = COMPONENT_NAME))]
    pub ocm_component_name: String,
    /// Versions of the channels, one per channel. Absent for a mandatory module.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["channel"]))]
    pub channels: Option<Vec<ChannelVersion>>,
    /// Version for every runtime. Absent for a module that users enable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mandatory: Option<Mandatory>,
    /// Deprecated: whether only beta Kymas may use the module.
    #[serde(default)]
    pub beta: bool,
    /// Deprecated: whether only internal Kymas may use the module.
    #[serde(default)]
    pub internal: bool,
    /// Experimental: Kymas that may use a restricted module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub kyma_selector: Option<LabelSelector>,
    /// Tidewatch only: versions that a Kyma may pin besides the channels' versions, and deprecations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["version"]))]
    pub versions: Vec<OfferedVersion>,
    /// Tidewatch only: whether a Kyma is downgraded when its channel or version becomes older.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_downgrade: Option<bool>,
}

/// A version and its deprecation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct OfferedVersion {
    /// Version of the module.
    #[schemars(length(max = 32), regex(pattern = schema::MODULE_VERSION))]
    pub version: String,
    /// Time from which the version should not be used; users are warned before.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "time::moment")]
    pub deprecation_date: Option<Time>,
    /// Message to users of the version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub deprecation_message: String,
}

/// A channel and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ChannelVersion {
    /// Name of the channel.
    #[schemars(length(min = 3, max = 32), regex(pattern = schema::CHANNEL))]
    pub channel: String,
    /// Version of the module.
    #[schemars(length(max = 32), regex(pattern = schema::MODULE_VERSION))]
    pub version: String,
}

/// The version of a mandatory module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Mandatory {
    /// Version of the module.
    #[schemars(length(min = 1), regex(pattern = SEMVER))]
    pub version: String,
}

impl ModuleReleaseMeta {
    /// Version of `channel`; `None` for an unknown channel and for mandatory modules.
    pub fn version_of(&self, channel: &str) -> Option<&str> {
        self.spec
            .channels
            .iter()
            .flatten()
            .find(|entry| entry.channel == channel)
            .map(|entry| entry.version.as_str())
            .filter(|version| !version.is_empty())
    }

    /// Entry of `version` in `spec.versions`.
    pub fn offered(&self, version: &str) -> Option<&OfferedVersion> {
        self.spec.versions.iter().find(|entry| entry.version == version)
    }

    /// Version for every runtime, if the module is mandatory.
    pub fn mandatory_version(&self) -> Option<&str> {
        self.spec.mandatory.as_ref().map(|mandatory| mandatory.version.as_str())
    }
}
