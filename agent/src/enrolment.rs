//! Enrolment: the agent creates its own key, and requests its certificate by the API of its runtime.
//!
//! The key never leaves the runtime, and no bootstrap secret exists: the API server vouches for the agent's service account
//! in the request, and the control plane signs it (`docs/operate/certificates.md`).

mod plan;
mod store;

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use kube::Client;
use tidewatch_delivery::backoff::Backoff;
use tidewatch_telemetry::chain;
use tidewatch_tls::read_file;
use tokio::sync::watch;

use self::{
    plan::{Step, Wanted, is_usable, next},
    store::{EnrolmentError, Store},
};
use crate::{config::Enrolment, jitter, metrics::Metrics, send::Identity};

/// Wait after a failed or denied request.
const RETRY: Backoff = Backoff { base: Duration::from_secs(2), max: Duration::from_mins(5) };

/// Keeps the agent's certificate valid.
pub(crate) struct Enroller {
    store: Store,
    runtime: String,
    ca: PathBuf,
    identity: watch::Sender<Option<Identity>>,
    refused: watch::Sender<Option<Identity>>,
    clock: fn() -> Timestamp,
    metrics: Metrics,
}

impl Enroller {
    /// `runtime`: id in the certificate. `ca`: file of the receiver's CAs.
    pub(crate) fn new(
        client: Client,
        config: Enrolment,
        runtime: String,
        ca: PathBuf,
        clock: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Self {
        let (store, identity, refused) =
            (Store::new(client, config), watch::Sender::new(None), watch::Sender::new(None));
        Self { store, runtime, ca, identity, refused, clock, metrics }
    }

    /// The newest certificate and key.
    pub(crate) fn identity(&self) -> watch::Receiver<Option<Identity>> {
        self.identity.subscribe()
    }

    /// Takes a certificate that the receiver refuses: it is replaced.
    pub(crate) fn refused(&self) -> watch::Sender<Option<Identity>> {
        self.refused.clone()
    }

    /// Takes the stored certificate, and requests a new one whenever it is due. Never ends.
    pub(crate) async fn run(self) {
        let spread = jitter::random();
        let (mut attempt, mut refused) = (0, self.refused.subscribe());
        loop {
            let wait = match self.step(spread).await {
                Ok(wait) => {
                    attempt = 0;
                    wait
                }
                Err(error) => {
                    self.metrics.enrolments.with_label_values(&[error.label()]).inc();
                    tracing::warn!(error = %chain(&error), "no new certificate");
                    attempt += 1;
                    RETRY.delay(attempt - 1, jitter::random())
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A failed request keeps its wait.
                _ = refused.changed(), if attempt == 0 => {}
            }
        }
    }

    /// Returns the wait until the next step.
    async fn step(&self, spread: f64) -> Result<Duration, EnrolmentError> {
        let bundle = read_file(&self.ca).await?;
        let wanted = Wanted { runtime: &self.runtime, bundle: &bundle };
        let known = self.identity.borrow().clone();
        let known = match known {
            Some(known) => Some(known),
            // Another run of this agent has stored it.
            None => self.store.read().await?.inspect(|stored| self.publish(stored, wanted)),
        };
        let known = known.filter(|known| self.refused.borrow().as_ref() != Some(known));
        if let Step::Wait(wait) = next(known.as_ref(), wanted, (self.clock)(), spread) {
            return Ok(wait);
        }
        let identity = self.store.request().await?;
        if !is_usable(&identity, wanted, (self.clock)()) {
            return Err(EnrolmentError::Unusable);
        }
        self.publish(&identity, wanted);
        self.metrics.enrolments.with_label_values(&["signed"]).inc();
        // After the publication: the certificate is good although a restart would request another one.
        self.store.write(&identity).await?;
        Ok(Duration::ZERO)
    }

    fn publish(&self, identity: &Identity, wanted: Wanted<'_>) {
        if is_usable(identity, wanted, (self.clock)()) {
            self.identity.send_replace(Some(identity.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
