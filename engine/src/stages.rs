//! Time per stage of a reconcile. Stages are noted in a task-local; outside a reconcile, noting does nothing.

use std::{cell::RefCell, future::Future};

use serde::Serialize;
use tokio::time::Instant;

use crate::queue::Tick;

/// A part of a reconcile. Stages do not overlap, so their times add up to at most the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reads its object in KCP.
    ReadKcp,
    /// Reads the runtime's kubeconfig, if there is no client.
    Connect,
    /// Installs or checks the engine's CRDs and namespace in the runtime.
    Prepare,
    /// Reads from the runtime.
    ReadRuntime,
    /// Resolves a module version, from the registry or the cache.
    Resolve,
    /// Gets the module's layer, from the registry or the cache, and renders it.
    Render,
    /// Applies objects in the runtime.
    Apply,
    /// Deletes objects in the runtime.
    Delete,
    /// Writes to KCP.
    WriteKcp,
    /// Writes the status in the runtime.
    WriteRuntime,
}

impl Stage {
    /// A stable word for metrics and pages.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ReadKcp => "read_kcp",
            Self::Connect => "connect",
            Self::Prepare => "prepare",
            Self::ReadRuntime => "read_runtime",
            Self::Resolve => "resolve",
            Self::Render => "render",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::WriteKcp => "write_kcp",
            Self::WriteRuntime => "write_runtime",
        }
    }
}

/// Total time of a reconcile in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageTime {
    /// The stage.
    pub stage: Stage,
    /// In seconds.
    pub seconds: f64,
}

tokio::task_local! {
    static NOTED: RefCell<Vec<(Stage, Tick)>>;
}

/// Runs a reconcile; returns the stages in the order of their first visits. An aborted stage counts up to its abort.
pub(crate) async fn noted<T>(work: impl Future<Output = T>) -> (T, Vec<StageTime>) {
    NOTED
        .scope(RefCell::default(), async {
            let result = work.await;
            let noted = NOTED.with(RefCell::take);
            let times =
                noted.into_iter().map(|(stage, time)| StageTime { stage, seconds: time.as_secs_f64() });
            (result, times.collect())
        })
        .await
}

pub(crate) async fn stage<T>(stage: Stage, work: impl Future<Output = T>) -> T {
    let _visit = Visit { stage, since: Instant::now() };
    work.await
}

struct Visit {
    stage: Stage,
    since: Instant,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let time = self.since.elapsed();
        // Outside a reconcile there is nothing to note.
        let _ = NOTED.try_with(|noted| {
            let mut noted = noted.borrow_mut();
            match noted.iter_mut().find(|(stage, _)| *stage == self.stage) {
                Some((_, sum)) => *sum += time,
                None => noted.push((self.stage, time)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn takes(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn stage_times_add_up() {
        let ((), times) = noted(async {
            stage(Stage::ReadKcp, takes(1)).await;
            takes(5).await;
            stage(Stage::Apply, takes(2)).await;
            stage(Stage::ReadKcp, takes(3)).await;
        })
        .await;
        let times: Vec<_> = times.iter().map(|t| (t.stage, t.seconds.round())).collect();
        assert_eq!(times, [(Stage::ReadKcp, 4.0), (Stage::Apply, 2.0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_stage_is_counted_only_within_a_reconcile() {
        stage(Stage::Apply, takes(1)).await;
        let (cut, times) =
            noted(tokio::time::timeout(Duration::from_secs(2), stage(Stage::Apply, takes(60)))).await;
        assert!(cut.is_err());
        assert_eq!(times.iter().map(|t| t.seconds.round()).collect::<Vec<_>>(), [2.0]);
    }
}
