//! Whether the way of an event from each runtime is known to work, and what is done while it is not. Pure: time is
//! an argument.
//!
//! A runtime is *proven* while its canary has come back within the last [`Settings::proven_for`], every configured
//! watch of its agent is fresh, and the agent has applied the configuration that is expected of it. Canary alone is
//! not enough: one blind watch would hide behind it. A proven runtime is only looked at by the safety resync. One
//! that is not is polled by the engine, at once when it stops being proven, then every [`Settings::poll`].
//!
//! When a large part of the fleet stops being proven at once, the path is ill and not the runtimes: polls are
//! stretched, so that the engine is not flooded just when it has a problem of its own.

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

/// Before a configuration that is changed by hand again and again is written once more: the first time it is at once.
const FLIPS: Backoff = Backoff { base: Duration::from_secs(5), max: Duration::from_mins(3) };

/// Times and limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// A canary that came back longer ago than this proves nothing. Agents send one every 60 s.
    pub proven_for: Duration,
    /// How long a runtime may be *unknown* (new, or not heard of since the receiver has started) before it counts as
    /// not proven, and how long an agent may take to apply a new configuration.
    pub grace: Duration,
    /// Between two polls of a runtime that is not proven; zero: it is never polled.
    pub poll: Duration,
    /// Between two polls of a runtime that neither speaks nor answers; zero: it is never polled.
    pub poll_unreachable: Duration,
    /// Between two safety resyncs of a proven runtime; zero: there is none.
    pub resync: Duration,
    /// The path is ill when more than this share of the fleet is unproven ...
    pub ill_share: f64,
    /// ... and at least this many runtimes are.
    pub ill_at_least: usize,
    /// Polls are this many times rarer while the path is ill.
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

/// What is known of a runtime's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Nothing yet; it is given [`Settings::grace`].
    Unknown,
    /// Events arrive: polling is not needed.
    Proven,
    /// Events may be lost: it is polled.
    Unproven,
    /// Its agent is silent and its API server does not answer: hibernated, cut off or gone. It is asked rarely, and is
    /// nobody's alert.
    Unreachable,
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Proven, Self::Unproven, Self::Unreachable];

    /// A stable word for metrics and conditions.
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

/// Why a runtime is looked at although nothing was heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is not proven.
    Poll,
    /// It was not looked at as a whole for a long time.
    Resync,
}

/// What [`Paths::tick`] wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reconcile the runtime's Kyma, its mandatory modules and its Manifests; at a resync its catalog too.
    Look {
        /// Which.
        kyma: String,
        /// Why.
        look: Look,
    },
    /// Write the agent's configuration and role again: it works by another one than it did.
    Configure {
        /// Which.
        kyma: String,
    },
    /// Say it in the Kyma's condition.
    Tell {
        /// Which.
        kyma: String,
        /// What.
        report: Report,
    },
}

#[derive(Clone, Debug)]
struct Path {
    state: State,
    since: Tick,
    /// The last request of the v3 contract.
    heard: Option<Tick>,
    /// When the last canary came back.
    canary: Option<Tick>,
    health: Health,
    /// The configuration that the agent should have applied, as of the last [`Paths::tick`]; empty: any.
    expected: String,
    /// The configuration before the present one: it may be what is expected from the next look on.
    left: String,
    /// When the agent has said that it works by another configuration than before.
    renewed: Option<Tick>,
    /// Since when the agent's configuration is another than the expected one.
    other_configuration: Option<Tick>,
    /// When to write the configuration again, while it is another one.
    configure: Option<Tick>,
    /// How often it was another one after the right one.
    flips: Pace,
    /// Whether the last reconcile could talk to the runtime's API server.
    reachable: bool,
    next_look: Tick,
    report: Option<Report>,
    /// Since when its agent speaks without a longer silence.
    speaks: Option<Tick>,
    /// When the certificate ends by which it was last heard.
    not_after: Option<Timestamp>,
    refusals: Refusals,
}

/// The ways of all runtimes.
#[derive(Debug)]
pub struct Paths {
    settings: Settings,
    runtimes: HashMap<String, Path>,
    ill: bool,
}

