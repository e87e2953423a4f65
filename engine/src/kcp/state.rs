//! Indexes over the watched objects. Plain data behind one lock; the watches apply, the reconciles look.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_api::{Kyma, Manifest, ModuleReleaseMeta, ModuleTemplate, State, Watcher};

use crate::{
    key::WorkKey,
    plan::{
        agent::{self, AgentPlan},
        manifest::inventory,
        object::ObjectRef,
        owners::{Owners, Speaker},
        versions::Catalog,
    },
};

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
    kymas: HashMap<String, Arc<Kyma>>,
    by_runtime: HashMap<String, BTreeSet<String>>,
    manifests: HashMap<String, Arc<Manifest>>,
    by_kyma: HashMap<String, BTreeSet<String>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    /// Kyma → kubeconfig Secrets.
    secrets: HashMap<String, BTreeMap<String, SecretRef>>,
    watchers: HashMap<String, Arc<Watcher>>,
    /// Counts the changes of `watchers`.
    watchers_version: u64,
    /// What was last told about the way of each Kyma's events.
    paths: HashMap<String, PathReport>,
    /// Made of `watchers`.
    agent_plan: Arc<AgentPlan>,
    /// Owners of installed objects, by Kyma name.
    pub owners: Owners,
    /// resourceVersions of our own writes, by `Kind/name`, to recognise them when they come back.
    own_writes: HashMap<String, String>,
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

