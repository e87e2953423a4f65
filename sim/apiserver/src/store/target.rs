//! Parts of requests: verb, target and query.

use serde_json::Value;

use super::refusal::Refusal;

/// Patch types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Merges lists by key; built-in kinds only.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// Actions.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// Reads an object.
    Get,
    /// Reads objects.
    List,
    /// Reads objects and changes.
    Watch,
    /// Creates an object.
    Create(Value),
    /// Replaces an object.
    Update(Value),
    /// Patches an object.
    Patch(PatchKind, Value),
    /// Deletes an object, with optional `DeleteOptions`.
    Delete(Value),
    /// Deletes objects, with optional `DeleteOptions`.
    DeleteCollection(Value),
}

impl Verb {
    /// Authorization verb.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create(_) => "create",
            Self::Update(_) => "update",
            Self::Patch(..) => "patch",
            Self::Delete(_) => "delete",
            Self::DeleteCollection(_) => "deletecollection",
        }
    }

    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// Addressed objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// API group; empty: core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Namespace; empty: all or cluster-scoped.
    pub namespace: String,
    /// Name; empty: collection.
    pub name: String,
    /// `status`, `scale`, `approval`, `token` or empty.
    pub subresource: String,
}

impl Target {
    /// Unsimulated subresources and kinds get 501.
    pub(crate) fn is_simulated(&self) -> bool {
        let missing = MISSING_RESOURCES.iter().find(|(group, _)| *group == self.group);
        if missing.is_some_and(|(_, resources)| resources.contains(&self.resource.as_str())) {
            return false;
        }
        // Text after `proxy/` is another server's path.
        let subresource = self.subresource.split('/').next().unwrap_or_default();
        !MISSING_SUBRESOURCES.contains(&subresource)
    }

    pub(crate) fn not_simulated(&self) -> Refusal {
        let Self { group, resource, subresource, .. } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if subresource.is_empty() { "" } else { "/" };
        Refusal::not_simulated(&format!("{resource}{dot}{group}{slash}{subresource}"))
    }
}

/// Kubernetes resources without simulation, by group.
const MISSING_RESOURCES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "bindings",
            "componentstatuses",
            "endpoints",
            "limitranges",
            "nodes",
            "persistentvolumes",
            "podtemplates",
            "replicationcontrollers",
            "resourcequotas",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ],
    ),
    ("apps", &["controllerrevisions"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("flowcontrol.apiserver.k8s.io", &["flowschemas", "prioritylevelconfigurations"]),
    ("networking.k8s.io", &["ingressclasses", "ingresses", "ipaddresses", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("resource.k8s.io", &["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"]),
    (
        "storage.k8s.io",
        &["csidrivers", "csinodes", "csistoragecapacities", "volumeattachments", "volumeattributesclasses"],
    ),
];

const MISSING_SUBRESOURCES: [&str; 10] = [
    "log",
    "exec",
    "attach",
    "portforward",
    "eviction",
    "binding",
    "ephemeralcontainers",
    "resize",
    "proxy",
    "finalize",
];

/// Query parameters of reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// `labelSelector`
    pub label_selector: String,
    /// `fieldSelector`
    pub field_selector: String,
    /// `limit`; 0: unlimited.
    pub limit: usize,
    /// `continue`
    pub continue_token: String,
    /// `resourceVersion`
    pub resource_version: String,
    /// `resourceVersionMatch`
    pub resource_version_match: String,
    /// `timeoutSeconds`
    pub timeout_seconds: Option<u64>,
    /// `allowWatchBookmarks`
    pub bookmarks: bool,
    /// `sendInitialEvents`
    pub initial_events: Option<bool>,
}

/// Query parameters; unknown ones are ignored, like in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Selection and version of reads.
    pub list: ListOptions,
    /// `fieldManager`
    pub field_manager: String,
    /// `force`
    pub force: Option<bool>,
    /// `dryRun`
    pub dry_run: Vec<String>,
    /// `fieldValidation`
    pub field_validation: String,
    /// `propagationPolicy`
    pub propagation: Option<String>,
    /// `orphanDependents`
    pub orphan: Option<bool>,
    /// Number error; fails lists and watches.
    pub unreadable: Option<String>,
    /// `gracePeriodSeconds` error; fails deletions without body.
    pub unreadable_grace: Option<String>,
    /// Duplicate names.
    pub repeated: Vec<Repeated>,
    /// Whether lists and watches need only metadata.
    pub metadata_only: bool,
}

/// A duplicate name; the last counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// JSON path.
    Field(String),
    /// YAML message with line and name.
    Line(String),
}
