//! From a change to the moment when all is as desired again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::Oracle;
use crate::scenario::What;

/// After a change of a runtime's cluster, before it is looked at: changes come in bursts, and each look costs. Lags are
/// longer by at most this.
const REST: Duration = Duration::from_millis(5);

/// Longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// What has caused something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The first installation of everything, of many runtimes at once.
    FirstInstall,
    /// A runtime was registered by a step.
    Enrol,
    /// A Deployment was changed.
    Drift,
    /// A Deployment was deleted.
    Delete,
    /// A module was taken from a user's list, or put back.
    Toggle,
    /// A user has changed the channel.
    Channel,
    /// A channel has got a new version.
    Bump,
    /// A change in a runtime that no fault hits, before there is one.
    Without,
    /// The same beside a fault.
    Beside,
}

impl From<What> for Kind {
    fn from(what: What) -> Self {
        match what {
            What::Drift => Self::Drift,
            What::Delete => Self::Delete,
            What::Toggle => Self::Toggle,
            What::Channel => Self::Channel,
        }
    }
}

impl Kind {
    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::FirstInstall => "first installation",
            Self::Enrol => "enrolment",
            Self::Drift => "drift",
            Self::Delete => "deleted object",
            Self::Toggle => "module on or off",
            Self::Channel => "other channel",
            Self::Bump => "new version in the channel",
            Self::Without => "change elsewhere, without the fault",
            Self::Beside => "change elsewhere, beside the fault",
        }
    }
}

/// A change whose end is waited for.
#[derive(Debug)]
pub(super) struct Pending {
    kind: Kind,
    /// `None`: all of them.
    module: Option<usize>,
    since: Instant,
    /// The module that was not as desired at the last look.
    last: usize,
}

/// What is waited for in one runtime.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pending: Mutex<Vec<Pending>>,
    /// Counts what was added to it: what is desired is another thing then.
    version: AtomicU64,
}

impl Oracle {
    /// Something has changed, and the time is taken until that module (or all of them) is as desired.
    pub fn follow(self: &Arc<Self>, runtime: usize, module: Option<usize>, kind: Kind) {
        let Some(slot) = self.slots.get(runtime) else { return };
        let mut pending = slot.pending.lock();
        pending.push(Pending { kind, module, since: Instant::now(), last: 0 });
        // Whoever is looking already must look at this, too.
        slot.version.fetch_add(1, Ordering::Release);
        if pending.len() > 1 {
            return;
        }
        drop(pending);
        let (oracle, watch) = (Arc::clone(self), self.drain.watch());
        self.drain.spawn("oracle-follow", async move {
            tokio::select! {
                () = watch.signaled() => {}
                () = oracle.look(runtime) => {}
            }
        });
    }

    /// Changes that are not as desired yet.
    pub fn pending(&self) -> usize {
        self.slots.iter().map(|slot| slot.pending.lock().len()).sum()
    }

    /// Whether something is pending in a runtime.
    pub fn is_pending(&self, runtime: usize) -> bool {
        self.slots.get(runtime).is_some_and(|slot| !slot.pending.lock().is_empty())
    }

    /// The times that were taken, in seconds.
    pub fn lags(&self) -> std::collections::BTreeMap<Kind, Vec<f32>> {
        self.lags.lock().clone()
    }

    async fn look(self: &Arc<Self>, runtime: usize) {
        let (Some(hosted), Some(slot)) = (self.fleet.runtimes.get(runtime), self.slots.get(runtime)) else {
            return;
        };
        let mut changes = hosted.changes();
        let mut seen = None;
        loop {
            let now = (*changes.borrow_and_update(), slot.version.load(Ordering::Acquire));
            // Looking costs, and a fleet that waits is looked at once a second.
            if seen.replace(now) != Some(now) && self.settle(runtime) {
                return;
            }
            // What is desired may change, too, without a change in the cluster.
            if let Ok(Err(_)) = timeout(LOOK, changes.changed()).await {
                return;
            }
            sleep(REST).await;
        }
    }

    /// Takes the time of what is as desired now; true: nothing is left.
    fn settle(&self, runtime: usize) -> bool {
        let Some(slot) = self.slots.get(runtime) else { return true };
        let seen = Instant::now();
        let modules = self.fleet.size.modules;
        let mut verdicts = vec![None; modules];
        let mut as_desired = |module: usize| match verdicts.get_mut(module) {
            Some(verdict) => *verdict.get_or_insert_with(|| self.is_as_desired(runtime, module)),
            None => true,
        };
        let mut pending = slot.pending.lock();
        let mut done = Vec::new();
        pending.retain_mut(|one| {
            let not_fine = match one.module {
                Some(module) => (!as_desired(module)).then_some(module),
                // The one first that was not fine the last time: most looks end there.
                None => (0..modules).map(|n| (one.last + n) % modules).find(|module| !as_desired(*module)),
            };
            match not_fine {
                Some(module) => one.last = module,
                None => done.push((one.kind, seen.duration_since(one.since).as_secs_f32())),
            }
            not_fine.is_some()
        });
        let mut lags = self.lags.lock();
        for (kind, seconds) in done {
            lags.entry(kind).or_default().push(seconds);
        }
        pending.is_empty()
    }
}
