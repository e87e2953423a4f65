//! Admission of requests and events.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_wire::v3;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::{
    bucket::Bucket,
    deliveries::Door,
    limits::{Limits, Rate},
    refused::RefusalLog,
    shares::{Permit, Shares},
};

/// Shortest wait, before jitter.
const MIN_WAIT: Duration = Duration::from_secs(5);
/// Longest wait, before jitter. Agents wait at most five minutes.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Longest wait for a body's permit.
const BODY_WAIT: Duration = Duration::from_secs(2);
/// One runtime may use one part of the resend rate.
const RESENT_PARTS: f64 = 10.0;
/// Above this, full buckets are evicted.
const KEPT_RUNTIMES: usize = 4_096;

/// Admission of all connections of a listener.
pub struct Admission {
    pub(crate) limits: Limits,
    pub(crate) refusals: RefusalLog,
    since: Timestamp,
    runtimes: Mutex<HashMap<String, Buckets>>,
    resent: Mutex<Bucket>,
    turned_away: Mutex<Backlog>,
    bodies: Semaphore,
    reading: Arc<Shares<String>>,
    work: Box<dyn Fn() -> f64 + Send + Sync>,
    jitter: fn() -> f64,
}

#[derive(Debug)]
pub(crate) struct BodyPermit<'a> {
    _own: Permit<String>,
    _common: SemaphorePermit<'a>,
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
    requests: Bucket,
    v2_events: Bucket,
    resent: Bucket,
}

/// An exceeded limit (a metric label) and the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttled {
    pub(crate) limit: &'static str,
    pub(crate) wait: Duration,
}

impl Admission {
    /// Creates the admission of a session.
    #[must_use]
    pub fn new(limits: Limits, since: Timestamp) -> Self {
        Self {
            limits,
            refusals: RefusalLog::new(),
            since,
            runtimes: Mutex::default(),
            resent: Mutex::new(Bucket::full(limits.resent, Instant::now())),
            turned_away: Mutex::new(Backlog { events: 0.0, at: Instant::now() }),
            bodies: Semaphore::new(limits.bodies.clamp(1, Semaphore::MAX_PERMITS)),
            reading: Shares::new(limits.bodies_per_runtime.min(limits.bodies / 2)),
            work: Box::new(|| 0.0),
            jitter: random,
        }
    }

    /// Sets the load of the queue. At 1, only canaries pass. `work` must be quick.
    #[must_use]
    pub fn with_work(self, work: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self { work: Box::new(work), ..self }
    }

    /// Sets the jitter, in `[0, 1)`.
    #[must_use]
    pub fn with_jitter(self, jitter: fn() -> f64) -> Self {
        Self { jitter, ..self }
    }

    pub(crate) fn load(&self) -> f64 {
        (self.work)()
    }

    pub(crate) fn request(&self, runtime: Option<&str>) -> Result<(), Throttled> {
        let rate = self.limits.requests;
        // Unregistered peers share the empty id.
        let taken = self.take(runtime.unwrap_or_default(), rate, 1.0, |buckets| &mut buckets.requests);
        taken.map_err(|wait| Throttled { limit: "requests", wait })
    }

    pub(crate) fn v2_event(&self, runtime: &str) -> Result<(), Throttled> {
        let taken = self.take(runtime, self.limits.v2_events, 1.0, |buckets| &mut buckets.v2_events);
        taken.map_err(|wait| Throttled { limit: "v2_events", wait })
    }

