//! Graceful shutdown.
//!
//! A [`Drain`] owns every task, and ends them in three steps:
//!
//! 1. Signal: every [`ShutdownSignal`] resolves.
//! 2. Grace: tasks finish.
//! 3. Abort: the rest is dropped at the next await point, and named in the [`Outcome`].

pub mod signal;

use parking_lot::Mutex;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A task without an await point ends only with the process.
const ABORT_WAIT: Duration = Duration::from_secs(1);

/// Task name for logs.
pub type TaskName = Cow<'static, str>;

/// Owner of all tasks. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    shared: Arc<Shared>,
}

/// Signals shutdown. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ShutdownSignal {
    signal: CancellationToken,
}

/// Cause of a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// [`Drain::begin`] or [`Drain::shutdown`].
    Requested,
    /// A critical task returned early.
    Ended(TaskName),
    /// A critical task panicked.
    Panicked(TaskName),
}

/// Result of a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// All tasks finished.
    Finished,
    /// Aborted tasks, sorted and unique.
    Aborted(Vec<TaskName>),
}

#[derive(Debug, Default)]
struct Shared {
    signal: CancellationToken,
    abort: CancellationToken,
    tracker: TaskTracker,
    /// Not awaited in the grace.
    background: TaskTracker,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    running: BTreeMap<u64, TaskName>,
    cause: Option<Cause>,
}

impl Drain {
    /// Creates a drain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a watch.
    pub fn watch(&self) -> ShutdownSignal {
        ShutdownSignal { signal: self.shared.signal.clone() }
    }

    /// Runs a task until it ends or is aborted. A panic is logged and ends only this task. After an abort, new tasks
    /// are dropped unpolled.
    pub fn spawn(&self, name: impl Into<TaskName>, task: impl Future<Output = ()> + Send + 'static) {
        self.start(&self.shared.tracker, name.into(), Role::Plain, task);
    }

    /// Like [`spawn`](Self::spawn), for an endpoint that serves until all others end. Never in an [`Outcome`].
    pub fn spawn_background(
        &self,
        name: impl Into<TaskName>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.start(&self.shared.background, name.into(), Role::Background, task);
    }

    /// Like [`spawn`](Self::spawn), but an early return or panic begins shutdown with this [`cause`](Self::cause).
    pub fn spawn_critical(&self, name: impl Into<TaskName>, task: impl Future<Output = ()> + Send + 'static) {
        self.start(&self.shared.tracker, name.into(), Role::Critical, task);
    }

    /// Begins shutdown.
    pub fn begin(&self) {
        self.shared.begin(Cause::Requested);
    }

    /// Cause of the shutdown, if begun.
    pub fn cause(&self) -> Option<Cause> {
        self.shared.state.lock().cause.clone()
    }

    /// Begins shutdown, waits up to `grace`, then aborts. Cancel-safe: a dropped future keeps the signal and aborts
    /// nothing.
    pub async fn shutdown(&self, grace: Duration) -> Outcome {
        self.begin();
        self.shared.tracker.close();
        match tokio::time::timeout(grace, self.shared.tracker.wait()).await {
            Ok(()) => self.end(Outcome::Finished).await,
            Err(_) => self.abort().await,
        }
    }

    /// Aborts all tasks.
    pub async fn abort(&self) -> Outcome {
        self.begin();
        let left: BTreeSet<TaskName> = self.shared.state.lock().running.values().cloned().collect();
        let outcome =
            if left.is_empty() { Outcome::Finished } else { Outcome::Aborted(left.into_iter().collect()) };
        self.end(outcome).await
    }

    async fn end(&self, outcome: Outcome) -> Outcome {
        self.shared.tracker.close();
        self.shared.background.close();
        self.shared.abort.cancel();
        let all = async {
            self.shared.tracker.wait().await;
            self.shared.background.wait().await;
        };
        if tokio::time::timeout(ABORT_WAIT, all).await.is_err() {
            tracing::warn!("tasks do not yield; they end with the process");
        }
        outcome
    }

    fn start(
        &self,
        tracker: &TaskTracker,
        name: TaskName,
        role: Role,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut entry = Entry::new(Arc::clone(&self.shared), name, role);
        // Dropped after the task and its destructors.
        tracker.spawn(async move {
            let abort = entry.shared.abort.clone();
            tokio::select! {
                biased;
                () = abort.cancelled() => {}
                () = task => entry.ended(),
            }
        });
    }
}

impl ShutdownSignal {
    /// Resolves at shutdown. Cancel-safe.
    pub async fn signaled(&self) {
        self.signal.cancelled().await;
    }

    /// Whether shutdown has begun.
    pub fn is_signaled(&self) -> bool {
        self.signal.is_cancelled()
    }
}

