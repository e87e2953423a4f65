//! Staggers upgrades of agents over the fleet, and halts them when upgraded agents do not come back. Pure.
//!
//! An upgrade is another installation of an agent that works: one whose runtime is proven. It is over when the new agent has proven its
//! event path. Agents that do not work are upgraded at once, because they cannot become worse.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

/// Time of the caller's clock.
pub type Tick = Duration;

/// Share of the fleet that is upgraded at the same time: one in this many, at least one runtime.
const ONE_IN: usize = 20;
/// Longest time in which an upgraded agent proves its event path: it starts, lists, and its canary returns.
pub const PATIENCE: Duration = Duration::from_mins(10);
/// Failed upgrades from which on no other agent is upgraded.
pub const HALT: usize = 3;

/// Whether an agent may be upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// It may.
    Granted,
    /// Later: [`AgentRollout::next`] names the runtime then.
    Later,
}

/// Whether an agent was proven until it was `upgraded`, and not since. `unproven_since`: the last change of its event path,
/// which is not proven.
#[must_use]
pub fn has_failed(upgraded: Timestamp, unproven_since: Timestamp) -> bool {
    Duration::try_from(unproven_since.duration_since(upgraded)).is_ok_and(|after| after <= PATIENCE)
}

/// Upgrades of a fleet.
#[derive(Debug, Default)]
pub struct AgentRollout {
    upgrading: BTreeMap<String, Tick>,
    failed: BTreeSet<String>,
    waiting: BTreeSet<String>,
}

/// Numbers of runtimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting for their turn.
    pub waiting: usize,
    /// Upgraded, and not proven yet.
    pub upgrading: usize,
    /// Upgraded, and not proven in time.
    pub failed: usize,
}

impl AgentRollout {
    /// Decides about a runtime whose agent is to be upgraded. `is_proven`: its events are proven to arrive. `fleet`: number of runtimes.
    pub fn permit(&mut self, kyma: &str, is_proven: bool, fleet: usize, now: Tick) -> Permit {
        if self.upgrading.contains_key(kyma) || !is_proven {
            self.waiting.remove(kyma);
            return Permit::Granted;
        }
        if self.free(fleet) == 0 {
            self.waiting.insert(kyma.to_owned());
            return Permit::Later;
        }
        self.waiting.remove(kyma);
        self.upgrading.insert(kyma.to_owned(), now);
        Permit::Granted
    }

    /// Notes that an agent was upgraded before this process began, and has not come back ([`has_failed`]). A halt so outlasts a restart.
    pub fn failed(&mut self, kyma: &str) {
        if !self.upgrading.contains_key(kyma) {
            self.failed.insert(kyma.to_owned());
        }
    }

