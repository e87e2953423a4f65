//! Watches of a runtime's agent, derived from its Manifests:
//!
//! - kinds of installed objects, of default CRs, and of objects that block removal;
//! - CRDs and `APIService` objects while a kind is required or unserved;
//! - namespaces while a required one is being deleted;
//! - always the runtime's Kyma, the catalog, and the engine's CRDs and namespace.
//!
//! There is one watch per group, kind and field. Secrets are never watched; the safety resync finds their changes.

use std::collections::{BTreeMap, BTreeSet};

use tidewatch_api::{
    Manifest,
    inventory::inventory,
    names::{self, labels},
    object::{Gvk, ObjectRef, is_custom_group},
    watcher::WatchedField,
};

use super::{
    agent::{AgentWatch, ENGINE_ROUTE, cut_name},
    manifest::external_manager,
};

/// Maximum per agent, within the agent's limit.
pub const MAX_DERIVED: usize = 128;
/// Name prefix.
pub const PREFIX: &str = "engine.";
/// Group and kind.
pub const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");
/// Aggregated APIs.
pub const API_SERVICE: (&str, &str) = ("apiregistration.k8s.io", "APIService");
const KYMA: (&str, &str) = ("Kyma", "kymas");
const CATALOG: [(&str, &str); 2] =
    [("ModuleReleaseMeta", "modulereleasemetas"), ("ModuleTemplate", "moduletemplates")];
/// Labels of every runtime Kyma; the engine restores them.
pub const KYMA_LABELS: [(&str, &str); 2] =
    [(labels::WATCHED_BY, labels::WATCHED_BY_KYMA), (labels::MANAGED_BY, labels::MANAGED_BY_RUNTIME)];
/// Objects that define served kinds; their names end in the group.
pub const SERVES: [(&str, &str); 2] = [CRD, API_SERVICE];

/// Kinds of [`SERVES`].
#[must_use]
pub fn definitions() -> [Gvk; 2] {
    SERVES.map(|(group, kind)| Gvk::of(&format!("{group}/v1"), kind))
}

/// Kinds that change constantly.
const NOISY: [(&str, &str); 5] = [
    ("", "Endpoints"),
    ("", "Event"),
    ("coordination.k8s.io", "Lease"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("events.k8s.io", "Event"),
];
/// Built-in kinds with readiness in the observed status.
const WITH_STATUS: [(&str, &str); 9] = [
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "Service"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("batch", "Job"),
];

/// Kinds that every runtime serves, with plural names. The engine creates its CRDs before it configures agents.
const WELL_KNOWN: [(&str, &str, &str); 30] = [
    ("", "ConfigMap", "configmaps"),
    ("", "LimitRange", "limitranges"),
    ("", "Namespace", "namespaces"),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("", "Pod", "pods"),
    ("", "ResourceQuota", "resourcequotas"),
    ("", "Service", "services"),
    ("", "ServiceAccount", "serviceaccounts"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "APIService", "apiservices"),
    ("apps", "DaemonSet", "daemonsets"),
    ("apps", "Deployment", "deployments"),
    ("apps", "StatefulSet", "statefulsets"),
    ("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("batch", "CronJob", "cronjobs"),
    ("batch", "Job", "jobs"),
    ("networking.k8s.io", "Ingress", "ingresses"),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
    (names::GROUP, KYMA.0, KYMA.1),
    (names::GROUP, CATALOG[0].0, CATALOG[0].1),
    (names::GROUP, CATALOG[1].0, CATALOG[1].1),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "ClusterRole", "clusterroles"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "Role", "roles"),
    ("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    ("scheduling.k8s.io", "PriorityClass", "priorityclasses"),
    ("storage.k8s.io", "StorageClass", "storageclasses"),
];

/// Plural name of an always served kind.
#[must_use]
pub fn well_known(group: &str, kind: &str) -> Option<&'static str> {
    WELL_KNOWN.iter().find(|(g, k, _)| (*g, *k) == (group, kind)).map(|(.., plural)| *plural)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Selection {
    /// With the label of installed objects.
    Installed,
    /// Including users' objects.
    All,
}

/// Priority if capacity is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Rank {
    /// User's list.
    ModuleList,
    /// Awaited by the engine.
    Awaited,
    Workload,
    Definition,
    DefaultCr,
    Custom,
    /// No module depends on it.
    Catalog,
    Rest,
}

/// Parts of a kind's objects to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Observation {
    rank: Rank,
    spec: Option<Selection>,
    status: Option<Selection>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RequiredKind {
    /// Any served one suffices.
    versions: BTreeSet<String>,
    observation: Observation,
}

/// Required observations by group and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequiredKinds(BTreeMap<(String, String), RequiredKind>);

/// Watches for an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Derived {
    /// Sorted by name.
    pub watches: Vec<AgentWatch>,
    /// Watches beyond capacity, as `Kind.group (field)`, sorted; left to the safety resync.
    pub over_capacity: Vec<String>,
    /// Unserved kinds, as `Kind.group`, sorted.
    pub missing: Vec<String>,
}

