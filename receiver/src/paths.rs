//! Event paths: whether each runtime's events arrive, and polls while they may not. Pure.
//!
//! A runtime is *proven* while its canary is recent, all watches are fresh and its configuration is as expected. A canary alone would hide
//! a blind watch. Proven runtimes get safety resyncs, unproven ones polls.
//! If many are unproven at once, the path is ill: polls are rarer, or they flood a troubled engine.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use tidewatch_delivery::{backoff::Backoff, pace::Pace};
use tidewatch_engine::queue::Tick;
use tidewatch_wire::v3::Health;

mod refusal;
mod report;
mod view;

pub use refusal::{Refusal, Refusals};
pub use report::Report;
pub use view::View;

/// Backoff of rewriting a configuration changed by hand.
const FLIPS: Backoff = Backoff { base: Duration::from_secs(5), max: Duration::from_mins(3) };

/// Times and limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Validity of a canary. Agents send one every 60 s.
    pub proven_for: Duration,
    /// Limit for unknown runtimes and for applying a configuration.
    pub grace: Duration,
    /// Poll interval of unproven runtimes; zero: never.
    pub poll: Duration,
    /// Poll interval of unreachable runtimes; zero: never.
    pub poll_unreachable: Duration,
    /// Safety resync interval of proven runtimes; zero: never.
    pub resync: Duration,
    /// The path is ill above this unproven share ...
    pub ill_share: f64,
    /// ... and at least this many unproven runtimes.
    pub ill_at_least: usize,
    /// Factor of poll intervals while the path is ill.
    pub ill_stretch: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            proven_for: Duration::from_secs(75),
            grace: Duration::from_mins(3),
            poll: Duration::from_mins(2),
            poll_unreachable: Duration::from_hours(1),
            resync: Duration::from_hours(12),
            ill_share: 0.10,
            ill_at_least: 20,
            ill_stretch: 10,
        }
    }
}

/// State of an event path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// No evidence yet, within [`Settings::grace`].
    Unknown,
    /// Events arrive; no polls.
    Proven,
    /// Events may be lost; polled.
    Unproven,
    /// Silent and unreachable (hibernated or gone); rarely polled.
    Unreachable,
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Proven, Self::Unproven, Self::Unreachable];

    /// Returns the metrics label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Proven => "proven",
            Self::Unproven => "unproven",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Reason for a reconcile without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Not proven.
    Poll,
    /// Safety resync.
    Resync,
}

impl Check {
    /// Returns the metrics label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Resync => "resync",
        }
    }
}

/// An action of [`Paths::tick`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reconcile the runtime; at a resync the catalog too.
    Check {
        /// The Kyma.
        kyma: String,
        /// The reason.
        check: Check,
    },
    /// Rewrite the agent's configuration and role.
    Configure {
        /// The Kyma.
        kyma: String,
    },
    /// Set the Kyma's condition.
    Report {
        /// The Kyma.
        kyma: String,
        /// The content.
        report: Report,
    },
}

#[derive(Clone, Debug)]
struct Path {
    /// The Kyma's; empty before registration.
    uid: String,
    state: State,
    since: Tick,
    /// Last v3 request.
    received: Option<Tick>,
    /// Last returned canary.
    canary: Option<Tick>,
    health: Health,
    /// When the agent first reported its installation.
    installed: Option<Tick>,
    /// Expected configuration; empty: any.
    expected: String,
    /// Previous configuration; the next tick may expect it.
    previous: String,
    /// Last configuration change.
    renewed: Option<Tick>,
    /// Unexpected configuration since.
    other_configuration: Option<Tick>,
    /// When to rewrite it.
    configure: Option<Tick>,
    /// Reverts of the expected configuration.
    flips: Pace,
    /// By the last reconcile.
    reachable: bool,
    next_check: Tick,
    report: Option<Report>,
    /// Agent active without a longer pause since.
    connected: Option<Tick>,
    /// Certificate expiry.
    not_after: Option<Timestamp>,
    refusals: Refusals,
}

