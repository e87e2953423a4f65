//! Typed projection of KCP: plain data behind one lock. Watches apply changes; reconciles read.
//!
//! Each topic owns its data. [`KcpState`] composes them, because a change in one topic requests reconciles that concern others.

mod agents;
mod catalog;
pub mod extensions;
mod kymas;
mod mandatory;
mod manifests;
mod module_lists;
mod own_cluster;
pub mod owners;
mod policy;
mod readers;
mod secrets;
mod watchers;
mod writes;

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use tidewatch_api::object::Gvk;
use tidewatch_planner::{
    agent::AgentConfig,
    watches::RequiredKinds,
    writers::{self, other_writer},
};

use self::{
    owners::ObjectOwners,
    writes::{Writes, object_key, status_object},
};
use crate::{key::WorkKey, trigger::Change};

pub use agents::{AgentInput, Agents, Configured};
pub use catalog::KcpCatalog;
pub use kymas::{Awaits, KymaLookup, Kymas, PathReport, Waits};
pub use mandatory::Holders;
pub use manifests::{Manifests, Successor};
pub use module_lists::ModuleLists;
pub use policy::CentralPolicy;
pub use readers::CatalogReaders;
pub use secrets::{SecretRef, Secrets};
pub use watchers::Watchers;
pub use writes::Suspected;

/// Everything the watches have seen, by topic.
#[derive(Debug, Default)]
pub struct KcpState {
    /// Kymas, and what the engine knows about each.
    pub kymas: Kymas,
    /// Manifests.
    pub manifests: Manifests,
    /// Owners of installed objects, by Kyma.
    pub owners: ObjectOwners,
    /// Releases and templates of modules.
    pub catalog: KcpCatalog,
    /// Kymas with the catalog in their runtimes.
    pub readers: CatalogReaders,
    /// Lists of modules that Kymas request.
    pub lists: ModuleLists,
    /// The platform's policy of modules.
    pub policy: CentralPolicy,
    /// Watchers, and the watches that all agents have in common.
    pub watchers: Watchers,
    /// Configurations of agents.
    pub agents: Agents,
    /// Kubeconfig Secrets.
    pub secrets: Secrets,
    /// Ids of runtimes whose agents get no certificate; `None` until known: then no agent gets one.
    pub revoked: Option<BTreeSet<String>>,
    /// The engine's writes to KCP.
    writes: Writes,
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

/// Whether a finalizer in `own` was removed early: the deletion would not wait for the engine.
fn finalizer_removed(old: &ObjectMeta, new: &ObjectMeta, own: &[&str]) -> bool {
    let has = |meta: &ObjectMeta, one: &str| meta.finalizers.iter().flatten().any(|f| f == one);
    new.deletion_timestamp.is_none() && own.iter().any(|one| has(old, one) && !has(new, one))
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

fn unindex(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(set) = index.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

impl KcpState {
    /// Inputs of an agent's configuration.
    pub fn agent_input(&self, kyma: &str) -> AgentInput {
        let mut needs = RequiredKinds::of(self.manifests.of(kyma));
        needs.add_engine_owned(self.kymas.get(kyma).is_some_and(|kyma| kyma.uses_runtime_templates()));
        for ((group, kind), version) in self.owners.awaited(kyma) {
            needs.add_awaited(&Gvk { group: group.clone(), version: version.to_owned(), kind: kind.clone() });
        }
        let waits = self.kymas.waits(kyma);
        if waits.for_definition(None) || waits.mandatory_for_definition(None) {
            needs.add_definitions();
        }
        let is_paused = self.kymas.get(kyma).is_some_and(|kyma| kyma.pauses_agent_upgrade());
        AgentInput::new(self.watchers.plan(), needs, (self.agents.installation, is_paused))
    }

    /// Records the configuration written for a Kyma's agent.
    pub fn configure_agent(&mut self, kyma: &str, config: AgentConfig) {
        if self.kymas.contains(kyma) {
            self.agents.set(kyma, config);
        }
    }

    /// Notes an own write, to recognise its echo.
    pub fn wrote(&mut self, kind: &str, name: &str, resource_version: Option<String>) {
        let Some(version) = resource_version else { return };
        // The watch may precede the response.
        let seen = match kind {
            "Kyma" => self.kymas.get(name).and_then(|o| o.resource_version()),
            "Manifest" => self.manifests.get(name).and_then(|o| o.resource_version()),
            "Watcher" => self.watchers.get(name).and_then(|o| o.resource_version()),
            _ => None,
        };
        self.writes.wrote(object_key(kind, name), version, seen.as_deref());
    }

    /// Another writer of this reconcile's status part. Clears the suspicion.
    pub fn take_suspicion(&mut self, key: &WorkKey) -> Option<Suspected> {
        let (kind, name) = status_object(key)?;
        if !self.writes.take_suspicion(&object_key(kind, name), key) {
            return None;
        }
        let by = |meta: &ObjectMeta| other_writer(meta)?.manager.clone();
        let by = match kind {
            "Manifest" => self.manifests.get(name).and_then(|manifest| by(&manifest.metadata)),
            _ => self.kymas.get(name).and_then(|kyma| by(&kyma.metadata)),
        };
        Some(Suspected { by })
    }

    /// Whether another writer changed this reconcile's status part ([`KcpState::take_suspicion`]).
    pub fn is_suspected(&self, key: &WorkKey) -> bool {
        self.writes.has_suspicions()
            && status_object(key)
                .is_some_and(|(kind, name)| self.writes.is_suspected_for(&object_key(kind, name), key))
    }
}

#[cfg(test)]
mod tests;
