//! ModuleTemplate: one offered version of a module.

use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::manifest::Manager;
use crate::marks::{annotation, is_true};
use crate::names::{annotations, labels};
use crate::raw::{EmbeddedObject, RawObject};
use crate::schema;
use crate::state::State;

/// One version of a module.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.kyma-project.io",
    version = "v1beta2",
    kind = "ModuleTemplate",
    plural = "moduletemplates",
    shortname = "mt",
    namespaced,
    doc = "ModuleTemplate is one offered version of a module.",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default), schemars(!default))",
    printcolumn(name = "Module", type_ = "string", json_path = ".spec.moduleName"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ModuleTemplateSpec {
    /// Deprecated: a ModuleReleaseMeta maps channels to versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32), regex(pattern = "^$|^[a-z]{3,}$"))]
    pub channel: String,
    /// Version of the module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32), regex(pattern = schema::MODULE_VERSION))]
    pub version: String,
    /// Name of the module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), regex(pattern = schema::MODULE_NAME))]
    pub module_name: String,
    /// Deprecated: whether every runtime gets the module; use its ModuleReleaseMeta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mandatory: Option<bool>,
    /// The default custom resource of the module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<EmbeddedObject>,
    /// Deprecated: the registry has the OCM descriptor. Required, but may be empty.
    pub descriptor: RawObject,
    /// Deprecated: mapping from values in the default custom resource to states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub custom_state_check: Vec<CustomStateCheck>,
    /// Links about the module, one per name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<Link>,
    /// Repository, documentation and icons of the module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ModuleInfo>,
    /// Kinds of user-created objects that block the removal of the module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub associated_resources: Vec<GroupVersionKind>,
    /// Object that decides the module's readiness, usually its Deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<Manager>,
    /// Whether an update to this version needs a downtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires_downtime: Option<bool>,
    /// Tidewatch only: requirements for installing or changing the module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
    /// Tidewatch only: fields that users may change. They are set only when an object is created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ignore_fields: Vec<IgnoredFields>,
    /// Tidewatch only: kinds of objects that are recreated if a change is impossible in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub recreate: Vec<GroupKind>,
    /// Tidewatch only: further resources of the component that contain objects of the module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub sources: Vec<String>,
    /// Tidewatch only: time that an object may take to become ready before it is an error, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i32>,
}

/// Requirements of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Requires {
    /// Names of modules that must be Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub modules: Vec<String>,
    /// Kinds that the runtime must serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub apis: Vec<GroupVersionKind>,
}

/// Fields of some objects that users may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct IgnoredFields {
    /// API group of the objects; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind of the objects.
    pub kind: String,
    /// Name of the object; empty for all objects of the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace of the objects; empty for all namespaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The fields as JSON pointers, for example `/spec/replicas`.
    #[schemars(length(min = 1, max = 64))]
    pub paths: Vec<String>,
}

/// A kind of object in any version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct GroupKind {
    /// API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind.
    pub kind: String,
}

/// A kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct GroupVersionKind {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Maps a value in the default custom resource to a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct CustomStateCheck {
    /// JSON path of the value.
    pub json_path: String,
    /// The value.
    pub value: String,
    /// State for this value.
    pub mapped_state: State,
}

/// A named link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Link {
    /// Name.
    pub name: String,
    /// Address.
    #[schemars(extend("format" = "uri"))]
    pub link: String,
}

/// Repository, documentation and icons of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ModuleInfo {
    /// Address of the repository.
    pub repository: String,
    /// Address of the documentation.
    pub documentation: String,
    /// Icons, one per name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub icons: Vec<Icon>,
}

/// An icon of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Icon {
    /// Name.
    pub name: String,
    /// Address; not checked.
    pub link: String,
}

impl ModuleTemplate {
    /// Name of the ModuleTemplate of a module's version.
    pub fn object_name(module: &str, version: &str) -> String {
        format!("{module}-{version}")
    }

    /// Name of the module; older objects carry it as a label only.
    pub fn module_name(&self) -> Option<&str> {
        [Some(&self.spec.module_name), self.labels().get(labels::MODULE_NAME)]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .find(|name| !name.is_empty())
    }

    /// Whether the default custom resource is cluster-scoped.
    pub fn is_cluster_scoped(&self) -> bool {
        annotation(self, annotations::IS_CLUSTER_SCOPED) == Some("true")
    }

    /// Whether only beta Kymas get the module.
    pub fn is_beta(&self) -> bool {
        is_true(self, labels::BETA)
    }

    /// Whether only internal Kymas get the module.
    pub fn is_internal(&self) -> bool {
        is_true(self, labels::INTERNAL)
    }
}
