//! Desired watches of each runtime's agent, and its last configuration.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{Hash, Hasher},
    sync::Arc,
};

use tidewatch_planner::{
    agent::{AgentConfig, AgentPlan},
    watches::RequiredKinds,
};
use tidewatch_wire::v3::configuration;
use xxhash_rust::xxh3::Xxh3;

/// An agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// The watches.
    pub config: AgentConfig,
    /// Reported by an agent with this configuration; empty if any is accepted.
    pub configuration: String,
}

/// Inputs of an agent's configuration.
#[derive(Clone, Debug)]
pub struct AgentInput {
    /// Common to all runtimes.
    pub plan: Arc<AgentPlan>,
    /// Of this runtime.
    pub needs: RequiredKinds,
    /// Hash of both.
    pub hash: u64,
}

/// Last written configurations. Runtimes with equal modules share one.
#[derive(Debug, Default)]
pub struct Agents {
    by_kyma: HashMap<String, Arc<Configured>>,
    by_generation: HashMap<String, Arc<Configured>>,
    /// Hash of the agent's installation; zero if agents are installed by others.
    pub(super) installation: u64,
}

impl AgentInput {
    /// `installation`: its hash, zero if agents are installed by others, and whether its upgrade is paused.
    pub(super) fn new(plan: Arc<AgentPlan>, needs: RequiredKinds, installation: (u64, bool)) -> Self {
        let mut hash = Xxh3::new();
        (&plan.config.generation, &needs, installation).hash(&mut hash);
        Self { plan, needs, hash: hash.finish() }
    }
}

impl Agents {
    /// A Kyma's agent configuration, if written since the process start.
    pub fn config(&self, kyma: &str) -> Option<Arc<Configured>> {
        self.by_kyma.get(kyma).cloned()
    }

    /// The report expected from a Kyma's agent; empty if any is accepted.
    pub fn configuration(&self, kyma: &str) -> &str {
        self.by_kyma.get(kyma).map_or("", |configured| &configured.configuration)
    }

    pub(crate) fn set_installation(&mut self, hash: u64) {
        self.installation = hash;
    }

    pub(super) fn set(&mut self, kyma: &str, config: AgentConfig) {
        self.forget(kyma);
        let shared = match self.by_generation.entry(config.generation.clone()) {
            Entry::Occupied(there) => Arc::clone(there.get()),
            Entry::Vacant(none) => {
                let configuration =
                    if config.watches.is_empty() { String::new() } else { configuration(&config.text()) };
                Arc::clone(none.insert(Arc::new(Configured { config, configuration })))
            }
        };
        self.by_kyma.insert(kyma.to_owned(), shared);
    }

    /// Accepts any configuration of a Kyma's agent.
    pub fn forget(&mut self, kyma: &str) {
        let Some(old) = self.by_kyma.remove(kyma) else { return };
        // The removed reference and the index.
        if Arc::strong_count(&old) <= 2 {
            self.by_generation.remove(&old.config.generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use tidewatch_api::{Kyma, object::Gvk};
    use tidewatch_planner::watches;

    use super::*;
    use crate::index::KcpState;

    #[test]
    fn agent_watches_definitions_while_a_kyma_waits_for_one() {
        let mut state = KcpState::default();
        let kyma = json!({"metadata": {"name": "a"}, "spec": {}});
        state.apply_kyma(serde_json::from_value::<Kyma>(kyma).unwrap());
        let bare = state.agent_input("a").hash;
        let groups = |state: &mut KcpState, groups: BTreeSet<String>| {
            state.kymas.waits_mut("a").unwrap().groups = groups;
        };
        groups(&mut state, BTreeSet::from(["x.dev".to_owned()]));
        assert_ne!(state.agent_input("a").hash, bare);
        groups(&mut state, BTreeSet::new());
        assert_eq!(state.agent_input("a").hash, bare);
    }

    #[test]
    fn runtimes_with_equal_watches_share_one_agent_config() {
        let mut state = KcpState::default();
        for kyma in ["a", "b"] {
            state.apply_kyma(
                serde_json::from_value::<Kyma>(json!({"metadata": {"name": kyma}, "spec": {}})).unwrap(),
            );
        }
        let config = |kind: &str| {
            let mut needs = RequiredKinds::default();
            needs.add_awaited(&Gvk::of("x.dev/v1", kind));
            let derived = watches::derive(&needs, |_, k| Some(k.to_lowercase()), &[], 9);
            AgentPlan::default().with(derived.watches).0
        };
        assert_eq!(state.agents.configuration("a"), "", "not known yet: any");
        state.configure_agent("a", config("Beacon"));
        state.configure_agent("b", config("Beacon"));
        state.configure_agent("stranger", config("Beacon"));
        assert!(Arc::ptr_eq(&state.agents.config("a").unwrap(), &state.agents.config("b").unwrap()));
        assert_eq!(state.agents.configuration("a"), configuration(&config("Beacon").text()));
        state.configure_agent("b", config("Quay"));
        assert_ne!(state.agents.configuration("a"), state.agents.configuration("b"));
        state.configure_agent("a", AgentConfig::default());
        assert_eq!(state.agents.configuration("a"), "", "without a watch any will do");
        state.delete_kyma("a");
        state.agents.forget("b");
        assert!(state.agents.by_kyma.is_empty() && state.agents.by_generation.is_empty());
    }
}
