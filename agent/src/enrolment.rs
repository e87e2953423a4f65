//! Enrolment: the agent creates its own key, and requests its certificate by the API of its runtime.
//!
//! The key never leaves the runtime, and no bootstrap secret exists: the API server vouches for the agent's service account
//! in the request, and the control plane signs it (`docs/operate/certificates.md`).

mod plan;
mod store;

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use tidewatch_delivery::backoff::Backoff;
use tidewatch_telemetry::chain;
use tidewatch_tls::read_file;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use self::{
    plan::{Step, Wanted, is_usable, is_wanted, next},
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
    refused: Arc<Notify>,
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
        let (store, identity) = (Store::new(client, config), watch::Sender::new(None));
        Self { store, runtime, ca, identity, refused: Arc::default(), clock, metrics }
    }

    /// The newest certificate and key.
    pub(crate) fn identity(&self) -> watch::Receiver<Option<Identity>> {
        self.identity.subscribe()
    }

    /// To be notified when the receiver refuses the certificate: the registration has changed.
    pub(crate) fn refused(&self) -> Arc<Notify> {
        Arc::clone(&self.refused)
    }

    /// Takes the stored certificate, and requests a new one whenever it is due or refused. Never ends.
    pub(crate) async fn run(self) {
        let spread = jitter::random();
        let (mut attempt, mut refusals, mut is_refused) = (0, Refusals::default(), false);
        loop {
            let wait = match self.step(spread, is_refused).await {
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
            is_refused = tokio::select! {
                () = tokio::time::sleep(wait) => false,
                () = self.refused.notified() => {
                    tokio::time::sleep(refusals.delay()).await;
                    true
                }
            };
        }
    }

    /// Returns the wait until the next step. `is_refused`: the receiver refuses the known certificate.
    async fn step(&self, spread: f64, is_refused: bool) -> Result<Duration, EnrolmentError> {
        let bundle = read_file(&self.ca).await?;
        let wanted = Wanted { runtime: &self.runtime, bundle: &bundle };
        let known = self.identity.borrow().clone();
        let known = match known {
            Some(known) => Some(known),
            // Another run of this agent has stored it.
            None => self.store.read().await?.inspect(|stored| self.publish(stored, wanted)),
        };
        let step = next(known.as_ref(), wanted, (self.clock)(), spread);
        if let (Step::Wait(wait), false) = (step, is_refused) {
            return Ok(wait);
        }
        let identity = self.store.request().await?;
        if !is_usable(&identity, wanted, (self.clock)()) {
            let is_wanted = is_wanted(&identity, wanted);
            return Err(if is_wanted { EnrolmentError::Clock } else { EnrolmentError::Unusable });
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

/// Refusals of certificates. Each costs a request, so a lasting one backs off.
#[derive(Default)]
struct Refusals {
    count: u32,
    last: Option<Instant>,
}

impl Refusals {
    /// The wait before the next request.
    fn delay(&mut self) -> Duration {
        let now = Instant::now();
        let is_lasting = self.last.is_some_and(|last| now.duration_since(last) < RETRY.max * 2);
        self.count = if is_lasting { self.count.saturating_add(1) } else { 0 };
        self.last = Some(now);
        RETRY.delay(self.count, jitter::random())
    }
}

#[cfg(test)]
mod tests;
