//! Circuit breaker of each registry (`host[:port]`).
//!
//! *Closed*: requests pass. *Open*: they fail at once, with the failure that opened it. *Half open*: one request
//! probes the registry.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::OciError;

/// Maximum time in the open state.
const MAX_OPEN: Duration = Duration::from_hours(1);
/// Time in the open state without `Retry-After`: 1 s, doubling to 5 min with each failed probe.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// Failures in a row that open the breaker.
const FAILURES: u32 = 3;
/// Wait during a probe.
const WAIT_DURING_PROBE: Duration = Duration::from_secs(2);
/// Maximum breakers. Further registries have none.
const REGISTRIES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Works,
    /// No answer, or a server error.
    Fails,
    /// The registry requests a pause, maybe of this length.
    RequestsPause(Option<Duration>),
}

impl Health {
    const fn of(error: &OciError) -> Self {
        match error {
            OciError::RateLimited { retry_after, .. } => Self::RequestsPause(*retry_after),
            OciError::Status { status: 500.., retry_after: Some(wait), .. } => {
                Self::RequestsPause(Some(*wait))
            }
            OciError::Status { status: 500.., .. }
            | OciError::Unreachable { .. }
            | OciError::Timeout { .. } => Self::Fails,
            _ => Self::Works,
        }
    }
}

/// A working registry has no breaker.
#[derive(Debug)]
struct Breaker {
    failures: u32,
    /// Openings since it last worked.
    opened: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    until: Instant,
    /// A probe is in flight.
    probing: bool,
    cause: Arc<OciError>,
}

#[derive(Debug)]
enum Admission {
    /// Send it; `true`: as a probe.
    Send(bool),
    /// Reject it for this time.
    Wait(Arc<OciError>, Duration),
}

impl Breaker {
    const fn new() -> Self {
        Self { failures: 0, opened: 0, open: None }
    }

    fn admit(&mut self, now: Instant) -> Admission {
        match &mut self.open {
            None => Admission::Send(false),
            Some(open) if now < open.until => {
                Admission::Wait(Arc::clone(&open.cause), open.until.duration_since(now))
            }
            Some(open) if open.probing => Admission::Wait(Arc::clone(&open.cause), WAIT_DURING_PROBE),
            Some(open) => {
                open.probing = true;
                Admission::Send(true)
            }
        }
    }

    /// `spread`, from 0 to 1, extends the backoff by up to a quarter.
    fn failed(&mut self, now: Instant, cause: OciError, probe: bool, spread: f64) {
        let verdict = Health::of(&cause);
        self.failures = self.failures.saturating_add(1);
        let requested = match verdict {
            Health::RequestsPause(wait) => wait,
            // In flight when it opened.
            Health::Fails if self.open.is_some() && !probe => return,
            Health::Fails if self.open.is_none() && self.failures < FAILURES => return,
            Health::Fails => None,
            Health::Works => return,
        };
        if probe || self.open.is_none() {
            self.opened = self.opened.saturating_add(1);
        }
        let doubled = MIN_BACKOFF.saturating_mul(1 << self.opened.saturating_sub(1).min(16)).min(MAX_BACKOFF);
        let wait = requested.unwrap_or_else(|| doubled.mul_f64(1.0 + spread / 4.0)).min(MAX_OPEN);
        let until = now + wait;
        // Not before a wait that a caller already received.
        let before = self.open.as_ref().filter(|_| !probe);
        let probing = before.is_some_and(|open| open.probing);
        let until = before.map_or(until, |open| open.until.max(until));
        self.open = Some(Open { until, probing, cause: Arc::new(cause) });
    }

