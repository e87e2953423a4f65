//! The agent's certificate, key and trusted CAs: looked at while it runs, and what follows for the connection.

use super::connect::Connection;
use crate::metrics::Metrics;
use jiff::Timestamp;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{sync::Arc, time::Duration};
use tidewatch_telemetry::chain;
use tidewatch_tls::{Files, ReloadError, Reloaded, Store};
use tokio::sync::watch;

/// Between two looks at the files. The kubelet itself takes up to a minute to renew a mounted Secret.
const LOOK: Duration = Duration::from_secs(30);

/// The TLS configuration in use and where it comes from.
#[derive(Debug)]
pub(super) struct Material {
    store: Store<ClientConfig>,
    files: Files,
    clock: fn() -> Timestamp,
    metrics: Metrics,
    changed: watch::Sender<()>,
}

/// What a connection is still good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing has changed for it.
    Keep,
    /// It is in order, but a newer certificate is to be used: make another one first, then let it go.
    Replace,
    /// It may not be used any more; the reason is for a metric.
    End(&'static str),
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

    /// Looks at the files, again and again.
    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look().await;
        }
    }

    /// Tells each time another configuration is in use.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The configuration for a connection, and when its certificate ends.
    pub(super) fn current(&self) -> (Arc<ClientConfig>, Timestamp) {
        self.store.snapshot()
    }

    /// Takes over what is in the files, if it is new and good.
    pub(super) async fn look(&self) {
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

    /// What a connection to `name` is still good for.
    pub(super) fn fate(&self, connection: &Connection, name: &ServerName<'_>) -> Fate {
        let now = (self.clock)();
        if now >= connection.not_after {
            Fate::End("expired")
        } else if !self.store.trusts(&connection.chain, name, now) {
            Fate::End("untrusted")
        } else if Arc::ptr_eq(&connection.config, &self.current().0) {
            Fate::Keep
        } else {
            Fate::Replace
        }
    }
}
