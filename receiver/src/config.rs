//! What the receiver runs with, and why it does not start.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use tidewatch_engine::{EngineConfig, clusters::AddressPolicyError};
use tidewatch_listener::Limits;
use tidewatch_oci::{OciError, RegistryConfig};
use tidewatch_telemetry::metrics::MetricsError;
use tidewatch_tls::{Files, ProxiesError, ProxyFiles};

use crate::{
    args::{Args, UpdateArgs},
    forward::target::Overrides,
    paths::Settings,
    registry_credentials::Unusable,
};

/// What the receiver runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where agents connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The admin address; port 0 takes a free one.
    pub admin: SocketAddr,
    /// CA bundle for clients, own certificate, own key.
    pub tls: Files,
    /// The proxies that are believed about their clients.
    pub proxies: Option<ProxyFiles>,
    /// Kubeconfig of the control plane; in-cluster without.
    pub kubeconfig: Option<PathBuf>,
    /// The engine's settings.
    pub engine: EngineConfig,
    /// A Docker configuration file with credentials of registries.
    pub registry_credentials: Option<PathBuf>,
    /// Servers that no kubeconfig may name, besides the control plane's.
    pub denied_servers: Vec<String>,
    /// Where to find managers that are not where their Watchers say.
    pub routes: Overrides,
    /// When a runtime's events count as proven to arrive.
    pub paths: Settings,
    /// What is taken at most from agents.
    pub limits: Limits,
    /// Keys in the queue from which on no events are taken.
    pub queued: usize,
    /// Where this process runs. A Lease that the same place holds is of a process that has ended.
    pub place: String,
    /// For how long its Lease is believed without a renewal.
    pub lease: Duration,
    /// Write nothing in runtimes.
    pub pause: bool,
    /// The policy of maintenance windows.
    pub maintenance_policy: Option<PathBuf>,
    /// Whether there are metrics of each Kyma and each Manifest.
    pub object_metrics: bool,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let Args {
            listen,
            admin,
            client_ca,
            tls_cert,
            tls_key,
            trusted_proxy,
            kubeconfig,
            namespace,
            modules,
            external_registry,
            insecure_registry,
            registry_credentials,
            cache_dir,
            cache_size,
            deny_server,
            route_address,
            paths,
            workers,
            workers_per_runtime,
            agent_user,
            restricted_default_modules,
            skr_image_pull_secret,
            module_cr_state,
            identity,
            lease,
            pause,
            object_metrics,
            keep_watcher,
            updates:
                UpdateArgs { maintenance_policy, min_maintenance_window, rollout_window, dependency_patience },
            limits,
            grace: _,
            log_format: _,
            log_level: _,
        } = args;
        Self {
            listen,
            admin,
            proxies: trusted_proxy.map(|proxies| ProxyFiles { ca: client_ca.clone(), proxies }),
            tls: Files { ca: client_ca, cert: tls_cert, key: tls_key },
            kubeconfig,
            engine: EngineConfig {
                namespace,
                modules,
                external_registries: external_registry,
                registry: RegistryConfig {
                    insecure: insecure_registry,
                    disk: cache_dir,
                    disk_budget: cache_size * 1024 * 1024,
                    ..RegistryConfig::default()
                },
                workers,
                per_runtime: workers_per_runtime,
                agent_users: agent_user,
                restricted_modules: restricted_default_modules,
                pull_secret: skr_image_pull_secret,
                module_cr_state,
                keep_watcher,
                min_window: min_maintenance_window,
                rollout_window,
                patience: dependency_patience,
                ..EngineConfig::default()
            },
            registry_credentials,
            denied_servers: deny_server,
            routes: route_address.into_iter().collect(),
            paths: paths.into(),
            place: identity.unwrap_or_else(host_name),
            lease,
            pause,
            maintenance_policy,
            object_metrics,
            queued: limits.max_queued,
            limits: limits.into(),
        }
    }
}

/// Why the receiver does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// TLS files.
    #[error("the TLS files cannot be used; check --client-ca, --tls-cert and --tls-key")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The trusted proxies' files.
    #[error("the trusted proxies cannot be used; check --trusted-proxy")]
    Proxies(#[source] ProxiesError),
    /// The control plane's configuration.
    #[error("no configuration for the control plane; give --kubeconfig or run in its cluster")]
    Kube(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A deny-list entry.
    #[error("--deny-server cannot be used")]
    Deny(#[from] AddressPolicyError),
    /// The registry's settings.
    #[error("the registry's settings cannot be used; check --modules and --insecure-registry")]
    Registry(#[from] OciError),
    /// The file with credentials of registries.
    #[error("the credentials of registries cannot be used; check --registry-credentials")]
    Credentials(#[from] Unusable),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}; is another process using it?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The list of a dry run.
    #[error("the list cannot be written to standard output")]
    Output(#[source] io::Error),
    /// A metric.
    #[error("metrics cannot be registered")]
    Metrics(#[from] MetricsError),
}

fn host_name() -> String {
    hostname::get().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}
