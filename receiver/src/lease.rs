//! Leader election with the Go lifecycle manager's Lease: one engine per KCP, of either kind.
//!
//! Only this process's clock counts: times in the Lease come from other clocks. A holder without renewal for two thirds of the duration
//! ends before others begin.

use std::{future::Future, ops::RangeInclusive, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tidewatch_telemetry::chain;
use tokio::time::Instant;

mod step;

use step::{Record, Step, step};

/// The Go lifecycle manager's Lease.
pub const NAME: &str = "893110f7.kyma-project.io";
/// Default validity.
pub const DURATION: Duration = Duration::from_secs(15);
/// Permitted seconds: two hanging requests, up to the Go manager's wait, which ignores the Lease's value.
pub const DURATIONS: RangeInclusive<u64> = 15..=180;
const RETRY: Duration = Duration::from_secs(2);
/// Leaves time to repeat a hanging renewal.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A candidate for leader.
#[derive(Clone)]
pub struct Candidate {
    /// KCP's client.
    pub client: Client,
    /// The Lease's namespace.
    pub namespace: String,
    /// Usually the pod's name. It runs one process at a time, so a Lease of the same host belongs to an ended process.
    pub host: String,
    /// This process.
    pub id: String,
    /// Validity: [`DURATIONS`] seconds.
    pub duration: Duration,
}

/// A held Lease, renewed by [`Term::keep`].
pub struct Term {
    candidate: Candidate,
    renewed_at: Instant,
    transitions: i32,
    /// `None` if another process may have written since.
    written: Option<Lease>,
}

/// The Lease was lost.
#[derive(Debug, thiserror::Error)]
pub enum LeaseLost {
    /// Held by another process.
    #[error("the Lease {NAME} is held by '{0}' now")]
    Taken(String),
    /// Not renewed in time.
    #[error("the Lease {NAME} could not be renewed for {} s", .0.as_secs())]
    Late(Duration),
}

#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("the Lease {NAME} cannot be read or written")]
    Api(#[source] kube::Error),
    #[error("the control plane did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl Candidate {
    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Shorter than others wait: clocks differ.
    fn term(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// Interval of renewals.
    fn pause(&self) -> Duration {
        self.duration * 4 / 15
    }

    fn holder(&self) -> String {
        format!("{}_{}", self.host, self.id)
    }

    /// Waits until this process is the leader.
    pub async fn acquire(self) -> Term {
        let api = self.api();
        // Last record, unchanged since.
        let mut seen: Option<(Record, Instant)> = None;
        loop {
            let read = match within(api.get_opt(NAME)).await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the Lease {NAME} cannot be read; trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            let now = Instant::now();
            let record = read.as_ref().map(Record::of);
            let since = match (&seen, &record) {
                (Some((before, since)), Some(record)) if before == record => *since,
                _ => now,
            };
            if let Some(record) = &record
                && seen.as_ref().is_none_or(|(before, _)| before.holder != record.holder)
                && !record.holder.is_empty()
            {
                tracing::info!(holder = record.holder, "another process holds the Lease; waiting");
            }
            seen = record.clone().map(|record| (record, since));
            match step(record.as_ref(), &self.host, &self.holder(), now - since) {
                Step::Wait(left) => tokio::time::sleep(left.clamp(Duration::from_millis(50), RETRY)).await,
                Step::Take => match self.write(read.as_ref(), now).await {
                    Ok(term) => return term,
                    Err(error) => {
                        tracing::info!(error = %chain(&error), "the Lease was not taken; reading it again");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                },
            }
        }
    }

    /// The term counts from `now`, before the request.
    async fn write(&self, over: Option<&Lease>, now: Instant) -> Result<Term, CallError> {
        let before = over.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let holder = self.holder();
        let is_new = before.holder_identity.as_ref() != Some(&holder);
        let transitions = before.lease_transitions.unwrap_or(0) + i32::from(is_new && over.is_some());
        let stamp = MicroTime(Timestamp::now());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                // Conflicts on a concurrent write.
                resource_version: over.and_then(|lease| lease.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                acquire_time: if is_new { Some(stamp.clone()) } else { before.acquire_time },
                holder_identity: Some(holder),
                lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
                lease_transitions: Some(transitions),
                renew_time: Some(stamp),
                ..LeaseSpec::default()
            }),
        };
        let written = Some(within(self.store(over, lease)).await?);
        Ok(Term { candidate: self.clone(), renewed_at: now, transitions, written })
    }

    async fn store(&self, over: Option<&Lease>, lease: Lease) -> kube::Result<Lease> {
        let (api, params) = (self.api(), PostParams::default());
        match over {
            Some(_) => api.replace(NAME, &params, &lease).await,
            None => api.create(&params, &lease).await,
        }
    }
}

impl Term {
    /// Returns how often the holder changed.
    #[must_use]
    pub const fn transitions(&self) -> i32 {
        self.transitions
    }

    /// Renews until the Lease is lost.
    pub async fn keep(&mut self) -> LeaseLost {
        loop {
            let end = self.renewed_at + self.candidate.term();
            let next =
                (self.renewed_at + self.candidate.pause()).max(Instant::now() + Duration::from_millis(200));
            tokio::time::sleep_until(next.min(end)).await;
            let now = Instant::now();
            if now >= end {
                return LeaseLost::Late(self.candidate.term());
            }
            match tokio::time::timeout_at(end, self.renew(now)).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(holder))) => return LeaseLost::Taken(holder),
                Ok(Err(error)) => {
                    tracing::warn!(error = %chain(&error), "the Lease is not renewed yet; trying again");
                }
                Err(_) => return LeaseLost::Late(self.candidate.term()),
            }
        }
    }

    /// Returns another holder.
    async fn renew(&mut self, now: Instant) -> Result<Option<String>, CallError> {
        // If outdated, the write conflicts, and the retry reads.
        let over = match self.written.take() {
            Some(written) => Some(written),
            None => within(self.candidate.api().get_opt(NAME)).await?,
        };
        let record = over.as_ref().map(Record::of).unwrap_or_default();
        // Deleted or released by a third party: the fastest candidate wins.
        if !record.holder.is_empty() && record.holder != self.candidate.holder() {
            return Ok(Some(record.holder));
        }
        let term = self.candidate.write(over.as_ref(), now).await?;
        (self.renewed_at, self.written) = (term.renewed_at, term.written);
        Ok(None)
    }

    /// Releases the Lease, after the last write.
    pub async fn release(self) {
        let release = async {
            let Some(mut lease) = self.candidate.api().get_opt(NAME).await? else { return Ok(()) };
            if Record::of(&lease).holder != self.candidate.holder() {
                return Ok(());
            }
            if let Some(spec) = &mut lease.spec {
                // The Go manager reads an empty holder as released.
                spec.holder_identity = Some(String::new());
            }
            self.candidate.api().replace(NAME, &PostParams::default(), &lease).await.map(drop)
        };
        match within(release).await {
            Ok(()) => tracing::info!("the Lease is released"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the Lease is not released; it expires");
            }
        }
    }
}

async fn within<T>(ask: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(TIMEOUT, ask).await {
        Ok(answer) => answer.map_err(CallError::Api),
        Err(_) => Err(CallError::Timeout),
    }
}
