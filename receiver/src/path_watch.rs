//! Runs [`Paths`] and its steps for all runtimes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_drain::ShutdownSignal;
use tidewatch_engine::{
    Engine, Trigger, WorkKey,
    index::PathReport,
    queue::{Class, Tick},
};
use tidewatch_wire::v3::Health;

use crate::paths::{Check, Paths, Refusal, Settings, Step};

const TICK: Duration = Duration::from_secs(1);
/// In ticks.
const REGISTER_EVERY: u32 = 5;

/// Shared event paths. Cheap to clone.
#[derive(Clone)]
pub struct PathWatch {
    paths: Arc<Mutex<Paths>>,
    start: tokio::time::Instant,
}

impl PathWatch {
    /// Creates it without runtimes.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { paths: Arc::new(Mutex::new(Paths::new(settings))), start: tokio::time::Instant::now() }
    }

    fn now(&self) -> Tick {
        self.start.elapsed()
    }

    /// See [`Paths::registered`].
    pub fn register(&self, kymas: &[(&str, &str)]) {
        self.paths.lock().registered(kymas.iter().copied(), self.now());
    }

    /// See [`Paths::received`].
    pub fn received(&self, kyma: &str, health: Option<Health>) {
        self.paths.lock().received(kyma, health, self.now());
    }

    /// See [`Paths::certificate`].
    pub fn certificate(&self, kyma: &str, not_after: Timestamp) {
        self.paths.lock().certificate(kyma, not_after);
    }

    /// See [`Paths::refused`].
    pub fn refused(&self, kyma: &str, refusal: Refusal) {
        self.paths.lock().refused(kyma, refusal, self.now());
    }

    /// See [`Paths::canary`].
    pub fn canary(&self, kyma: &str) {
        self.paths.lock().canary(kyma, self.now());
    }

    /// See [`Paths::reachable`].
    pub fn reachable(&self, kyma: &str, reachable: bool) {
        self.paths.lock().reachable(kyma, reachable);
    }

    /// Reads the paths.
    pub fn inspect<T>(&self, read: impl FnOnce(&Paths, Tick) -> T) -> T {
        read(&self.paths.lock(), self.now())
    }

    /// Ticks until shutdown. `counted` receives polls and resyncs.
    pub async fn run(self, engine: Engine, counted: impl Fn(Check), drain: ShutdownSignal) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                _ = ticks.tick() => {}
            }
            if count.is_multiple_of(REGISTER_EVERY) {
                let kymas = engine.state().read().kymas.uids();
                self.register(
                    &kymas.iter().map(|(kyma, uid)| (kyma.as_str(), uid.as_str())).collect::<Vec<_>>(),
                );
            }
            count = count.wrapping_add(1);
            let was_ill = self.paths.lock().ill();
            let steps = {
                // Lock order: state before paths.
                let state = engine.state().read();
                self.paths.lock().tick(|kyma| state.agents.configuration(kyma), self.now())
            };
            let is_ill = self.paths.lock().ill();
            if is_ill && !was_ill {
                tracing::error!(
                    "too many runtimes are unproven at once: the event path itself has failed; polls are rarer"
                );
            } else if was_ill && !is_ill {
                tracing::error!("the event path works again");
            }
            for step in steps {
                perform(&engine, step, &counted);
            }
            engine.upgrade_agents(|kyma, installation| self.paths.lock().proves(kyma, installation));
        }
    }
}

fn perform(engine: &Engine, step: Step, counted: &impl Fn(Check)) {
    match step {
        Step::Configure { kyma } => {
            tracing::info!(kyma, "the agent works by another configuration: it is written again");
            engine.configure_agent(&kyma, Some(Trigger::OtherConfiguration));
        }
        Step::Report { kyma, report } => {
            tracing::info!(kyma, reason = report.reason, detail = report.message, "event path");
            let report = PathReport { proven: report.proven, reason: report.reason, message: report.message };
            engine.report_path(&kyma, report);
        }
        Step::Check { kyma, check } => {
            counted(check);
            let (class, cause) = match check {
                Check::Poll => (Class::Poll, Trigger::FallbackPoll),
                Check::Resync => (Class::Resync, Trigger::SafetyResync),
            };
            // A removed role silently stops a watch.
            engine.configure_agent(&kyma, Some(cause.clone()));
            if check == Check::Resync {
                // Otherwise only the Kyma's reconcile requests it, and may fail.
                engine.check_catalog(&kyma, Some(cause.clone()));
            }
            let manifests = engine.state().read().manifests.list(&kyma);
            for key in checked_keys(&kyma, manifests.into_iter().filter_map(|m| m.metadata.name)) {
                engine.enqueue(key, class, Some(cause.clone()));
            }
        }
    }
}

fn checked_keys(kyma: &str, manifests: impl Iterator<Item = String>) -> Vec<WorkKey> {
    let of = || kyma.to_owned();
    let plans = [WorkKey::Kyma { kyma: of() }, WorkKey::Mandatory { kyma: of() }];
    plans.into_iter().chain(manifests.map(|name| WorkKey::Manifest { kyma: of(), name })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_also_queues_mandatory_modules_and_manifests() {
        let keys = checked_keys("a", ["m".to_owned()].into_iter());
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(keys, ["Kyma/a", "Mandatory/a", "Manifest/m"]);
    }
}
