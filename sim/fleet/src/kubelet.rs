//! Starts the agents that the engine has installed, and mounts their ConfigMaps, as kubelets do.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;
use tidewatch_api::names::{AGENT_NAME, AGENT_SETTINGS, RUNTIME_NAMESPACE};
use tidewatch_demo::{
    files::{replace, write_private},
    pod,
};
use tokio::time::interval;

use crate::{
    agents::{Agents, Order},
    fleet::Fleet,
    modules::Id,
    names,
    oracle::{Oracle, World},
};

/// Interval of looks at the runtimes. A real kubelet mounts a changed ConfigMap within a minute.
const LOOK: Duration = Duration::from_millis(250);
/// Looks at an agent that runs: each n-th.
const MOUNTED: u32 = 8;

/// The kubelets of all runtimes.
pub struct Kubelets {
    /// API servers.
    pub fleet: Arc<Fleet>,
    /// Knows the registered runtimes.
    pub oracle: Arc<Oracle>,
    /// The agents' process.
    pub agents: Arc<Agents>,
    /// Folder of the agents' files.
    pub folder: PathBuf,
}

impl Kubelets {
    /// Runs for ever, or until a file cannot be written.
    pub async fn run(self) -> Result<()> {
        let (mut mounted, mut tick) = (HashMap::new(), interval(LOOK));
        for look in 0_u32.. {
            tick.tick().await;
            let mut new = Vec::new();
            for runtime in self.oracle.world(World::registered) {
                let is_running = mounted.contains_key(&runtime);
                if is_running && look % MOUNTED != 0 {
                    continue;
                }
                if let Some(ca) = self.mount(runtime, mounted.get(&runtime))? {
                    mounted.insert(runtime, ca);
                    if !is_running {
                        new.push(runtime);
                    }
                }
                tokio::task::yield_now().await;
            }
            if !new.is_empty() {
                self.agents.send(&Order::Start { runtimes: new }).await?;
            }
        }
        Ok(())
    }

    /// Writes the files of an installed agent, if its CAs are not those `before`. Returns its CAs.
    fn mount(&self, runtime: usize, before: Option<&String>) -> Result<Option<String>> {
        let hosted = self.fleet.runtimes.get(runtime).context("no such runtime")?;
        let Some(map) = self.fleet.get(hosted, &settings())? else { return Ok(None) };
        let (Some(config), Some(ca)) = (map["data"]["config.yaml"].as_str(), map["data"]["ca.crt"].as_str())
        else {
            return Ok(None);
        };
        let Some(deployment) = self.fleet.get(hosted, &deployment())? else { return Ok(None) };
        if before.is_some_and(|before| before == ca) {
            return Ok(None);
        }
        let file = config_file(&self.folder, runtime);
        let folder = file.parent().context("no folder")?;
        let config = pod::settings(config, folder, installation(&deployment))?;
        write_private(&file, &config.to_string())?;
        // The agent may read the file meanwhile.
        replace(&folder.join("ca.crt"), ca)?;
        Ok(Some(ca.to_owned()))
    }
}

/// The configuration of an installed agent.
pub fn config_file(folder: &Path, runtime: usize) -> PathBuf {
    folder.join("agents").join(names::id(runtime)).join("config.yaml")
}

fn installation(deployment: &Value) -> Option<&str> {
    let env = deployment.pointer("/spec/template/spec/containers/0/env")?.as_array()?;
    env.iter().find(|variable| variable["name"] == pod::INSTALLATION)?["value"].as_str()
}

fn object(group: &str, resource: &str, name: &str) -> Id {
    Id {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: RUNTIME_NAMESPACE.into(),
        name: name.into(),
    }
}

fn settings() -> Id {
    object("", "configmaps", AGENT_SETTINGS)
}

fn deployment() -> Id {
    object("apps", "deployments", AGENT_NAME)
}
