//! What a runtime's agent watches for the engine besides what Watchers name, derived from the runtime's Manifests: the
//! kinds of what is installed, those of default custom resources, those whose objects a removal waits for,
//! `CustomResourceDefinitions` as long as a module requires an API or has objects of a kind that is not served, and namespaces as long
//! as one that a module needs is on its way out. And in any case the runtime's Kyma, since its user's wishes stand nowhere else, and
//! what the engine itself has brought: the catalog, our CRDs, the namespace.
//!
//! One watch for each group, kind and part of an object that counts, however many modules have objects of it. Secrets are
//! never watched; what becomes of them is found by the safety resync.

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
    manifest::manager_beside,
};

/// Most derived watches of one agent. With those that Watchers make, and some of its file, an agent takes them.
pub const MAX_DERIVED: usize = 128;
/// Names of derived watches begin so.
pub const PREFIX: &str = "engine.";
/// The group and kind of what defines kinds.
pub const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");
/// Those of what has another server serve all kinds of a group.
pub const API_SERVICE: (&str, &str) = ("apiregistration.k8s.io", "APIService");
/// The kind and the plural name of Kymas.
const KYMA: (&str, &str) = ("Kyma", "kymas");
/// The kinds of the catalog, and their plural names.
const CATALOG: [(&str, &str); 2] =
    [("ModuleReleaseMeta", "modulereleasemetas"), ("ModuleTemplate", "moduletemplates")];
/// Labels that each runtime's Kyma has: the engine puts them back when somebody takes them away.
pub const KYMA_LABELS: [(&str, &str); 2] =
    [(labels::WATCHED_BY, labels::WATCHED_BY_KYMA), (labels::MANAGED_BY, labels::MANAGED_BY_RUNTIME)];
/// What there is of the two says which kinds are served. The name of each ends in the group of those.
pub const SERVES: [(&str, &str); 2] = [CRD, API_SERVICE];

/// The same as kinds of objects.
#[must_use]
pub fn definitions() -> [Gvk; 2] {
    SERVES.map(|(group, kind)| Gvk::of(&format!("{group}/v1"), kind))
}

/// Kinds whose objects change all the time by themselves.
const NOISY: [(&str, &str); 5] = [
    ("", "Endpoints"),
    ("", "Event"),
    ("coordination.k8s.io", "Lease"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("events.k8s.io", "Event"),
];
/// Kinds of Kubernetes itself whose readiness stands in the part of their status that agents look at.
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

/// Kinds that every API server of a runtime serves, with their plural names. Ours are defined before an agent is told of them.
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

/// The plural name of a kind that every API server serves; of others it has to be asked.
#[must_use]
pub fn well_known(group: &str, kind: &str) -> Option<&'static str> {
    WELL_KNOWN.iter().find(|(g, k, _)| (*g, *k) == (group, kind)).map(|(.., plural)| *plural)
}

/// Which objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Which {
    /// Those that carry the mark of what modules install.
    Installed,
    /// All, users' too.
    All,
}

/// What comes first where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Rank {
    /// What the runtime's user asks for.
    Wishes,
    /// Somebody waits for it.
    Awaited,
    Workload,
    Definition,
    DefaultCr,
    Custom,
    /// What no module depends on.
    Catalog,
    Rest,
}

/// What has to be seen of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Need {
    /// In which it is named; any that is served will do.
    versions: BTreeSet<String>,
    rank: Rank,
    spec: Option<Which>,
    status: Option<Which>,
}

/// What has to be seen in a runtime, by group and kind. The same for the same Manifests in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs(BTreeMap<(String, String), Need>);

/// What the agent is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Derived {
    /// Sorted by name.
    pub watches: Vec<AgentWatch>,
    /// What there was no room for, as `Kind.group (field)`, sorted: found by the safety resync.
    pub left_out: Vec<String>,
    /// Kinds that are not served (yet), as `Kind.group`, sorted.
    pub missing: Vec<String>,
}

