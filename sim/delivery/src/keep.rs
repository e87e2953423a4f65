//! Simulated ConfigMaps of the agent's digest and object names.

use std::{sync::Arc, time::Duration};

use tidewatch_agent::{
    digest::{Found, Shelf, Snapshot},
    observe::condition::Conditions,
};
use tidewatch_delivery::names::{self, Names};
use tokio::sync::watch;

use crate::{
    mistake::Mistake,
    step::Point,
    world::{Process, World},
};

/// Time for the first lists before the digest is claimed.
const LISTING: Duration = Duration::from_secs(10);

pub(crate) async fn keep(world: Arc<World>, runtime: usize, conditions: Conditions, shelf: Shelf) {
    let Shelf { found, snapshots, stored, names, names_stored } = shelf;
    let delay = world.lock().rng.millis(1, 100);
    tokio::time::sleep(delay).await;
    let kept = world.lock().runtimes[runtime].kept.clone();
    let listed = async {
        while !conditions.settled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _in_time = tokio::time::timeout(LISTING, listed).await;
    let forgotten = world.mistake == Some(Mistake::NamesAreForgotten);
    let names_found = if forgotten { Names::default() } else { Names::found(kept.names) };
    if found.send(Found { digest: kept.digest, names: names_found }).is_err() {
        return;
    }
    let digests = keep_digest(&world, runtime, snapshots, stored);
    futures::join!(digests, keep_names(&world, runtime, names, names_stored));
}

async fn keep_digest(
    world: &Arc<World>,
    runtime: usize,
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    stored: watch::Sender<Option<u64>>,
) {
    while snapshots.changed().await.is_ok() {
        let Some(snapshot) = snapshots.borrow_and_update().clone() else { continue };
        world.point(Point::AgentStoring, Process::Agent(runtime), 30).await;
        let (delay, again) = {
            let mut state = world.lock();
            let refused = !state.quiet && state.rng.per_mille(200);
            (state.rng.millis(5, 500), refused.then(|| state.rng.millis(500, 5_000)))
        };
        tokio::time::sleep(delay + again.unwrap_or_default()).await;
        world.lock().runtimes[runtime].kept.digest = Some((*snapshot).clone());
        world.point(Point::AgentStored, Process::Agent(runtime), 30).await;
        tokio::time::sleep(delay).await;
        stored.send_replace(Some(snapshot.0.serial));
    }
}

/// Two writes, one of them refused once, finish while the sender waits. Notifications before the name is
/// stored have no guarantee.
async fn keep_names(
    world: &Arc<World>,
    runtime: usize,
    mut snapshots: watch::Receiver<Option<Arc<names::Snapshot>>>,
    stored: watch::Sender<u64>,
) {
    while snapshots.changed().await.is_ok() {
        let Some(snapshot) = snapshots.borrow_and_update().clone() else { continue };
        if world.mistake == Some(Mistake::NamesAreStoredLate) {
            stored.send_replace(snapshot.revision);
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        world.point(Point::AgentNaming, Process::Agent(runtime), 30).await;
        let (delay, again, confirmation) = {
            let mut state = world.lock();
            let refused = !state.quiet && state.rng.per_mille(200);
            let rng = &mut state.rng;
            (rng.millis(5, 500), refused.then(|| rng.millis(500, 1_000)), rng.millis(5, 300))
        };
        tokio::time::sleep(delay + again.unwrap_or_default()).await;
        world.lock().runtimes[runtime].kept.names.clone_from(&snapshot.watches);
        world.point(Point::AgentNamed, Process::Agent(runtime), 30).await;
        tokio::time::sleep(confirmation).await;
        stored.send_replace(snapshot.revision);
    }
}
