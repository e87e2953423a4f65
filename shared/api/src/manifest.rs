//! Manifest: one version of one module in one runtime.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::marks::{annotation, is_true, label};
use crate::names::{annotations, labels};
use crate::raw::{EmbeddedObject, RawObject};
use crate::schema;
use crate::state::{CustomResourcePolicy, LastOperation, State};
use crate::time;

/// Desired content of the module.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.kyma-project.io",
    version = "v1beta2",
    kind = "Manifest",
    plural = "manifests",
    namespaced,
    status = "ManifestStatus",
    doc = "Manifest is one module in one runtime, in one version.",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default), schemars(!default))",
    printcolumn(
        name = "Module",
        type_ = "string",
        json_path = ".metadata.labels.operator\\.kyma-project\\.io/module-name"
    ),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(
        name = "Runtime",
        type_ = "string",
        json_path = ".metadata.labels.operator\\.kyma-project\\.io/kyma-name"
    ),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ManifestSpec {
    /// Whether the default custom resource is created and deleted with the module.
    #[serde(default)]
    pub custom_resource_policy: CustomResourcePolicy,
    /// Deprecated; required, but without effect.
    pub remote: bool,
    /// Version of the module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Deprecated; has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigImage>,
    /// Source of the module's objects.
    pub install: InstallInfo,
    /// The module's default custom resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<EmbeddedObject>,
    /// Image references that replace the ones in the module's objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub localized_images: Vec<String>,
    /// Object that decides the module's readiness, usually its Deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<Manager>,
}

/// Source of a module's objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct InstallInfo {
    /// Source as an image spec.
    pub source: RawObject,
    /// Name of the layer or source, unique in the Manifest.
    pub name: String,
}

/// Deprecated image of a configuration; kept so that old objects stay valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ConfigImage {
    /// Repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub repo: String,
    /// Name in the repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Digest, tag or version.
    #[serde(rename = "ref", default, skip_serializing_if = "String::is_empty")]
    pub reference: String,
    /// Type of the source.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["helm-chart", "oci-ref", "kustomize", ""]))]
    pub source_type: String,
    /// Deprecated; has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub cred_secret_selector: Option<LabelSelector>,
}

/// Object that decides the module's readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Manager {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for the default one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Observed state of a Manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ManifestStatus {
    /// State of the module in the runtime.
    pub state: State,
    /// One condition per aspect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "time::conditions")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Inventory: objects in the runtime that this Manifest has installed. They are
    /// removed when the Manifest no longer contains them.
    #[serde(default, skip_serializing_if = "is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub synced: Arc<Vec<Resource>>,
    /// Last operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
}

fn is_empty(synced: &Arc<Vec<Resource>>) -> bool {
    synced.is_empty()
}

/// Names one object in a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Resource {
    /// Name.
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Location of a module's objects, read from [`InstallInfo::source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// Registry, with or without path or scheme.
    pub repo: String,
    /// Component name in the registry.
    pub name: String,
    /// Digest, tag or version.
    pub ref_: String,
    /// Packaging of the source.
    pub type_: SourceType,
}

/// Packaging of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// `oci-ref`: an OCI layer with the objects.
    OciRef,
    /// `oci-dir`: an OCI layer with a tar of files.
    OciDir,
    /// `helm-chart`.
    HelmChart,
    /// `kustomize`.
    Kustomize,
}

impl SourceType {
    /// Value of `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OciRef => "oci-ref",
            Self::OciDir => "oci-dir",
            Self::HelmChart => "helm-chart",
            Self::Kustomize => "kustomize",
        }
    }
}

/// Error of [`Manifest::install_source`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A field is not a string.
    #[error("spec.install.source.{0} is not a string: write it as one")]
    NotText(&'static str),
    /// A required field is missing or empty.
    #[error("spec.install.source.{0} is empty: name it in the Manifest")]
    Missing(&'static str),
    /// The type is unknown.
    #[error("spec.install.source.type {0:?} is not known: use oci-ref, oci-dir, helm-chart or kustomize")]
    UnknownType(String),
}

impl ImageSpec {
    /// Value of [`InstallInfo::source`] for this image.
    pub fn to_source(&self) -> RawObject {
        RawObject(
            [
                ("repo", self.repo.as_str()),
                ("name", &self.name),
                ("ref", &self.ref_),
                ("type", self.type_.as_str()),
            ]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect(),
        )
    }
}

impl ManifestSpec {
    /// Whether the default custom resource is created and deleted with the module. Otherwise it is user-owned.
    pub fn creates_default_cr(&self) -> bool {
        self.resource.is_some() && self.custom_resource_policy == CustomResourcePolicy::CreateAndDelete
    }
}

impl Manifest {
    /// Name of the KCP Kyma that owns the Manifest.
    pub fn kyma_name(&self) -> Option<&str> {
        label(self, labels::KYMA_NAME).filter(|name| !name.is_empty())
    }

    /// Name of the module.
    pub fn module_name(&self) -> Option<&str> {
        label(self, labels::MODULE_NAME).filter(|name| !name.is_empty())
    }

    /// Whether an operator has excluded it from reconciles.
    pub fn is_skipped(&self) -> bool {
        is_true(self, labels::SKIP_RECONCILIATION)
    }

    /// Whether the module is mandatory.
    pub fn is_mandatory(&self) -> bool {
        is_true(self, labels::MANDATORY_MODULE)
    }

    /// Whether the module is unmanaged.
    pub fn is_unmanaged(&self) -> bool {
        annotation(self, annotations::IS_UNMANAGED) == Some("true")
    }

    /// Whether its ModuleTemplate was created in the runtime: no credentials or Secrets of KCP.
    pub fn is_of_runtime_template(&self) -> bool {
        annotation(self, annotations::RUNTIME_TEMPLATE) == Some("true")
    }

    /// Parses `spec.install.source`. Only OCI sources require all fields; renderers check the other types.
    pub fn install_source(&self) -> Result<ImageSpec, SourceError> {
        let field = |name: &'static str| match self.spec.install.source.0.get(name) {
            None => Ok(String::new()),
            Some(value) => value.as_str().map(str::to_owned).ok_or(SourceError::NotText(name)),
        };
        let type_ = match field("type")?.as_str() {
            "oci-ref" => SourceType::OciRef,
            "oci-dir" => SourceType::OciDir,
            "helm-chart" => SourceType::HelmChart,
            "kustomize" => SourceType::Kustomize,
            "" => return Err(SourceError::Missing("type")),
            other => return Err(SourceError::UnknownType(other.chars().take(64).collect())),
        };
        let spec = ImageSpec { repo: field("repo")?, name: field("name")?, ref_: field("ref")?, type_ };
        if matches!(type_, SourceType::OciRef | SourceType::OciDir) {
            for (name, value) in [("repo", &spec.repo), ("name", &spec.name), ("ref", &spec.ref_)] {
                if value.is_empty() {
                    return Err(SourceError::Missing(name));
                }
            }
        }
        Ok(spec)
    }
}
