//! Kymas, and what the engine knows about each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{
    Kyma, State,
    names::{field_managers, finalizers},
};

use super::{KcpState, Wanted, finalizer_removed, kyma_key, overwritten, unindex, writes::object_key};
use crate::{key::WorkKey, trigger::Change};

/// Kymas with a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KymaLookup {
    /// None.
    Unknown,
    /// Exactly one.
    One {
        /// Its name.
        kyma: String,
        /// Its registered domain.
        domain: Option<String>,
        /// Its creation in KCP.
        created: Option<Timestamp>,
    },
    /// Several; the id identifies none.
    Ambiguous(usize),
}

/// State of a runtime's event path, for its Kyma's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Whether events are proven to arrive.
    pub proven: bool,
    /// One-word reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// Requirements of mandatory modules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaits {
    /// API groups.
    pub groups: BTreeSet<String>,
    /// Modules.
    pub modules: BTreeSet<String>,
}

/// Kinds and modules that a Kyma's reconciles wait for. The templates' CRD bounds the sizes.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// API groups that the Kyma's modules wait for.
    pub groups: BTreeSet<String>,
    /// Modules required by the Kyma's list. Their installation requests the Kyma, even if mandatory.
    pub required: BTreeSet<String>,
    /// Requirements of mandatory modules.
    pub mandatory: Awaits,
    /// Whether the runtime lacks watched kinds: then every definition matters.
    pub lacks_kinds: bool,
}

static NO_WAITS: Waits = Waits {
    groups: BTreeSet::new(),
    required: BTreeSet::new(),
    mandatory: Awaits { groups: BTreeSet::new(), modules: BTreeSet::new() },
    lacks_kinds: false,
};

impl Waits {
    /// Whether the Kyma's modules wait for a definition, such as `beams.x.dev`; without a name, for any.
    #[must_use]
    pub fn for_definition(&self, name: Option<&str>) -> bool {
        includes_group_of(&self.groups, name)
    }

    /// Whether mandatory modules wait for a definition; see [`Waits::for_definition`].
    #[must_use]
    pub fn mandatory_for_definition(&self, name: Option<&str>) -> bool {
        includes_group_of(&self.mandatory.groups, name)
    }
}

/// Whether the groups include that of a definition, such as `beams.x.dev`; without a name, any group.
fn includes_group_of(groups: &BTreeSet<String>, definition: Option<&str>) -> bool {
    match definition.map(|name| name.split_once('.')) {
        None => !groups.is_empty(),
        Some(parts) => parts.is_some_and(|(_, group)| groups.contains(group)),
    }
}

#[derive(Debug)]
struct Record {
    kyma: Arc<Kyma>,
    event_path: Option<PathReport>,
    waits: Waits,
    /// The other Kyma found in this Kyma's runtime.
    taken_by: Option<String>,
}

/// Kymas by name. A Kyma's removal removes all that is known about it.
#[derive(Debug, Default)]
pub struct Kymas {
    by_name: HashMap<String, Record>,
    /// Runtime id → Kymas, normally one.
    by_runtime: HashMap<String, BTreeSet<String>>,
    /// Whether KCP's own cluster is the only runtime. Then a Kyma needs no label: its name is its runtime id.
    pub(super) single_cluster: bool,
}

impl Kymas {
    /// A Kyma.
    pub fn get(&self, name: &str) -> Option<Arc<Kyma>> {
        self.by_name.get(name).map(|record| Arc::clone(&record.kyma))
    }

    /// Whether there is such a Kyma.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Names of all Kymas.
    pub fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    /// Number of Kymas.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Names and uids of all Kymas.
    pub fn uids(&self) -> Vec<(String, String)> {
        let uid = |record: &Record| record.kyma.metadata.uid.clone().unwrap_or_default();
        self.by_name.iter().map(|(name, record)| (name.clone(), uid(record))).collect()
    }