impl RequiredKinds {
    /// Collects from a runtime's Manifests, except unmanaged ones.
    #[must_use]
    pub fn of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Self {
        let mut kinds = Self::default();
        for manifest in manifests.into_iter().filter(|manifest| !manifest.is_unmanaged()) {
            for object in manifest.status.iter().flat_map(|status| status.synced.iter()) {
                kinds.installed(&object.group, &object.version, &object.kind);
            }
            if let Some(cr) = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr()) {
                let gvk = Gvk::of(cr.api_version(), cr.kind());
                kinds.add(
                    &gvk.group,
                    &gvk.version,
                    &gvk.kind,
                    Observation { rank: Rank::DefaultCr, spec: None, status: Some(Selection::All) },
                );
            }
            let synced = manifest.status.as_ref().map(|status| inventory(&status.synced)).unwrap_or_default();
            if let Some(ObjectRef { gvk, .. }) = external_manager(manifest, &synced) {
                let status = has_state(&gvk.group, &gvk.kind).then_some(Selection::All);
                kinds.add(
                    &gvk.group,
                    &gvk.version,
                    &gvk.kind,
                    Observation { rank: Rank::Awaited, spec: Some(Selection::All), status },
                );
            }
        }
        kinds
    }

    /// Merges `others`.
    pub fn extend(&mut self, others: &Self) {
        for ((group, kind), required) in &others.0 {
            for version in &required.versions {
                self.add(group, version, kind, required.observation);
            }
        }
    }

    /// Adds a kind of awaited deletions or changes.
    pub fn add_awaited(&mut self, gvk: &Gvk) {
        // A namespace's status names its blockers.
        let kind = (gvk.group.as_str(), gvk.kind.as_str());
        let has_status = kind == ("", "Namespace") || WITH_STATUS.contains(&kind);
        let status = has_status.then_some(Selection::All);
        let observation = Observation { rank: Rank::Awaited, spec: Some(Selection::All), status };
        self.add(&gvk.group, &gvk.version, &gvk.kind, observation);
    }

    /// Adds the Kyma and engine-owned objects; users' templates only with `all_templates`.
    pub fn add_engine_owned(&mut self, all_templates: bool) {
        self.add(
            names::GROUP,
            names::VERSION,
            KYMA.0,
            Observation { rank: Rank::ModuleList, spec: Some(Selection::All), status: None },
        );
        for (kind, _) in CATALOG {
            let all = all_templates && kind == "ModuleTemplate";
            let (rank, selection) =
                if all { (Rank::ModuleList, Selection::All) } else { (Rank::Catalog, Selection::Installed) };
            let observation = Observation { rank, spec: Some(selection), status: None };
            self.add(names::GROUP, names::VERSION, kind, observation);
        }
        self.add(
            CRD.0,
            "v1",
            CRD.1,
            Observation { rank: Rank::Definition, spec: Some(Selection::Installed), status: None },
        );
        self.add(
            "",
            "v1",
            "Namespace",
            Observation { rank: Rank::Catalog, spec: Some(Selection::Installed), status: None },
        );
    }

    /// Adds definitions of awaited kinds.
    pub fn add_definitions(&mut self) {
        let all = Some(Selection::All);
        for (group, kind) in SERVES {
            self.add(group, "v1", kind, Observation { rank: Rank::Awaited, spec: all, status: all });
        }
    }

    /// Kinds with their named versions.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str, &BTreeSet<String>)> {
        self.0.iter().map(|((group, kind), required)| (group.as_str(), kind.as_str(), &required.versions))
    }

    fn installed(&mut self, group: &str, version: &str, kind: &str) {
        let has_status = has_state(group, kind);
        let rank = match (group, kind) {
            ("apps" | "batch", _) => Rank::Workload,
            kind if kind == CRD => Rank::Definition,
            (group, _) if is_custom_group(group) => Rank::Custom,
            _ => Rank::Rest,
        };
        let status = has_status.then_some(Selection::Installed);
        self.add(group, version, kind, Observation { rank, spec: Some(Selection::Installed), status });
    }

    fn add(&mut self, group: &str, version: &str, kind: &str, observation: Observation) {
        if (group, kind) == ("", "Secret") || NOISY.contains(&(group, kind)) {
            return;
        }
        let kind = self.0.entry((group.to_owned(), kind.to_owned()));
        let required = kind.or_insert_with(|| RequiredKind { versions: BTreeSet::new(), observation });
        required.versions.insert(version.to_owned());
        let Observation { rank, spec, status } = &mut required.observation;
        *rank = (*rank).min(observation.rank);
        // `None` < `Installed` < `All`.
        *spec = (*spec).max(observation.spec);
        *status = (*status).max(observation.status);
    }
}

