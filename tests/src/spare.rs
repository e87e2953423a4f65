//! Two control planes for tests that must not touch [`crate::env`].

use std::thread;

use anyhow::{Context, Result, anyhow};
use kube::{Api, api::DeleteParams};
use tidewatch_api::{
    Kyma,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tokio::sync::{Mutex, MutexGuard, OnceCell, oneshot};

use crate::{ControlPlane, Options, User, env, fleet::AGENT_USER};

/// A user without RBAC objects.
pub const LIMITED_USER: &str = "limited-agent";
/// A service account of the agent's name in another namespace, without RBAC objects.
pub const OTHER_ACCOUNT: &str = "system:serviceaccount:default:tidewatch-agent";

/// Two runtimes without pods: workloads never become ready.
#[derive(Debug)]
pub struct Spare {
    /// The first.
    pub runtime3: ControlPlane,
    /// The second.
    pub runtime4: ControlPlane,
    kymas: Mutex<()>,
}

impl Spare {
    /// Allows one test at a time to register these: a runtime has one Kyma.
    pub async fn register_alone(&self) -> MutexGuard<'_, ()> {
        self.kymas.lock().await
    }
}

/// Returns this test binary's spare control planes, started on first use; see [`env::shared`].
pub async fn shared() -> Result<&'static Spare> {
    static SHARED: OnceCell<Result<Spare, String>> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async { start_apart().await.map_err(|error| format!("{error:#}")) })
        .await
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

/// Runs on its own thread and tokio runtime, which outlive the first test.
async fn start_apart() -> Result<Spare> {
    let env = env::shared().await?;
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name("spare".to_owned())
        .spawn(move || {
            let started = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot make a tokio runtime")
                .and_then(|runtime| {
                    runtime.block_on(async {
                        let (runtime3, runtime4) =
                            futures::future::try_join(start(env, "runtime3"), start(env, "runtime4")).await?;
                        Ok(Spare { runtime3, runtime4, kymas: Mutex::new(()) })
                    })
                });
            // The send fails if the test was cancelled; then the result is dropped.
            let _unwanted = send.send(started);
        })
        .context("cannot start a thread")?;
    receive.await.context("the thread that starts the spare control planes panicked")?
}

/// Removes other tests' Kymas first: a runtime has one Kyma.
pub async fn take_over(cluster: &ControlPlane) -> Result<()> {
    let left: Api<Kyma> = Api::namespaced(cluster.client()?, RUNTIME_NAMESPACE);
    match left.delete(RUNTIME_KYMA_NAME, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn start(env: &env::Environment, name: &str) -> Result<ControlPlane> {
    let users = [AGENT_USER, LIMITED_USER, OTHER_ACCOUNT]
        .into_iter()
        .map(|user| User { name: user.to_owned(), groups: Vec::new() })
        .collect();
    // Boxed: its future is large.
    Box::pin(ControlPlane::start(&env.harness, env.etcd(), Options { users, ..Options::named(name) })).await
}
