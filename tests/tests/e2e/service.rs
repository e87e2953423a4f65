//! A service of another manager, as one built on the Go listener package: it answers 200 to each event.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tidewatch_tests::ports;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

const SOON: Duration = Duration::from_secs(30);

/// What a scripted listener was sent: path, certificate header, body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// As it was asked for.
    pub(crate) path: String,
    /// The header with the client's certificate.
    pub(crate) certificate: String,
    /// The event.
    pub(crate) body: Value,
}

/// A manager's service, as one built on the Go listener: it answers 200 to what it gets.
pub(crate) struct Service {
    /// What it was told, in order.
    pub(crate) heard: mpsc::Receiver<Heard>,
    _tasks: JoinSet<()>,
}

impl Service {
    /// Listens until it is dropped.
    pub(crate) async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (tell, heard) = mpsc::channel(100);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let tell = tell.clone();
                connections.spawn(async move { drop(serve(stream, tell).await) });
            }
        });
        Ok(Self { heard, _tasks: tasks })
    }

    /// What it is told next.
    pub(crate) async fn next(&mut self) -> Result<Heard> {
        tokio::time::timeout(SOON, self.heard.recv()).await?.context("the service has ended")
    }
}

async fn serve(mut stream: TcpStream, tell: mpsc::Sender<Heard>) -> Result<()> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let header = |name: &str| head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            let length: usize = header("content-length").context("no length")?.parse()?;
            if body.len() >= length {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let certificate = header("x-forwarded-client-cert").unwrap_or_default().to_owned();
                tell.send(Heard { path, certificate, body: serde_json::from_str(body)? }).await?;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
                read.clear();
                continue;
            }
        }
        if stream.read_buf(&mut read).await? == 0 {
            bail!("closed");
        }
    }
}

/// An address at which nobody listens.
pub(crate) fn free() -> Result<SocketAddr> {
    Ok(([127, 0, 0, 1], ports::free()?).into())
}
