//! Starts and ends watches.

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

/// Owns the watches' tasks; dropping it ends them.
pub struct Supervisor {
    client: Client,
    shared: Shared,
    control: mpsc::Sender<Control>,
    running: BTreeMap<String, Running>,
    tasks: JoinSet<()>,
    failed: bool,
}

#[derive(Debug)]
struct Running {
    wanted: watch::Sender<Wanted>,
    task: AbortHandle,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// To end; their objects' state is dropped.
    end: BTreeSet<String>,
    start: BTreeSet<String>,
    renew: BTreeSet<String>,
}

/// Another group, resource or route makes another watch.
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

/// Routes other than the engine's.
fn routes(watches: &[Watch]) -> BTreeMap<String, Vec<Route>> {
    let engine = Route::engine();
    let route = |watch: &Watch| (watch.name.clone(), Route::manager(watch.route.clone()));
    watches.iter().map(route).filter(|(_, r)| *r != engine).map(|(name, r)| (name, vec![r])).collect()
}

impl Supervisor {
    /// Creates an empty supervisor.
    pub fn new(client: Client, shared: Shared, control: mpsc::Sender<Control>) -> Self {
        let (running, tasks) = (BTreeMap::new(), JoinSet::new());
        Self { client, shared, control, running, tasks, failed: false }
    }

    /// Applies a configuration; unchanged watches continue. New ones register with `readiness`. `complete`: all
    /// sources are loaded.
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
        // After the last reports of ended watches, before reports on new routes.
        let complete = complete.then(|| wanted.iter().map(|watch| watch.name.clone()).collect());
        self.update_sender(routes(&wanted), complete, end.into_iter().collect()).await;
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

    /// Waits until a watch ends unexpectedly. Cancel-safe.
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
            // New watches must not make the agent unready.
            None => Readiness::new().register("watch"),
        };
        let (wanted, following) = watch::channel(wanted);
        let watcher = Watcher::new(spec, max_objects, self.shared.clone(), guard).following(following);
        let task = self.tasks.spawn(watcher.run(self.client.clone()));
        self.running.insert(name, Running { wanted, task });
    }

    /// Waits for the task's end; it reports nothing afterwards.
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

    async fn update_sender(
        &self,
        routes: BTreeMap<String, Vec<Route>>,
        complete: Option<BTreeSet<String>>,
        forget: Vec<String>,
    ) {
        let (done, dropped) = oneshot::channel();
        // Otherwise the process is ending.
        if self.control.send(Control { routes, complete, forget, done }).await.is_ok()
            && let Ok(forgotten) = dropped.await
            && forgotten > 0
        {
            tracing::info!(forgotten, "changes of removed watches were dropped");
            self.shared.metrics.forgotten.inc_by(forgotten as u64);
        }
    }
}

#[cfg(test)]
mod tests;
