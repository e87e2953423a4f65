//! From a change to the moment when all is as desired again.

use std::{sync::Arc, time::Duration};

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
}

impl Oracle {
    /// Something has changed, and the time is taken until that module (or all of them) is as desired.
    pub fn follow(self: &Arc<Self>, runtime: usize, module: Option<usize>, kind: Kind) {
        let Some(slot) = self.slots.get(runtime) else { return };
        let mut pending = slot.lock();
        pending.push(Pending { kind, module, since: Instant::now() });
        if pending.len() > 1 {
            // Somebody is looking already.
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
        self.slots.iter().map(|slot| slot.lock().len()).sum()
    }

    /// Whether something is pending in a runtime.
    pub fn is_pending(&self, runtime: usize) -> bool {
        self.slots.get(runtime).is_some_and(|slot| !slot.lock().is_empty())
    }

    /// The times that were taken, in seconds.
    pub fn lags(&self) -> std::collections::BTreeMap<Kind, Vec<f32>> {
        self.lags.lock().clone()
    }

    async fn look(self: &Arc<Self>, runtime: usize) {
        let Some(hosted) = self.fleet.runtimes.get(runtime) else { return };
        let mut changes = hosted.changes();
        loop {
            changes.borrow_and_update();
            if self.settle(runtime) {
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
        let mut verdicts = vec![None; self.fleet.modules];
        let mut as_desired = |module: usize| match verdicts.get_mut(module) {
            Some(verdict) => *verdict.get_or_insert_with(|| self.is_as_desired(runtime, module)),
            None => true,
        };
        let mut pending = slot.lock();
        let mut done = Vec::new();
        pending.retain(|one| {
            let fine = match one.module {
                Some(module) => as_desired(module),
                None => (0..self.fleet.modules).all(&mut as_desired),
            };
            if fine {
                done.push((one.kind, seen.duration_since(one.since).as_secs_f32()));
            }
            !fine
        });
        let mut lags = self.lags.lock();
        for (kind, seconds) in done {
            lags.entry(kind).or_default().push(seconds);
        }
        pending.is_empty()
    }
}
