//! A shared environment per test binary: three control planes and a registry.

use std::thread;

use anyhow::{Context, Result, anyhow};
use futures::future::try_join3;
use tokio::sync::{OnceCell, oneshot};

use crate::{
    Backend, ControlPlane, Etcd, Harness, Options, Registry, User,
    fleet::{AGENT_USER, RECEIVER_USER},
};

/// KCP, two runtimes with pods, and a registry.
///
/// Holds processes and plain data: each test creates clients in its own tokio runtime.
#[derive(Debug)]
pub struct Environment {
    /// KCP, without pods.
    pub kcp: ControlPlane,
    /// The first runtime.
    pub runtime1: ControlPlane,
    /// The second runtime.
    pub runtime2: ControlPlane,
    /// The registry of modules.
    pub registry: Registry,
    /// The harness for logs and further processes.
    pub harness: Harness,
    // Last field: etcd ends after its users.
    etcd: Etcd,
}

impl Environment {
    /// Starts everything, in parallel where possible.
    pub async fn start(harness: Harness) -> Result<Self> {
        let (etcd, registry) =
            futures::future::try_join(Etcd::start(&harness), Registry::start(&harness)).await?;
        // Boxed: three of these futures need 17 KB of stack.
        let start = |name: &str, pods| {
            let users =
                [AGENT_USER, RECEIVER_USER].map(|name| User { name: name.to_owned(), groups: Vec::new() });
            let users = users.to_vec();
            let options = Options { pods, users, ..Options::named(name) };
            Box::pin(ControlPlane::start(&harness, &etcd, options))
        };
        let (kcp, runtime1, runtime2) =
            try_join3(start("kcp", false), start("runtime1", true), start("runtime2", true)).await?;
        Ok(Self { kcp, runtime1, runtime2, registry, harness, etcd })
    }

    /// Returns the etcd for further control planes.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        for cluster in [&mut self.kcp, &mut self.runtime1, &mut self.runtime2] {
            cluster.begin_end();
        }
    }
}

/// Returns the environment of this test binary, started on first use.
///
/// A failed start is not retried; every test gets its message. Statics are not dropped, so watchdogs end the
/// processes.
pub async fn shared() -> Result<&'static Environment> {
    static SHARED: OnceCell<Result<Environment, String>> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async { start_apart().await.map_err(|error| format!("{error:#}")) })
        .await
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

/// Starts on its own thread and tokio runtime, which outlive the first test. `Tools::find` blocks.
async fn start_apart() -> Result<Environment> {
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name("environment".to_owned())
        .spawn(move || {
            let harness = Backend::chosen().and_then(Harness::for_tests_on);
            let started = harness.and_then(|harness| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .context("cannot make a tokio runtime")?
                    .block_on(Environment::start(harness))
            });
            // The send fails if the test was cancelled; then the environment is dropped.
            let _unwanted = send.send(started);
        })
        .context("cannot start a thread")?;
    receive.await.context("the thread that starts the environment panicked")?
}
