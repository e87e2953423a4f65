//! Indexes over the watched objects: plain data behind one lock. Watches apply changes; reconciles read.

mod agents;
mod catalog;
mod dense;
mod extensions;
mod kymas;
mod mandatory;
mod manifests;
mod names;
pub mod owners;
mod packed;
mod readers;
mod settings;
mod store;
mod suspicions;
mod told;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use manifests::is_settled;
use tidewatch_api::{
    Kyma, Manifest, State, Watcher,
    names::{field_managers, finalizers},
};
use tidewatch_planner::{
    agent::{self, AgentPlan},
    mandatory::Offer,
    writers::{self, other_writer},
};

use crate::{index::owners::Owners, key::WorkKey, trigger::Change};

pub use agents::{AgentInput, Configured};
pub use mandatory::{Awaits, Holders};
pub use manifests::Successor;

/// A kubeconfig Secret, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    /// The Secret's name.
    pub name: String,
    /// The Secret's uid.
    pub uid: String,
    /// The Secret's resourceVersion.
    pub resource_version: String,
}

/// The Kymas registered under a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeLookup {
    /// No Kyma carries the id.
    Unknown,
    /// Exactly one Kyma carries the id.
    One {
        /// Name of the Kyma.
        kyma: String,
        /// Registered domain of the runtime.
        domain: Option<String>,
    },
    /// This many Kymas carry the id, so it identifies none.
    Ambiguous(usize),
}

/// Everything the watches have seen.
#[derive(Debug, Default)]
pub struct KcpState {
    kymas: kymas::Kymas,
    told: told::Told,
    /// Runtime id → Kymas that carry it; normally one.
    by_runtime: HashMap<String, Vec<String>>,
    manifests: store::Store,
    by_kyma: names::Names,
    offered: catalog::Offered,
    /// Mandatory modules, by name. Derived from `offered`.
    mandatory: BTreeMap<String, Arc<Offer>>,
    users: users::Users,
    readers: readers::Readers,
    /// Kyma → kubeconfig Secrets, sorted by name. Normally one; a map per Kyma would take a KiB.
    secrets: HashMap<String, Vec<SecretRef>>,
    watchers: HashMap<String, Arc<Watcher>>,
    /// Counts the changes of `watchers`.
    watchers_version: u64,
    /// Last reported event path of each Kyma.
    paths: HashMap<String, PathReport>,
    /// Derived from `watchers`.
    agent_plan: Arc<AgentPlan>,
    agents: agents::Agents,
    /// Kyma → API groups that its modules wait for.
    definitions: HashMap<String, BTreeSet<String>>,
    /// Kymas whose runtimes do not serve all kinds that their agents should watch.
    lacking: HashSet<String>,
    /// Kyma → other Kyma that its runtime belongs to.
    taken: BTreeMap<String, String>,
    /// Kyma → modules that the modules of its list require.
    required: HashMap<String, BTreeSet<String>>,
    /// Kyma → requirements of its mandatory modules.
    mandatory_awaits: HashMap<String, Awaits>,
    /// The central policy.
    policy: settings::Settings,
    /// Owners of installed objects, by Kyma name.
    pub owners: Owners,
    /// resourceVersions of the engine's own writes, by `Kind/name`, to recognise their echoes.
    own_writes: HashMap<String, String>,
    suspicions: suspicions::Suspicions,
}

/// State of a runtime's event path, for the Kyma's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Whether events are proven to arrive.
    pub proven: bool,
    /// One-word reason for the condition.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// Another writer of an engine-owned part of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// The other field manager, if the API server reports it.
    pub by: Option<String>,
}

