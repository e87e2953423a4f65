//! Settings of the engine.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use jiff::SignedDuration;
use tidewatch_oci::RegistryConfig;
use tidewatch_planner::{agent_install::AgentSettings, requirements, windows::MIN_WINDOW};

use xxhash_rust::xxh3::Xxh3;

use crate::{authority::Authority, clusters::policy::AddressPolicy};

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The namespace in KCP that holds Kymas, Manifests and kubeconfig Secrets.
    pub namespace: String,
    /// Registry of the module components: `host[:port][/path]`.
    pub modules: String,
    /// Further registries, `host[:port][/path]` each: a component is read there if its template's descriptor names one of them.
    pub external_registries: Vec<String>,
    /// The registry client's settings.
    pub registry: RegistryConfig,
    /// Servers that no kubeconfig may name.
    pub addresses: AddressPolicy,
    /// Limits of reconciles.
    pub limits: ReconcileLimits,
    /// Installation and enrolment of agents; `None`: others install them.
    pub agents: Option<AgentInstall>,
    /// Users (not service accounts) that may watch the Watchers' kinds in every runtime, besides the agent's own service account. For
    /// agents that run outside of their runtime.
    pub agent_users: Vec<String>,
    /// Modules that only selected Kymas get; the ModuleReleaseMeta selects them.
    pub restricted_modules: Vec<String>,
    /// Remaining time of a maintenance window in which an update may still begin.
    pub min_window: Duration,
    /// The image pull Secret of modules, in KCP's namespace. It is copied to every runtime; none by default.
    pub pull_secret: Option<String>,
    /// Whether a module is in Warning while its default custom resource has the state Error or Warning.
    pub module_cr_state: bool,
    /// Time over which a change of the catalog reaches the affected Kymas; zero for all at once.
    pub rollout_window: Duration,
    /// Time that a module waits for required modules and APIs before it is in Warning.
    pub dependency_patience: Duration,
    /// Whether the Go manager's watcher stays in a runtime whose events are proven to arrive without it.
    pub keep_watcher: bool,
    /// Whether KCP's cluster is the only runtime, of the one Kyma without a kubeconfig Secret.
    pub single_cluster: bool,
}

/// Installation and enrolment of agents.
#[derive(Clone, Debug)]
pub struct AgentInstall {
    /// Equal in all runtimes.
    pub settings: AgentSettings,
    /// Signs the agents' certificates. [`Engine::replace_authority`](crate::Engine::replace_authority) sets it.
    pub authority: Authority,
    /// Lifetime of the agents' certificates.
    pub lifetime: SignedDuration,
}

impl AgentInstall {
    /// Hash of the installed objects, apart from a runtime's own id.
    pub(crate) fn hash(&self, bundle: &str) -> u64 {
        let mut hash = Xxh3::new();
        (&self.settings, bundle).hash(&mut hash);
        hash.finish()
    }
}

/// Limits of reconciles.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileLimits {
    /// Reconciles at the same time.
    pub workers: usize,
    /// Reconciles of one runtime at the same time.
    pub per_runtime: usize,
    /// Deadline of one reconcile.
    pub deadline: Duration,
    /// Deadline of one call to a runtime, or to KCP.
    pub call_deadline: Duration,
}

impl Default for ReconcileLimits {
    fn default() -> Self {
        Self {
            workers: 16,
            per_runtime: 2,
            deadline: Duration::from_mins(2),
            call_deadline: Duration::from_secs(20),
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            namespace: tidewatch_api::names::KCP_NAMESPACE.to_owned(),
            modules: String::new(),
            external_registries: Vec::new(),
            registry: RegistryConfig::default(),
            addresses: AddressPolicy::default(),
            limits: ReconcileLimits::default(),
            agents: None,
            agent_users: Vec::new(),
            restricted_modules: Vec::new(),
            min_window: MIN_WINDOW,
            pull_secret: None,
            module_cr_state: true,
            rollout_window: Duration::ZERO,
            dependency_patience: requirements::WAIT_DEADLINE,
            keep_watcher: false,
            single_cluster: false,
        }
    }
}