    fn abandoned(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = false;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Breakers(Mutex<BTreeMap<String, Breaker>>);

impl Breakers {
    /// Admits a request. Its result goes to [`Admitted::ended`].
    ///
    /// # Errors
    /// [`OciError::CircuitOpen`] while the breaker is open.
    pub(super) fn admit<'a>(
        &'a self,
        registry: &'a str,
        timeout: Duration,
    ) -> Result<Admitted<'a>, OciError> {
        let now = Instant::now();
        let admission = self.0.lock().get_mut(registry).map_or(Admission::Send(false), |b| b.admit(now));
        match admission {
            Admission::Send(probe) => {
                Ok(Admitted { breakers: self, registry, probe, since: now, timeout, is_recorded: false })
            }
            Admission::Wait(cause, retry_after) => {
                Err(OciError::CircuitOpen { registry: registry.to_owned(), retry_after, cause })
            }
        }
    }

    /// Registries whose breaker is open. One whose time is over is half open.
    pub(super) fn open(&self) -> Vec<String> {
        let now = Instant::now();
        let is_open = |breaker: &Breaker| breaker.open.as_ref().is_some_and(|open| now < open.until);
        let breakers = self.0.lock();
        breakers.iter().filter(|(_, b)| is_open(b)).map(|(registry, _)| registry.clone()).collect()
    }

    fn failed(&self, registry: &str, cause: OciError, probe: bool) {
        let mut breakers = self.0.lock();
        if !breakers.contains_key(registry) && breakers.len() >= REGISTRIES {
            return;
        }
        let breaker = breakers.entry(registry.to_owned()).or_insert_with(Breaker::new);
        let was_open = breaker.open.is_some();
        breaker.failed(Instant::now(), cause, probe, chance());
        if let (false, Some(open)) = (was_open, &breaker.open) {
            let seconds = open.until.duration_since(Instant::now()).as_secs();
            tracing::warn!(registry, error = %open.cause, seconds, "the registry fails; its circuit breaker opens");
        }
    }

    fn worked(&self, registry: &str, probe: bool) {
        let mut breakers = self.0.lock();
        let Some(breaker) = breakers.get(registry) else { return };
        if breaker.open.is_none() {
            breakers.remove(registry);
        } else if probe {
            tracing::info!(registry, "the registry works again");
            breakers.remove(registry);
        }
    }
}

/// Random, to keep processes out of step.
fn chance() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or_default())
        / f64::from(u32::MAX)
}

/// An admitted request. Without an answer after `timeout`, it counts as timed out.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    breakers: &'a Breakers,
    registry: &'a str,
    probe: bool,
    since: Instant,
    timeout: Duration,
    is_recorded: bool,
}

