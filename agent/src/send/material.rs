use super::{error::SendError, source::Source, transport::Fate};
use crate::metrics::Metrics;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tidewatch_telemetry::chain;
use tidewatch_tls::{BundleError, FilesError, Pem, Reloaded, Store};
use tidewatch_wire::v3::configuration;
use tokio::sync::watch;

/// Interval of file checks. The kubelet takes up to a minute to renew a mounted Secret.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A reason to keep the last material.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Files(FilesError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

#[derive(Debug)]
pub(super) struct Material {
    /// Empty before the first certificate.
    store: OnceLock<Store<ClientConfig>>,
    source: Source,
    /// Hash of the CA file in use.
    trust: Mutex<String>,
    clock: fn() -> Timestamp,
    metrics: Metrics,
    changed: watch::Sender<()>,
}

/// TLS state of a connection.
pub(super) struct Session {
    pub(super) config: Arc<ClientConfig>,
    /// Expiry of the agent's certificate.
    pub(super) not_after: Timestamp,
    /// The receiver's certificates.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

impl Material {
    pub(super) fn new(
        store: Option<Store<ClientConfig>>,
        source: Source,
        clock: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Self {
        if let Some(store) = &store {
            metrics.certificate_not_after.set(store.not_after().as_second());
        }
        let store = store.map_or_else(OnceLock::new, OnceLock::from);
        Self { store, source, trust: Mutex::default(), clock, metrics, changed: watch::Sender::new(()) }
    }

    pub(super) async fn watch(&self) {
        let mut source = self.source.clone();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = source.changed() => {}
            }
            self.reload().await;
        }
    }

    pub(super) fn replace_source(&self) {
        self.source.replace();
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// `Health::trust` of the CAs in use; empty before the first certificate.
    pub(super) fn trust(&self) -> String {
        self.trust.lock().clone()
    }

    /// With the certificate's expiry.
    pub(super) fn current(&self) -> Result<(Arc<ClientConfig>, Timestamp), SendError> {
        self.store.get().map(Store::snapshot).ok_or(SendError::NotEnrolled)
    }

    /// Uses changed material; unusable material changes nothing.
    pub(super) async fn reload(&self) {
        let result = match self.source.read().await.map_err(Unusable::Files) {
            Ok(None) => return,
            Ok(Some(pem)) => self.replace(&pem),
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(Reloaded::Unchanged) => return,
            Ok(Reloaded::Published) => "taken",
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the certificates cannot be used; the last good ones stay");
                match error {
                    Unusable::Files(_) => "unreadable",
                    Unusable::Bundle(_) => "unusable",
                }
            }
        };
        self.metrics.tls_reloads.with_label_values(&[result]).inc();
    }

    fn replace(&self, pem: &Pem) -> Result<Reloaded, Unusable> {
        let now = (self.clock)();
        let reloaded = match self.store.get() {
            Some(store) => store.replace(pem, now)?,
            None => {
                // Only the caller's task creates it; a lost race would keep the other store, which is as good.
                let _ = self.store.set(Store::client(pem, now)?);
                Reloaded::Published
            }
        };
        if let (Reloaded::Published, Some(store)) = (reloaded, self.store.get()) {
            let not_after = store.not_after();
            tracing::info!(%not_after, "new certificates are in use");
            self.metrics.certificate_not_after.set(not_after.as_second());
            *self.trust.lock() = configuration(&String::from_utf8_lossy(&pem.ca));
            self.changed.send_replace(());
        }
        Ok(reloaded)
    }

    pub(super) fn fate(&self, session: &Session, name: &ServerName<'_>) -> Fate {
        let now = (self.clock)();
        if now >= session.not_after {
            Fate::End("expired")
        } else if !self.store.get().is_some_and(|store| store.trusts(&session.chain, name, now)) {
            Fate::End("untrusted")
        } else if self.current().is_ok_and(|(config, _)| Arc::ptr_eq(&session.config, &config)) {
            Fate::Keep
        } else {
            Fate::Replace
        }
    }
}