    /// All Kymas by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<Kyma>)> {
        self.by_name.iter().map(|(name, record)| (name, &record.kyma))
    }

    /// Names of all Kymas except these.
    pub(crate) fn names_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.by_name.keys().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// A Kyma's runtime id.
    pub fn runtime_id<'a>(&self, kyma: &'a Kyma) -> Option<&'a str> {
        let name = || kyma.metadata.name.as_deref().filter(|_| self.single_cluster);
        kyma.runtime_id().or_else(name)
    }

    /// The runtime id of a Kyma by its name.
    pub fn runtime_id_of(&self, kyma: &str) -> Option<String> {
        self.runtime_id(&self.by_name.get(kyma)?.kyma).map(str::to_owned)
    }

    /// Returns the previous one.
    pub(super) fn insert(&mut self, kyma: &Arc<Kyma>) -> Option<Arc<Kyma>> {
        let name = kyma.name_any();
        let old = match self.by_name.get_mut(&name) {
            Some(record) => Some(std::mem::replace(&mut record.kyma, Arc::clone(kyma))),
            None => {
                let (event_path, waits, taken_by) = Default::default();
                let record = Record { kyma: Arc::clone(kyma), event_path, waits, taken_by };
                self.by_name.insert(name.clone(), record);
                None
            }
        };
        if let Some(id) = old.as_deref().and_then(|old| self.runtime_id(old)) {
            unindex(&mut self.by_runtime, id, &name);
        }
        if let Some(id) = self.runtime_id(kyma) {
            self.by_runtime.entry(id.to_owned()).or_default().insert(name);
        }
        old
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Arc<Kyma>> {
        let kyma = self.by_name.remove(name)?.kyma;
        if let Some(id) = self.runtime_id(&kyma) {
            unindex(&mut self.by_runtime, id, name);
        }
        Some(kyma)
    }

    /// Names and states in `status.modules`.
    pub fn module_states(&self, kyma: &str) -> Vec<(String, State)> {
        let status = self.by_name.get(kyma).and_then(|record| record.kyma.status.as_ref());
        let modules = status.into_iter().flat_map(|status| &status.modules);
        modules.map(|module| (module.name.clone(), module.state)).collect()
    }

    /// Kymas with a runtime id.
    pub fn runtime(&self, id: &str) -> KymaLookup {
        let names = self.by_runtime.get(id);
        match names.map(|names| (names.len(), names.first())) {
            Some((1, Some(name))) => {
                let kyma = self.by_name.get(name).map(|record| &record.kyma);
                let domain = kyma.and_then(|kyma| kyma.skr_domain()).map(str::to_owned);
                let created =
                    kyma.and_then(|kyma| kyma.metadata.creation_timestamp.as_ref()).map(|time| time.0);
                KymaLookup::One { kyma: name.clone(), domain, created }
            }
            Some((many, _)) if many > 1 => KymaLookup::Ambiguous(many),
            _ => KymaLookup::Unknown,
        }
    }

    /// Requests of a runtime's Kymas, except one.
    fn others_wanted(&self, id: &str, kyma: &str, change: Change) -> Vec<Wanted> {
        let names = self.by_runtime.get(id).into_iter().flatten().filter(|name| *name != kyma);
        names.map(|name| (kyma_key(name), change)).collect()
    }

    /// Other remaining Kymas of the same runtime: by label, or found in the runtime.
    ///
    /// An ambiguous label makes its agent's events unassignable.
    pub fn others_of_runtime(&self, kyma: &str) -> Vec<String> {
        let Some(record) = self.by_name.get(kyma) else { return Vec::new() };
        let same_id = self.runtime_id(&record.kyma).and_then(|id| self.by_runtime.get(id));
        let all = same_id.into_iter().flatten().filter(|other| *other != kyma).chain(&record.taken_by);
        let mut all: Vec<String> = all.filter(|other| self.stays(other)).cloned().collect();
        all.dedup();
        all
    }

    pub(super) fn is_deleting(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|record| record.kyma.metadata.deletion_timestamp.is_some())
    }

    /// Whether a Kyma exists and is not being deleted.
    pub fn stays(&self, name: &str) -> bool {
        self.contains(name) && !self.is_deleting(name)
    }

    /// The other Kyma found in this Kyma's runtime.
    pub fn taken_by(&self, kyma: &str) -> Option<&String> {
        self.by_name.get(kyma)?.taken_by.as_ref()
    }

    /// Sets the Kyma found in this one's runtime. Its deletion requests this Kyma.
    pub fn set_taken_by(&mut self, kyma: &str, other: Option<String>) {
        if let Some(record) = self.by_name.get_mut(kyma) {
            record.taken_by = other;
        }
    }

    /// Requests of Kymas that found `other` in their runtimes.
    pub(super) fn taken_wanted(&self, other: &str, change: Change) -> Vec<Wanted> {
        let is_taken = |record: &Record| record.taken_by.as_deref() == Some(other);
        let taken: BTreeMap<_, _> = self.by_name.iter().filter(|(_, record)| is_taken(record)).collect();
        taken.into_keys().map(|kyma| (kyma_key(kyma), change)).collect()
    }

    /// A Kyma's event path state.
    pub fn event_path(&self, kyma: &str) -> Option<PathReport> {
        self.by_name.get(kyma)?.event_path.clone()
    }

    /// Sets a Kyma's event path state.
    pub fn set_event_path(&mut self, kyma: &str, report: PathReport) {
        if let Some(record) = self.by_name.get_mut(kyma) {
            record.event_path = Some(report);
        }
    }

    /// Kinds and modules that a Kyma's reconciles wait for.
    pub fn waits(&self, kyma: &str) -> &Waits {
        self.by_name.get(kyma).map_or(&NO_WAITS, |record| &record.waits)
    }

    /// Sets whether a Kyma's runtime lacks watched kinds; returns whether it now does and did not before.
    pub fn set_lacks_kinds(&mut self, kyma: &str, lacks: bool) -> bool {
        self.waits_mut(kyma).is_some_and(|waits| !std::mem::replace(&mut waits.lacks_kinds, lacks) && lacks)
    }

    /// [`Kymas::waits`], to change them; `None` without such a Kyma.
    pub fn waits_mut(&mut self, kyma: &str) -> Option<&mut Waits> {
        self.by_name.get_mut(kyma).map(|record| &mut record.waits)
    }
}

