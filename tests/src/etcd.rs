//! One etcd for several API servers.

use std::time::Duration;

use anyhow::Result;

use crate::{Backend, Harness, Process, http, ports};

const READY: Duration = Duration::from_mins(1);

/// An etcd without TLS on 127.0.0.1. Its data is deleted with it.
#[derive(Debug)]
pub struct Etcd {
    url: String,
    // Absent with a fake API server.
    process: Option<Process>,
}

impl Etcd {
    /// Starts etcd and waits until it is healthy.
    pub async fn start(harness: &Harness) -> Result<Self> {
        if harness.backend() == Backend::Fake {
            return Ok(Self { url: String::new(), process: None });
        }
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
            // The data need not survive a crash, and fsync dominates the start.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let mut spec = harness.spec("etcd", &harness.tools()?.get("etcd")?, args);
        spec.scratch = Some(data);
        let process = Process::start(&spec)?;
        let health = format!("{url}/health");
        process
            .ready("to be healthy", READY, || async {
                Ok(http::status(&health).await?.is_success().then_some(()))
            })
            .await?;
        Ok(Self { url, process: Some(process) })
    }

    /// Compacts all history before a revision.
    ///
    /// # Errors If etcd refuses, for example because of a future revision.
    pub async fn compact(&self, revision: u64) -> Result<()> {
        // Protobuf's JSON encodes 64-bit numbers as strings.
        let body = serde_json::json!({"revision": revision.to_string(), "physical": true});
        let status = http::post(&format!("{}/v3/kv/compaction", self.url), &body).await?;
        anyhow::ensure!(status.is_success(), "etcd answered {status} to a compaction");
        Ok(())
    }

    /// Returns the client URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process, for its log.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }
}