impl Admitted<'_> {
    /// Records the result.
    pub(super) fn ended<T>(mut self, result: &Result<T, OciError>) {
        self.is_recorded = true;
        match result {
            Err(error) if Health::of(error) != Health::Works => {
                self.breakers.failed(self.registry, error.clone(), self.probe);
            }
            _ => self.breakers.worked(self.registry, self.probe),
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.is_recorded {
            return;
        }
        let after = Instant::now().duration_since(self.since);
        if after >= self.timeout {
            let subject = format!("an answer of registry {}", self.registry);
            self.breakers.failed(self.registry, OciError::Timeout { subject, after }, self.probe);
        } else if self.probe
            && let Some(breaker) = self.breakers.0.lock().get_mut(self.registry)
        {
            breaker.abandoned();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOST: &str = "registry.example";

    fn limited(seconds: Option<u64>) -> OciError {
        OciError::RateLimited { registry: HOST.into(), retry_after: seconds.map(Duration::from_secs) }
    }

    fn status(status: u16) -> OciError {
        OciError::Status { registry: HOST.into(), status, retry_after: None }
    }

    fn waits(breaker: &mut Breaker, now: Instant) -> Option<u64> {
        match breaker.admit(now) {
            Admission::Send(_) => None,
            Admission::Wait(_, wait) => Some(wait.as_secs()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttling_registry_is_probed_after_its_retry_after() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        breaker.failed(now, limited(Some(600)), false, 0.0);
        assert_eq!(waits(&mut breaker, now), Some(600));
        // A request in flight does not shorten it.
        breaker.failed(now, limited(Some(5)), false, 0.0);
        assert_eq!(waits(&mut breaker, now + Duration::from_secs(599)), Some(1));
        let later = now + Duration::from_mins(10);
        assert!(matches!(breaker.admit(later), Admission::Send(true)));
        assert_eq!(waits(&mut breaker, later), Some(2), "one probe is in flight");
        breaker.abandoned();
        assert!(matches!(breaker.admit(later), Admission::Send(true)), "the probe was abandoned");
        breaker.failed(later, limited(Some(99_999)), true, 0.0);
        assert_eq!(waits(&mut breaker, later), Some(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn consecutive_registry_failures_back_off() {
        let (mut breaker, mut now) = (Breaker::new(), Instant::now());
        for _ in 0..2 {
            breaker.failed(now, status(503), false, 0.0);
            assert_eq!(waits(&mut breaker, now), None, "one bad answer is no bad registry");
        }
        breaker.failed(now, status(503), false, 0.0);
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(waits(&mut breaker, now), Some(expected));
            now += Duration::from_secs(expected);
            assert!(matches!(breaker.admit(now), Admission::Send(true)));
            breaker.failed(now, status(500), true, 0.0);
        }
        breaker.failed(now, status(500), true, 1.0);
        assert_eq!(waits(&mut breaker, now), Some(375), "up to a quarter more");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_breaker_refuses_callers_until_a_probe_succeeds() {
        let breakers = Breakers::default();
        let timeout = Duration::from_secs(15);
        let admit = || breakers.admit(HOST, timeout);
        admit().unwrap().ended(&Err::<(), _>(limited(Some(60))));
        assert_eq!(breakers.open(), [HOST]);
        let error = admit().unwrap_err();
        assert_eq!((error.metric_label(), error.retry_after()), ("left_alone", Some(Duration::from_mins(1))));
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("limits our request rate"));
        assert!(error.to_string().contains(HOST) && error.is_retryable());
        breakers.admit("other.example", timeout).unwrap().ended(&Ok(()));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(breakers.open().is_empty(), "the next request is a probe");
        let probe = admit().unwrap();
        assert!(admit().is_err());
        drop(probe);
        admit().unwrap().ended(&Ok(()));
        assert!(breakers.open().is_empty() && breakers.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn not_found_is_an_answer_timeouts_are_failures() {
        let breakers = Breakers::default();
        let admit = || breakers.admit(HOST, Duration::from_secs(15)).unwrap();
        for _ in 0..10 {
            admit().ended(&Err::<(), _>(OciError::NotFound { subject: "it".into() }));
            drop(admit());
        }
        assert!(breakers.0.lock().is_empty(), "an abandoned request is no failure");
        for _ in 0..FAILURES {
            let admitted = admit();
            tokio::time::advance(Duration::from_secs(15)).await;
            drop(admitted);
        }
        assert_eq!(breakers.open(), [HOST]);
    }

    proptest! {
        #[test]
        fn the_breaker_waits_an_hour_at_most(
            steps in proptest::collection::vec((0_u8..4, 0_u64..5000, 0.0_f64..1.0), 1..60)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let start = runtime.block_on(async { Instant::now() });
            let (mut breaker, mut now, mut probing) = (Breaker::new(), start, false);
            for (step, number, spread) in steps {
                match step {
                    0 => now += Duration::from_secs(number),
                    1 => match breaker.admit(now) {
                        Admission::Send(true) => {
                            prop_assert!(!probing);
                            probing = true;
                        }
                        Admission::Send(false) => prop_assert!(breaker.open.is_none()),
                        Admission::Wait(_, wait) => prop_assert!(wait <= MAX_OPEN),
                    },
                    2 if probing => {
                        breaker.failed(now, status(500), true, spread);
                        probing = false;
                    }
                    _ => breaker.failed(now, limited((number > 2500).then_some(number)), false, spread),
                }
            }
            // A probe always follows.
            breaker.abandoned();
            prop_assert!(matches!(breaker.admit(now + MAX_OPEN), Admission::Send(_)));
        }
    }
}