/// Event paths of all runtimes.
#[derive(Debug)]
pub struct Paths {
    settings: Settings,
    runtimes: HashMap<String, Path>,
    ill: bool,
}

impl Paths {
    /// Creates it without runtimes.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, runtimes: HashMap::new(), ill: false }
    }

    /// Sets the registered Kymas: names and uids. A Kyma that was created again has none of the old one's proof: its agent is new.
    pub fn registered<'a>(&mut self, kymas: impl Iterator<Item = (&'a str, &'a str)>, now: Tick) {
        let mut before = std::mem::take(&mut self.runtimes);
        self.runtimes = kymas
            .map(|(kyma, uid)| {
                let path = before.remove(kyma).filter(|path| path.uid.is_empty() || path.uid == uid);
                let mut path = path.unwrap_or_else(|| Path::new(kyma, &self.settings, now));
                uid.clone_into(&mut path.uid);
                (kyma.to_owned(), path)
            })
            .collect();
    }

    /// Records a v3 request, also before registration.
    pub fn received(&mut self, kyma: &str, health: Option<Health>, now: Tick) {
        let path =
            self.runtimes.entry(kyma.to_owned()).or_insert_with(|| Path::new(kyma, &self.settings, now));
        let before = path.received.replace(now);
        let is_first = before.is_none();
        if before.is_none_or(|before| now.saturating_sub(before) > self.settings.proven_for) {
            path.connected = Some(now);
        }
        if let Some(health) = health {
            // Changed by hand: no rollout is in flight.
            let had = !path.expected.is_empty() && path.health.configuration == path.expected;
            if had && health.configuration != path.expected {
                path.flips.demanded(&FLIPS, fraction(kyma), now);
                path.configure = Some(now.max(path.flips.until()));
            }
            if health.configuration != path.health.configuration {
                path.previous = std::mem::take(&mut path.health.configuration);
                path.renewed = (!is_first).then_some(now);
            }
            if health.installation != path.health.installation {
                path.installed = Some(now);
            }
            path.health = health;
        }
        if path.state == State::Unreachable {
            // Check for missed changes.
            path.reachable = true;
            path.next_check = now;
        }
    }

    /// Records the certificate's expiry.
    pub fn certificate(&mut self, kyma: &str, not_after: Timestamp) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.not_after = Some(not_after);
        }
    }

    /// Records a registered runtime's refusal.
    pub fn refused(&mut self, kyma: &str, refusal: Refusal, now: Tick) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.refusals.another(refusal, now);
        }
    }

    /// Records a returned canary.
    pub fn canary(&mut self, kyma: &str, now: Tick) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.canary = Some(now);
        }
    }

    /// Records the API server's reachability.
    pub fn reachable(&mut self, kyma: &str, reachable: bool) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.reachable = reachable;
        }
    }

    /// Returns due steps. `expected`: a Kyma's agent configuration; empty: any. Linear.
    pub fn tick<'a>(&mut self, expected: impl Fn(&str) -> &'a str, now: Tick) -> Vec<Step> {
        let Self { settings, runtimes, ill, .. } = self;
        let mut steps = Vec::new();
        let mut fell: Vec<String> = Vec::new();
        for (kyma, path) in runtimes.iter_mut() {
            let before = path.state;
            path.advance(kyma, expected(kyma), settings, now, &mut steps);
            if before != State::Unproven && path.state == State::Unproven {
                fell.push(kyma.clone());
            }
        }
        let unproven = runtimes.values().filter(|p| p.state == State::Unproven).count();
        *ill = unproven >= settings.ill_at_least && ratio(unproven, runtimes.len()) > settings.ill_share;
        for kyma in fell {
            if let Some(path) = runtimes.get_mut(&kyma) {
                let wait = if *ill { settings.poll * settings.ill_stretch } else { Duration::ZERO };
                path.next_check = now + wait.mul_f64(fraction(&kyma));
            }
        }
        for (kyma, path) in runtimes.iter_mut().filter(|(_, p)| p.next_check <= now) {
            let spread = 0.9 + 0.2 * fraction(kyma);
            let (check, pause) = match path.state {
                // In grace.
                State::Unknown => continue,
                State::Proven => (Check::Resync, settings.resync),
                State::Unproven if *ill => (Check::Poll, settings.poll * settings.ill_stretch),
                State::Unproven => (Check::Poll, settings.poll),
                State::Unreachable => (Check::Poll, settings.poll_unreachable),
            };
            path.next_check = now + pause.max(Duration::from_secs(1)).mul_f64(spread);
            if pause.is_zero() || check == Check::Poll && settings.poll.is_zero() {
                continue;
            }
            steps.push(Step::Check { kyma: kyma.clone(), check });
        }
        steps
    }

    /// Returns whether the path itself is ill.
    #[must_use]
    pub fn ill(&self) -> bool {
        self.ill
    }

    /// Returns a runtime's state.
    #[must_use]
    pub fn state(&self, kyma: &str) -> Option<State> {
        self.runtimes.get(kyma).map(|p| p.state)
    }

    /// Returns the reported trust of a runtime's agent ([`Health::trust`]).
    #[must_use]
    pub fn trust(&self, kyma: &str) -> Option<&String> {
        self.runtimes.get(kyma).map(|path| &path.health.trust)
    }

    /// Returns whether a runtime is proven by an agent of this installation.
    #[must_use]
    pub fn proves(&self, kyma: &str, installation: &str) -> bool {
        self.runtimes.get(kyma).is_some_and(|path| {
            path.state == State::Proven
                && path.health.installation == installation
                && path.canary.is_some_and(|at| path.installed.is_none_or(|since| at > since))
        })
    }

    /// Returns a runtime's path for pages.
    #[must_use]
    pub fn view(&self, kyma: &str, now: Tick) -> Option<View<'_>> {
        let path = self.runtimes.get(kyma)?;
        Some(View::new(path, path.is_silent(&self.settings, now), now))
    }

    /// Counts runtimes by state.
    #[must_use]
    pub fn counts(&self) -> [(State, usize); 4] {
        State::ALL.map(|state| (state, self.runtimes.values().filter(|p| p.state == state).count()))
    }

    /// Returns ages of last canaries, unsorted.
    #[must_use]
    pub fn staleness(&self, now: Tick) -> Vec<Duration> {
        self.runtimes.values().filter_map(|p| p.canary).map(|at| now.saturating_sub(at)).collect()
    }

    /// Returns the worst runtimes: by state, then canary age.
    #[must_use]
    pub fn worst(&self, most: usize, now: Tick) -> Vec<Worst> {
        let mut all: Vec<_> = self
            .runtimes
            .iter()
            .map(|(kyma, p)| {
                let age = |at: Option<Tick>| at.map(|at| now.saturating_sub(at));
                Worst { kyma: kyma.clone(), state: p.state, received: age(p.received), canary: age(p.canary) }
            })
            .collect();
        let rank = |worst: &Worst| {
            let order = match worst.state {
                State::Unproven => 0,
                State::Unknown => 1,
                State::Proven => 2,
                State::Unreachable => 3,
            };
            let age = |age: Option<Duration>| std::cmp::Reverse(age.unwrap_or(Duration::MAX));
            (order, age(worst.canary), age(worst.received), worst.kyma.clone())
        };
        all.sort_by_cached_key(rank);
        all.truncate(most);
        all
    }
}

