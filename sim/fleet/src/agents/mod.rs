//! Agents by the thousand, in a process of their own: so that the receiver's CPU time and memory are its alone, and
//! so are the API servers' open files.

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

/// Names of files in the folder.
const SETUP: &str = "agents.json";
const SOCKET: &str = "agents.sock";
/// For the process to say something.
const SOON: Duration = Duration::from_secs(30);

/// What the process is told once.
#[derive(Clone, Serialize, Deserialize)]
pub struct Setup {
    /// `https://host:port` of the receiver.
    pub receiver: String,
    /// The CA of the event path.
    pub event_ca: String,
    /// Its key: it issues the agents' certificates.
    pub event_ca_key: String,
    /// The CA's certificate in a file.
    pub event_ca_file: PathBuf,
    /// The API servers' URL, before the cluster's name.
    pub api: String,
    /// Their CA.
    pub api_ca: String,
    /// What tokens are made of.
    pub secret: String,
    /// How often they compare each watch with a list, in seconds.
    pub check_every: u64,
    /// How long a connection of theirs lasts, in seconds.
    pub connection_age: u64,
}

/// What it is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Start these agents.
    Start {
        /// By number.
        runtimes: Vec<usize>,
    },
    /// End these agents, and start them anew.
    Restart {
        /// By number.
        runtimes: Vec<usize>,
        /// Without time to finish.
        kill: bool,
    },
    /// Open or close these agents' way to the receiver.
    Gate {
        /// By number.
        runtimes: Vec<usize>,
        /// Whether it is open.
        open: bool,
    },
}

/// How the agents are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Reports so far, with this one.
    pub reports: u64,
    /// Run.
    pub started: usize,
    /// Have a connection to the receiver.
    pub connected: usize,
    /// Are connected, have listed everything they watch, and have nothing unacknowledged.
    pub ready: usize,
    /// Keys that are not acknowledged, of all.
    pub dirty: usize,
    /// Why one has not started.
    pub error: Option<String>,
}

/// The process, seen from outside.
pub struct Agents {
    process: Process,
    pid: u32,
    write: tokio::sync::Mutex<OwnedWriteHalf>,
    state: Arc<Mutex<State>>,
}

impl Agents {
    /// Starts it, without agents.
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

    /// Tells it to do something.
    pub async fn tell(&self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let mut write = self.write.lock().await;
        write.write_all(&line).await.context("the agents' process has ended; its log says why")
    }

    /// How they were a moment ago.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// The pid of the agents themselves.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
