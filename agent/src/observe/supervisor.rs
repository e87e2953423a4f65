//! Starts and ends watches, so that those at work are those configured.

use super::watch::{Shared, Wanted, Watcher};
use crate::{config::Watch, send::Control};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use tidewatch_telemetry::Readiness;
use tidewatch_wire::Route;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
};

/// Owns the tasks of all watches; dropping it ends them.
pub struct Supervisor {
    client: Client,
    shared: Shared,
    control: mpsc::Sender<Control>,
    running: BTreeMap<String, Running>,
    tasks: JoinSet<()>,
    /// A task has ended that nobody wanted to end.
    failed: bool,
}

#[derive(Debug)]
struct Running {
    wanted: watch::Sender<Wanted>,
    task: AbortHandle,
}

/// What a new configuration means for the watches at work, by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// To be ended, with all that is known and dirty of their objects.
    end: BTreeSet<String>,
    /// To be started anew.
    start: BTreeSet<String>,
    /// To go on with something else.
    renew: BTreeSet<String>,
}

/// A watch of another kind of objects, or for somebody else, is another watch, even if its name is the same.
fn changes<'a>(running: impl Iterator<Item = &'a Watch>, wanted: &[Watch]) -> Changes {
    let wanted: BTreeMap<&str, &Watch> = wanted.iter().map(|watch| (watch.name.as_str(), watch)).collect();
    let mut changes =
        Changes { start: wanted.keys().map(|&name| name.to_owned()).collect(), ..Changes::default() };
    for old in running {
        let identity = |watch: &Watch| (watch.group.clone(), watch.resource.clone(), watch.route.clone());
        match wanted.get(old.name.as_str()) {
            Some(new) if identity(new) == identity(old) => {
                changes.start.remove(&old.name);
                if *new != old {
                    changes.renew.insert(old.name.clone());
                }
            }
            _ => {
                changes.end.insert(old.name.clone());
            }
        }
    }
    changes
}

/// Routes of watches that are not for the engine alone.
fn routes(watches: &[Watch]) -> BTreeMap<String, Vec<Route>> {
    let engine = Route::engine();
    let route = |watch: &Watch| (watch.name.clone(), Route::manager(watch.route.clone()));
    watches.iter().map(route).filter(|(_, r)| *r != engine).map(|(name, r)| (name, vec![r])).collect()
}

impl Supervisor {
    /// Nothing is watched yet.
    pub fn new(client: Client, shared: Shared, control: mpsc::Sender<Control>) -> Self {
        let (running, tasks) = (BTreeMap::new(), JoinSet::new());
        Self { client, shared, control, running, tasks, failed: false }
    }

    /// Makes the watches at work those that are wanted; their names are unique. What has not changed is left alone.
    /// The process is ready when those started here have said how they stand, if `readiness` is given. `complete` says
    /// that all sources of watches have spoken.
    pub async fn apply(
        &mut self,
        wanted: Vec<Watch>,
        max_objects: usize,
        readiness: Option<&Readiness>,
        complete: bool,
    ) {
        let running: Vec<Watch> =
            self.running.values().map(|running| running.wanted.borrow().spec.clone()).collect();
        let Changes { end, start, renew } = changes(running.iter(), &wanted);
        for name in &end {
            self.end(name).await;
        }
        // Before anything is reported that has other routes, and after the last report of those that are ended.
        let complete = complete.then(|| wanted.iter().map(|watch| watch.name.clone()).collect());
        self.tell(routes(&wanted), complete, end.into_iter().collect()).await;
        if !start.is_empty() || !renew.is_empty() {
            tracing::info!(?start, ?renew, "watches");
        }
        for spec in wanted {
            if start.contains(&spec.name) {
                self.start(Wanted { spec, max_objects }, readiness);
            } else if let Some(running) = self.running.get(&spec.name) {
                let wanted = Wanted { spec, max_objects };
                running.wanted.send_if_modified(|old| std::mem::replace(old, wanted.clone()) != wanted);
            }
        }
    }

    /// Waits until a watch has ended that should not have. Cancel-safe.
    pub async fn failed(&mut self) {
        if self.failed {
            return;
        }
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    fn start(&mut self, wanted: Wanted, readiness: Option<&Readiness>) {
        let Wanted { spec, max_objects } = wanted.clone();
        let name = spec.name.clone();
        let guard = match readiness {
            Some(readiness) => readiness.register(format!("watch {name}")),
            // A watch that comes later does not make an agent unready that works.
            None => Readiness::new().register("watch"),
        };
        let (wanted, following) = watch::channel(wanted);
        let watcher = Watcher::new(spec, max_objects, self.shared.clone(), guard).following(following);
        let task = self.tasks.spawn(watcher.run(self.client.clone()));
        self.running.insert(name, Running { wanted, task });
    }

    /// Returns when the watch's task is gone, and so reports nothing any more.
    async fn end(&mut self, name: &str) {
        let Some(Running { task, .. }) = self.running.remove(name) else { return };
        task.abort();
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            if id == task.id() {
                break;
            }
            self.failed = true;
        }
        self.shared.conditions.remove(name);
        self.shared.metrics.forget(name);
    }

    async fn tell(
        &self,
        routes: BTreeMap<String, Vec<Route>>,
        complete: Option<BTreeSet<String>>,
        forget: Vec<String>,
    ) {
        let (done, told) = oneshot::channel();
        // Without a sender of events the process is at its end.
        if self.control.send(Control { routes, complete, forget, done }).await.is_ok()
            && let Ok(forgotten) = told.await
            && forgotten > 0
        {
            tracing::info!(forgotten, "changes of removed watches were let go");
            self.shared.metrics.forgotten.inc_by(forgotten as u64);
        }
    }
}

#[cfg(test)]
mod tests;