/// The change that requests a Kyma's reconcile. The engine's status writes request none.
fn change_of(old: Option<&Kyma>, new: &Kyma) -> Option<Change> {
    let Some(old) = old else { return Some(Change::Added) };
    let (before, now) = (&old.metadata, &new.metadata);
    let differs = before.generation != now.generation
        || before.labels != now.labels
        || before.annotations != now.annotations
        || before.deletion_timestamp.is_some() != now.deletion_timestamp.is_some();
    if differs {
        Some(Change::Changed)
    } else {
        finalizer_removed(before, now, &[finalizers::KYMA]).then_some(Change::FinalizerRemoved)
    }
}

impl KcpState {
    /// Applies a new or changed Kyma. The engine's status writes request nothing.
    pub fn apply_kyma(&mut self, kyma: Kyma) -> Vec<Wanted> {
        let name = kyma.name_any();
        let is_echo = self.writes.take_echo("Kyma", &kyma);
        let new = Arc::new(kyma);
        let old = self.kymas.insert(&new);
        let change = change_of(old.as_deref(), &new);
        let is_deleting = new.metadata.deletion_timestamp.is_some();
        let mut wanted = Vec::new();
        if let Some(id) = old.as_deref().and_then(|old| self.kymas.runtime_id(old))
            && (is_deleting || self.kymas.runtime_id(&new) != Some(id))
        {
            wanted.extend(self.kymas.others_wanted(id, &name, Change::OtherKymaLeaves));
        }
        if change.is_some() && is_deleting {
            wanted.extend(self.kymas.taken_wanted(&name, Change::OtherKymaLeaves));
        }
        if let Some(old) = old.as_deref().filter(|_| !is_echo && change.is_none()) {
            wanted.extend(self.suspect_kyma(old, &new));
        }
        // A list may merge a finalizer's removal with a later own write.
        let Some(change) = change.filter(|change| !is_echo || *change == Change::FinalizerRemoved) else {
            return wanted;
        };
        wanted.push((kyma_key(&name), change));
        // The skip marker is a label.
        if old.is_none_or(|old| old.labels() != new.labels()) && self.concerns_mandatory(&name) {
            wanted.push((WorkKey::Mandatory { kyma: name }, change));
        }
        wanted
    }

