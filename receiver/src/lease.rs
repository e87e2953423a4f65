//! One engine works on a control plane: the one that holds the Lease. It is the one that the Go lifecycle manager takes for its
//! leader election, so the two never work at once either.
//!
//! `step` decides from what was read and from how long it has been read like that, by this process's own clock; the times in the
//! Lease are other machines' and are never compared. A holder that could not renew for two thirds of the duration stops
//! writing and ends before anybody else may begin.

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

/// The Lease's name: the Go lifecycle manager's (contract, section 2.2).
pub const NAME: &str = "893110f7.kyma-project.io";
/// For how long a holder is believed without a sign of life, unless somebody says otherwise.
pub const DURATION: Duration = Duration::from_secs(15);
/// What may be said: time for two requests that hang, up to what the Go manager waits for, whatever the Lease says.
pub const DURATIONS: RangeInclusive<u64> = 15..=180;
/// Between two looks while somebody else holds it.
const LOOK: Duration = Duration::from_secs(2);
/// For one request; a renewal that hangs leaves time for another one.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Who takes part.
#[derive(Clone)]
pub struct Candidate {
    /// The control plane.
    pub client: Client,
    /// The namespace of the Lease.
    pub namespace: String,
    /// Where this process runs, as a rule its pod's name. A Lease that is held by the same place is of a process that is gone.
    pub place: String,
    /// This process.
    pub id: String,
    /// For how long it is believed without a sign of life: one of [`DURATIONS`], in seconds.
    pub duration: Duration,
}

/// The Lease, held. Renewed while [`Term::keep`] runs.
pub struct Term {
    candidate: Candidate,
    renewed_at: Instant,
    transitions: i32,
    /// As this process has written it; none once somebody else may have.
    written: Option<Lease>,
}

/// The Lease is not held any more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Somebody else has it.
    #[error("the Lease {NAME} is held by '{0}' now")]
    Taken(String),
    /// It could not be renewed in time.
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

    /// How long a term lasts without a renewal: shorter than others wait, by clocks that differ.
    fn term(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// Between two signs of life.
    fn pause(&self) -> Duration {
        self.duration * 4 / 15
    }

    fn holder(&self) -> String {
        format!("{}_{}", self.place, self.id)
    }

    /// Waits until the Lease is this process's.
    pub async fn acquire(self) -> Term {
        let api = self.api();
        // What was read last, and since when it has been read like that.
        let mut seen: Option<(Record, Instant)> = None;
        loop {
            let read = match within(api.get_opt(NAME)).await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "who works on the control plane is not known; trying again");
                    tokio::time::sleep(LOOK).await;
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
                tracing::info!(holder = record.holder, "somebody else holds the Lease; waiting");
            }
            seen = record.clone().map(|record| (record, since));
            match step(record.as_ref(), &self.place, &self.holder(), now - since) {
                Step::Wait(left) => tokio::time::sleep(left.clamp(Duration::from_millis(50), LOOK)).await,
                Step::Take => match self.write(read.as_ref(), now).await {
                    Ok(term) => return term,
                    Err(error) => {
                        // As a rule: somebody else was faster.
                        tracing::info!(error = %chain(&error), "the Lease was not taken; looking again");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                },
            }
        }
    }

    /// Writes itself into the Lease, over what was read. The term counts from before the request.
    async fn write(&self, over: Option<&Lease>, now: Instant) -> Result<Term, CallError> {
        let before = over.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let holder = self.holder();
        let is_new = before.holder_identity.as_ref() != Some(&holder);
        let transitions = before.lease_transitions.unwrap_or(0) + i32::from(is_new && over.is_some());
        let stamp = MicroTime(Timestamp::now());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                // Only over what was read.
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
    /// How often the Lease has changed hands.
    #[must_use]
    pub const fn transitions(&self) -> i32 {
        self.transitions
    }

    /// Renews until it is lost.
    pub async fn keep(&mut self) -> Lost {
        loop {
            let end = self.renewed_at + self.candidate.term();
            let next =
                (self.renewed_at + self.candidate.pause()).max(Instant::now() + Duration::from_millis(200));
            tokio::time::sleep_until(next.min(end)).await;
            let now = Instant::now();
            if now >= end {
                return Lost::Late(self.candidate.term());
            }
            match tokio::time::timeout_at(end, self.renew(now)).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(holder))) => return Lost::Taken(holder),
                Ok(Err(error)) => {
                    tracing::warn!(error = %chain(&error), "the Lease is not renewed yet; trying again");
                }
                Err(_) => return Lost::Late(self.candidate.term()),
            }
        }
    }

    /// `Some(holder)` if it is another's.
    async fn renew(&mut self, now: Instant) -> Result<Option<String>, CallError> {
        // What was written last is as a rule still there; if not, the write is refused, and the next try reads.
        let over = match self.written.take() {
            Some(written) => Some(written),
            None => within(self.candidate.api().get_opt(NAME)).await?,
        };
        let record = over.as_ref().map(Record::of).unwrap_or_default();
        // Gone, or let go by somebody who has no right to: taken again, by whoever is first.
        if !record.holder.is_empty() && record.holder != self.candidate.holder() {
            return Ok(Some(record.holder));
        }
        let term = self.candidate.write(over.as_ref(), now).await?;
        (self.renewed_at, self.written) = (term.renewed_at, term.written);
        Ok(None)
    }

    /// Lets the next one begin at once. For a process that writes nothing any more.
    pub async fn release(self) {
        let let_go = async {
            let Some(mut lease) = self.candidate.api().get_opt(NAME).await? else { return Ok(()) };
            if Record::of(&lease).holder != self.candidate.holder() {
                return Ok(());
            }
            if let Some(spec) = &mut lease.spec {
                // Not taken away: the Go manager reads an empty text as nobody, too.
                spec.holder_identity = Some(String::new());
            }
            self.candidate.api().replace(NAME, &PostParams::default(), &lease).await.map(drop)
        };
        match within(let_go).await {
            Ok(()) => tracing::info!("the Lease is let go"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the Lease is not let go; it runs out by itself");
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