/// A runtime of [`Paths::worst`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worst {
    /// Its Kyma.
    pub kyma: String,
    /// Its state.
    pub state: State,
    /// Age of the last request.
    pub received: Option<Duration>,
    /// Age of the last canary.
    pub canary: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// No v3 request.
    NeverReceived,
    /// No recent canary.
    NoCanary,
    /// Stale watches.
    Blind(Vec<String>),
    /// Unexpected configuration.
    Configuration,
}

impl Path {
    fn new(kyma: &str, settings: &Settings, now: Tick) -> Self {
        Self {
            uid: String::new(),
            state: State::Unknown,
            since: now,
            received: None,
            canary: None,
            health: Health::default(),
            installed: None,
            expected: String::new(),
            previous: String::new(),
            renewed: None,
            other_configuration: None,
            configure: None,
            flips: Pace::default(),
            reachable: true,
            // Spread resyncs to avoid a wave after a start.
            next_check: now + settings.resync.mul_f64(fraction(kyma)),
            report: None,
            connected: None,
            not_after: None,
            refusals: Refusals::default(),
        }
    }

    fn fault(&mut self, settings: &Settings, now: Tick) -> Option<Fault> {
        let other = !self.expected.is_empty() && self.health.configuration != self.expected;
        if other {
            self.other_configuration.get_or_insert(now);
            // Agents report within this time.
            if self.received.is_some() {
                self.configure.get_or_insert(now + settings.proven_for);
            }
        } else {
            (self.other_configuration, self.configure) = (None, None);
        }
        if self.received.is_none() {
            return Some(Fault::NeverReceived);
        }
        if self.canary.is_none_or(|at| now.saturating_sub(at) > settings.proven_for) {
            return Some(Fault::NoCanary);
        }
        // New watches list first; the next heartbeat may take a minute.
        let lists = self.state == State::Proven
            && self.renewed.is_some_and(|at| now.saturating_sub(at) <= settings.grace);
        if !self.health.blind.is_empty() && !lists {
            return Some(Fault::Blind(self.health.blind.clone()));
        }
        let late = self.other_configuration.is_some_and(|since| now.saturating_sub(since) > settings.grace);
        late.then_some(Fault::Configuration)
    }