impl Needs {
    /// What the Manifests of one runtime need. Those that are given up need nothing: their objects are the user's.
    #[must_use]
    pub fn of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Self {
        let mut needs = Self::default();
        for manifest in manifests.into_iter().filter(|manifest| !manifest.is_unmanaged()) {
            for object in manifest.status.iter().flat_map(|status| &status.synced) {
                needs.installed(&object.group, &object.version, &object.kind);
            }
            if let Some(cr) = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr()) {
                let gvk = Gvk::of(cr.api_version(), cr.kind());
                needs.add(&gvk.group, &gvk.version, &gvk.kind, (Rank::DefaultCr, None, Some(Which::All)));
            }
            let synced = manifest.status.as_ref().map(|status| inventory(&status.synced)).unwrap_or_default();
            if let Some(ObjectRef { gvk, .. }) = manager_beside(manifest, &synced) {
                let status = has_state(&gvk.group, &gvk.kind).then_some(Which::All);
                needs.add(&gvk.group, &gvk.version, &gvk.kind, (Rank::Awaited, Some(Which::All), status));
            }
        }
        needs
    }

    /// What others need is needed too.
    pub fn extend(&mut self, others: &Self) {
        for ((group, kind), need) in &others.0 {
            for version in &need.versions {
                self.add(group, version, kind, (need.rank, need.spec, need.status));
            }
        }
    }

    /// Something waits for the end of all objects of a kind, or for what becomes of any of them.
    pub fn await_end(&mut self, gvk: &Gvk) {
        // What holds a namespace stands in its status.
        let kind = (gvk.group.as_str(), gvk.kind.as_str());
        let has_status = kind == ("", "Namespace") || WITH_STATUS.contains(&kind);
        let need = (Rank::Awaited, Some(Which::All), has_status.then_some(Which::All));
        self.add(&gvk.group, &gvk.version, &gvk.kind, need);
    }

    /// The runtime's Kyma, and what the engine has brought to the runtime besides modules, are looked at whatever else is. The templates
    /// that its user has made are, too, if they count: `takes_templates`.
    pub fn see_ours(&mut self, takes_templates: bool) {
        self.add(names::GROUP, names::VERSION, KYMA.0, (Rank::Wishes, Some(Which::All), None));
        for (kind, _) in CATALOG {
            let all = takes_templates && kind == "ModuleTemplate";
            let (rank, which) =
                if all { (Rank::Wishes, Which::All) } else { (Rank::Catalog, Which::Installed) };
            self.add(names::GROUP, names::VERSION, kind, (rank, Some(which), None));
        }
        self.add(CRD.0, "v1", CRD.1, (Rank::Definition, Some(Which::Installed), None));
        self.add("", "v1", "Namespace", (Rank::Catalog, Some(Which::Installed), None));
    }

    /// Something waits for a kind to be served.
    pub fn await_kinds(&mut self) {
        for (group, kind) in SERVES {
            self.add(group, "v1", kind, (Rank::Awaited, Some(Which::All), Some(Which::All)));
        }
    }

    /// The kinds, each with the versions in which it is named.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str, &BTreeSet<String>)> {
        self.0.iter().map(|((group, kind), need)| (group.as_str(), kind.as_str(), &need.versions))
    }

    fn installed(&mut self, group: &str, version: &str, kind: &str) {
        let has_status = has_state(group, kind);
        let rank = match (group, kind) {
            ("apps" | "batch", _) => Rank::Workload,
            kind if kind == CRD => Rank::Definition,
            (group, _) if is_custom_group(group) => Rank::Custom,
            _ => Rank::Rest,
        };
        let status = has_status.then_some(Which::Installed);
        self.add(group, version, kind, (rank, Some(Which::Installed), status));
    }

    fn add(
        &mut self,
        group: &str,
        version: &str,
        kind: &str,
        (rank, spec, status): (Rank, Option<Which>, Option<Which>),
    ) {
        if (group, kind) == ("", "Secret") || NOISY.contains(&(group, kind)) {
            return;
        }
        let need = self.0.entry((group.to_owned(), kind.to_owned())).or_insert_with(|| Need {
            versions: BTreeSet::new(),
            rank,
            spec: None,
            status: None,
        });
        need.versions.insert(version.to_owned());
        need.rank = need.rank.min(rank);
        // `None` is less than `Installed`, and that is less than `All`.
        need.spec = need.spec.max(spec);
        need.status = need.status.max(status);
    }
}

