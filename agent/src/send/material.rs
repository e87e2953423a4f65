use super::transport::Fate;
use crate::metrics::Metrics;
use jiff::Timestamp;
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
};
use std::{sync::Arc, time::Duration};
use tidewatch_telemetry::chain;
use tidewatch_tls::{Files, ReloadError, Reloaded, Store};
use tokio::sync::watch;

/// Interval of file checks. The kubelet takes up to a minute to renew a mounted Secret.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Material {
    store: Store<ClientConfig>,
    files: Files,
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
        store: Store<ClientConfig>,
        files: Files,
        clock: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Self {
        metrics.certificate_not_after.set(store.not_after().as_second());
        Self { store, files, clock, metrics, changed: watch::Sender::new(()) }
    }

    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.reload().await;
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// With the certificate's expiry.
    pub(super) fn current(&self) -> (Arc<ClientConfig>, Timestamp) {
        self.store.snapshot()
    }

    /// Uses changed files; unusable ones change nothing.
    pub(super) async fn reload(&self) {
        let result = match self.store.reload(&self.files, (self.clock)()).await {
            Ok(Reloaded::Unchanged) => return,
            Ok(Reloaded::Published) => {
                let not_after = self.store.not_after();
                tracing::info!(%not_after, "new TLS files are in use");
                self.metrics.certificate_not_after.set(not_after.as_second());
                self.changed.send_replace(());
                "taken"
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the TLS files cannot be used; the last good ones stay");
                match error {
                    ReloadError::Files(_) => "unreadable",
                    ReloadError::Bundle(_) => "unusable",
                }
            }
        };
        self.metrics.tls_reloads.with_label_values(&[result]).inc();
    }

    pub(super) fn fate(&self, session: &Session, name: &ServerName<'_>) -> Fate {
        let now = (self.clock)();
        if now >= session.not_after {
            Fate::End("expired")
        } else if !self.store.trusts(&session.chain, name, now) {
            Fate::End("untrusted")
        } else if Arc::ptr_eq(&session.config, &self.current().0) {
            Fate::Keep
        } else {
            Fate::Replace
        }
    }
}
