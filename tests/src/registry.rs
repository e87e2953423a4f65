//! A CNCF registry.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::{Harness, Process, http, ports};

const READY: Duration = Duration::from_mins(1);

/// A running registry, plain HTTP on 127.0.0.1, anonymous, deletion allowed, in memory.
#[derive(Debug)]
pub struct Registry {
    host: String,
    process: Process,
}

impl Registry {
    /// Starts it and waits until `GET /v2/` answers 200.
    pub async fn start(harness: &Harness) -> Result<Self> {
        Self::named(harness, "registry").await
    }

    /// The same for a further one; the name is that of its files.
    pub async fn named(harness: &Harness, name: &str) -> Result<Self> {
        let host = format!("127.0.0.1:{}", ports::free()?);
        // JSON is YAML, which is what the registry reads.
        let config = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"inmemory": {}, "delete": {"enabled": true}},
            "http": {"addr": host},
        });
        let config = harness.write(&format!("{name}.yaml"), &config.to_string())?;
        let program = harness.tools().get("registry")?;
        let args = vec!["serve".to_owned(), config.display().to_string()];
        let mut spec = harness.spec(name, &program, args);
        // It would send traces to a collector that is not there.
        spec.env.push(("OTEL_TRACES_EXPORTER".to_owned(), "none".to_owned()));
        let process = Process::start(&spec)?;
        let ping = format!("http://{host}/v2/");
        process
            .ready("to answer GET /v2/ with 200", READY, || async {
                Ok((http::status(&ping).await? == hyper::StatusCode::OK).then_some(()))
            })
            .await?;
        Ok(Self { host, process })
    }

    /// `127.0.0.1:port`, as it stands in an image reference.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The place of one namespace's modules, `127.0.0.1:port/namespace`: tests that share this registry give one version of one
    /// name to different objects.
    pub fn of(&self, namespace: &str) -> String {
        format!("{}/{namespace}", self.host)
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.host)
    }

    /// The process, for its log.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
