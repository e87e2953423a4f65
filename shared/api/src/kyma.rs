//! Kyma: one runtime and the modules its user wants.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::marks::{annotation, is_true, label};
use crate::names::{self, annotations, labels};
use crate::schema;
use crate::state::{CustomResourcePolicy, LastOperation, State};
use crate::time;

/// Modules that the user enables, and their channel.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.kyma-project.io",
    version = "v1beta2",
    kind = "Kyma",
    plural = "kymas",
    namespaced,
    status = "KymaStatus",
    doc = "Kyma is one runtime and the modules that its user enables.",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default), schemars(!default))",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Channel", type_ = "string", json_path = ".spec.channel"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Cause", type_ = "string", json_path = ".status.lastOperation.operation")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct KymaSpec {
    /// Channel of all modules without a channel of their own.
    #[schemars(length(min = 3, max = 32), regex(pattern = schema::CHANNEL))]
    pub channel: String,
    /// Whether updates with a downtime ignore maintenance windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_maintenance_windows: Option<bool>,
    /// Enabled modules, one entry per name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub modules: Vec<Module>,
}

/// A module that the user enables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Module {
    /// Name of the module.
    pub name: String,
    /// Controller of the module; kept for older objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub controller: String,
    /// Channel of this module, instead of the Kyma's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 32), regex(pattern = schema::CHANNEL))]
    pub channel: Option<String>,
    /// Tidewatch only: exact version, independent of channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::MODULE_VERSION))]
    pub version: Option<String>,
    /// Deprecated; has no effect.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remote_module_template_ref: String,
    /// Whether the default custom resource is created and deleted with the module.
    #[serde(default)]
    pub custom_resource_policy: CustomResourcePolicy,
    /// `false`: the user manages the module, and the engine no longer changes it.
    #[schemars(extend("default" = true))]
    pub managed: bool,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            name: String::new(),
            controller: String::new(),
            channel: None,
            version: None,
            remote_module_template_ref: String::new(),
            custom_resource_policy: CustomResourcePolicy::default(),
            managed: true,
        }
    }
}

/// Observed state of a Kyma.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct KymaStatus {
    /// Overall state.
    #[serde(default, skip_serializing_if = "State::is_empty")]
    pub state: State,
    /// One condition per aspect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "time::conditions")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Installed modules, and modules with an attempted installation.
    // Shared: a new status mostly repeats entries of the old one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<Arc<ModuleStatus>>,
    /// Channel of the last reconcile.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub active_channel: String,
    /// Last operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
}

/// Observed state of one module of a Kyma.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ModuleStatus {
    /// Name of the module.
    pub name: String,
    /// Deprecated name of `ocmComponentName`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fqdn: String,
    /// OCM component that the module was installed from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ocm_component_name: String,
    /// The module's Manifest in KCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<TrackingObject>,
    /// Channel that the module was installed from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub channel: String,
    /// Installed version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Reason for the state of the module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// State of the module.
    pub state: State,
    /// The module's default custom resource in the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<TrackingObject>,
    /// ModuleTemplate that the module was installed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TrackingObject>,
    /// Whether an update waits for the next maintenance window.
    #[serde(default)]
    pub maintenance: bool,
}

/// Reference to an object at one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TrackingObject {
    /// `apiVersion` of the object.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub api_version: Cow<'static, str>,
    /// Kind of the object.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub kind: Cow<'static, str>,
    /// Identity of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PartialMeta>,
}

/// Metadata that identifies an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PartialMeta {
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Generation that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl Kyma {
    /// Id of the runtime: the CN of its agent's certificate.
    pub fn runtime_id(&self) -> Option<&str> {
        label(self, labels::RUNTIME_ID).filter(|id| !id.is_empty())
    }

    /// Domain of the runtime: a SAN of its agent's certificate.
    pub fn skr_domain(&self) -> Option<&str> {
        annotation(self, annotations::SKR_DOMAIN).filter(|name| !name.is_empty())
    }

    /// Whether an operator has excluded it from reconciles.
    pub fn is_skipped(&self) -> bool {
        is_true(self, labels::SKIP_RECONCILIATION)
    }

    /// Whether this Kyma takes beta modules.
    pub fn is_beta(&self) -> bool {
        is_true(self, labels::BETA)
    }

    /// Whether this Kyma takes internal modules.
    pub fn is_internal(&self) -> bool {
        is_true(self, labels::INTERNAL)
    }

    /// Whether each ModuleTemplate created in its runtime is used.
    pub fn uses_runtime_templates(&self) -> bool {
        is_true(self, labels::RUNTIME_TEMPLATES)
    }

    /// Whether the agent of its runtime is not upgraded.
    pub fn pauses_agent_upgrade(&self) -> bool {
        annotation(self, annotations::PAUSE_AGENT_UPGRADE) == Some("true")
    }

    /// Channel of `module`: its own, else the Kyma's, else the default.
    pub fn channel_of<'a>(&'a self, module: &'a Module) -> &'a str {
        [module.channel.as_deref(), Some(self.spec.channel.as_str())]
            .into_iter()
            .flatten()
            .find(|channel| !channel.is_empty())
            .unwrap_or(names::DEFAULT_CHANNEL)
    }

    /// Status of the module called `name`.
    pub fn module_status(&self, name: &str) -> Option<&ModuleStatus> {
        self.status.as_ref()?.modules.iter().map(AsRef::as_ref).find(|module| module.name == name)
    }
}
