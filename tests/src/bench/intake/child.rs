//! Child processes of `tidewatch-load`.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child as Running, ChildStdin, ChildStdout, Command},
};

use crate::{
    bench::load::{Done, Kind, Order},
    binaries, ports,
};

/// Raises the file limit to the hard limit.
const RAISED: &str = "ulimit -Sn \"$(ulimit -Hn)\"; exec \"$0\" \"$@\"";
/// Timeout of every order.
const LIMIT: Duration = Duration::from_mins(4);
const GRACE: Duration = Duration::from_secs(5);

/// A process that ends on drop or when this process dies.
pub(in crate::bench) struct Child {
    running: Running,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    pub(in crate::bench) pid: u32,
}

impl Child {
    /// Starts the process. Its first line reports readiness; its log goes to `log`.
    pub(in crate::bench) fn start(args: &[String], log: &Path) -> Result<Self> {
        let log = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut running = Command::new("sh")
            .args(["-c", RAISED])
            .arg(binaries::find("tidewatch-load")?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start tidewatch-load")?;
        let pid = running.id().context("tidewatch-load has ended")?;
        let input = running.stdin.take();
        let output = running.stdout.take().context("tidewatch-load has no output")?;
        Ok(Self { running, input, output: BufReader::new(output).lines(), pid })
    }

    pub(in crate::bench) async fn said<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = tokio::time::timeout(LIMIT, self.output.next_line()).await;
        let line = line.context("tidewatch-load is silent")??.context("tidewatch-load has ended")?;
        serde_json::from_str(&line).with_context(|| format!("tidewatch-load says {line:?}"))
    }

    pub(in crate::bench) async fn end(mut self) -> Result<()> {
        drop(self.input.take());
        if tokio::time::timeout(GRACE, self.running.wait()).await.is_err() {
            self.running.kill().await?;
        }
        Ok(())
    }
}

pub(in crate::bench) struct Agents(Child);

impl Agents {
    pub(in crate::bench) async fn start(folder: &Path) -> Result<Self> {
        let args = ["agents".to_owned(), format!("--folder={}", folder.display())];
        let mut child = Child::start(&args, &folder.join("agents.log"))?;
        let _: String = child.said().await?;
        Ok(Self(child))
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Executes an order. Fails if most of its requests fail.
    pub(in crate::bench) async fn obey(&mut self, order: Order) -> Result<Done> {
        let mut line = serde_json::to_vec(&order)?;
        line.push(b'\n');
        let input = self.0.input.as_mut().context("the agents have ended")?;
        input.write_all(&line).await?;
        input.flush().await?;
        let done: Done = self.0.said().await?;
        ensure!(
            done.requests > 0 && done.failed * 100 <= done.requests,
            "{} of {} requests failed: {}",
            done.failed,
            done.requests + done.failed,
            done.failure.as_deref().unwrap_or("?")
        );
        Ok(done)
    }
}

pub(in crate::bench) struct Server {
    child: Child,
    pub(in crate::bench) port: u16,
}

impl Server {
    pub(in crate::bench) async fn start(kind: Kind, folder: &Path) -> Result<Self> {
        Self::start_on(kind, folder, ports::free()?).await
    }

    pub(in crate::bench) async fn start_on(kind: Kind, folder: &Path, port: u16) -> Result<Self> {
        let args = [
            "serve".to_owned(),
            format!("--kind={}", kind.word()),
            format!("--folder={}", folder.display()),
            format!("--port={port}"),
        ];
        let mut child = Child::start(&args, &folder.join(format!("{}.log", kind.word())))?;
        let _: String = child.said().await?;
        Ok(Self { child, port })
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.pid
    }

    pub(in crate::bench) async fn end(self) -> Result<()> {
        self.child.end().await
    }
}
