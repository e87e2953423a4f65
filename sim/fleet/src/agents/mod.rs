//! Thousands of agents in a process with its own CPU time, memory and open files.

pub mod child;
pub mod client;
pub mod gate;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidewatch_demo::{
    files::write_private,
    process::{Lifetime, Process, Spec},
};
use tidewatch_drain::Drain;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, unix::OwnedWriteHalf},
    time::timeout,
};

const SETUP: &str = "agents.json";
const SOCKET: &str = "agents.sock";
/// Time to connect.
const SOON: Duration = Duration::from_secs(30);

/// Configuration of the process.
#[derive(Clone, Serialize, Deserialize)]
pub struct Setup {
    /// `https://host:port` of the receiver.
    pub receiver: String,
    /// The event path's CA.
    pub event_ca: String,
    /// Key of this CA, for agents' certificates.
    pub event_ca_key: String,
    /// File of this CA.
    pub event_ca_file: PathBuf,
    /// Base URL of API servers.
    pub api: String,
    /// CA of the API servers.
    pub api_ca: String,
    /// Prefix of tokens.
    pub secret: String,
    /// Interval of checking lists, in seconds.
    pub check_every: u64,
    /// Age limit of connections, in seconds.
    pub connection_age: u64,
    /// Whether the engine installs the agents, which request their certificates. Otherwise they have certificates from the start.
    pub installed: bool,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Starts agents.
    Start {
        /// By number.
        runtimes: Vec<usize>,
    },
    /// Restarts agents.
    Restart {
        /// By number.
        runtimes: Vec<usize>,
        /// Whether to skip the grace.
        kill: bool,
    },
    /// Opens or closes the path to the receiver.
    Gate {
        /// By number.
        runtimes: Vec<usize>,
        /// Whether the path is open.
        open: bool,
    },
}

/// State of the agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Number of reports.
    pub reports: u64,
    /// Running agents.
    pub started: usize,
    /// Connected agents.
    pub connected: usize,
    /// Connected, listed and acknowledged agents.
    pub ready: usize,
    /// Unacknowledged keys.
    pub dirty: usize,
    /// Failed requests and connections since the agents' starts.
    pub failures: u64,
    /// Error of the first failed start.
    pub error: Option<String>,
}

/// The agents' process.
pub struct Agents {
    process: Process,
    pid: u32,
    write: tokio::sync::Mutex<OwnedWriteHalf>,
    state: Arc<Mutex<State>>,
}

impl Agents {
    /// Starts it without agents.
    pub async fn start(folder: &Path, program: &Path, setup: &Setup, drain: &Drain) -> Result<Self> {
        write_private(&folder.join(SETUP), &serde_json::to_string(setup)?)?;
        let path = folder.join(SOCKET);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let process = Process::start(&Spec {
            name: "the agents".to_owned(),
            program: program.to_owned(),
            args: ["simulate-agents", "--folder"]
                .map(str::to_owned)
                .into_iter()
                .chain([folder.display().to_string()])
                .collect(),
            env: Vec::new(),
            log: folder.join("agents.log"),
            grace: Duration::from_secs(2),
            scratch: None,
            lifetime: Lifetime::WithUs,
        })?;
        let accepted = timeout(SOON, listener.accept()).await;
        let (stream, _) = accepted
            .map_err(anyhow::Error::from)
            .and_then(|accepted| Ok(accepted?))
            .with_context(|| format!("the agents' process does not speak: {}", process.log_tail(5)))?;
        let (read, write) = stream.into_split();
        let state = Arc::new(Mutex::new(State::default()));
        let (known, watch) = (Arc::clone(&state), drain.watch());
        drain.spawn("agents-state", async move {
            let mut lines = BufReader::new(read).lines();
            loop {
                tokio::select! {
                    () = watch.signaled() => return,
                    line = lines.next_line() => match line {
                        Ok(Some(line)) => if let Ok(state) = serde_json::from_str(&line) {
                            *known.lock() = state;
                        },
                        _ => return,
                    }
                }
            }
        });
        let pid = process.program_pid().await?;
        Ok(Self { process, pid, write: tokio::sync::Mutex::new(write), state })
    }

    /// Sends a command.
    pub async fn send(&self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let mut write = self.write.lock().await;
        write.write_all(&line).await.context("the agents' process has ended; its log says why")
    }

    /// Last reported state.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// The agents' pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
