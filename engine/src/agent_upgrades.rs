//! Upgrades of agents under way, shared by reconciles and the watch over event paths.

use std::sync::Arc;

use parking_lot::Mutex;
use tidewatch_planner::agent_rollout::{AgentRollout, Counts, Permit};
use tokio::time::Instant;

/// The rollout, with this process's clock. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AgentUpgrades {
    rollout: Arc<Mutex<AgentRollout>>,
    start: Instant,
}

impl AgentUpgrades {
    pub(crate) fn new() -> Self {
        Self { rollout: Arc::default(), start: Instant::now() }
    }

    /// See [`AgentRollout::permit`].
    pub(crate) fn permit(&self, kyma: &str, is_proven: bool, fleet: usize) -> Permit {
        self.rollout.lock().permit(kyma, is_proven, fleet, self.start.elapsed())
    }

    /// See [`AgentRollout::failed`].
    pub(crate) fn failed(&self, kyma: &str) {
        self.rollout.lock().failed(kyma);
    }

    /// Notes the new agents that are proven and the runtimes that are gone. Returns the runtimes whose turn it is.
    pub(crate) fn step(
        &self,
        proves: impl Fn(&str) -> bool,
        is_known: impl Fn(&str) -> bool,
        fleet: usize,
    ) -> Vec<String> {
        let mut rollout = self.rollout.lock();
        let was_halted = rollout.is_halted();
        let awaited: Vec<String> = rollout.awaited().map(str::to_owned).collect();
        for kyma in awaited {
            if !is_known(&kyma) {
                rollout.forget(&kyma);
            } else if proves(&kyma) {
                tracing::info!(kyma, "the upgraded agent is proven");
                rollout.proven(&kyma);
            }
        }
        let mut turns = rollout.next(fleet, self.start.elapsed());
        turns.retain(|kyma| {
            let is_known = is_known(kyma);
            if !is_known {
                rollout.forget(kyma);
            }
            is_known
        });
        match (was_halted, rollout.is_halted()) {
            (false, true) => {
                let failed: Vec<&str> = rollout.awaited().collect();
                tracing::error!(
                    ?failed,
                    "upgrades of agents are halted: upgraded agents are not proven; look at them, or install another image"
                );
            }
            (true, false) => tracing::info!("upgrades of agents go on"),
            _ => {}
        }
        turns
    }

    pub(crate) fn counts(&self) -> Counts {
        self.rollout.lock().counts()
    }
}
