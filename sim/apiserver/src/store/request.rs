//! What is asked of a cluster, and what it answers.

use std::sync::Arc;

use serde_json::Value;

use super::{refusal::Refusal, watch::Watching};
use crate::{authz::User, kinds::Kind};

/// How a patch is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// A merge patch that merges lists by key; built-in kinds only.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// One object.
    Get,
    /// Objects.
    List,
    /// Objects, and what happens to them.
    Watch,
    /// A new object.
    Create(Value),
    /// An object in place of another.
    Update(Value),
    /// A change of an object.
    Patch(PatchKind, Value),
    /// No object any more; with `DeleteOptions`, if any.
    Delete(Value),
    /// No such objects any more; with `DeleteOptions`, if any.
    DeleteCollection(Value),
}

impl Verb {
    /// As authorization names it.
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

/// Which object, or which objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Namespace; empty for all, and for kinds without.
    pub namespace: String,
    /// Name; empty for a collection.
    pub name: String,
    /// `status`, `scale` or empty.
    pub subresource: String,
}

impl Target {
    /// Whether it is of those subresources that are refused with 501, whatever is asked of them.
    ///
    /// So are kinds that a real API server has from the start and this one has not.
    pub(crate) fn is_simulated(&self) -> bool {
        let lacking = LACKING.iter().find(|(group, _)| *group == self.group);
        if lacking.is_some_and(|(_, resources)| resources.contains(&self.resource.as_str())) {
            return false;
        }
        // What is behind `proxy/` is the path of another server.
        let subresource = self.subresource.split('/').next().unwrap_or_default();
        !NOT_SIMULATED.contains(&subresource)
    }

    pub(crate) fn not_simulated(&self) -> Refusal {
        let Self { group, resource, subresource, .. } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if subresource.is_empty() { "" } else { "/" };
        Refusal::not_simulated(&format!("{resource}{dot}{group}{slash}{subresource}"))
    }
}

/// By group: what every real API server of this version serves, and this one does not.
const LACKING: &[(&str, &[&str])] = &[
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
    ("certificates.k8s.io", &["certificatesigningrequests"]),
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

const NOT_SIMULATED: [&str; 11] = [
    "log",
    "exec",
    "attach",
    "portforward",
    "eviction",
    "binding",
    "token",
    "ephemeralcontainers",
    "resize",
    "proxy",
    "finalize",
];

/// What the query says. Unknown parameters are ignored, as real API servers do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// `labelSelector`
    pub label_selector: String,
    /// `fieldSelector`
    pub field_selector: String,
    /// `limit`; 0 is none, and so is less.
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
    /// Why its numbers cannot be read, if so. Lists and watches are refused then.
    pub unreadable: Option<String>,
    /// Why `gracePeriodSeconds` cannot be read, if so. Deletions without a body are refused then.
    pub unreadable_grace: Option<String>,
    /// What the body says twice.
    pub repeated: Vec<Repeated>,
    /// Nothing but metadata is shown of lists and watches, so nothing else has to be there (`Accept`).
    pub metadata_only: bool,
}

/// A name that a map of a body has twice. The last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// In JSON: its place.
    Field(String),
    /// In YAML: in which line, and which name.
    Line(String),
}

/// A request, as far as the cluster is concerned.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks.
    pub user: Arc<User>,
    /// Before the first `/` of `User-Agent`: the field manager, unless one is named.
    pub agent: String,
    /// What.
    pub verb: Verb,
    /// On what.
    pub target: Target,
    /// How.
    pub query: Query,
}

/// An answer.
#[derive(Debug)]
pub enum Outcome {
    /// An object.
    Object(Answer),
    /// Objects.
    List(Listed),
    /// A watch begins: what it says comes from [`Cluster::poll`](super::Cluster::poll).
    Watch(Box<Watching>),
    /// It was not done.
    Refused(Box<Refusal>),
}

/// An object that is an answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// The object, or a `Status`.
    pub object: Value,
    /// For headers `Warning`.
    pub warnings: Vec<String>,
    pub(crate) kind: Option<Arc<Kind>>,
}

/// A page of objects.
#[derive(Debug)]
pub struct Listed {
    /// The objects.
    pub items: Vec<Value>,
    /// Of the list.
    pub revision: u64,
    /// For the next page; empty on the last one.
    pub next: String,
    /// How many objects the following pages have.
    pub remaining: Option<usize>,
    pub(crate) kind: Arc<Kind>,
}

impl From<Result<Outcome, Refusal>> for Outcome {
    fn from(result: Result<Outcome, Refusal>) -> Self {
        result.unwrap_or_else(|refusal| Self::Refused(Box::new(refusal)))
    }
}
