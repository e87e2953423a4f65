//! Time from a change to the desired state.

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
use crate::scenario::ChangeKind;

/// Debounce of comparisons, which are costly. Lags are longer by at most this.
const REST: Duration = Duration::from_millis(5);

/// Longest time between comparisons.
const POLL: Duration = Duration::from_secs(1);

/// Causes of measured changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// First installation.
    FirstInstall,
    /// Registration by a step.
    Enrol,
    /// Changed Deployment.
    Drift,
    /// Deleted Deployment.
    Delete,
    /// Module listed or unlisted.
    Toggle,
    /// Changed channel.
    Channel,
    /// New version in a channel.
    Bump,
    /// Change elsewhere, before the fault.
    Without,
    /// Change elsewhere, beside the fault.
    Beside,
}

impl From<ChangeKind> for Kind {
    fn from(action: ChangeKind) -> Self {
        match action {
            ChangeKind::Drift => Self::Drift,
            ChangeKind::Delete => Self::Delete,
            ChangeKind::Toggle => Self::Toggle,
            ChangeKind::Channel => Self::Channel,
        }
    }
}

impl Kind {
    /// Words for people.
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

#[derive(Debug)]
pub(super) struct Pending {
    kind: Kind,
    /// `None`: all.
    module: Option<usize>,
    since: Instant,
    /// Module that differed last.
    last: usize,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pending: Mutex<Vec<Pending>>,
    /// Rises with each change.
    version: AtomicU64,
}

impl Oracle {
    /// Measures the time until a module (or all) is as desired.
    pub fn follow(self: &Arc<Self>, runtime: usize, module: Option<usize>, kind: Kind) {
        let Some(slot) = self.slots.get(runtime) else { return };
        let mut pending = slot.pending.lock();
        pending.push(Pending { kind, module, since: Instant::now(), last: 0 });
        // A running comparison must include this.
        slot.version.fetch_add(1, Ordering::Release);
        if pending.len() > 1 {
            return;
        }
        drop(pending);
        let (oracle, watch) = (Arc::clone(self), self.drain.watch());
        self.drain.spawn("oracle-follow", async move {
            tokio::select! {
                () = watch.signaled() => {}
                () = oracle.wait_for_change(runtime) => {}
            }
        });
    }

    /// Unfinished changes.
    pub fn pending(&self) -> usize {
        self.slots.iter().map(|slot| slot.pending.lock().len()).sum()
    }

    /// Whether a runtime has unfinished changes.
    pub fn is_pending(&self, runtime: usize) -> bool {
        self.slots.get(runtime).is_some_and(|slot| !slot.pending.lock().is_empty())
    }

    /// Measured times, in seconds.
    pub fn lags(&self) -> std::collections::BTreeMap<Kind, Vec<f32>> {
        self.lags.lock().clone()
    }

    async fn wait_for_change(self: &Arc<Self>, runtime: usize) {
        let (Some(hosted), Some(slot)) = (self.fleet.runtimes.get(runtime), self.slots.get(runtime)) else {
            return;
        };
        let mut changes = hosted.changes();
        let mut seen = None;
        loop {
            let now = (*changes.borrow_and_update(), slot.version.load(Ordering::Acquire));
            // Comparisons are costly.
            if seen.replace(now) != Some(now) && self.settle(runtime) {
                return;
            }
            // The desired state may change, too.
            if let Ok(Err(_)) = timeout(POLL, changes.changed()).await {
                return;
            }
            sleep(REST).await;
        }
    }

    /// Returns true if nothing is left.
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
                // Most comparisons end at the last difference.
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
