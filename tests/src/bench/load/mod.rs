//! Processes of the intake measurements: agents and servers.
//!
//! Separate processes separate their CPU times in `/proc/<pid>/stat`. Each ends when its standard input
//! closes.
//!
//! Agents read one `Order` per line and answer with one `Done` per line.

pub(super) mod agents;
mod serve;
mod watch;

use std::{
    io::{BufRead, Write},
    path::PathBuf,
    thread,
};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

/// Threads per process. The goals assume a receiver on two cores.
const THREADS: usize = 2;

/// The command line of `tidewatch-load`.
#[derive(Debug, Parser)]
#[command(name = "tidewatch-load")]
pub struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// Agents that obey orders on standard input.
    Agents {
        /// Folder to write the CA and the server's certificate to.
        #[arg(long)]
        folder: PathBuf,
    },
    /// The server for the agents.
    Serve {
        /// Kind of the server.
        #[arg(long)]
        kind: Kind,
        /// Folder of the certificates.
        #[arg(long)]
        folder: PathBuf,
        /// Port on 127.0.0.1.
        #[arg(long)]
        port: u16,
        /// Number of registered runtimes.
        #[arg(long, default_value_t = 10_000)]
        runtimes: usize,
    },
    /// A bare watch of the same objects as an agent's: kube's watcher, and a map from names to generations.
    Watch {
        /// Kubeconfig of the API server.
        #[arg(long)]
        kubeconfig: PathBuf,
        /// API group of the objects.
        #[arg(long)]
        group: String,
        /// API version of the objects.
        #[arg(long)]
        version: String,
        /// Kind of the objects.
        #[arg(long)]
        kind: String,
        /// Plural name of the kind.
        #[arg(long)]
        resource: String,
    },
}

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The receiver's intake with its limits, and a host in memory that finishes every event at once.
    Listener,
    /// A bare hyper server that verifies client certificates, reads bodies and answers as shortly as the intake.
    Bare,
    /// The bare server, but each answer is the request body.
    Echo,
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Bare => "bare",
            Self::Echo => "echo",
        }
    }
}

/// An order to the agents.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub(super) enum Order {
    /// Closes all connections, then connects `agents` and sends one heartbeat each.
    ///
    /// At most `at_once` connect concurrently, each after a random delay below `spread_ms`, as after a
    /// receiver's restart.
    Connect { port: u16, agents: usize, at_once: usize, spread_ms: u64 },
    /// Requests of `batch` events from all agents in turns; `clients` send as fast as they get answers.
    Closed { millis: u64, batch: usize, clients: usize },
    /// `rate` requests of one event per second, independent of answers. Heartbeats are canary events.
    Open { millis: u64, rate: f64, heartbeats: bool },
    /// A new connection per event, as fast as `clients` get answers.
    Fresh { port: u16, millis: u64, clients: usize },
}

/// The result of an order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Done {
    /// Answered requests.
    pub(super) requests: u64,
    /// Accepted events.
    pub(super) events: u64,
    /// Requests that failed, were rejected, or exceeded the in-flight limit.
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    /// Elapsed time.
    pub(super) seconds: f64,
    /// Latency from a request's due time to its answer.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

/// Runs the load generator with these arguments.
pub fn main(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot make a runtime")?;
    runtime.block_on(async {
        match args.role {
            Role::Agents { folder } => agents::run(&folder).await,
            Role::Serve { kind, folder, port, runtimes } => serve::run(kind, &folder, port, runtimes).await,
            Role::Watch { kubeconfig, group, version, kind, resource } => {
                watch::run(&kubeconfig, (&group, &version, &kind, &resource)).await
            }
        }
    })?;
    // Skips closing ten thousand connections.
    runtime.shutdown_background();
    Ok(())
}

/// Parses the orders on standard input.
fn orders<T: DeserializeOwned + Send + 'static>() -> mpsc::Receiver<T> {
    let (send, receive) = mpsc::channel(1);
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Ok(order) = serde_json::from_str(&line)
                && send.blocking_send(order).is_err()
            {
                return;
            }
        }
    });
    receive
}

/// Writes one line to standard output.
fn say(line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&text).and_then(|()| out.flush()).context("nobody reads standard output")
}
