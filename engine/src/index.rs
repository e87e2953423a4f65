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
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// resourceVersion.
    pub resource_version: String,
}

/// Kymas with a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeLookup {
    /// None.
    Unknown,
    /// Exactly one.
    One {
        /// Its name.
        kyma: String,
        /// Its registered domain.
        domain: Option<String>,
    },
    /// Several; the id identifies none.
    Ambiguous(usize),
}

/// Everything the watches have seen.
#[derive(Debug, Default)]
pub struct KcpState {
    kymas: kymas::Kymas,
    told: told::Told,
    /// Runtime id → Kymas, normally one.
    by_runtime: HashMap<String, Vec<String>>,
    manifests: store::Store,
    by_kyma: names::Names,
    offered: catalog::Offered,
    /// By name; derived from `offered`.
    mandatory: BTreeMap<String, Arc<Offer>>,
    users: users::Users,
    readers: readers::Readers,
    /// Kyma → Secrets, sorted by name. Normally one; a map would take a KiB.
    secrets: HashMap<String, Vec<SecretRef>>,
    watchers: HashMap<String, Arc<Watcher>>,
    watchers_version: u64,
    /// By Kyma.
    paths: HashMap<String, PathReport>,
    /// Derived from `watchers`.
    agent_plan: Arc<AgentPlan>,
    agents: agents::Agents,
    /// Kyma → awaited API groups.
    definitions: HashMap<String, BTreeSet<String>>,
    /// Kymas with watched kinds that their runtime does not serve.
    lacking: HashSet<String>,
    /// Kyma → Kyma that owns its runtime.
    taken: BTreeMap<String, String>,
    /// Kyma → modules required by its list.
    required: HashMap<String, BTreeSet<String>>,
    /// By Kyma.
    mandatory_awaits: HashMap<String, Awaits>,
    policy: settings::Settings,
    /// Owners of installed objects, by Kyma.
    pub owners: Owners,
    /// resourceVersions of own writes by `Kind/name`, to recognise echoes.
    own_writes: HashMap<String, String>,
    suspicions: suspicions::Suspicions,
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

/// Another writer of an engine-owned status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// Its field manager, if the API server reports it.
    pub by: Option<String>,
}

