//! The process of all agents.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_agent::{app, config::Config};
use tidewatch_certs::{Ca, ClientRequest};
use tidewatch_demo::{
    files::write_private,
    fleet::{self, AgentFiles},
    pki::Identity,
};
use tidewatch_drain::Drain;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::{Semaphore, watch},
};

use super::{Order, Setup, State, client::Connectors, gate::Gated};
use crate::{kubelet, names};

/// Concurrent agent starts, with two connections each.
const AT_ONCE: usize = 32;
const GRACE: Duration = Duration::from_secs(10);
/// Report interval.
const REPORT: Duration = Duration::from_millis(250);
const VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 7);
const LEVEL: &str = "warn";

/// The agents of a simulation. (Started by `tidewatch simulate`.)
#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// Folder of the simulation's files.
    #[arg(long)]
    folder: PathBuf,
}

struct Agent {
    drain: Drain,
    running: app::Running,
    gate: watch::Sender<bool>,
}

struct World {
    setup: Setup,
    folder: PathBuf,
    ca: Ca,
    connectors: Connectors,
    agents: Mutex<HashMap<usize, Agent>>,
    starts: Semaphore,
    error: Mutex<Option<String>>,
}

/// Runs until the parent closes the socket.
pub async fn run(args: AgentsArgs) -> Result<()> {
    tidewatch_telemetry::logging::init(tidewatch_telemetry::logging::Format::Text, LEVEL)?;
    let folder = args.folder;
    let text = std::fs::read_to_string(folder.join(super::SETUP)).context("no setup for the agents")?;
    let setup: Setup = serde_json::from_str(&text)?;
    let ca = Ca::from_pem(&setup.event_ca, &setup.event_ca_key)?;
    let connectors = Connectors::new(&setup.api_ca)?;
    let stream = UnixStream::connect(folder.join(super::SOCKET)).await?;
    let (read, mut write) = stream.into_split();
    let world = Arc::new(World {
        setup,
        folder,
        ca,
        connectors,
        agents: Mutex::default(),
        starts: Semaphore::new(AT_ONCE),
        error: Mutex::default(),
    });
    let mut lines = BufReader::new(read).lines();
    let mut report = tokio::time::interval(REPORT);
    let tasks = Drain::new();
    let mut reports = 0;
    loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => world.obey(serde_json::from_str(&line)?, &tasks),
                None => return Ok(()),
            },
            _ = report.tick() => {
                reports += 1;
                let mut line = serde_json::to_vec(&State { reports, ..world.state() })?;
                line.push(b'\n');
                if write.write_all(&line).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

impl World {
    fn obey(self: &Arc<Self>, order: Order, tasks: &Drain) {
        let each = |runtimes: Vec<usize>, restart: Option<bool>| {
            for runtime in runtimes {
                let world = Arc::clone(self);
                tasks.spawn("agent-start", async move {
                    if let Some(kill) = restart {
                        world.end(runtime, kill).await;
                    }
                    if let Err(error) = world.start(runtime).await {
                        tracing::error!(runtime, error = format!("{error:#}"), "an agent does not start");
                        world.error.lock().get_or_insert_with(|| format!("agent {runtime}: {error:#}"));
                    }
                });
            }
        };
        match order {
            Order::Start { runtimes } => each(runtimes, None),
            Order::Restart { runtimes, kill } => each(runtimes, Some(kill)),
            Order::Gate { runtimes, open } => {
                let agents = self.agents.lock();
                for agent in runtimes.iter().filter_map(|runtime| agents.get(runtime)) {
                    agent.gate.send_replace(open);
                }
            }
        }
    }

    async fn end(&self, runtime: usize, kill: bool) {
        let Some(agent) = self.agents.lock().remove(&runtime) else { return };
        let _outcome = if kill { agent.drain.abort().await } else { agent.drain.shutdown(GRACE).await };
    }

    async fn start(&self, runtime: usize) -> Result<()> {
        let _turn = self.starts.acquire().await?;
        let config = self.config(runtime)?;
        let url = format!("{}/{}", self.setup.api, names::kyma(runtime));
        let token = names::agent_token(&self.setup.secret, runtime);
        let surroundings =
            app::Surroundings { client: Some(self.connectors.client(&url, &token)?), without_admin: true };
        let (gate, open) = watch::channel(true);
        let drain = Drain::new();
        let gated = |connector| Gated::new(connector, open);
        let running = Box::pin(app::start_within(config, None, surroundings, &drain, gated)).await?;
        self.agents.lock().insert(runtime, Agent { drain, running, gate });
        Ok(())
    }

    fn config(&self, runtime: usize) -> Result<Config> {
        let mut config = if self.setup.installed {
            serde_json::from_str(&std::fs::read_to_string(kubelet::config_file(&self.folder, runtime))?)?
        } else {
            self.config_with_certificate(runtime)?
        };
        config["receiver"]["proxy"] = Value::from("direct");
        config["receiver"]["connectionAgeSeconds"] = self.setup.connection_age.into();
        config["checkEverySeconds"] = self.setup.check_every.into();
        Ok(Config::parse(&config.to_string())?)
    }

    fn config_with_certificate(&self, runtime: usize) -> Result<Value> {
        let id = names::id(runtime);
        let path = |end: &str| self.folder.join("agents").join(format!("{id}.{end}"));
        let (cert, key) = (path("crt"), path("key"));
        let request = ClientRequest {
            runtime_id: id.clone(),
            dns_names: vec![fleet::domain(&names::kyma(runtime))],
            organizations: Vec::new(),
            validity: VALIDITY,
        };
        let issued = self.ca.issue_client(&request, Timestamp::now())?;
        write_private(&cert, &issued.cert_pem)?;
        write_private(&key, issued.key_pem.as_str())?;
        let files = AgentFiles {
            id: &id,
            receiver: &self.setup.receiver,
            protocol: "v3",
            ca: &self.setup.event_ca_file,
            identity: &Identity { issued, cert, key },
            kubeconfig: Path::new("unused"),
            admin: "127.0.0.1:0",
        };
        Ok(fleet::agent_config(files, &fleet::watches()))
    }

    fn state(&self) -> State {
        let agents = self.agents.lock();
        let mut state = State { started: agents.len(), error: self.error.lock().clone(), ..State::default() };
        for agent in agents.values() {
            let progress = agent.running.progress.lock();
            let (connected, dirty) = (progress.connected, progress.dirty);
            state.failures += progress.failures;
            drop(progress);
            state.connected += usize::from(connected);
            state.dirty += dirty;
            let ready = connected && agent.running.conditions.settled();
            state.ready += usize::from(ready && dirty == 0);
        }
        state
    }
}
