//! Indexes over the watched objects. Plain data behind one lock; the watches apply, the reconciles look.

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
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub resource_version: String,
}

/// What is registered under a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeLookup {
    /// No Kyma carries it.
    Unknown,
    /// Exactly one does.
    One {
        /// Name of the Kyma.
        kyma: String,
        /// Its registered domain.
        domain: Option<String>,
    },
    /// Several do, so none can be meant.
    Ambiguous(usize),
}

/// Everything the watches have seen.
#[derive(Debug, Default)]
pub struct KcpState {
    kymas: kymas::Kymas,
    told: told::Told,
    /// Runtime id → Kymas that carry it. One as a rule, as of `secrets`.
    by_runtime: HashMap<String, Vec<String>>,
    manifests: store::Store,
    by_kyma: names::Names,
    offered: catalog::Offered,
    /// Mandatory modules, by name. Made of `offered`.
    mandatory: BTreeMap<String, Arc<Offer>>,
    users: users::Users,
    readers: readers::Readers,
    /// Kyma → kubeconfig Secrets, by name. One as a rule, for which a map of its own would take a KiB.
    secrets: HashMap<String, Vec<SecretRef>>,
    watchers: HashMap<String, Arc<Watcher>>,
    /// Counts the changes of `watchers`.
    watchers_version: u64,
    /// What was last told about the way of each Kyma's events.
    paths: HashMap<String, PathReport>,
    /// Made of `watchers`.
    agent_plan: Arc<AgentPlan>,
    agents: agents::Agents,
    /// By Kyma: the groups of kinds that its modules wait for.
    definitions: HashMap<String, BTreeSet<String>>,
    /// Kymas whose runtimes do not serve all kinds that their agents should watch.
    lacking: HashSet<String>,
    /// Kymas whose runtime was found to be another one's → whose.
    taken: BTreeMap<String, String>,
    /// By Kyma: the modules that modules of its list require.
    required: HashMap<String, BTreeSet<String>>,
    /// By Kyma: what its mandatory modules require.
    mandatory_awaits: HashMap<String, Awaits>,
    /// The central policy.
    policy: settings::Settings,
    /// Owners of installed objects, by Kyma name.
    pub owners: Owners,
    /// resourceVersions of our own writes, by `Kind/name`, to recognise them when they come back.
    own_writes: HashMap<String, String>,
    suspicions: suspicions::Suspicions,
}

/// What is known of the way of a runtime's events, for its Kyma's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Whether events are proven to arrive.
    pub proven: bool,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Somebody else who has written of a status what is ours to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// Their field manager, if the API server tells.
    pub by: Option<String>,
}

