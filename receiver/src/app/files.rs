//! The files of the receiver, read again when they change: certificates, trusted proxies, credentials, maintenance policy.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use jiff::Timestamp;
use rustls::ServerConfig;
use tidewatch_drain::{Drain, ShutdownSignal};
use tidewatch_engine::Engine;
use tidewatch_telemetry::{chain, metrics::Registry};
use tidewatch_tls::{Files, Proxies, ProxyFiles, ReloadError, Reloaded, Store};
use tokio::sync::watch;

use super::{core::Core, leader::when_leading};
use crate::{
    agent_args::TlsSource, config::StartError, maintenance::PolicyFile, pki::Pki,
    registry_credentials::RegistryCredentials, rotation::Keeper,
};

const RELOAD: Duration = Duration::from_secs(30);

/// The receiver's certificates, and the proxies that it trusts.
pub(super) struct Certificates {
    pub(super) store: Arc<Store<ServerConfig>>,
    pub(super) proxies: Arc<Proxies>,
    source: Source,
    proxy_files: Option<ProxyFiles>,
}

enum Source {
    Files(Files),
    Secrets(Box<Pki>),
}

impl Certificates {
    /// Reads files, or the Secrets of the control plane, whose CA then signs agents' certificates.
    pub(super) async fn load(
        source: TlsSource,
        proxy_files: Option<ProxyFiles>,
        core: &Core,
    ) -> Result<Self, StartError> {
        let now = Timestamp::now();
        let (pem, source) = match source {
            TlsSource::Files(files) => {
                (files.read().await.map_err(|e| StartError::Tls(e.into()))?, Source::Files(files))
            }
            TlsSource::Secrets(settings) => {
                let pki = Pki::new(core.client.clone(), &core.namespace, settings);
                let server = pki.load(now).await?.server;
                (server, Source::Secrets(Box::new(pki)))
            }
        };
        let store = Store::server(&pem, now).map_err(|e| StartError::Tls(e.into()))?;
        let proxies = match &proxy_files {
            Some(files) => Proxies::load(files).await.map_err(StartError::Proxies)?,
            None => Proxies::none(),
        };
        Ok(Self { store: Arc::new(store), proxies: Arc::new(proxies), source, proxy_files })
    }

    /// Reads files every 30 s. The leader keeps the Secrets.
    pub(super) fn follow(
        self,
        core: &Core,
        loaded: Arc<AtomicBool>,
        leads: watch::Receiver<bool>,
        drain: &Drain,
    ) {
        match self.source {
            Source::Files(files) => drain.spawn("tls-reload", reload(self.store, files, drain.watch())),
            Source::Secrets(pki) => {
                let keeper = Keeper {
                    pki: *pki,
                    store: self.store,
                    engine: core.engine.clone(),
                    paths: core.paths.clone(),
                    loaded,
                    state: core.certificates.clone(),
                };
                let keep = keeper.run(core.client.clone(), core.namespace.clone(), drain.watch());
                drain.spawn("certificates", when_leading(leads, drain.watch(), keep));
            }
        }
        if let Some(files) = self.proxy_files {
            drain.spawn("proxies-reload", reload_proxies(self.proxies, files, drain.watch()));
        }
    }
}

/// The engine's settings from files.
pub(super) struct EngineFiles {
    credentials: Option<RegistryCredentials>,
    windows: Option<PolicyFile>,
}

impl EngineFiles {
    /// Reads them. An unusable maintenance policy does not prevent the start.
    pub(super) async fn load(
        credentials: Option<PathBuf>,
        windows: Option<PathBuf>,
        engine: &Engine,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let credentials = match credentials {
            Some(file) => Some(RegistryCredentials::new(file, engine).await?),
            None => None,
        };
        let mut windows = PolicyFile::new(windows, engine, registry)?;
        if let Some(windows) = &mut windows {
            windows.reload().await;
        }
        Ok(Self { credentials, windows })
    }

    /// Reloads them every 5 s.
    pub(super) fn follow(self, drain: &Drain) {
        if let Some(credentials) = self.credentials {
            drain.spawn("registry-credentials", credentials.follow(drain.watch()));
        }
        if let Some(windows) = self.windows {
            drain.spawn("maintenance-policy", windows.follow(drain.watch()));
        }
    }
}

/// Open connections keep their certificates.
async fn reload(store: Arc<Store<ServerConfig>>, files: Files, drain: ShutdownSignal) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(RELOAD) => {}
        }
        match store.reload(&files, Timestamp::now()).await {
            Ok(Reloaded::Unchanged) => {}
            Ok(Reloaded::Published) => {
                tracing::info!(not_after = %store.not_after(), "new TLS files are in use");
            }
            Err(error @ (ReloadError::Files(_) | ReloadError::Bundle(_))) => {
                tracing::warn!(error = %chain(&error), "the TLS files cannot be used; the last good ones stay");
            }
        }
    }
}

async fn reload_proxies(proxies: Arc<Proxies>, files: ProxyFiles, drain: ShutdownSignal) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(RELOAD) => {}
        }
        match proxies.reload(&files).await {
            Ok(false) => {}
            Ok(true) => tracing::info!("the trusted proxies were read anew"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the trusted proxies cannot be read; the last good ones stay");
            }
        }
    }
}