impl Paths {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, runtimes: HashMap::new(), ill: false }
    }

    /// The registered Kymas, at a start and whenever they change: new ones begin as unknown, others are forgotten.
    pub fn registered<'a>(&mut self, kymas: impl Iterator<Item = &'a str>, now: Tick) {
        let mut before = std::mem::take(&mut self.runtimes);
        self.runtimes = kymas
            .map(|kyma| {
                let path = before.remove(kyma);
                (kyma.to_owned(), path.unwrap_or_else(|| Path::new(kyma, &self.settings, now)))
            })
            .collect();
    }

    /// An agent of a registered runtime has sent a request of the v3 contract. That may be before [`Paths::registered`]
    /// names it.
    pub fn heard(&mut self, kyma: &str, health: Option<Health>, now: Tick) {
        let path =
            self.runtimes.entry(kyma.to_owned()).or_insert_with(|| Path::new(kyma, &self.settings, now));
        let before = path.heard.replace(now);
        let known = before.is_some();
        if before.is_none_or(|before| now.saturating_sub(before) > self.settings.proven_for) {
            path.speaks = Some(now);
        }
        if let Some(health) = health {
            // It had the right one: this is not a roll-out that is under way, somebody has changed it there.
            let had = !path.expected.is_empty() && path.health.configuration == path.expected;
            if had && health.configuration != path.expected {
                path.flips.demanded(&FLIPS, fraction(kyma), now);
                path.configure = Some(now.max(path.flips.until()));
            }
            if health.configuration != path.health.configuration {
                path.left = std::mem::take(&mut path.health.configuration);
                path.renewed = known.then_some(now);
            }
            path.health = health;
        }
        if path.state == State::Unreachable {
            // It is back: look at once whether anything was missed.
            path.reachable = true;
            path.next_look = now;
        }
    }

    /// The certificate of the agent that was heard ends then.
    pub fn certificate(&mut self, kyma: &str, not_after: Timestamp) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.not_after = Some(not_after);
        }
    }

    /// A peer that says that it is the agent of a registered runtime was refused. Of others nothing is kept.
    pub fn refused(&mut self, kyma: &str, refusal: Refusal, now: Tick) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.refusals.another(refusal, now);
        }
    }

    /// A canary has come all the way back.
    pub fn canary(&mut self, kyma: &str, now: Tick) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.canary = Some(now);
        }
    }

    /// A reconcile could, or could not, talk to the runtime's API server.
    pub fn reachable(&mut self, kyma: &str, reachable: bool) {
        if let Some(path) = self.runtimes.get_mut(kyma) {
            path.reachable = reachable;
        }
    }

    /// What is due. `expected` tells the configuration that the agent of a Kyma should have applied; empty: any. Called
    /// every second or so; linear in the number of runtimes.
    pub fn tick<'a>(&mut self, expected: impl Fn(&str) -> &'a str, now: Tick) -> Vec<Step> {
        let Self { settings, runtimes, ill, .. } = self;
        let mut steps = Vec::new();
        let mut fell: Vec<String> = Vec::new();
        for (kyma, path) in runtimes.iter_mut() {
            let expected = expected(kyma);
            let renewed = path.expected != expected;
            if renewed {
                expected.clone_into(&mut path.expected);
            }
            let fault = path.fault(settings, now);
            // It was faster than this look: it has had the new one already, and works by another again.
            if renewed && path.configure.is_some() && path.left == expected {
                path.configure = Some(now.max(path.flips.until()));
            }
            if path.configure.is_some_and(|at| at <= now) {
                path.configure = Some(now + settings.grace);
                steps.push(Step::Configure { kyma: kyma.clone() });
            }
            let next = path.next_state(fault.is_none(), settings, now);
            if next != path.state {
                // One that was polled until now needs no resync soon; of one that was unknown nobody can say.
                if next == State::Proven && path.state != State::Unknown {
                    path.next_look = now + settings.resync.mul_f64(0.9 + 0.2 * fraction(kyma));
                } else if path.state != State::Unproven && next == State::Unproven {
                    fell.push(kyma.clone());
                }
                (path.state, path.since) = (next, now);
            }
            // While it is unknown, what was said before a restart stands.
            if path.state != State::Unknown {
                // While the agent is heard, it is somebody else who is refused.
                let refused = if path.is_silent(settings, now) {
                    path.refusals.told(settings.grace, now)
                } else {
                    None
                };
                let report = Report::new(path.state, fault, refused);
                if path.report.as_ref() != Some(&report) {
                    path.report = Some(report.clone());
                    steps.push(Step::Tell { kyma: kyma.clone(), report });
                }
            }
        }
        let unproven = runtimes.values().filter(|p| p.state == State::Unproven).count();
        *ill = unproven >= settings.ill_at_least && ratio(unproven, runtimes.len()) > settings.ill_share;
        for kyma in fell {
            if let Some(path) = runtimes.get_mut(&kyma) {
                let wait = if *ill { settings.poll * settings.ill_stretch } else { Duration::ZERO };
                path.next_look = now + wait.mul_f64(fraction(&kyma));
            }
        }
        for (kyma, path) in runtimes.iter_mut().filter(|(_, p)| p.next_look <= now) {
            let spread = 0.9 + 0.2 * fraction(kyma);
            let (look, pause) = match path.state {
                // It is being found out; there is a grace for that.
                State::Unknown => continue,
                State::Proven => (Look::Resync, settings.resync),
                State::Unproven if *ill => (Look::Poll, settings.poll * settings.ill_stretch),
                State::Unproven => (Look::Poll, settings.poll),
                State::Unreachable => (Look::Poll, settings.poll_unreachable),
            };
            path.next_look = now + pause.max(Duration::from_secs(1)).mul_f64(spread);
            if pause.is_zero() || look == Look::Poll && settings.poll.is_zero() {
                continue;
            }
            steps.push(Step::Look { kyma: kyma.clone(), look });
        }
        steps
    }

    /// Whether so many runtimes are unproven that the path must be ill.
    #[must_use]
    pub fn ill(&self) -> bool {
        self.ill
    }

    /// The state of one runtime.
    #[must_use]
    pub fn state(&self, kyma: &str) -> Option<State> {
        self.runtimes.get(kyma).map(|p| p.state)
    }

    /// What is known of one runtime, to be shown.
    #[must_use]
    pub fn view(&self, kyma: &str, now: Tick) -> Option<View<'_>> {
        let path = self.runtimes.get(kyma)?;
        Some(View::new(path, path.is_silent(&self.settings, now), now))
    }

    /// Runtimes by state.
    #[must_use]
    pub fn counts(&self) -> [(State, usize); 4] {
        State::ALL.map(|state| (state, self.runtimes.values().filter(|p| p.state == state).count()))
    }

    /// Ages of the last canaries, unsorted: the staleness of every runtime that has ever proven itself.
    #[must_use]
    pub fn staleness(&self, now: Tick) -> Vec<Duration> {
        self.runtimes.values().filter_map(|p| p.canary).map(|at| now.saturating_sub(at)).collect()
    }

    /// The runtimes that are worst off: unproven ones first, then the stalest; at most `most`.
    #[must_use]
    pub fn worst(&self, most: usize, now: Tick) -> Vec<Worst> {
        let mut all: Vec<_> = self
            .runtimes
            .iter()
            .map(|(kyma, p)| {
                let age = |at: Option<Tick>| at.map(|at| now.saturating_sub(at));
                Worst { kyma: kyma.clone(), state: p.state, heard: age(p.heard), canary: age(p.canary) }
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
            (order, age(worst.canary), age(worst.heard), worst.kyma.clone())
        };
        all.sort_by_cached_key(rank);
        all.truncate(most);
        all
    }
}

