//! Desired watches of each runtime's agent, and its last configuration.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::{Hash, Hasher},
    sync::Arc,
};

use tidewatch_api::object::Gvk;
use tidewatch_planner::{
    agent::{AgentConfig, AgentPlan},
    watches::Needs,
};
use tidewatch_wire::v3::configuration;
use xxhash_rust::xxh3::Xxh3;

use super::KcpState;

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
    pub needs: Needs,
    /// Hash of both.
    pub hash: u64,
}

/// By Kyma. Runtimes with equal modules share one.
#[derive(Debug, Default)]
pub(super) struct Agents {
    by_kyma: HashMap<String, Arc<Configured>>,
    by_generation: HashMap<String, Arc<Configured>>,
}

impl Agents {
    fn of(&self, kyma: &str) -> Option<&Arc<Configured>> {
        self.by_kyma.get(kyma)
    }

    fn set(&mut self, kyma: &str, config: AgentConfig) {
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

    pub(super) fn forget(&mut self, kyma: &str) {
        let Some(old) = self.by_kyma.remove(kyma) else { return };
        // The removed reference and the index.
        if Arc::strong_count(&old) <= 2 {
            self.by_generation.remove(&old.config.generation);
        }
    }
}

/// Whether the groups include that of a definition, such as `beams.x.dev`; without a name, any group.
pub(super) fn is_of_groups(groups: &BTreeSet<String>, name: Option<&str>) -> bool {
    match name.map(|name| name.split_once('.')) {
        None => !groups.is_empty(),
        Some(parts) => parts.is_some_and(|(_, group)| groups.contains(group)),
    }
}

impl KcpState {
    /// Inputs of an agent's configuration.
    pub fn agent_input(&self, kyma: &str) -> AgentInput {
        let names = self.by_kyma.of(kyma);
        let mut needs = Needs::default();
        needs.see_ours(self.kyma(kyma).is_some_and(|kyma| kyma.takes_runtime_templates()));
        names.filter_map(|name| self.manifests.needs(name)).for_each(|of| needs.extend(of));
        for ((group, kind), version) in self.owners.awaited(kyma) {
            needs.await_end(&Gvk { group: group.clone(), version: version.to_owned(), kind: kind.clone() });
        }
        if self.definitions.contains_key(kyma) || !self.mandatory_awaits(kyma).groups.is_empty() {
            needs.await_kinds();
        }
        let plan = self.agent_plan();
        let mut hash = Xxh3::new();
        (&plan.config.generation, &needs).hash(&mut hash);
        AgentInput { plan, needs, hash: hash.finish() }
    }

    /// Notes whether the runtime lacks watched kinds: then every definition matters.
    ///
    /// Returns whether this is new.
    pub fn lacks_kinds(&mut self, kyma: &str, any: bool) -> bool {
        if any && self.kymas.contains_key(kyma) {
            return self.lacking.insert(kyma.to_owned());
        }
        self.lacking.remove(kyma);
        false
    }

    /// Whether the runtime lacks watched kinds.
    pub fn is_lacking_kinds(&self, kyma: &str) -> bool {
        self.lacking.contains(kyma)
    }

    /// Replaces the API groups that a Kyma waits for.
    pub fn await_kinds(&mut self, kyma: &str, groups: BTreeSet<String>) {
        if groups.is_empty() || !self.kymas.contains_key(kyma) {
            self.definitions.remove(kyma);
        } else {
            self.definitions.insert(kyma.to_owned(), groups);
        }
    }

    /// API groups that a Kyma waits for.
    pub fn awaits(&self, kyma: &str) -> BTreeSet<String> {
        self.definitions.get(kyma).cloned().unwrap_or_default()
    }

    /// Whether a Kyma waits for a definition, such as `beams.x.dev`; without a name, for any.
    pub fn awaits_definition(&self, kyma: &str, name: Option<&str>) -> bool {
        self.definitions.get(kyma).is_some_and(|groups| is_of_groups(groups, name))
    }

    /// Remembers a Kyma's agent configuration.
    pub fn configure_agent(&mut self, kyma: &str, config: AgentConfig) {
        if self.kymas.contains_key(kyma) {
            self.agents.set(kyma, config);
        }
    }

    /// Accepts any configuration of a Kyma's agent.
    pub fn forget_agent(&mut self, kyma: &str) {
        self.agents.forget(kyma);
    }

    /// A Kyma's agent configuration, if written since the process start.
    pub fn agent_config(&self, kyma: &str) -> Option<Arc<Configured>> {
        self.agents.of(kyma).cloned()
    }

    /// The report expected from a Kyma's agent; empty if any is accepted.
    pub fn agent_configuration(&self, kyma: &str) -> &str {
        self.agents.of(kyma).map_or("", |configured| &configured.configuration)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::Kyma;
    use tidewatch_planner::watches;

    use super::*;

    #[test]
    fn a_definition_is_for_those_who_need_a_kind_of_its_group() {
        let mut state = KcpState::default();
        let groups = || BTreeSet::from(["x.dev".to_owned()]);
        state.await_kinds("a", groups());
        assert!(!state.awaits_definition("a", None), "there is no such Kyma");
        state.apply_kyma(
            serde_json::from_value::<Kyma>(json!({"metadata": {"name": "a"}, "spec": {}})).unwrap(),
        );
        let bare = state.agent_input("a").hash;
        state.await_kinds("a", groups());
        assert!(state.awaits_definition("a", None) && state.awaits_definition("a", Some("beams.x.dev")));
        assert!(!state.awaits_definition("a", Some("beams.y.dev")) && !state.awaits_definition("b", None));
        assert_ne!(state.agent_input("a").hash, bare, "definitions are watched meanwhile");
        state.await_kinds("a", BTreeSet::new());
        assert_eq!(state.agent_input("a").hash, bare);
        state.await_kinds("a", groups());
        state.delete_kyma("a");
        assert!(state.definitions.is_empty());
    }

    #[test]
    fn runtimes_with_the_same_watches_share_a_configuration_and_leave_none_behind() {
        let mut state = KcpState::default();
        for kyma in ["a", "b"] {
            state.apply_kyma(
                serde_json::from_value::<Kyma>(json!({"metadata": {"name": kyma}, "spec": {}})).unwrap(),
            );
        }
        let config = |kind: &str| {
            let mut needs = Needs::default();
            needs.await_end(&Gvk::of("x.dev/v1", kind));
            let derived = watches::derive(&needs, |_, k| Some(k.to_lowercase()), &[], 9);
            AgentPlan::default().with(derived.watches).0
        };
        assert_eq!(state.agent_configuration("a"), "", "not known yet: any");
        state.configure_agent("a", config("Beacon"));
        state.configure_agent("b", config("Beacon"));
        state.configure_agent("stranger", config("Beacon"));
        assert!(Arc::ptr_eq(&state.agent_config("a").unwrap(), &state.agent_config("b").unwrap()));
        assert_eq!(state.agent_configuration("a"), configuration(&config("Beacon").text()));
        state.configure_agent("b", config("Quay"));
        assert_ne!(state.agent_configuration("a"), state.agent_configuration("b"));
        state.configure_agent("a", AgentConfig::default());
        assert_eq!(state.agent_configuration("a"), "", "without a watch any will do");
        state.delete_kyma("a");
        state.forget_agent("b");
        assert!(state.agents.by_kyma.is_empty() && state.agents.by_generation.is_empty());
    }
}