    /// Runtimes whose new agents are awaited.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.upgrading.keys().chain(&self.failed).map(String::as_str)
    }

    /// Notes that a new agent has proven its event path, also after its time.
    pub fn proven(&mut self, kyma: &str) {
        self.upgrading.remove(kyma);
        self.failed.remove(kyma);
    }

    /// Forgets a runtime that is gone.
    pub fn forget(&mut self, kyma: &str) {
        self.proven(kyma);
        self.waiting.remove(kyma);
    }

    /// Ends the time of agents that do not come back, and returns the runtimes whose turn it is. Their next [`AgentRollout::permit`] is
    /// granted, as long as no other runtime takes the place.
    pub fn next(&mut self, fleet: usize, now: Tick) -> Vec<String> {
        let overdue: Vec<String> = self
            .upgrading
            .iter()
            .filter(|(_, since)| now.saturating_sub(**since) > PATIENCE)
            .map(|(kyma, _)| kyma.clone())
            .collect();
        for kyma in overdue {
            self.upgrading.remove(&kyma);
            self.failed.insert(kyma);
        }
        self.waiting.iter().take(self.free(fleet)).cloned().collect()
    }

    /// Whether upgrades are halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.failed.len() >= HALT
    }

    /// Counts runtimes.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { waiting: self.waiting.len(), upgrading: self.upgrading.len(), failed: self.failed.len() }
    }

    fn free(&self, fleet: usize) -> usize {
        if self.is_halted() { 0 } else { (fleet / ONE_IN).max(1).saturating_sub(self.upgrading.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: usize = 40;

    fn at(seconds: u64) -> Tick {
        Tick::from_secs(seconds)
    }

    fn ask(rollout: &mut AgentRollout, kymas: &[&str], now: Tick) -> Vec<Permit> {
        kymas.iter().map(|kyma| rollout.permit(kyma, true, FLEET, now)).collect()
    }

    #[test]
    fn a_part_of_the_fleet_is_upgraded_at_a_time() {
        let mut rollout = AgentRollout::default();
        let asked = ask(&mut rollout, &["a", "b", "c", "d"], at(0));
        assert_eq!(asked, [Permit::Granted, Permit::Granted, Permit::Later, Permit::Later]);
        assert_eq!(rollout.permit("a", true, FLEET, at(1)), Permit::Granted, "it is under way");
        assert!(rollout.next(FLEET, at(1)).is_empty());
        rollout.proven("b");
        assert_eq!(rollout.next(FLEET, at(2)), ["c"]);
        assert_eq!(ask(&mut rollout, &["c", "d"], at(2)), [Permit::Granted, Permit::Later]);
        assert_eq!(rollout.counts(), Counts { waiting: 1, upgrading: 2, failed: 0 });
    }

    #[test]
    fn a_small_fleet_is_upgraded_one_by_one() {
        let mut rollout = AgentRollout::default();
        assert_eq!(rollout.permit("a", true, 2, at(0)), Permit::Granted);
        assert_eq!(rollout.permit("b", true, 2, at(0)), Permit::Later);
    }

    #[test]
    fn an_agent_that_does_not_work_is_upgraded_at_once() {
        let mut rollout = AgentRollout::default();
        ask(&mut rollout, &["a", "b"], at(0));
        assert_eq!(rollout.permit("c", false, FLEET, at(0)), Permit::Granted);
        assert_eq!(rollout.counts().upgrading, 2, "its failure says nothing about the new agent");
    }

    #[test]
    fn upgrades_halt_when_agents_do_not_come_back_and_go_on_when_they_do() {
        let mut rollout = AgentRollout::default();
        let late = |round: u64| at(round * (PATIENCE.as_secs() + 1));
        ask(&mut rollout, &["a", "b", "c", "d", "e"], late(0));
        assert_eq!(rollout.next(FLEET, late(1)), ["c", "d"], "two failures are no halt yet");
        ask(&mut rollout, &["c", "d"], late(1));
        assert!(rollout.next(FLEET, late(2)).is_empty() && rollout.is_halted());
        assert_eq!(rollout.permit("e", true, FLEET, late(2)), Permit::Later);
        assert_eq!(rollout.awaited().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        rollout.proven("a");
        rollout.proven("b");
        assert_eq!(rollout.next(FLEET, late(2)), ["e"]);
    }

    #[test]
    fn a_halt_outlasts_a_restart() {
        let minutes = |minutes: u64| Timestamp::UNIX_EPOCH + Duration::from_mins(minutes);
        assert!(has_failed(minutes(20), minutes(20)) && has_failed(minutes(20), minutes(25)));
        assert!(!has_failed(minutes(20), minutes(19)), "it was upgraded because it did not work");
        assert!(!has_failed(minutes(20), minutes(31)), "it has proven itself in between");
        let mut rollout = AgentRollout::default();
        for kyma in ["a", "b", "c", "a"] {
            rollout.failed(kyma);
        }
        assert_eq!(rollout.permit("d", true, FLEET, at(0)), Permit::Later);
        assert_eq!(rollout.counts(), Counts { waiting: 1, upgrading: 0, failed: HALT });
        rollout.proven("a");
        assert_eq!(rollout.next(FLEET, at(0)), ["d"]);
        ask(&mut rollout, &["d"], at(0));
        rollout.failed("d");
        assert_eq!(rollout.counts().upgrading, 1, "it still has time");
    }

    #[test]
    fn a_gone_runtime_is_forgotten() {
        let mut rollout = AgentRollout::default();
        ask(&mut rollout, &["a", "b", "c"], at(0));
        rollout.forget("a");
        assert_eq!(rollout.next(FLEET, at(0)), ["c"]);
        rollout.forget("c");
        assert_eq!(rollout.counts(), Counts { upgrading: 1, ..Counts::default() });
    }
}
