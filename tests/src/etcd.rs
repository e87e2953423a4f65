//! One etcd for several API servers.

use std::time::Duration;

use anyhow::Result;

use crate::{Harness, Process, http, ports};

const READY: Duration = Duration::from_mins(1);

/// A running etcd without TLS on 127.0.0.1. Its data goes with it.
#[derive(Debug)]
pub struct Etcd {
    url: String,
    process: Process,
}

impl Etcd {
    /// Starts it and waits until it is healthy.
    pub async fn start(harness: &Harness) -> Result<Self> {
        let url = format!("http://127.0.0.1:{}", ports::free()?);
        let peers = format!("http://127.0.0.1:{}", ports::free()?);
        let data = harness.folder().join("etcd-data");
        let args = vec![
            "--name=tidewatch".to_owned(),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=tidewatch={peers}"),
            // The data need not survive a power cut, and fsync is most of the start.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let mut spec = harness.spec("etcd", &harness.tools().get("etcd")?, args);
        spec.scratch = Some(data);
        let process = Process::start(&spec)?;
        let health = format!("{url}/health");
        process
            .ready("to be healthy", READY, || async {
                Ok(http::status(&health).await?.is_success().then_some(()))
            })
            .await?;
        Ok(Self { url, process })
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process, for its log.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
