//! A registry of modules: the CNCF registry or the fake one ([`Backend`]).

use std::time::Duration;

use anyhow::{Result, ensure};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::{Backend, Harness, Process, fake, http, ports};

const READY: Duration = Duration::from_mins(1);

/// An anonymous in-memory registry on 127.0.0.1: plain HTTP, deletion allowed.
#[derive(Debug)]
pub struct Registry {
    host: String,
    /// The process of a real registry. The fake one lives as long as this process.
    _process: Option<Process>,
}

impl Registry {
    /// Starts a registry and waits until `GET /v2/` answers 200.
    pub async fn start(harness: &Harness) -> Result<Self> {
        Self::named(harness, "registry").await
    }

    /// Starts a further registry with its own file names.
    pub async fn named(harness: &Harness, name: &str) -> Result<Self> {
        Self::start_as(harness, name, None).await
    }

    /// Starts a registry that requires credentials. `user` is an htpasswd line with a bcrypt hash.
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
        // The registry reads YAML, which includes JSON.
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"inmemory": {}, "delete": {"enabled": true}},
            "http": {"addr": host},
        });
        // A registry with credentials answers 401.
        let ready = if auth.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        if let Some(auth) = auth {
            config["auth"] = auth;
        }
        let config = harness.write(&format!("{name}.yaml"), &config.to_string())?;
        let program = harness.tools()?.get("registry")?;
        let args = vec!["serve".to_owned(), config.display().to_string()];
        let mut spec = harness.spec(name, &program, args);
        // Disables the export of traces.
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

    /// Returns `127.0.0.1:port`, as in an image reference.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns `127.0.0.1:port/namespace`. Tests share this registry and reuse names and versions.
    pub fn of(&self, namespace: &str) -> String {
        format!("{}/{namespace}", self.host)
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.host)
    }
}
