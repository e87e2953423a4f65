//! Watchers, and the watches that all agents have in common.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tidewatch_api::Watcher;
use tidewatch_planner::agent::{self, AgentPlan};

use super::{KcpState, Wanted};
use crate::{key::WorkKey, trigger::Change};

/// Watchers by name.
#[derive(Debug, Default)]
pub struct Watchers {
    by_name: HashMap<String, Arc<Watcher>>,
    /// Counter of changes.
    version: u64,
    /// Derived from all Watchers.
    plan: Arc<AgentPlan>,
}

impl Watchers {
    /// A Watcher.
    pub fn get(&self, name: &str) -> Option<Arc<Watcher>> {
        self.by_name.get(name).cloned()
    }

    /// All Watchers.
    pub fn all(&self) -> Vec<Arc<Watcher>> {
        self.by_name.values().cloned().collect()
    }

    /// Counter of changes.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Watches common to all agents.
    pub fn plan(&self) -> Arc<AgentPlan> {
        Arc::clone(&self.plan)
    }

    /// Whether a Watcher names this manager.
    pub fn has_manager(&self, manager: &str) -> bool {
        self.by_name.values().any(|w| w.manager_name() == Some(manager))
    }

    /// Replaces or removes a Watcher. Returns whether the common watches differ, and the Watchers that need a new verdict.
    fn set(&mut self, name: &str, watcher: Option<Watcher>) -> (bool, Vec<String>) {
        self.version += 1;
        let old = match watcher {
            Some(watcher) => self.by_name.insert(name.to_owned(), Arc::new(watcher)),
            None => self.by_name.remove(name),
        };
        let plan = Arc::new(agent::plan(self.by_name.values().map(Arc::as_ref)));
        let before = std::mem::replace(&mut self.plan, plan);
        let mut judged: BTreeSet<&str> = self.plan.verdicts.keys().map(String::as_str).collect();
        judged.retain(|name| before.verdicts.get(*name) != self.plan.verdicts.get(*name));
        let mark = |w: &Arc<Watcher>| (w.metadata.generation, w.metadata.deletion_timestamp.is_some());
        if self.by_name.get(name).map(mark) != old.as_ref().map(mark) {
            judged.insert(name);
        }
        let judged = judged.into_iter().filter(|name| self.by_name.contains_key(*name));
        let differs = before.config.generation != self.plan.config.generation;
        (differs, judged.map(str::to_owned).collect())
    }
}

impl KcpState {
    /// Applies a Watcher or its deletion.
    ///
    /// Requests every agent if the common watches change, and Watchers with a new verdict.
    pub fn apply_watcher(&mut self, name: &str, watcher: Option<Watcher>) -> Vec<Wanted> {
        let change = match (&watcher, self.watchers.get(name)) {
            (None, _) => Change::WatcherDeleted,
            (Some(_), None) => Change::WatcherAdded,
            (Some(_), Some(_)) => Change::WatcherChanged,
        };
        match &watcher {
            Some(watcher) => drop(self.writes.take_echo("Watcher", watcher)),
            None => self.writes.forget(&super::writes::object_key("Watcher", name)),
        }
        let (differs, judged) = self.watchers.set(name, watcher);
        let mut kymas = if differs { self.kymas.names() } else { Vec::new() };
        kymas.sort();
        let agents = kymas.into_iter().map(|kyma| (WorkKey::AgentConfig { kyma }, change));
        agents.chain(judged.into_iter().map(|name| (WorkKey::Watcher { name }, change))).collect()
    }
}
