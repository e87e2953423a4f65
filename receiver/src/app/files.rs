//! The files of the receiver, read again when they change: certificates, trusted proxies, credentials, maintenance policy.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::ServerConfig;
use tidewatch_drain::{Drain, ShutdownSignal};
use tidewatch_engine::Engine;
use tidewatch_telemetry::{chain, metrics::Registry};
use tidewatch_tls::{Files, Proxies, ProxyFiles, ReloadError, Reloaded, Store};

use crate::{config::StartError, maintenance::PolicyFile, registry_credentials::RegistryCredentials};

const RELOAD: Duration = Duration::from_secs(30);

/// The receiver's certificates, and the proxies that it trusts.
pub(super) struct Certificates {
    pub(super) store: Arc<Store<ServerConfig>>,
    pub(super) proxies: Arc<Proxies>,
    files: Files,
    proxy_files: Option<ProxyFiles>,
}

impl Certificates {
    pub(super) async fn load(files: Files, proxy_files: Option<ProxyFiles>) -> Result<Self, StartError> {
        let pem = files.read().await.map_err(|e| StartError::Tls(e.into()))?;
        let store = Store::server(&pem, Timestamp::now()).map_err(|e| StartError::Tls(e.into()))?;
        let proxies = match &proxy_files {
            Some(files) => Proxies::load(files).await.map_err(StartError::Proxies)?,
            None => Proxies::none(),
        };
        Ok(Self { store: Arc::new(store), proxies: Arc::new(proxies), files, proxy_files })
    }

    /// Reloads them every 30 s.
    pub(super) fn follow(self, drain: &Drain) {
        drain.spawn("tls-reload", reload(self.store, self.files, drain.watch()));
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