    /// Finds the present state, and adds the steps that follow from it.
    fn advance(&mut self, kyma: &str, expected: &str, settings: &Settings, now: Tick, steps: &mut Vec<Step>) {
        let renewed = self.expected != expected;
        if renewed {
            expected.clone_into(&mut self.expected);
        }
        let fault = self.fault(settings, now);
        // The agent had the new configuration and lost it.
        if renewed && self.configure.is_some() && self.previous == expected {
            self.configure = Some(now.max(self.flips.until()));
        }
        if self.configure.is_some_and(|at| at <= now) {
            self.configure = Some(now + settings.grace);
            steps.push(Step::Configure { kyma: kyma.to_owned() });
        }
        let next = self.next_state(fault.is_none(), settings, now);
        if next != self.state {
            // Polls replace a resync; unknown runtimes keep their time.
            if next == State::Proven && self.state != State::Unknown {
                self.next_check = now + settings.resync.mul_f64(0.9 + 0.2 * fraction(kyma));
            }
            (self.state, self.since) = (next, now);
        }
        // Keep the condition from before a restart.
        if self.state == State::Unknown {
            return;
        }
        // A received agent is not the refused peer.
        let is_silent = self.is_silent(settings, now);
        let refused = if is_silent { self.refusals.reported(settings.grace, now) } else { None };
        let report = Report::new(self.state, fault, refused);
        if self.report.as_ref() != Some(&report) {
            self.report = Some(report.clone());
            steps.push(Step::Report { kyma: kyma.to_owned(), report });
        }
    }

    fn is_silent(&self, settings: &Settings, now: Tick) -> bool {
        self.received.is_none_or(|at| now.saturating_sub(at) > settings.proven_for)
    }

    fn next_state(&self, good: bool, settings: &Settings, now: Tick) -> State {
        if good {
            return State::Proven;
        }
        // Waiting does not mend a refused certificate.
        let is_refused = self.received.is_none() && self.refusals.is_verified();
        if self.state == State::Unknown && now.saturating_sub(self.since) <= settings.grace && !is_refused {
            return State::Unknown;
        }
        if self.is_silent(settings, now) && !self.reachable { State::Unreachable } else { State::Unproven }
    }
}

/// Stable per runtime, in `[0, 1)`, to spread load.
#[allow(clippy::cast_precision_loss, reason = "an even spread is all that is asked for")]
fn fraction(kyma: &str) -> f64 {
    (xxhash_rust::xxh3::xxh3_64(kyma.as_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}

#[allow(clippy::cast_precision_loss, reason = "counts of runtimes are far below 2^52")]
fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests;