/// The watches for what is needed. `plural` tells the plural name of a kind that is served and can be watched; `others` are
/// watches that the agent has anyway, and `room` is for how many more. A pure function of its arguments' values.
#[must_use]
pub fn derive(
    needs: &Needs,
    plural: impl Fn(&str, &str) -> Option<String>,
    others: &[AgentWatch],
    room: usize,
) -> Derived {
    let mut derived = Derived::default();
    let mut wanted = Vec::new();
    for ((group, kind), need) in &needs.0 {
        let Some(resource) = plural(group, kind) else {
            derived.missing.push(full_name(group, kind));
            continue;
        };
        for (field, which) in [(WatchedField::Spec, need.spec), (WatchedField::Status, need.status)] {
            let Some(which) = which else { continue };
            wanted.push(((need.rank, group, kind, field == WatchedField::Status), which, resource.clone()));
        }
    }
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    for ((_, group, kind, is_status), which, resource) in wanted {
        let field = if is_status { WatchedField::Status } else { WatchedField::Spec };
        let watch = watch(group, resource, field, which);
        if others.iter().any(|other| covers(other, &watch)) {
            continue;
        }
        if derived.watches.len() >= room.min(MAX_DERIVED) || others.iter().any(|o| o.name == watch.name) {
            derived.left_out.push(format!("{} ({})", full_name(group, kind), word(field)));
        } else {
            derived.watches.push(watch);
        }
    }
    derived.watches.sort_by(|a, b| a.name.cmp(&b.name));
    derived.left_out.sort();
    derived
}

fn watch(group: &str, resource: String, field: WatchedField, which: Which) -> AgentWatch {
    let mut name = format!("{PREFIX}{resource}");
    for part in [group, word(field)].into_iter().filter(|part| !part.is_empty()) {
        name.push('.');
        name.push_str(part);
    }
    let mark = || (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_RUNTIME.to_owned());
    AgentWatch {
        name: cut_name(name),
        route: ENGINE_ROUTE.to_owned(),
        group: group.to_owned(),
        // An object is the same in all of them.
        version: "*".to_owned(),
        resource,
        field,
        labels: (which == Which::Installed).then(mark).into_iter().collect(),
    }
}

/// Whether what becomes of a kind's objects stands in the part of their status that agents look at.
#[must_use]
pub fn has_state(group: &str, kind: &str) -> bool {
    WITH_STATUS.contains(&(group, kind)) || is_custom_group(group)
}

/// Whether a watch sees all that modules have installed of a kind, and nothing else.
#[must_use]
pub fn is_of_installed(watch: &AgentWatch) -> bool {
    watch.labels.len() == 1
        && watch.labels.get(labels::MANAGED_BY).is_some_and(|by| by == labels::MANAGED_BY_RUNTIME)
}

/// Whether all that `watch` sees is told to the engine by `other` already.
fn covers(other: &AgentWatch, watch: &AgentWatch) -> bool {
    // Whatever a Watcher names: of Kymas, runtimes serve what they are given.
    let is_served = (watch.group.as_str(), watch.resource.as_str()) != (names::GROUP, KYMA.1)
        || ["*", names::VERSION].contains(&other.version.as_str());
    is_served
        && other.route == ENGINE_ROUTE
        && (&other.group, &other.resource, other.field) == (&watch.group, &watch.resource, watch.field)
        && (other.labels.is_empty() || other.labels == watch.labels || stay_on_kymas(watch, &other.labels))
}

/// Whether what a watch is about are Kymas, and these labels are among those that each has.
fn stay_on_kymas(watch: &AgentWatch, wanted: &BTreeMap<String, String>) -> bool {
    let kept = |(label, value): (&String, &String)| KYMA_LABELS.contains(&(label, value));
    (watch.group.as_str(), watch.resource.as_str()) == (names::GROUP, KYMA.1) && wanted.iter().all(kept)
}

fn full_name(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

const fn word(field: WatchedField) -> &'static str {
    match field {
        WatchedField::Spec => "spec",
        WatchedField::Status => "status",
    }
}

#[cfg(test)]
mod tests;
