//! Two more control planes, for tests that must not touch those of [`crate::env`].

use std::thread;

use anyhow::{Context, Result, anyhow};
use kube::{Api, api::DeleteParams};
use tidewatch_api::{
    Kyma,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tokio::sync::{Mutex, MutexGuard, OnceCell, oneshot};

use crate::{ControlPlane, Options, User, env, fleet::AGENT_USER};

/// A user for which no RBAC object exists until a test makes one.
pub const LIMITED_USER: &str = "limited-agent";

/// Two runtimes without pods: nothing in them becomes ready that needs a kubelet.
#[derive(Debug)]
pub struct Spare {
    /// The first.
    pub runtime3: ControlPlane,
    /// The second.
    pub runtime4: ControlPlane,
    kymas: Mutex<()>,
}

impl Spare {
    /// A runtime has one Kyma, so only one test at a time may register these two.
    pub async fn register_alone(&self) -> MutexGuard<'_, ()> {
        self.kymas.lock().await
    }
}

/// The spare control planes of this test binary, started by the first test that asks; see
/// [`env::shared`].
pub async fn shared() -> Result<&'static Spare> {
    static SHARED: OnceCell<Result<Spare, String>> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async { start_apart().await.map_err(|error| format!("{error:#}")) })
        .await
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

/// On a thread with a runtime of its own: the first test's runtime ends with that test.
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
            // Nobody waits any more when the test was cancelled: then it is dropped.
            let _unwanted = send.send(started);
        })
        .context("cannot start a thread")?;
    receive.await.context("the thread that starts the spare control planes panicked")?
}

/// A runtime has one Kyma: what another test has left goes first.
pub async fn take_over(cluster: &ControlPlane) -> Result<()> {
    let left: Api<Kyma> = Api::namespaced(cluster.client()?, RUNTIME_NAMESPACE);
    match left.delete(RUNTIME_KYMA_NAME, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn start(env: &env::Environment, name: &str) -> Result<ControlPlane> {
    let users = [AGENT_USER, LIMITED_USER]
        .into_iter()
        .map(|user| User { name: user.to_owned(), groups: Vec::new() })
        .collect();
    // Boxed: its future is large.
    Box::pin(ControlPlane::start(&env.harness, env.etcd(), Options { users, ..Options::named(name) })).await
}