/// Whose of our writers' part of a status somebody else has written or taken away since it was last seen; none if nobody has. Of what is
/// seen for the first time nobody knows: what the Go manager or an old client has left is no news.
fn overwritten(old: &ObjectMeta, new: &ObjectMeta, main: &'static str) -> Vec<&'static str> {
    let mut taken = writers::taken(old, new);
    // Something that was not there.
    if taken.is_empty() && other_writer(new).is_some() && other_writer(old) != other_writer(new) {
        taken.push(main);
    }
    taken
}

/// Whether somebody has taken one of these finalizers of an object that stays: with its end nobody would wait for us then.
fn is_let_go(old: &ObjectMeta, new: &ObjectMeta, ours: &[&str]) -> bool {
    let has = |meta: &ObjectMeta, one: &str| meta.finalizers.iter().flatten().any(|f| f == one);
    new.deletion_timestamp.is_none() && ours.iter().any(|one| has(old, one) && !has(new, one))
}

/// A reconcile that a change asks for, and a word for the change.
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

/// Kind and name of the object of whose status a reconcile writes a part.
fn written_at(key: &WorkKey) -> Option<(&'static str, &String)> {
    match key {
        WorkKey::Manifest { name, .. } => Some(("Manifest", name)),
        WorkKey::Kyma { kyma } | WorkKey::Catalog { kyma } | WorkKey::EventPath { kyma } => {
            Some(("Kyma", kyma))
        }
        _ => None,
    }
}

/// Takes `value` out of the set under `key`, and the set with its last value.
fn unindex(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(set) = index.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

impl KcpState {
    /// Remembers a write of ours, so that its echo is not taken for news.
    pub fn wrote(&mut self, kind: &str, name: &str, resource_version: Option<String>) {
        let Some(version) = resource_version else { return };
        // The watch may have been faster than the answer.
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

    /// Whether a Manifest is to be left alone, as it was last seen.
    pub fn is_skipped(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| manifest.is_skipped())
    }

    /// A Manifest as last seen, unless something that we have written to it is still to come.
    pub fn up_to_date(&self, manifest: &str) -> Option<Manifest> {
        if self.own_writes.contains_key(&format!("Manifest/{manifest}")) {
            return None;
        }
        self.manifests.full(manifest)
    }

    /// Whether somebody else has written what a reconcile is to set right of a status: then it is looked at now, and the field manager is
    /// told, if the API server tells.
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

    /// Whether somebody else has written what a reconcile is to set right of a status ([`KcpState::take_suspicion`]).
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

    /// A Kyma appeared or changed. Its status is ours and asks for nothing.
    pub fn apply_kyma(&mut self, mut kyma: Kyma) -> Vec<Wanted> {
        let name = kyma.name_any();
        // Nobody asks for more of what it says of its modules: that is read freshly, or stands in their Manifests.
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
        // Each is set right by whom it is written.
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
        // Nor is it ours that it went, if a list shows it together with a later write of ours.
        let Some(change) = change.filter(|change| !echo || *change == Change::FinalizerRemoved) else {
            return wanted;
        };
        wanted.push((kyma_key(&name), change));
        // Whether it is left alone is a label.
        if old.is_none_or(|old| old.labels() != kyma.labels()) && self.concerns_mandatory(&name) {
            wanted.push((WorkKey::Mandatory { kyma: name }, change));
        }
        wanted
    }

    /// The Kymas that carry a runtime id.
    fn of_runtime(&self, id: &str, change: Change) -> Vec<Wanted> {
        self.by_runtime.get(id).into_iter().flatten().map(|kyma| (kyma_key(kyma), change)).collect()
    }

    /// A Kyma does not carry this runtime id any more.
    fn unregister(&mut self, id: &str, kyma: &str) {
        if let Some(names) = self.by_runtime.get_mut(id) {
            names.retain(|name| name != kyma);
            if names.is_empty() {
                self.by_runtime.remove(id);
            }
        }
    }

    /// A Kyma is gone.
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

    /// A kubeconfig Secret appeared, changed or is gone.
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

    /// A Watcher appeared, changed or is gone: asks for every runtime's agent if the agents' configuration is another
    /// one now, and for the status of each Watcher about which there is something else to say.
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

    /// What all agents are to watch, besides what is derived for each.
    pub fn agent_plan(&self) -> Arc<AgentPlan> {
        Arc::clone(&self.agent_plan)
    }

    /// Another number than before when a Watcher has changed.
    pub fn watchers_version(&self) -> u64 {
        self.watchers_version
    }

    /// All Watchers as last seen.
    pub fn watchers(&self) -> Vec<Arc<Watcher>> {
        self.watchers.values().cloned().collect()
    }

    /// A Watcher as last seen.
    pub fn watcher(&self, name: &str) -> Option<Arc<Watcher>> {
        self.watchers.get(name).cloned()
    }

    /// Remembers what is known of the way of a Kyma's events.
    pub fn tell_path(&mut self, kyma: &str, report: PathReport) {
        if self.kymas.contains_key(kyma) {
            self.paths.insert(kyma.to_owned(), report);
        }
    }

    /// What was last told about the way of a Kyma's events.
    pub fn path(&self, kyma: &str) -> Option<PathReport> {
        self.paths.get(kyma).cloned()
    }

    /// A Kyma as last seen, without what its status says of modules.
    pub fn kyma(&self, name: &str) -> Option<Kyma> {
        self.kymas.get(name)
    }

    /// The modules of which a Kyma's status tells, and their states, as last seen.
    pub fn modules_of(&self, kyma: &str) -> Arc<Vec<(String, State)>> {
        self.told.of(kyma)
    }

    /// Names of all Kymas.
    pub fn kymas(&self) -> Vec<String> {
        self.kymas.keys().cloned().collect()
    }

    /// Names of all Kymas but these.
    pub(super) fn kymas_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.kymas.keys().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// Names of all Manifests but these.
    pub(super) fn manifests_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.manifests.names().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// The kubeconfig Secrets of a Kyma.
    pub fn secrets_of(&self, kyma: &str) -> Vec<SecretRef> {
        self.secrets.get(kyma).cloned().unwrap_or_default()
    }

    /// What is registered under a runtime id.
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

    /// Other Kymas that are said to have the same runtime and are not on their way out: by the label, of which the agent's events are nobody's
    /// then, or by what the Kyma in the runtime has said.
    pub fn others_of_runtime(&self, kyma: &str) -> Vec<String> {
        let id = self.kymas.get(kyma).as_ref().and_then(Kyma::runtime_id).map(str::to_owned);
        let all = id.and_then(|id| self.by_runtime.get(&id)).into_iter().flatten();
        let mut all: Vec<String> =
            all.filter(|other| *other != kyma).chain(self.taken.get(kyma)).cloned().collect();
        all.retain(|other| self.stays(other));
        all.dedup();
        all
    }

    /// Whether a Kyma is there, and not on its way out.
    pub fn stays(&self, kyma: &str) -> bool {
        self.kymas.contains_key(kyma) && !self.kymas.is_leaving(kyma)
    }

    /// Which other Kyma a Kyma's runtime was last found to be of.
    pub fn taken_by(&self, kyma: &str) -> Option<&String> {
        self.taken.get(kyma)
    }

    /// A Kyma's runtime was found to be another's, or nobody else's. When that other one goes, this one is asked for.
    pub fn note_taken(&mut self, kyma: &str, by: Option<String>) {
        match by {
            Some(other) => drop(self.taken.insert(kyma.to_owned(), other)),
            None => drop(self.taken.remove(kyma)),
        }
    }

    /// The Kymas whose runtime is another one's.
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
