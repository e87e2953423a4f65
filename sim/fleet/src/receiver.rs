//! The measured receiver, in its own process.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_api::names::AGENT_NAME;
use tidewatch_demo::{
    files::write_private,
    http,
    process::{Lifetime, Process, Spec},
    wait,
};
use tidewatch_receiver::rotation::PAGE;

use crate::{fleet::Fleet, metrics::Page, scenario::How, usage::Usage};

/// Includes a list of KCP.
const READY: Duration = Duration::from_mins(5);
const GRACE: Duration = Duration::from_secs(25);
const ENDED: Duration = Duration::from_secs(40);

/// Settings of the receiver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Program.
    pub program: PathBuf,
    /// Hidden command of this program, if it is used.
    pub command: Option<String>,
    /// Whether it polls and resyncs, as by default.
    pub polling: bool,
    /// More arguments.
    pub args: Vec<String>,
    /// Interval of agents' checking lists, in seconds.
    pub agents_check: u64,
    /// Age limit of agents' connections, in seconds.
    pub agents_connection_age: u64,
}

/// The receiver, across restarts.
pub struct Receiver {
    spec: Spec,
    process: tokio::sync::Mutex<Option<Process>>,
    pid: Mutex<Option<u32>>,
    /// Usage of ended processes.
    before: Mutex<Usage>,
    last: Mutex<Usage>,
    /// URL for agents.
    pub url: String,
    admin: String,
}

impl Receiver {
    /// Prepares the receiver.
    pub fn prepare(folder: &Path, fleet: &Fleet, settings: &Settings, installs_agents: bool) -> Result<Self> {
        let kubeconfig = folder.join("kcp.kubeconfig");
        write_private(&kubeconfig, &fleet.kcp_kubeconfig)?;
        let (events, admin) = (free_port()?, free_port()?);
        let mut args: Vec<String> = settings.command.iter().cloned().collect();
        let pairs = [
            ("--listen", events.to_string()),
            ("--admin", admin.to_string()),
            ("--server-name", events.ip().to_string()),
            ("--kubeconfig", kubeconfig.display().to_string()),
            ("--modules", fleet.registry.host()),
        ];
        args.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        if !settings.polling {
            args.extend(["--fallback-poll", "0", "--safety-resync", "0"].map(str::to_owned));
        }
        // Immediate rollouts show the receiver's own cost.
        if !settings.args.iter().any(|arg| arg.starts_with("--rollout-window")) {
            args.extend(["--rollout-window", "0"].map(str::to_owned));
        }
        if installs_agents {
            args.extend(installation(events));
        }
        args.extend(settings.args.iter().cloned());
        let spec = Spec {
            name: "the receiver".to_owned(),
            program: settings.program.clone(),
            args,
            env: Vec::new(),
            log: folder.join("receiver.log"),
            grace: GRACE,
            scratch: None,
            lifetime: Lifetime::WithUs,
        };
        Ok(Self {
            spec,
            process: tokio::sync::Mutex::new(None),
            pid: Mutex::new(None),
            before: Mutex::default(),
            last: Mutex::default(),
            url: format!("https://{events}"),
            admin: format!("http://{admin}"),
        })
    }

    /// The page of certificates.
    pub async fn certificates(&self) -> Result<Value> {
        http::json(&format!("{}{PAGE}", self.admin)).await
    }

    /// Starts the receiver and waits until it is ready.
    pub async fn start(&self) -> Result<()> {
        let old = self.spec.log.with_extension("before.log");
        let _absent = std::fs::rename(&self.spec.log, old);
        let process = Process::start(&self.spec)?;
        *self.pid.lock() = Some(process.program_pid().await?);
        let (ready, metrics) = (format!("{}/readyz", self.admin), format!("{}/metrics", self.admin));
        process
            .ready("to know KCP and to lead", READY, || async {
                let is_ready = http::status(&ready).await? == ::http::StatusCode::OK;
                let metrics = http::text(&metrics).await?;
                Ok((is_ready && metrics.contains("tidewatch_receiver_leader 1")).then_some(()))
            })
            .await?;
        *self.process.lock().await = Some(process);
        Ok(())
    }

    /// Ends the process.
    pub async fn end(&self, how: How) -> Result<()> {
        self.usage();
        let Some(mut process) = self.process.lock().await.take() else { return Ok(()) };
        match how {
            How::Kill => process.kill().await?,
            How::Restart => {
                process.begin_end();
                wait::until("the receiver to end", ENDED, || async { Ok(process.ended()) }).await?;
            }
        }
        *self.pid.lock() = None;
        let last = std::mem::take(&mut *self.last.lock());
        let mut before = self.before.lock();
        *before = Usage { cpu: before.cpu + last.cpu, rss: 0.0, peak: before.peak.max(last.peak) };
        Ok(())
    }

    /// Usage of all its processes. The end of a killed one may be missing.
    pub fn usage(&self) -> Usage {
        let now = (*self.pid.lock()).and_then(Usage::of);
        let mut last = self.last.lock();
        if let Some(now) = now {
            *last = now;
        }
        let before = *self.before.lock();
        Usage { cpu: before.cpu + last.cpu, rss: last.rss, peak: before.peak.max(last.peak) }
    }

    /// Metrics, if the receiver answers.
    pub async fn metrics(&self) -> Option<Page> {
        let text = http::text(&format!("{}/metrics", self.admin)).await.ok()?;
        Some(Page::parse(&text))
    }

    /// Describes an unexpected end.
    pub async fn has_failed(&self) -> Option<String> {
        let process = self.process.lock().await;
        let process = process.as_ref()?;
        let status = process.ended()?;
        Some(format!("the receiver has ended with {status}: {}", process.log_tail(5)))
    }

    /// Arguments for the report.
    pub fn flags(&self) -> String {
        let own = self.spec.args.iter().skip_while(|arg| *arg != "--modules").skip(2);
        own.cloned().collect::<Vec<_>>().join(" ")
    }
}

/// Agents that the engine installs. A replaced CA is trusted for the lifetime of a certificate, so a rotation lasts longer.
fn installation(events: SocketAddr) -> Vec<String> {
    vec![
        format!("--agent-url=https://{events}"),
        format!("--agent-image={AGENT_NAME}"),
        "--agent-certificate-lifetime=3m".to_owned(),
    ]
}

fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
    Ok(listener.local_addr()?)
}