/// A reconcile that a change asks for, and a word for the change.
pub type Wanted = (WorkKey, &'static str);

fn kyma_key(kyma: &str) -> WorkKey {
    WorkKey::Kyma { kyma: kyma.to_owned() }
}

fn manifest_key(kyma: &str, name: &str) -> WorkKey {
    WorkKey::Manifest { kyma: kyma.to_owned(), name: name.to_owned() }
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
        if let Some(version) = resource_version {
            self.own_writes.insert(format!("{kind}/{name}"), version);
        }
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
    pub fn apply_kyma(&mut self, kyma: Kyma) -> Vec<Wanted> {
        let name = kyma.name_any();
        let echo = self.is_echo("Kyma", &kyma);
        let mark = |k: &Kyma| {
            (
                k.metadata.generation,
                k.labels().clone(),
                k.annotations().clone(),
                k.metadata.deletion_timestamp.is_some(),
            )
        };
        let old = self.kymas.get(&name).cloned();
        let change = match &old {
            None => Some("added"),
            Some(old) if mark(old) != mark(&kyma) => Some("changed"),
            Some(_) => None,
        };
        if let Some(id) = old.as_deref().and_then(Kyma::runtime_id) {
            unindex(&mut self.by_runtime, id, &name);
        }
        if let Some(id) = kyma.runtime_id() {
            self.by_runtime.entry(id.to_owned()).or_default().insert(name.clone());
        }
        self.kymas.insert(name.clone(), Arc::new(kyma));
        change.filter(|_| !echo).map(|c| (kyma_key(&name), c)).into_iter().collect()
    }

    /// A Kyma is gone.
    pub fn delete_kyma(&mut self, name: &str) -> Vec<Wanted> {
        if let Some(id) = self.kymas.remove(name).as_deref().and_then(Kyma::runtime_id) {
            unindex(&mut self.by_runtime, id, name);
        }
        self.own_writes.remove(&format!("Kyma/{name}"));
        self.paths.remove(name);
        vec![(kyma_key(name), "deleted")]
    }

    /// A Manifest appeared or changed: its spec asks for its own reconcile, its state for its Kyma's.
    pub fn apply_manifest(&mut self, manifest: Manifest) -> Vec<Wanted> {
        let manifest = Arc::new(manifest);
        let name = manifest.name_any();
        let echo = self.is_echo("Manifest", manifest.as_ref());
        let spec = |m: &Manifest| {
            (
                m.metadata.generation,
                m.labels().clone(),
                m.annotations().clone(),
                m.metadata.deletion_timestamp.is_some(),
            )
        };
        let told = |m: &Manifest| {
            let status = m.status.clone().unwrap_or_default();
            let seen: Vec<_> = status.conditions.iter().map(|c| c.observed_generation).collect();
            (
                status.state,
                status.last_operation.map(|op| op.operation),
                seen,
                m.metadata.deletion_timestamp.is_some(),
            )
        };
        let old = self.manifests.insert(name.clone(), Arc::clone(&manifest));
        if let Some(kyma) = old.as_deref().and_then(Manifest::kyma_name) {
            unindex(&mut self.by_kyma, kyma, &name);
        }
        let Some(kyma) = manifest.kyma_name().map(str::to_owned) else { return Vec::new() };
        self.by_kyma.entry(kyma.clone()).or_default().insert(name.clone());
        let mut objects = inventory(&manifest.status.clone().unwrap_or_default().synced);
        objects.extend(default_cr(&manifest));
        self.owners.claim(Speaker::Watch, &kyma, &name, &objects);

        let mut wanted = Vec::new();
        let change = match &old {
            None => Some("added"),
            Some(old) if spec(old) != spec(&manifest) => Some("changed"),
            Some(_) => None,
        };
        // At a start everything is "added"; what is settled needs no look, a runtime's agent reports drift.
        let settled = old.is_none() && is_settled(&manifest);
        if let Some(change) = change.filter(|_| !echo && !settled) {
            wanted.push((manifest_key(&kyma, &name), change));
        }
        if old.as_deref().map(told) != Some(told(&manifest)) {
            wanted.push((kyma_key(&kyma), "manifest status changed"));
        }
        wanted
    }

    /// A Manifest is gone.
    pub fn delete_manifest(&mut self, name: &str) -> Vec<Wanted> {
        self.own_writes.remove(&format!("Manifest/{name}"));
        let Some(old) = self.manifests.remove(name) else { return Vec::new() };
        let Some(kyma) = old.kyma_name() else { return Vec::new() };
        unindex(&mut self.by_kyma, kyma, name);
        self.owners.release(kyma, name);
        vec![(kyma_key(kyma), "manifest deleted")]
    }

    /// A ModuleTemplate appeared, changed or is gone.
    pub fn apply_template(&mut self, name: &str, template: Option<ModuleTemplate>) -> Vec<Wanted> {
        let old = match template {
            Some(template) => self.templates.insert(name.to_owned(), Arc::new(template)),
            None => self.templates.remove(name),
        };
        let new = self.templates.get(name);
        if old.as_deref().map(|t| &t.spec) == new.map(|t| &t.spec) {
            return Vec::new();
        }
        let module = new.or(old.as_ref()).and_then(|t| t.module_name()).unwrap_or_default().to_owned();
        self.users_of(&module, "module template changed")
    }

    /// A ModuleReleaseMeta appeared, changed or is gone.
    pub fn apply_release(&mut self, name: &str, release: Option<ModuleReleaseMeta>) -> Vec<Wanted> {
        let old = match release {
            Some(release) => self.releases.insert(name.to_owned(), Arc::new(release)),
            None => self.releases.remove(name),
        };
        if old.as_deref().map(|r| &r.spec) == self.releases.get(name).map(|r| &r.spec) {
            return Vec::new();
        }
        self.users_of(name, "module release changed")
    }

    /// Kymas whose status mentions a module: those that have it, and those that asked for it in vain.
    fn users_of(&self, module: &str, change: &'static str) -> Vec<Wanted> {
        let mut users: Vec<&String> =
            self.kymas.iter().filter(|(_, k)| k.module_status(module).is_some()).map(|(n, _)| n).collect();
        users.sort();
        users.into_iter().map(|kyma| (kyma_key(kyma), change)).collect()
    }

    /// A kubeconfig Secret appeared, changed or is gone.
    pub fn apply_secret(&mut self, kyma: &str, name: &str, secret: Option<SecretRef>) -> Vec<Wanted> {
        let secrets = self.secrets.entry(kyma.to_owned()).or_default();
        let old = match secret {
            Some(secret) => secrets.insert(name.to_owned(), secret),
            None => secrets.remove(name),
        };
        let unchanged = old.as_ref() == secrets.get(name);
        if secrets.is_empty() {
            self.secrets.remove(kyma);
        }
        if unchanged || !self.kymas.contains_key(kyma) {
            return Vec::new();
        }
        let manifests = self.by_kyma.get(kyma).into_iter().flatten();
        let unsettled = manifests
            .filter(|m| self.manifests.get(*m).is_some_and(|m| !is_settled(m)))
            .map(|m| manifest_key(kyma, m));
        std::iter::once(kyma_key(kyma))
            .chain(unsettled)
            .map(|key| (key, "kubeconfig secret changed"))
            .collect()
    }

    /// A Watcher appeared, changed or is gone: asks for every runtime's agent if the agents' configuration is another
    /// one now, and for the status of each Watcher about which there is something else to say.
    pub fn apply_watcher(&mut self, name: &str, watcher: Option<Watcher>) -> Vec<Wanted> {
        let change = match (&watcher, self.watchers.contains_key(name)) {
            (None, _) => "watcher deleted",
            (Some(_), false) => "watcher added",
            (Some(_), true) => "watcher changed",
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
            wanted.extend(kymas.into_iter().map(|kyma| (WorkKey::Agent { kyma: kyma.clone() }, change)));
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

    /// What all agents are to watch.
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

    /// A Kyma as last seen.
    pub fn kyma(&self, name: &str) -> Option<Arc<Kyma>> {
        self.kymas.get(name).cloned()
    }

    /// Names of all Kymas.
    pub fn kymas(&self) -> Vec<String> {
        self.kymas.keys().cloned().collect()
    }

    /// The Manifests of a Kyma as last seen.
    pub fn manifests_of(&self, kyma: &str) -> Vec<Manifest> {
        let names = self.by_kyma.get(kyma).into_iter().flatten();
        names.filter_map(|n| self.manifests.get(n)).map(|m| Manifest::clone(m)).collect()
    }

    /// The kubeconfig Secrets of a Kyma.
    pub fn secrets_of(&self, kyma: &str) -> Vec<SecretRef> {
        self.secrets.get(kyma).map(|s| s.values().cloned().collect()).unwrap_or_default()
    }

    /// What is registered under a runtime id.
    pub fn runtime(&self, id: &str) -> RuntimeLookup {
        let names = self.by_runtime.get(id);
        match names.map(|n| (n.len(), n.first())) {
            Some((1, Some(name))) => RuntimeLookup::One {
                kyma: name.clone(),
                domain: self.kymas.get(name).and_then(|k| k.skr_domain().map(str::to_owned)),
            },
            Some((many, _)) if many > 1 => RuntimeLookup::Ambiguous(many),
            _ => RuntimeLookup::Unknown,
        }
    }

    /// Whether a Watcher names this manager.
    pub fn has_manager(&self, manager: &str) -> bool {
        self.watchers.values().any(|w| w.manager_name() == Some(manager))
    }

    /// The catalog as it stands, cheap to take.
    pub fn catalog_of(&self, modules: impl Iterator<Item = String>) -> CatalogView {
        let releases: HashMap<_, _> =
            modules.filter_map(|m| self.releases.get(&m).map(|r| (m, Arc::clone(r)))).collect();
        let versions = releases.iter().flat_map(|(module, release)| {
            release.spec.channels.iter().flatten().map(|c| ModuleTemplate::object_name(module, &c.version))
        });
        let templates = versions.filter_map(|n| self.templates.get(&n).map(|t| (n, Arc::clone(t)))).collect();
        CatalogView { releases, templates }
    }
}

/// The part of the catalog that one Kyma needs, taken at one moment.
#[derive(Debug, Default)]
pub struct CatalogView {
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
}

impl Catalog for CatalogView {
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
        self.releases.get(module).cloned()
    }

    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
        self.templates.get(name).cloned()
    }
}

/// The identity of a Manifest's default CR.
pub fn default_cr(manifest: &Manifest) -> Option<ObjectRef> {
    manifest.spec.resource.as_ref().and_then(|cr| ObjectRef::of(&cr.to_value()))
}

/// Whether a Manifest is Ready for its present spec and not being deleted.
fn is_settled(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    manifest.metadata.deletion_timestamp.is_none()
        && status.state == State::Ready
        && status.conditions.iter().any(|c| c.observed_generation == manifest.metadata.generation)
}

#[cfg(test)]
mod tests;
