//! Enrolment: the agent creates its own key, and requests its certificate by the API of its runtime.
//!
//! The key never leaves the runtime, and no bootstrap secret exists: the API server vouches for the agent's service account
//! in the request, and the control plane signs it (`docs/operate/certificates.md`).

mod plan;
mod store;

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tidewatch_delivery::backoff::Backoff;
use tidewatch_telemetry::chain;
use tokio::sync::watch;

use self::{
    plan::{Step, next},
    store::{EnrolmentError, Store},
};
use crate::{config::Enrolment, jitter, metrics::Metrics, send::Identity};

/// Wait after a failed or denied request.
const RETRY: Backoff = Backoff { base: Duration::from_secs(2), max: Duration::from_mins(5) };

/// Keeps the agent's certificate valid.
pub(crate) struct Enroller {
    store: Store,
    identity: watch::Sender<Option<Identity>>,
    clock: fn() -> Timestamp,
    metrics: Metrics,
}

impl Enroller {
    pub(crate) fn new(client: Client, config: Enrolment, clock: fn() -> Timestamp, metrics: Metrics) -> Self {
        Self { store: Store::new(client, config), identity: watch::Sender::new(None), clock, metrics }
    }

    /// The newest certificate and key.
    pub(crate) fn identity(&self) -> watch::Receiver<Option<Identity>> {
        self.identity.subscribe()
    }

    /// Takes the stored certificate, and requests a new one whenever it is due. Never ends.
    pub(crate) async fn run(self) {
        let spread = jitter::random();
        let mut attempt = 0;
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
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the wait until the next step.
    async fn step(&self, spread: f64) -> Result<Duration, EnrolmentError> {
        let known = self.identity.borrow().clone();
        let known = match known {
            Some(known) => Some(known),
            // Another run of this agent has stored it.
            None => self.store.read().await?.inspect(|stored| self.publish(stored)),
        };
        if let Step::Wait(wait) = next(known.as_ref(), (self.clock)(), spread) {
            return Ok(wait);
        }
        let identity = self.store.request().await?;
        self.publish(&identity);
        self.metrics.enrolments.with_label_values(&["signed"]).inc();
        // After the publication: the certificate is good although a restart would request another one.
        self.store.write(&identity).await?;
        Ok(Duration::ZERO)
    }

    fn publish(&self, identity: &Identity) {
        if plan::is_valid(identity, (self.clock)()) {
            self.identity.send_replace(Some(identity.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