/// Field managers of the engine with status fields that another writer changed or removed since last seen.
///
/// Leftovers of the Go manager or an old client on a new object are no change.
fn overwritten(old: &ObjectMeta, new: &ObjectMeta, main: &'static str) -> Vec<&'static str> {
    let mut taken = writers::taken(old, new);
    if taken.is_empty() && other_writer(new).is_some() && other_writer(old) != other_writer(new) {
        taken.push(main);
    }
    taken
}

/// Whether a finalizer in `ours` was removed early: the deletion would not wait for the engine.
fn is_let_go(old: &ObjectMeta, new: &ObjectMeta, ours: &[&str]) -> bool {
    let has = |meta: &ObjectMeta, one: &str| meta.finalizers.iter().flatten().any(|f| f == one);
    new.deletion_timestamp.is_none() && ours.iter().any(|one| has(old, one) && !has(new, one))
}

/// A requested reconcile and its change.
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

fn written_at(key: &WorkKey) -> Option<(&'static str, &String)> {
    match key {
        WorkKey::Manifest { name, .. } => Some(("Manifest", name)),
        WorkKey::Kyma { kyma } | WorkKey::Catalog { kyma } | WorkKey::EventPath { kyma } => {
            Some(("Kyma", kyma))
        }
        _ => None,
    }
}

fn unindex(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(set) = index.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

impl KcpState {
    /// Remembers an own write, to recognise its echo.
    pub fn wrote(&mut self, kind: &str, name: &str, resource_version: Option<String>) {
        let Some(version) = resource_version else { return };
        // The watch may precede the response.
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

    /// Whether a Manifest has the skip label.
    pub fn is_skipped(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| manifest.is_skipped())
    }

    /// A Manifest, or `None` before the echo of an own write.
    pub fn up_to_date(&self, manifest: &str) -> Option<Manifest> {
        if self.own_writes.contains_key(&format!("Manifest/{manifest}")) {
            return None;
        }
        self.manifests.full(manifest)
    }

    /// Another writer of this reconcile's status part. Clears the suspicion.
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

    /// Whether another writer changed this reconcile's status part ([`KcpState::take_suspicion`]).
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

    /// Applies a new or changed Kyma. The engine's status writes request nothing.
    pub fn apply_kyma(&mut self, mut kyma: Kyma) -> Vec<Wanted> {
        let name = kyma.name_any();
        // Readers need only names and states.
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
        // Each part has its own reconcile.
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
        // A list may merge a finalizer's removal with a later own write.
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

    fn of_runtime(&self, id: &str, change: Change) -> Vec<Wanted> {
        self.by_runtime.get(id).into_iter().flatten().map(|kyma| (kyma_key(kyma), change)).collect()
    }

    fn unregister(&mut self, id: &str, kyma: &str) {
        if let Some(names) = self.by_runtime.get_mut(id) {
            names.retain(|name| name != kyma);
            if names.is_empty() {
                self.by_runtime.remove(id);
            }
        }
    }

    /// Removes a Kyma.
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

    /// Applies a kubeconfig Secret or its deletion.
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

    /// Applies a Watcher or its deletion.
    ///
    /// Requests every agent if the common watches change, and Watchers with a new verdict.
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

    /// Watches common to all agents.
    pub fn agent_plan(&self) -> Arc<AgentPlan> {
        Arc::clone(&self.agent_plan)
    }

    /// Counter of Watcher changes.
    pub fn watchers_version(&self) -> u64 {
        self.watchers_version
    }

    /// All Watchers.
    pub fn watchers(&self) -> Vec<Arc<Watcher>> {
        self.watchers.values().cloned().collect()
    }

    /// A Watcher.
    pub fn watcher(&self, name: &str) -> Option<Arc<Watcher>> {
        self.watchers.get(name).cloned()
    }

    /// Remembers a Kyma's event path state.
    pub fn tell_path(&mut self, kyma: &str, report: PathReport) {
        if self.kymas.contains_key(kyma) {
            self.paths.insert(kyma.to_owned(), report);
        }
    }

    /// A Kyma's event path state.
    pub fn path(&self, kyma: &str) -> Option<PathReport> {
        self.paths.get(kyma).cloned()
    }

    /// A Kyma, without `status.modules`.
    pub fn kyma(&self, name: &str) -> Option<Kyma> {
        self.kymas.get(name)
    }

    /// Names and states in `status.modules`.
    pub fn modules_of(&self, kyma: &str) -> Arc<Vec<(String, State)>> {
        self.told.of(kyma)
    }

    /// Names of all Kymas.
    pub fn kymas(&self) -> Vec<String> {
        self.kymas.keys().cloned().collect()
    }

    pub(super) fn kymas_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.kymas.keys().filter(|name| !names.contains(*name)).cloned().collect()
    }

    pub(super) fn manifests_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.manifests.names().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// Kubeconfig Secrets of a Kyma.
    pub fn secrets_of(&self, kyma: &str) -> Vec<SecretRef> {
        self.secrets.get(kyma).cloned().unwrap_or_default()
    }

    /// Kymas with a runtime id.
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

    /// Other remaining Kymas of the same runtime: by label, or found in the runtime.
    ///
    /// An ambiguous label makes its agent's events unassignable.
    pub fn others_of_runtime(&self, kyma: &str) -> Vec<String> {
        let id = self.kymas.get(kyma).as_ref().and_then(Kyma::runtime_id).map(str::to_owned);
        let all = id.and_then(|id| self.by_runtime.get(&id)).into_iter().flatten();
        let mut all: Vec<String> =
            all.filter(|other| *other != kyma).chain(self.taken.get(kyma)).cloned().collect();
        all.retain(|other| self.stays(other));
        all.dedup();
        all
    }

    /// Whether a Kyma exists and is not being deleted.
    pub fn stays(&self, kyma: &str) -> bool {
        self.kymas.contains_key(kyma) && !self.kymas.is_leaving(kyma)
    }

    /// The other Kyma found in this Kyma's runtime.
    pub fn taken_by(&self, kyma: &str) -> Option<&String> {
        self.taken.get(kyma)
    }

    /// Notes the Kyma found in this one's runtime. Its deletion requests this Kyma.
    pub fn note_taken(&mut self, kyma: &str, by: Option<String>) {
        match by {
            Some(other) => drop(self.taken.insert(kyma.to_owned(), other)),
            None => drop(self.taken.remove(kyma)),
        }
    }

    fn of_taken(&self, by: &str, change: Change) -> Vec<Wanted> {
        let all = self.taken.iter().filter(|(_, other)| *other == by);
        all.map(|(kyma, _)| (kyma_key(kyma), change)).collect()
    }

    /// Whether a Watcher names this manager.
    pub fn has_manager(&self, manager: &str) -> bool {
        self.watchers.values().any(|w| w.manager_name() == Some(manager))
    }
}

#[cfg(test)]
mod tests;