/// Returns the engine's field managers whose part of a status another writer has changed or removed since it was last
/// seen.
///
/// Objects seen for the first time are not compared: leftovers of the Go manager or an old client are no change.
fn overwritten(old: &ObjectMeta, new: &ObjectMeta, main: &'static str) -> Vec<&'static str> {
    let mut taken = writers::taken(old, new);
    // Another writer added fields.
    if taken.is_empty() && other_writer(new).is_some() && other_writer(old) != other_writer(new) {
        taken.push(main);
    }
    taken
}

/// Returns whether one of `ours` was removed from an object that is not being deleted. Without the finalizer, a
/// deletion would not wait for the engine.
fn is_let_go(old: &ObjectMeta, new: &ObjectMeta, ours: &[&str]) -> bool {
    let has = |meta: &ObjectMeta, one: &str| meta.finalizers.iter().flatten().any(|f| f == one);
    new.deletion_timestamp.is_none() && ours.iter().any(|one| has(old, one) && !has(new, one))
}

/// A reconcile to request, and the change that caused it.
pub type Wanted = (WorkKey, Change);

fn kyma_key(kyma: &str) -> WorkKey {
    WorkKey::Kyma { kyma: kyma.to_owned() }
}

fn agent_key(kyma: &str) -> WorkKey {
    WorkKey::AgentConfig { kyma: kyma.to_owned() }
}

fn manifest_key(kyma: &str, name: &str) -> WorkKey {
    WorkKey::Manifest { kyma: kyma.to_owned(), name: name.to_owned() }
}

/// Returns kind and name of the object whose status the reconcile writes.
fn written_at(key: &WorkKey) -> Option<(&'static str, &String)> {
    match key {
        WorkKey::Manifest { name, .. } => Some(("Manifest", name)),
        WorkKey::Kyma { kyma } | WorkKey::Catalog { kyma } | WorkKey::EventPath { kyma } => {
            Some(("Kyma", kyma))
        }
        _ => None,
    }
}

/// Removes `value` from the set under `key`, and the set if it is empty then.
fn unindex(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(set) = index.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

impl KcpState {
    /// Remembers an own write, so that its echo is not taken for a change.
    pub fn wrote(&mut self, kind: &str, name: &str, resource_version: Option<String>) {
        let Some(version) = resource_version else { return };
        // The watch may be faster than the response to the write.
        let seen = match kind {
            "Kyma" => self.kymas.get(name).and_then(|o| o.resource_version()),
            "Manifest" => self.manifests.get(name).and_then(|o| o.metadata.resource_version),
            "Watcher" => self.watchers.get(name).and_then(|o| o.resource_version()),
            _ => None,
        };
        let key = format!("{kind}/{name}");
        self.suspicions.clear(&key, &version);
        if seen.as_ref() == Some(&version) {
            self.own_writes.remove(&key);
        } else {
            self.own_writes.insert(key, version);
        }
    }

    /// Returns whether a Manifest, as last seen, carries the skip label.
    pub fn is_skipped(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| manifest.is_skipped())
    }

    /// Returns a Manifest as last seen, or `None` while the watch lacks an own write to it.
    pub fn up_to_date(&self, manifest: &str) -> Option<Manifest> {
        if self.own_writes.contains_key(&format!("Manifest/{manifest}")) {
            return None;
        }
        self.manifests.full(manifest)
    }

    /// Returns the other writer of a status that this reconcile owns, and clears the suspicion.
    pub fn take_suspicion(&mut self, key: &WorkKey) -> Option<Suspected> {
        let (kind, name) = written_at(key)?;
        let meta = || match kind {
            "Manifest" => self.manifests.get(name).map(|manifest| manifest.metadata),
            _ => self.kymas.get(name).map(|kyma| kyma.metadata),
        };
        let by = || other_writer(&meta()?)?.manager.clone();
        let by = by();
        self.suspicions.take(&format!("{kind}/{name}"), key).then_some(Suspected { by })
    }

    /// Returns whether another writer has changed a status that this reconcile owns ([`KcpState::take_suspicion`]).
    pub fn is_suspected(&self, key: &WorkKey) -> bool {
        !self.suspicions.is_empty()
            && written_at(key)
                .is_some_and(|(kind, name)| self.suspicions.is_of(&format!("{kind}/{name}"), key))
    }

    fn is_echo(&mut self, kind: &str, object: &impl ResourceExt) -> bool {
        let key = format!("{kind}/{}", object.name_any());
        if self.own_writes.get(&key) == object.resource_version().as_ref() {
            self.own_writes.remove(&key);
            return true;
        }
        false
    }

    /// Applies a new or changed Kyma. Engine-owned status changes request no reconcile.
    pub fn apply_kyma(&mut self, mut kyma: Kyma) -> Vec<Wanted> {
        let name = kyma.name_any();
        // Readers need only name and state of each module; the rest is read fresh or is in the Manifests.
        let modules = kyma.status.as_mut().map(|status| std::mem::take(&mut status.modules));
        self.told.put(&name, &modules.unwrap_or_default());
        let echo = self.is_echo("Kyma", &kyma);
        let mark = |k: &Kyma| {
            (
                k.metadata.generation,
                k.labels().clone(),
                k.annotations().clone(),
                k.metadata.deletion_timestamp.is_some(),
            )
        };
        let old = self.kymas.insert(&kyma);
        let change = match &old {
            None => Some(Change::Added),
            Some(old) if mark(old) != mark(&kyma) => Some(Change::Changed),
            Some(old) if is_let_go(&old.metadata, &kyma.metadata, &[finalizers::KYMA]) => {
                Some(Change::FinalizerRemoved)
            }
            Some(_) => None,
        };
        let by_another = old.as_ref().filter(|_| !echo && change.is_none());
        let overwritten =
            by_another.map(|old| overwritten(&old.metadata, &kyma.metadata, field_managers::KCP));
        let mut wanted = Vec::new();
        if let Some(id) = old.as_ref().and_then(Kyma::runtime_id) {
            self.unregister(id, &name);
            let leaves = kyma.metadata.deletion_timestamp.is_some() || kyma.runtime_id() != Some(id);
            if leaves {
                wanted.extend(self.of_runtime(id, Change::OtherKymaLeaves));
            }
        }
        if change.is_some() && kyma.metadata.deletion_timestamp.is_some() {
            wanted.extend(self.of_taken(&name, Change::OtherKymaLeaves));
        }
        if let Some(id) = kyma.runtime_id() {
            let names = self.by_runtime.entry(id.to_owned()).or_default();
            names.reserve_exact(1);
            names.push(name.clone());
        }
        // Each part of the status is restored by the reconcile that owns it.
        for whose in overwritten.unwrap_or_default() {
            let of = name.clone();
            let key = match whose {
                field_managers::CATALOG_STATUS => WorkKey::Catalog { kyma: of },
                field_managers::EVENT_PATH => WorkKey::EventPath { kyma: of },
                _ => WorkKey::Kyma { kyma: of },
            };
            self.suspicions.note(&format!("Kyma/{name}"), &key, kyma.resource_version());
            wanted.push((key, Change::StatusOverwritten));
        }
        // A list may show a finalizer's removal together with a later own write, so an echo does not hide the removal.
        let Some(change) = change.filter(|change| !echo || *change == Change::FinalizerRemoved) else {
            return wanted;
        };
        wanted.push((kyma_key(&name), change));
        // The skip marker is a label.
        if old.is_none_or(|old| old.labels() != kyma.labels()) && self.concerns_mandatory(&name) {
            wanted.push((WorkKey::Mandatory { kyma: name }, change));
        }
        wanted
    }

    /// Returns a request for each Kyma that carries a runtime id.
    fn of_runtime(&self, id: &str, change: Change) -> Vec<Wanted> {
        self.by_runtime.get(id).into_iter().flatten().map(|kyma| (kyma_key(kyma), change)).collect()
    }

    /// Removes a Kyma from a runtime id.
    fn unregister(&mut self, id: &str, kyma: &str) {
        if let Some(names) = self.by_runtime.get_mut(id) {
            names.retain(|name| name != kyma);
            if names.is_empty() {
                self.by_runtime.remove(id);
            }
        }
    }

    /// Removes a deleted Kyma.
    pub fn delete_kyma(&mut self, name: &str) -> Vec<Wanted> {
        let mut wanted = vec![(kyma_key(name), Change::Deleted)];
        if let Some(id) = self.kymas.remove(name).as_ref().and_then(Kyma::runtime_id) {
            self.unregister(id, name);
            wanted.extend(self.of_runtime(id, Change::OtherKymaGone));
        }
        wanted.extend(self.of_taken(name, Change::OtherKymaGone));
        self.taken.remove(name);
        self.told.forget(name);
        self.own_writes.remove(&format!("Kyma/{name}"));
        self.suspicions.forget(&format!("Kyma/{name}"));
        self.paths.remove(name);
        self.users.forget(name);
        self.agents.forget(name);
        self.definitions.remove(name);
        self.lacking.remove(name);
        self.required.remove(name);
        self.mandatory_awaits.remove(name);
        self.readers.forget(name);
        wanted
    }

    /// Applies a new, changed or deleted kubeconfig Secret.
    pub fn apply_secret(&mut self, kyma: &str, name: &str, secret: Option<SecretRef>) -> Vec<Wanted> {
        let secrets = self.secrets.entry(kyma.to_owned()).or_default();
        let place = secrets.binary_search_by(|other| other.name.as_str().cmp(name));
        let old = place.ok().map(|at| secrets.remove(at));
        let unchanged = old == secret;
        if let Some(secret) = secret {
            let (Ok(at) | Err(at)) = place;
            secrets.reserve_exact(1);
            secrets.insert(at, secret);
        }
        if secrets.is_empty() {
            self.secrets.remove(kyma);
        }
        if unchanged || !self.kymas.contains_key(kyma) {
            return Vec::new();
        }
        let manifests = self.by_kyma.of(kyma);
        let unsettled = manifests
            .filter(|m| self.manifests.get(m).is_some_and(|m| !is_settled(&m)))
            .map(|m| manifest_key(kyma, m));
        std::iter::once(kyma_key(kyma)).chain(unsettled).map(|key| (key, Change::Kubeconfig)).collect()
    }

    /// Applies a new, changed or deleted Watcher.
    ///
    /// Requests every runtime's agent if the agents' configuration changes, and each Watcher with a new verdict.
    pub fn apply_watcher(&mut self, name: &str, watcher: Option<Watcher>) -> Vec<Wanted> {
        let change = match (&watcher, self.watchers.contains_key(name)) {
            (None, _) => Change::WatcherDeleted,
            (Some(_), false) => Change::WatcherAdded,
            (Some(_), true) => Change::WatcherChanged,
        };
        self.watchers_version += 1;
        let mark = |w: &Arc<Watcher>| (w.metadata.generation, w.metadata.deletion_timestamp.is_some());
        let old = match watcher {
            Some(watcher) => {
                self.is_echo("Watcher", &watcher);
                self.watchers.insert(name.to_owned(), Arc::new(watcher))
            }
            None => {
                self.own_writes.remove(&format!("Watcher/{name}"));
                self.watchers.remove(name)
            }
        };
        let plan = Arc::new(agent::plan(self.watchers.values().map(Arc::as_ref)));
        let before = std::mem::replace(&mut self.agent_plan, plan);
        let plan = &self.agent_plan;

        let mut wanted = Vec::new();
        if before.config.generation != plan.config.generation {
            let kymas: BTreeSet<&String> = self.kymas.keys().collect();
            wanted
                .extend(kymas.into_iter().map(|kyma| (WorkKey::AgentConfig { kyma: kyma.clone() }, change)));
        }
        let mut told: BTreeSet<&str> = plan.verdicts.keys().map(String::as_str).collect();
        told.retain(|name| before.verdicts.get(*name) != plan.verdicts.get(*name));
        if self.watchers.get(name).map(mark) != old.as_ref().map(mark) {
            told.insert(name);
        }
        let told = told.into_iter().filter(|name| self.watchers.contains_key(*name));
        wanted.extend(told.map(|name| (WorkKey::Watcher { name: name.to_owned() }, change)));
        wanted
    }

    /// Returns the watches for all agents; each runtime's derived watches come on top.
    pub fn agent_plan(&self) -> Arc<AgentPlan> {
        Arc::clone(&self.agent_plan)
    }

    /// Returns a counter that changes with every Watcher change.
    pub fn watchers_version(&self) -> u64 {
        self.watchers_version
    }

    /// Returns all Watchers as last seen.
    pub fn watchers(&self) -> Vec<Arc<Watcher>> {
        self.watchers.values().cloned().collect()
    }

    /// Returns a Watcher as last seen.
    pub fn watcher(&self, name: &str) -> Option<Arc<Watcher>> {
        self.watchers.get(name).cloned()
    }

    /// Remembers the state of a Kyma's event path.
    pub fn tell_path(&mut self, kyma: &str, report: PathReport) {
        if self.kymas.contains_key(kyma) {
            self.paths.insert(kyma.to_owned(), report);
        }
    }

    /// Returns the last reported state of a Kyma's event path.
    pub fn path(&self, kyma: &str) -> Option<PathReport> {
        self.paths.get(kyma).cloned()
    }

    /// Returns a Kyma as last seen, without `status.modules`.
    pub fn kyma(&self, name: &str) -> Option<Kyma> {
        self.kymas.get(name)
    }

    /// Returns the modules in a Kyma's status and their states, as last seen.
    pub fn modules_of(&self, kyma: &str) -> Arc<Vec<(String, State)>> {
        self.told.of(kyma)
    }

    /// Returns the names of all Kymas.
    pub fn kymas(&self) -> Vec<String> {
        self.kymas.keys().cloned().collect()
    }

    /// Returns the names of all other Kymas.
    pub(super) fn kymas_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.kymas.keys().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// Returns the names of all other Manifests.
    pub(super) fn manifests_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.manifests.names().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// Returns the kubeconfig Secrets of a Kyma.
    pub fn secrets_of(&self, kyma: &str) -> Vec<SecretRef> {
        self.secrets.get(kyma).cloned().unwrap_or_default()
    }

    /// Returns the Kymas registered under a runtime id.
    pub fn runtime(&self, id: &str) -> RuntimeLookup {
        let names = self.by_runtime.get(id);
        match names.map(|n| (n.len(), n.first())) {
            Some((1, Some(name))) => {
                RuntimeLookup::One { kyma: name.clone(), domain: self.kymas.domain(name).map(str::to_owned) }
            }
            Some((many, _)) if many > 1 => RuntimeLookup::Ambiguous(many),
            _ => RuntimeLookup::Unknown,
        }
    }

    /// Returns other Kymas, not being deleted, that claim the same runtime: by the label, or by the Kyma found in the
    /// runtime.
    ///
    /// Events of an agent whose label is ambiguous belong to no Kyma.
    pub fn others_of_runtime(&self, kyma: &str) -> Vec<String> {
        let id = self.kymas.get(kyma).as_ref().and_then(Kyma::runtime_id).map(str::to_owned);
        let all = id.and_then(|id| self.by_runtime.get(&id)).into_iter().flatten();
        let mut all: Vec<String> =
            all.filter(|other| *other != kyma).chain(self.taken.get(kyma)).cloned().collect();
        all.retain(|other| self.stays(other));
        all.dedup();
        all
    }

    /// Returns whether a Kyma exists and is not being deleted.
    pub fn stays(&self, kyma: &str) -> bool {
        self.kymas.contains_key(kyma) && !self.kymas.is_leaving(kyma)
    }

    /// Returns the other Kyma that this Kyma's runtime was last found to belong to.
    pub fn taken_by(&self, kyma: &str) -> Option<&String> {
        self.taken.get(kyma)
    }

    /// Notes the other Kyma that owns this Kyma's runtime, if any. Its deletion requests this Kyma.
    pub fn note_taken(&mut self, kyma: &str, by: Option<String>) {
        match by {
            Some(other) => drop(self.taken.insert(kyma.to_owned(), other)),
            None => drop(self.taken.remove(kyma)),
        }
    }

    /// Returns a request for each Kyma whose runtime belongs to `by`.
    fn of_taken(&self, by: &str, change: Change) -> Vec<Wanted> {
        let all = self.taken.iter().filter(|(_, other)| *other == by);
        all.map(|(kyma, _)| (kyma_key(kyma), change)).collect()
    }

    /// Returns whether a Watcher names this manager.
    pub fn has_manager(&self, manager: &str) -> bool {
        self.watchers.values().any(|w| w.manager_name() == Some(manager))
    }
}

#[cfg(test)]
mod tests;
