//! A registry of modules: the CNCF one, or the fake one of this project ([`Backend`]).

use std::time::Duration;

use anyhow::{Result, ensure};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::{Backend, Harness, Process, fake, http, ports};

const READY: Duration = Duration::from_mins(1);

/// A running registry, plain HTTP on 127.0.0.1, anonymous, deletion allowed, in memory.
#[derive(Debug)]
pub struct Registry {
    host: String,
    /// Held for its end; the fake one lives as long as this process.
    _process: Option<Process>,
}

impl Registry {
    /// Starts it and waits until `GET /v2/` answers 200.
    pub async fn start(harness: &Harness) -> Result<Self> {
        Self::named(harness, "registry").await
    }

    /// The same for a further one; the name is that of its files.
    pub async fn named(harness: &Harness, name: &str) -> Result<Self> {
        Self::start_as(harness, name, None).await
    }

    /// The same for one that asks who reads it. `user` is a line of an htpasswd file, with a bcrypt hash.
    pub async fn locked(harness: &Harness, name: &str, user: &str) -> Result<Self> {
        let file = harness.write(&format!("{name}.htpasswd"), user)?;
        let auth = json!({"htpasswd": {"realm": name, "path": file}});
        Self::start_as(harness, name, Some(auth)).await
    }

    async fn start_as(harness: &Harness, name: &str, auth: Option<Value>) -> Result<Self> {
        if harness.backend() == Backend::Fake {
            ensure!(auth.is_none(), "the fake registry asks nobody for credentials");
            return Ok(Self { host: fake::registry().await?.host(), _process: None });
        }
        let host = format!("127.0.0.1:{}", ports::free()?);
        // JSON is YAML, which is what the registry reads.
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"inmemory": {}, "delete": {"enabled": true}},
            "http": {"addr": host},
        });
        // Without credentials it answers nobody then.
        let ready = if auth.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        if let Some(auth) = auth {
            config["auth"] = auth;
        }
        let config = harness.write(&format!("{name}.yaml"), &config.to_string())?;
        let program = harness.tools()?.get("registry")?;
        let args = vec!["serve".to_owned(), config.display().to_string()];
        let mut spec = harness.spec(name, &program, args);
        // It would send traces to a collector that is not there.
        spec.env.push(("OTEL_TRACES_EXPORTER".to_owned(), "none".to_owned()));
        let process = Process::start(&spec)?;
        let ping = format!("http://{host}/v2/");
        process
            .ready(&format!("to answer GET /v2/ with {ready}"), READY, || async {
                Ok((http::status(&ping).await? == ready).then_some(()))
            })
            .await?;
        Ok(Self { host, _process: Some(process) })
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
}