    /// Requests the reconciles that write status parts changed by another writer. Each part has its own reconcile.
    fn suspect_kyma(&mut self, old: &Kyma, new: &Kyma) -> Vec<Wanted> {
        let kyma = new.name_any();
        let mut wanted = Vec::new();
        for manager in overwritten(&old.metadata, &new.metadata, field_managers::KCP) {
            let kyma = kyma.clone();
            let key = match manager {
                field_managers::CATALOG_STATUS => WorkKey::Catalog { kyma },
                field_managers::EVENT_PATH => WorkKey::EventPath { kyma },
                _ => WorkKey::Kyma { kyma },
            };
            self.writes.suspect(object_key("Kyma", &new.name_any()), &key, new.resource_version());
            wanted.push((key, Change::StatusOverwritten));
        }
        wanted
    }

    /// Removes a Kyma.
    pub fn delete_kyma(&mut self, name: &str) -> Vec<Wanted> {
        let mut wanted = vec![(kyma_key(name), Change::Deleted)];
        let removed = self.kymas.remove(name);
        if let Some(id) = removed.as_deref().and_then(|removed| self.kymas.runtime_id(removed)) {
            wanted.extend(self.kymas.others_wanted(id, name, Change::OtherKymaGone));
        }
        wanted.extend(self.kymas.taken_wanted(name, Change::OtherKymaGone));
        self.writes.forget(&object_key("Kyma", name));
        self.lists.forget(name);
        self.agents.forget(name);
        self.readers.forget(name);
        wanted
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kyma(name: &str, runtime: &str) -> Arc<Kyma> {
        let metadata = json!({"name": name, "labels": {"kyma-project.io/runtime-id": runtime},
            "annotations": {"skr-domain": format!("{name}.example.dev")}});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap())
    }

    #[test]
    fn lookup_by_runtime_follows_changes_and_removals() {
        let mut kymas = Kymas::default();
        assert!(kymas.insert(&kyma("a", "r1")).is_none() && kymas.insert(&kyma("b", "r1")).is_none());
        assert_eq!(kymas.runtime("r1"), KymaLookup::Ambiguous(2));
        assert_eq!(kymas.insert(&kyma("b", "r2")), Some(kyma("b", "r1")));
        let one = |name: &str| KymaLookup::One {
            kyma: name.to_owned(),
            domain: Some(format!("{name}.example.dev")),
            created: None,
        };
        assert_eq!((kymas.runtime("r1"), kymas.runtime("r2")), (one("a"), one("b")));
        assert_eq!((kymas.remove("a"), kymas.remove("a")), (Some(kyma("a", "r1")), None));
        kymas.remove("b");
        assert!(kymas.by_name.is_empty() && kymas.by_runtime.is_empty());
    }

    #[test]
    fn removal_forgets_all_about_a_kyma() {
        let mut kymas = Kymas::default();
        assert!(kymas.waits_mut("a").is_none(), "there is no such Kyma");
        kymas.insert(&kyma("a", "r1"));
        kymas.waits_mut("a").unwrap().groups.insert("x.dev".into());
        kymas.insert(&kyma("a", "r1"));
        assert!(
            kymas.waits("a").for_definition(Some("beams.x.dev")) && kymas.waits("a").for_definition(None)
        );
        assert!(!kymas.waits("a").for_definition(Some("beams.y.dev")));
        kymas.remove("a");
        kymas.insert(&kyma("a", "r1"));
        assert!(!kymas.waits("a").for_definition(None));
    }
}
