//! Wires the receiver. Each part owns its tasks: `core`, `agents`, `leader`, `files`.

mod agents;
mod core;
mod files;
mod leader;

use std::{net::SocketAddr, time::Duration};

use tidewatch_agent::app::Embedded;
use tidewatch_drain::{
    Drain, Outcome,
    signal::{self, Signals},
};
use tidewatch_listener::Deliveries;
use tidewatch_telemetry::{
    BuildInfo, Readiness,
    admin::{self, AdminState},
    metrics::Registry,
};
use tokio::net::TcpListener;

use self::{
    agents::Agents,
    core::Core,
    files::{Certificates, EngineFiles},
    leader::{Leader, record_sessions},
};
use crate::{
    config::{Config, StartError},
    kcp_client::kube_config,
    lease::Candidate,
    own_cluster, pause, rotation, runtimes_page,
    switch::Switch,
};

/// A receiver with open ports.
pub struct Bound {
    /// Agents' address; none in single-cluster mode.
    pub events: Option<SocketAddr>,
    /// Admin endpoint's address.
    pub admin: SocketAddr,
    /// Owns all tasks.
    pub drain: Drain,
}

/// Checks the configuration before opening ports, then starts all tasks.
pub async fn start(config: Config) -> Result<Bound, StartError> {
    let (drain, build) = (Drain::new(), BuildInfo::new("tidewatch-receiver", env!("CARGO_PKG_VERSION")));
    let registry = Registry::new("tidewatch_receiver", build)?;
    let kube = kube_config(config.kubeconfig.clone()).await?;
    let object_metrics = config.object_metrics;
    let core =
        Core::new(kube, config.engine, config.denied_servers, config.paths, object_metrics, &registry)?;
    let source = match config.tls {
        Some(tls) => {
            let certificates = Certificates::load(tls, config.proxies, &core).await?;
            EventSource::Port(bind(config.listen).await?, certificates)
        }
        None => EventSource::OwnCluster(Box::new(own_cluster::prepare(config.kubeconfig, &registry).await?)),
    };
    let switch = Switch::new(core.engine.clone(), &registry)?;
    let files =
        EngineFiles::load(config.registry_credentials, config.maintenance_policy, &core.engine, &registry)
            .await?;
    let agents = Agents::new(
        &core,
        source.certificates(),
        config.routes,
        config.limits,
        config.queued,
        object_metrics,
        &registry,
    )?;

    let (admin_listener, admin) = bind(config.admin).await?;
    let readiness = Readiness::new();
    // Before the admin endpoint answers: with nothing registered, it would report ready.
    let kcp_unready = readiness.register("control plane");
    let state = AdminState::new(registry, readiness, build);
    admin::serve(admin_listener, with_pages(state, &core, &agents.deliveries), &drain);

    files.follow(&drain);
    agents.forward(&core, &drain);
    let follow = pause::follow(core.client.clone(), core.namespace.clone(), config.pause, switch.clone());
    drain.spawn_background("pause", follow);
    let revoked = core.follow_revocations(&drain);
    let engine_ended = core.run(agents.loaded.clone(), kcp_unready, &drain);
    let candidate = Candidate {
        client: core.client.clone(),
        namespace: core.namespace.clone(),
        // The prefix excludes Leases of a Go manager on this host.
        host: format!("tidewatch.{}", config.identity),
        id: core.session.to_string(),
        duration: config.lease,
    };
    let controllers = core.controllers.clone();
    let leads = Leader { candidate, switch, controllers }.run(engine_ended, &drain);
    core.watch_paths(leads.clone(), &drain);
    if let Some(endpoint) = config.endpoint {
        core.publish(endpoint, leads.clone(), &drain);
    }
    let (loaded, certificate_leads) = (agents.loaded.clone(), leads.clone());
    let recorded = record_sessions(core.sessions.clone(), core.session_record(), leads, &drain);
    let events = match source {
        EventSource::Port((listener, events), certificates) => {
            agents.serve(listener, &core, &certificates, [recorded, revoked], &drain);
            certificates.follow(&core, loaded, certificate_leads, &drain);
            tracing::info!(%events, %admin, "the receiver listens");
            Some(events)
        }
        EventSource::OwnCluster(agent) => {
            agents.serve_own_cluster(*agent, &core, recorded, &drain);
            tracing::info!(%admin, "the receiver manages its own cluster");
            None
        }
    };
    Ok(Bound { events, admin, drain })
}

/// Where events come from.
enum EventSource {
    /// Agents of runtimes.
    Port((TcpListener, SocketAddr), Certificates),
    /// The agent in this process.
    OwnCluster(Box<Embedded>),
}

impl EventSource {
    const fn certificates(&self) -> Option<&Certificates> {
        match self {
            Self::Port(_, certificates) => Some(certificates),
            Self::OwnCluster(_) => None,
        }
    }
}

/// Runs until a signal, then for at most `grace`. Returns whether all tasks finished.
pub async fn run(config: Config, grace: Duration) -> anyhow::Result<bool> {
    let signals = Signals::listen()?;
    use_small_pages();
    let bound = start(config).await?;
    let outcome = signal::run(signals, &bound.drain, grace).await;
    Ok(matches!(outcome, Outcome::Finished))
}

/// Disables huge pages, which add a fifth to the memory and save no CPU time (`docs/concepts/scale.md`).
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay");
    }
}

/// Adds the pages of runtimes and certificates to the admin endpoint.
fn with_pages(state: AdminState, core: &Core, deliveries: &Deliveries) -> AdminState {
    let (certificates, engine, paths) = (core.certificates.clone(), core.engine.clone(), core.paths.clone());
    let state = state.route(rotation::PAGE, move |_, _| Some(certificates.page(&engine, &paths)));
    let (engine, deliveries, paths) = (core.engine.clone(), deliveries.clone(), core.paths.clone());
    state.route(format!("{}*", runtimes_page::PREFIX), move |path, _| {
        runtimes_page::page(&engine, &deliveries, &paths, path)
    })
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