impl Shared {
    /// Later causes follow from the first.
    fn begin(&self, cause: Cause) {
        let mut state = self.state.lock();
        if state.cause.is_none() {
            if cause != Cause::Requested {
                tracing::error!(%cause, "shutting down");
            }
            state.cause = Some(cause);
        }
        drop(state);
        self.signal.cancel();
    }
}

/// Its drop sees all ends, including panics.
struct Entry {
    shared: Arc<Shared>,
    id: u64,
    name: TaskName,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Plain,
    Critical,
    Background,
}

impl Entry {
    fn new(shared: Arc<Shared>, name: TaskName, role: Role) -> Self {
        let mut state = shared.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        if role != Role::Background {
            state.running.insert(id, name.clone());
        }
        drop(state);
        Self { shared, id, name, role }
    }

    fn ended(&mut self) {
        if self.role == Role::Critical && !self.shared.signal.is_cancelled() {
            self.shared.begin(Cause::Ended(self.name.clone()));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if self.role == Role::Critical {
                self.shared.begin(Cause::Panicked(self.name.clone()));
            } else {
                tracing::error!(task = %self.name, "a task panicked");
            }
        }
        self.shared.state.lock().running.remove(&self.id);
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("shutdown was requested"),
            Self::Ended(name) => write!(f, "task {name:?} ended too early"),
            Self::Panicked(name) => write!(f, "task {name:?} panicked"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("all tasks finished"),
            Self::Aborted(names) => write!(f, "aborted: {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    const GRACE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn tasks_finish_their_work_within_the_grace() {
        let drain = Drain::new();
        let watch = drain.watch();
        drain.spawn("worker", async move {
            watch.signaled().await;
            sleep(Duration::from_secs(5)).await;
        });
        let start = Instant::now();
        assert_eq!(drain.shutdown(GRACE).await, Outcome::Finished);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert_eq!(drain.cause(), Some(Cause::Requested));
    }

    #[tokio::test(start_paused = true)]
    async fn remaining_tasks_are_aborted_and_named() {
        let drain = Drain::new();
        let held = Arc::new(());
        for name in ["stuck", "stuck", "other"] {
            let held = Arc::clone(&held);
            drain.spawn(name, async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        drain.spawn("done", async {});
        let start = Instant::now();
        let outcome = drain.shutdown(GRACE).await;
        assert_eq!(outcome, Outcome::Aborted(vec!["other".into(), "stuck".into()]));
        assert_eq!(outcome.to_string(), "aborted: other, stuck");
        assert_eq!(start.elapsed(), GRACE);
        assert_eq!(Arc::strong_count(&held), 1, "the aborted tasks were dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn an_ending_critical_task_begins_shutdown() {
        let drain = Drain::new();
        drain.spawn("plain", async {});
        drain.spawn_critical("accept", sleep(Duration::from_secs(1)));
        assert!(!drain.watch().is_signaled());
        drain.watch().signaled().await;
        assert_eq!(drain.cause(), Some(Cause::Ended("accept".into())));
        assert_eq!(drain.shutdown(GRACE).await, Outcome::Finished);
        assert_eq!(drain.cause(), Some(Cause::Ended("accept".into())), "the first cause is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_critical_task_begins_shutdown() {
        let drain = Drain::new();
        drain.spawn("plain", async { panic!("only this one") });
        sleep(Duration::from_secs(1)).await;
        assert!(!drain.watch().is_signaled());
        drain.spawn_critical("sender", async { panic!("on purpose") });
        drain.watch().signaled().await;
        assert_eq!(drain.cause(), Some(Cause::Panicked("sender".into())));
        assert_eq!(drain.shutdown(GRACE).await, Outcome::Finished);
    }

    #[tokio::test(start_paused = true)]
    async fn a_background_task_lives_until_the_others_are_done() {
        let drain = Drain::new();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        drain.spawn_background("admin", async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let weak = Arc::downgrade(&alive);
        let (watch, sees) = (drain.watch(), tokio::sync::oneshot::channel());
        drain.spawn("worker", async move {
            watch.signaled().await;
            sleep(Duration::from_secs(5)).await;
            let _ = sees.0.send(weak.strong_count());
        });
        assert_eq!(drain.shutdown(GRACE).await, Outcome::Finished);
        assert_eq!(sees.1.await, Ok(2), "still there while the worker worked");
        assert_eq!(Arc::strong_count(&alive), 1, "dropped at the end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_critical_task_may_end_after_the_signal() {
        let drain = Drain::new();
        let watch = drain.watch();
        drain.spawn_critical("accept", async move { watch.signaled().await });
        assert_eq!(drain.shutdown(GRACE).await, Outcome::Finished);
        assert_eq!(drain.cause(), Some(Cause::Requested));
    }
}