/// Derives at most `capacity` watches. `plural` names watchable kinds.
#[must_use]
pub fn derive(
    required: &RequiredKinds,
    plural: impl Fn(&str, &str) -> Option<String>,
    existing: &[AgentWatch],
    capacity: usize,
) -> Derived {
    let mut derived = Derived::default();
    let mut candidates = Vec::new();
    for ((group, kind), RequiredKind { observation, .. }) in &required.0 {
        let Some(resource) = plural(group, kind) else {
            derived.missing.push(full_name(group, kind));
            continue;
        };
        for (field, selection) in
            [(WatchedField::Spec, observation.spec), (WatchedField::Status, observation.status)]
        {
            let Some(selection) = selection else { continue };
            candidates.push((
                (observation.rank, group, kind, field == WatchedField::Status),
                selection,
                resource.clone(),
            ));
        }
    }
    candidates.sort_by(|a, b| a.0.cmp(&b.0));
    for ((_, group, kind, is_status), selection, resource) in candidates {
        let field = if is_status { WatchedField::Status } else { WatchedField::Spec };
        let watch = watch(group, resource, field, selection);
        if existing.iter().any(|other| covers(other, &watch)) {
            continue;
        }
        if derived.watches.len() >= capacity.min(MAX_DERIVED) || existing.iter().any(|o| o.name == watch.name)
        {
            derived.over_capacity.push(format!("{} ({})", full_name(group, kind), field_name(field)));
        } else {
            derived.watches.push(watch);
        }
    }
    derived.watches.sort_by(|a, b| a.name.cmp(&b.name));
    derived.over_capacity.sort();
    derived
}

fn watch(group: &str, resource: String, field: WatchedField, selection: Selection) -> AgentWatch {
    let mut name = format!("{PREFIX}{resource}");
    for part in [group, field_name(field)].into_iter().filter(|part| !part.is_empty()) {
        name.push('.');
        name.push_str(part);
    }
    let mark = || (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_RUNTIME.to_owned());
    AgentWatch {
        name: cut_name(name),
        route: ENGINE_ROUTE.to_owned(),
        group: group.to_owned(),
        // All versions show one object.
        version: "*".to_owned(),
        resource,
        field,
        labels: (selection == Selection::Installed).then(mark).into_iter().collect(),
    }
}

/// Returns whether agents observe a kind's state.
#[must_use]
pub fn has_state(group: &str, kind: &str) -> bool {
    WITH_STATUS.contains(&(group, kind)) || is_custom_group(group)
}

/// Returns whether a watch selects exactly installed objects.
#[must_use]
pub fn selects_installed(watch: &AgentWatch) -> bool {
    watch.labels.len() == 1
        && watch.labels.get(labels::MANAGED_BY).is_some_and(|by| by == labels::MANAGED_BY_RUNTIME)
}

/// Returns whether `other` already reports all of `watch`.
fn covers(other: &AgentWatch, watch: &AgentWatch) -> bool {
    // Runtimes serve Kymas only in this version.
    let is_served = (watch.group.as_str(), watch.resource.as_str()) != (names::GROUP, KYMA.1)
        || ["*", names::VERSION].contains(&other.version.as_str());
    is_served
        && other.route == ENGINE_ROUTE
        && (&other.group, &other.resource, other.field) == (&watch.group, &watch.resource, watch.field)
        && (other.labels.is_empty() || other.labels == watch.labels || are_kyma_labels(watch, &other.labels))
}

/// The engine keeps these labels on Kymas.
fn are_kyma_labels(watch: &AgentWatch, wanted: &BTreeMap<String, String>) -> bool {
    let is_kyma_label = |(label, value): (&String, &String)| KYMA_LABELS.contains(&(label, value));
    (watch.group.as_str(), watch.resource.as_str()) == (names::GROUP, KYMA.1)
        && wanted.iter().all(is_kyma_label)
}

fn full_name(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

const fn field_name(field: WatchedField) -> &'static str {
    match field {
        WatchedField::Spec => "spec",
        WatchedField::Status => "status",
    }
}

#[cfg(test)]
mod tests;