/// One runtime of [`Paths::worst`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worst {
    /// Its Kyma.
    pub kyma: String,
    /// The state of its way.
    pub state: State,
    /// How long ago its agent spoke.
    pub heard: Option<Duration>,
    /// How long ago its last canary came back.
    pub canary: Option<Duration>,
}

/// Why a runtime is not proven.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// No request of the v3 contract was ever heard.
    NeverHeard,
    /// No canary came back for too long.
    NoCanary,
    /// Watches that are not fresh.
    Blind(Vec<String>),
    /// It works by another configuration than the expected one.
    Configuration,
}

impl Path {
    fn new(kyma: &str, settings: &Settings, now: Tick) -> Self {
        Self {
            state: State::Unknown,
            since: now,
            heard: None,
            canary: None,
            health: Health::default(),
            expected: String::new(),
            left: String::new(),
            renewed: None,
            other_configuration: None,
            configure: None,
            flips: Pace::default(),
            reachable: true,
            // Spread over the whole time, so that a start is not followed by a wave.
            next_look: now + settings.resync.mul_f64(fraction(kyma)),
            report: None,
            speaks: None,
            not_after: None,
            refusals: Refusals::default(),
        }
    }

    fn fault(&mut self, settings: &Settings, now: Tick) -> Option<Fault> {
        let other = !self.expected.is_empty() && self.health.configuration != self.expected;
        if other {
            self.other_configuration.get_or_insert(now);
            // It has been heard by then, if it speaks at all.
            if self.heard.is_some() {
                self.configure.get_or_insert(now + settings.proven_for);
            }
        } else {
            (self.other_configuration, self.configure) = (None, None);
        }
        if self.heard.is_none() {
            return Some(Fault::NeverHeard);
        }
        if self.canary.is_none_or(|at| now.saturating_sub(at) > settings.proven_for) {
            return Some(Fault::NoCanary);
        }
        // New watches list first, and report what has happened before; the agent's next word may come a minute later.
        let lists = self.state == State::Proven
            && self.renewed.is_some_and(|at| now.saturating_sub(at) <= settings.grace);
        if !self.health.blind.is_empty() && !lists {
            return Some(Fault::Blind(self.health.blind.clone()));
        }
        let late = self.other_configuration.is_some_and(|since| now.saturating_sub(since) > settings.grace);
        late.then_some(Fault::Configuration)
    }

    /// No request of the v3 contract was heard for longer than an agent is silent.
    fn is_silent(&self, settings: &Settings, now: Tick) -> bool {
        self.heard.is_none_or(|at| now.saturating_sub(at) > settings.proven_for)
    }

    fn next_state(&self, good: bool, settings: &Settings, now: Tick) -> State {
        if good {
            return State::Proven;
        }
        // A certificate of a trusted issuer is refused for what it says: waiting brings nothing.
        let is_refused = self.heard.is_none() && self.refusals.is_verified();
        if self.state == State::Unknown && now.saturating_sub(self.since) <= settings.grace && !is_refused {
            return State::Unknown;
        }
        if self.is_silent(settings, now) && !self.reachable { State::Unreachable } else { State::Unproven }
    }
}

/// The same number from 0 to 1 for the same runtime always, so that no two stay in step.
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
