//! Configuration and start errors.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use tidewatch_engine::{EngineConfig, ReconcileLimits, clusters::AddressPolicyError};
use tidewatch_listener::Limits;
use tidewatch_oci::{OciError, RegistryConfig};
use tidewatch_telemetry::metrics::MetricsError;
use tidewatch_tls::{ProxiesError, ProxyFiles};

use crate::{
    agent_args::TlsSource,
    args::{Args, UpdateArgs},
    forward::target::Overrides,
    leader_endpoint::LeaderEndpoint,
    paths::Settings,
    pki::PkiError,
    registry_credentials::Unusable,
};

/// The receiver's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Agents' address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Admin address; port 0 takes a free one.
    pub admin: SocketAddr,
    /// Client CA bundle, own certificate, own key; `None` in single-cluster mode, which has no port for agents.
    pub tls: Option<TlsSource>,
    /// Trusted proxies.
    pub proxies: Option<ProxyFiles>,
    /// KCP's kubeconfig; in-cluster without.
    pub kubeconfig: Option<PathBuf>,
    /// The engine's settings.
    pub engine: EngineConfig,
    /// Docker configuration file.
    pub registry_credentials: Option<PathBuf>,
    /// Forbidden servers in kubeconfigs, besides KCP's.
    pub denied_servers: Vec<String>,
    /// Managers' addresses, overriding their Watchers'.
    pub routes: Overrides,
    /// Event path settings.
    pub paths: Settings,
    /// Limits on agents.
    pub limits: Limits,
    /// Ready keys above which events are refused.
    pub queued: usize,
    /// This process's host in the Lease.
    pub identity: String,
    /// The endpoint that the leader publishes.
    pub endpoint: Option<LeaderEndpoint>,
    /// Validity of the Lease.
    pub lease: Duration,
    /// Write nothing in runtimes.
    pub pause: bool,
    /// Maintenance policy file.
    pub maintenance_policy: Option<PathBuf>,
    /// Metrics per Kyma and Manifest.
    pub object_metrics: bool,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let Args {
            listen,
            admin,
            files,
            agents,
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
            leader_service,
            lease,
            pause,
            object_metrics,
            keep_watcher,
            single_cluster,
            updates:
                UpdateArgs { maintenance_policy, min_maintenance_window, rollout_window, dependency_patience },
            limits,
            grace: _,
            log_format: _,
            log_level: _,
            #[cfg(feature = "otlp")]
                otlp_endpoint: _,
        } = args;
        let identity = identity.unwrap_or_else(host_name);
        Self {
            listen,
            admin,
            proxies: trusted_proxy
                .zip(files.client_ca.clone())
                .map(|(proxies, ca)| ProxyFiles { ca, proxies }),
            tls: (!single_cluster)
                .then(|| files.files().map_or_else(|| TlsSource::Secrets(agents.pki()), TlsSource::Files)),
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
                limits: ReconcileLimits {
                    workers,
                    per_runtime: workers_per_runtime,
                    ..ReconcileLimits::default()
                },
                agents: agents.install(skr_image_pull_secret.clone()),
                agent_users: agent_user,
                restricted_modules: restricted_default_modules,
                pull_secret: skr_image_pull_secret,
                module_cr_state,
                keep_watcher,
                single_cluster,
                min_window: min_maintenance_window,
                rollout_window,
                dependency_patience,
                ..EngineConfig::default()
            },
            registry_credentials,
            denied_servers: deny_server,
            routes: route_address.into_iter().collect(),
            paths: paths.into(),
            endpoint: leader_service.endpoint(listen.port(), &identity),
            identity,
            lease,
            pause,
            maintenance_policy,
            object_metrics,
            queued: limits.max_queued,
            limits: limits.into(),
        }
    }
}

/// A reason not to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Unusable TLS files.
    #[error("the TLS files cannot be used; check --client-ca, --tls-cert and --tls-key")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Unusable Secrets.
    #[error("the receiver has no certificate")]
    Pki(#[from] PkiError),
    /// No watches of the own cluster.
    #[error("the receiver's own cluster cannot be watched")]
    OwnCluster(#[from] tidewatch_agent::app::StartError),
    /// Unusable proxy files.
    #[error("the trusted proxies cannot be used; check --trusted-proxy")]
    Proxies(#[source] ProxiesError),
    /// No configuration for KCP.
    #[error("no configuration for the control plane; give --kubeconfig or run in its cluster")]
    Kube(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Invalid deny rule.
    #[error("--deny-server cannot be used")]
    Deny(#[from] AddressPolicyError),
    /// Invalid registry settings.
    #[error("the registry's settings cannot be used; check --modules and --insecure-registry")]
    Registry(#[from] OciError),
    /// Unusable registry credentials.
    #[error("the credentials of registries cannot be used; check --registry-credentials")]
    Credentials(#[from] Unusable),
    /// Unusable address.
    #[error("cannot listen on {address}; is another process using it?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Failed write to standard output.
    #[error("the list cannot be written to standard output")]
    Output(#[source] io::Error),
    /// Rejected metric.
    #[error("metrics cannot be registered")]
    Metrics(#[from] MetricsError),
}

fn host_name() -> String {
    hostname::get().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}