    /// Admits events. An error has the events admitted anyway, and the wait for the rest.
    ///
    /// Full reports and events from before the session count against the runtime's rate, then the common one. A wrong
    /// agent clock affects only its own runtime.
    pub(crate) fn events(&self, runtime: &str, request: &v3::Request<'_>) -> Result<(), (Door, Throttled)> {
        let about = || request.events.iter().filter(|event| event.watch != v3::CANARY);
        if about().next().is_none() {
            return Ok(());
        }
        let load = self.load();
        if load >= 1.0 {
            return Err((Door::Canary, Throttled { limit: "queued", wait: self.wait_at(load) }));
        }
        let door = Door::Younger(self.since);
        let old = about().filter(|event| !door.admits(event)).count();
        if old == 0 {
            return Ok(());
        }
        let count = f64::from(u32::try_from(old).unwrap_or(u32::MAX));
        let throttled = |limit, wait: Duration| {
            let load = 1.0 + wait.as_secs_f64() / MIN_WAIT.as_secs_f64();
            (door, Throttled { limit, wait: self.wait_at(load) })
        };
        let own = resent_by_one(self.limits.resent);
        self.take(runtime, own, count, |buckets| &mut buckets.resent)
            .map_err(|wait| throttled("resent_by_runtime", wait))?;
        let taken = self.resent.lock().take(self.limits.resent, count, Instant::now());
        taken.map_err(|wait| {
            let wait = wait.max(self.turned_away.lock().another(self.limits.resent, count, Instant::now()));
            // The runtime keeps its tokens.
            if let Some(buckets) = self.runtimes.lock().get_mut(runtime) {
                buckets.resent.give_back(count);
            }
            throttled("resent", wait)
        })
    }

    pub(crate) const fn since(&self) -> Timestamp {
        self.since
    }

    /// Waits for permits. The runtime's own permit comes first, so it cannot fill the common queue.
    pub(crate) async fn body(&self, runtime: &str) -> Result<BodyPermit<'_>, Throttled> {
        let until = Instant::now() + BODY_WAIT;
        let throttled = |limit| Throttled { limit, wait: self.wait() };
        let own = tokio::time::timeout_at(until, self.reading.acquire(runtime.to_owned())).await;
        let Ok(Some(own)) = own else { return Err(throttled("bodies_by_runtime")) };
        let common = tokio::time::timeout_at(until, self.bodies.acquire()).await;
        let Ok(Ok(common)) = common else { return Err(throttled("bodies")) };
        Ok(BodyPermit { _own: own, _common: common })
    }

    pub(crate) fn wait(&self) -> Duration {
        self.wait_at(1.0)
    }

    pub(crate) fn wait_at(&self, load: f64) -> Duration {
        wait(load, (self.jitter)())
    }

    fn take(
        &self,
        runtime: &str,
        rate: Rate,
        count: f64,
        bucket: impl Fn(&mut Buckets) -> &mut Bucket,
    ) -> Result<(), Duration> {
        let (limits, now) = (self.limits, Instant::now());
        let mut runtimes = self.runtimes.lock();
        if runtimes.len() >= KEPT_RUNTIMES
            && !runtimes.contains_key(runtime)
            && runtimes.len() == runtimes.capacity()
        {
            // Only before growth, since a scan is expensive.
            runtimes.retain(|_, buckets| {
                !buckets.requests.is_full(limits.requests, now)
                    || !buckets.v2_events.is_full(limits.v2_events, now)
                    || !buckets.resent.is_full(resent_by_one(limits.resent), now)
            });
        }
        let buckets = runtimes.entry(runtime.to_owned()).or_insert_with(|| Buckets {
            requests: Bucket::full(limits.requests, now),
            v2_events: Bucket::full(limits.v2_events, now),
            resent: Bucket::full(resent_by_one(limits.resent), now),
        });
        bucket(buckets).take(rate, count, now)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Estimate of throttled events that agents will resend.
#[derive(Clone, Copy, Debug)]
struct Backlog {
    events: f64,
    at: Instant,
}

impl Backlog {
    /// Returns the time to admit all events.
    fn another(&mut self, rate: Rate, count: f64, now: Instant) -> Duration {
        let per_second = rate.per_second.max(0.001);
        let passed = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        self.events = (self.events - passed).max(0.0) + count;
        self.at = now.max(self.at);
        Duration::try_from_secs_f64(self.events / per_second).unwrap_or(Duration::MAX)
    }
}

fn resent_by_one(all: Rate) -> Rate {
    Rate { per_second: all.per_second / RESENT_PARTS, burst: all.burst / RESENT_PARTS }
}

/// Wait for a load. Jitter of 0.5 to 1.5 keeps agents from returning together.
fn wait(load: f64, random: f64) -> Duration {
    let load = if load.is_finite() { load.clamp(1.0, 1_000.0) } else { 1_000.0 };
    MIN_WAIT.mul_f64(load).min(MAX_WAIT).mul_f64(0.5 + random.clamp(0.0, 1.0))
}

fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
