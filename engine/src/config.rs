//! Settings of the engine.

use std::time::Duration;

use tidewatch_oci::RegistryConfig;
use tidewatch_planner::{requirements, windows::MIN_WINDOW};

use crate::clusters::policy::AddressPolicy;

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The namespace in KCP that holds Kymas, Manifests and kubeconfig Secrets.
    pub namespace: String,
    /// Where module components are read from: `host[:port][/path]`.
    pub modules: String,
    /// Further registries, `host[:port][/path]` each: a component whose template names one of them in its descriptor is read there.
    pub external_registries: Vec<String>,
    /// The registry client's settings.
    pub registry: RegistryConfig,
    /// Servers that no kubeconfig may name.
    pub addresses: AddressPolicy,
    /// Reconciles at the same time.
    pub workers: usize,
    /// Reconciles of one runtime at the same time.
    pub per_runtime: usize,
    /// Deadline of one reconcile.
    pub deadline: Duration,
    /// Deadline of one call to a runtime, or to KCP.
    pub call_deadline: Duration,
    /// Users (not service accounts) that may watch in every runtime what the Watchers name, besides the agent's own
    /// service account. For agents that run outside of their runtime.
    pub agent_users: Vec<String>,
    /// Modules that only Kymas get whom their ModuleReleaseMeta selects.
    pub restricted_modules: Vec<String>,
    /// Least time that has to be left of a maintenance window for an update to begin in it.
    pub min_window: Duration,
    /// The Secret in KCP's namespace by which modules pull their images, brought to every runtime; none by default.
    pub pull_secret: Option<String>,
    /// Whether a default custom resource that says that it is in Error, or in Warning, makes its module a Warning.
    pub module_cr_state: bool,
    /// Over which time a change of the catalog reaches the Kymas that it concerns; zero for all at once.
    pub rollout_window: Duration,
    /// For how long a module waits for what it requires until that is a Warning.
    pub patience: Duration,
    /// Whether the Go manager's watcher stays in a runtime whose events are proven to arrive without it.
    pub keep_watcher: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            namespace: tidewatch_api::names::KCP_NAMESPACE.to_owned(),
            modules: String::new(),
            external_registries: Vec::new(),
            registry: RegistryConfig::default(),
            addresses: AddressPolicy::default(),
            workers: 16,
            per_runtime: 2,
            deadline: Duration::from_mins(2),
            call_deadline: Duration::from_secs(20),
            agent_users: Vec::new(),
            restricted_modules: Vec::new(),
            min_window: MIN_WINDOW,
            pull_secret: None,
            module_cr_state: true,
            rollout_window: Duration::ZERO,
            patience: requirements::WAIT_DEADLINE,
            keep_watcher: false,
        }
    }
}
