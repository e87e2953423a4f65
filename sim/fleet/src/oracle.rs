//! Compares the scenario's desired state with the runtimes' objects. Uses nothing of the engine.
//!
//! A module is *as desired* if exactly its version's objects exist, with their content; an unlisted one has
//! none.

mod catalog;
mod follow;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tidewatch_drain::Drain;

use self::catalog::Catalog;
pub use self::follow::Kind;
use crate::{
    fleet::{Fleet, kcp_kyma},
    modules::{self, Id, has},
    names,
    scenario::Channel,
};

const EXAMPLES: usize = 20;

/// Desired state of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Whether the runtime is registered.
    pub registered: bool,
    /// Channel.
    pub channel: Channel,
    /// Modules on the list.
    pub modules: Vec<bool>,
}

/// Desired state of the fleet.
#[derive(Clone, Debug)]
pub struct World {
    /// Versions by channel and module.
    pub versions: BTreeMap<&'static str, Vec<u32>>,
    /// By number.
    pub runtimes: Vec<Wish>,
}

impl World {
    /// Unregistered runtimes; version 1 in `regular`, 2 in `fast`.
    pub fn new(runtimes: usize, modules: usize) -> Self {
        let versions = BTreeMap::from([
            (Channel::Regular.name(), vec![1; modules]),
            (Channel::Fast.name(), vec![2; modules]),
        ]);
        let wish = Wish { registered: false, channel: Channel::Regular, modules: vec![true; modules] };
        Self { versions, runtimes: vec![wish; runtimes] }
    }

    /// Desired version of a module; `None`: absent.
    pub fn desired(&self, runtime: usize, module: usize) -> Option<u32> {
        let wish = self.runtimes.get(runtime).filter(|wish| wish.registered)?;
        if !wish.modules.get(module).copied().unwrap_or_default() {
            return None;
        }
        self.versions.get(wish.channel.name())?.get(module).copied()
    }

    /// Registered runtimes.
    pub fn registered(&self) -> Vec<usize> {
        let all = self.runtimes.iter().enumerate();
        all.filter(|(_, wish)| wish.registered).map(|(runtime, _)| runtime).collect()
    }
}

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostObject {
    /// Runtime.
    pub runtime: String,
    /// Object.
    pub object: String,
    /// Difference.
    pub is: &'static str,
}

/// Final comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Compared objects.
    pub compared: usize,
    /// Lost objects.
    pub lost: usize,
    /// Examples.
    pub examples: Vec<LostObject>,
    /// Kymas in KCP that are not Ready.
    pub not_ready: usize,
}

/// Desired state and measured changes.
pub struct Oracle {
    fleet: Arc<Fleet>,
    world: RwLock<World>,
    catalog: Catalog,
    slots: Vec<follow::Slot>,
    lags: Mutex<BTreeMap<Kind, Vec<f32>>>,
    drain: Drain,
}

impl Oracle {
    /// Creates an oracle.
    pub fn new(fleet: Arc<Fleet>, drain: Drain) -> Arc<Self> {
        let (runtimes, size) = (fleet.runtimes.len(), fleet.size);
        Arc::new(Self {
            world: RwLock::new(World::new(runtimes, size.modules)),
            catalog: Catalog::new(size),
            slots: (0..runtimes).map(|_| follow::Slot::default()).collect(),
            lags: Mutex::default(),
            fleet,
            drain,
        })
    }

    /// Reads the desired state.
    pub fn world<T>(&self, read: impl FnOnce(&World) -> T) -> T {
        read(&self.world.read())
    }

    /// Changes the desired state.
    pub fn change_world<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.world.write())
    }

    fn is_as_desired(&self, runtime: usize, module: usize) -> bool {
        let mut fine = true;
        // An unreachable API server counts as different.
        let asked = self.differences(runtime, module, |_, _| {
            fine = false;
            false
        });
        asked.is_ok() && fine
    }

    /// Calls `differs` for each difference until it returns false. Returns the number of comparisons.
    fn differences(
        &self,
        runtime: usize,
        module: usize,
        mut differs: impl FnMut(&Id, &'static str) -> bool,
    ) -> Result<usize> {
        let desired = self.world.read().desired(runtime, module);
        let Some(hosted) = self.fleet.runtimes.get(runtime) else { return Ok(0) };
        let (wanted, unwanted) = self.catalog.of(module, desired);
        let mut compared = 0;
        for (id, object) in wanted {
            compared += 1;
            let is = match self.fleet.get(hosted, id)? {
                Some(actual) if has(&actual, object) => continue,
                Some(_) => "different",
                None => "missing",
            };
            if !differs(id, is) {
                return Ok(compared);
            }
        }
        for id in unwanted {
            compared += 1;
            if self.fleet.get(hosted, id)?.is_some() && !differs(id, "there, and should not be") {
                return Ok(compared);
            }
        }
        Ok(compared)
    }

    /// Compares everything.
    pub async fn judge(&self) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        for runtime in self.world(World::registered) {
            for module in 0..self.fleet.size.modules {
                let mut found = Vec::new();
                verdict.compared += self.differences(runtime, module, |id, is| {
                    let object = format!("{}/{} {}", id.namespace, id.name, id.resource);
                    found.push(LostObject { runtime: names::kyma(runtime), object, is });
                    true
                })?;
                verdict.lost += found.len();
                let capacity = EXAMPLES.saturating_sub(verdict.examples.len());
                verdict.examples.extend(found.into_iter().take(capacity));
            }
            let kyma = self.fleet.get(&self.fleet.kcp, &kcp_kyma(runtime))?;
            let ready = kyma.is_some_and(|kyma| kyma["status"]["state"] == "Ready");
            verdict.not_ready += usize::from(!ready);
            tokio::task::yield_now().await;
        }
        Ok(verdict)
    }

    /// The Deployment that users change.
    pub fn deployment(module: usize) -> Option<Id> {
        modules::objects(module, 1, modules::MIN_OBJECTS).into_iter().next().map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_desired_version_follows_channel_list_and_registration() {
        let mut world = World::new(2, 2);
        assert_eq!(world.desired(0, 0), None, "not registered");
        world.runtimes[0].registered = true;
        assert_eq!(world.desired(0, 0), Some(1));
        world.runtimes[0].channel = Channel::Fast;
        assert_eq!(world.desired(0, 1), Some(2));
        world.runtimes[0].modules[1] = false;
        assert_eq!((world.desired(0, 0), world.desired(0, 1)), (Some(2), None));
        assert_eq!(world.registered(), [0]);
    }

    #[tokio::test]
    async fn an_empty_registered_runtime_has_lost_all_objects() -> Result<()> {
        let drain = Drain::new();
        let fleet = Arc::new(
            Fleet::start(2, modules::Size { modules: 1, objects: modules::MIN_OBJECTS }, 7, &drain).await?,
        );
        let oracle = Oracle::new(Arc::clone(&fleet), drain.clone());
        assert_eq!(oracle.judge().await?, Verdict::default(), "nobody is registered");
        oracle.change_world(|world| world.runtimes[1].registered = true);
        let verdict = oracle.judge().await?;
        // Four objects and a default CR.
        assert_eq!((verdict.lost, verdict.not_ready), (5, 1));
        assert!(verdict.examples.iter().all(|lost| lost.runtime == "sim-00001" && lost.is == "missing"));
        Ok(())
    }
}
