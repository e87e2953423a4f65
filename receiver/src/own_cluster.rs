//! Single-cluster mode: an agent within this process watches the receiver's own cluster.
//!
//! Its requests go to the intake as calls, so delivery, acknowledgements and the proof of the event path are those of a runtime's agent.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use tidewatch_agent::{
    app::{Embedded, StartError},
    config::{Config, ConfigMapRef},
    send::{Channel, Fate, SendError, Transport},
};
use tidewatch_api::names::{AGENT_CONFIG_MAP, RUNTIME_NAMESPACE};
use tidewatch_drain::Drain;
use tidewatch_engine::Engine;
use tidewatch_listener::{Intake, RefusedRequest, Runtime};
use tidewatch_telemetry::metrics::Registry;
use tidewatch_wire::{Route, v3};
use tokio::sync::{oneshot, watch};

/// Runtime id in the agent's log lines; requests carry that of the Kyma.
const AGENT: &str = "own-cluster";

/// Prepares the agent, which reads the watches that the engine writes.
pub(crate) async fn prepare(
    kubeconfig: Option<PathBuf>,
    registry: &Registry,
) -> Result<Embedded, StartError> {
    let map = ConfigMapRef { namespace: RUNTIME_NAMESPACE.to_owned(), name: AGENT_CONFIG_MAP.to_owned() };
    Embedded::prepare(Config::embedded(AGENT.to_owned(), kubeconfig, map), registry).await
}

/// The path from the agent to the intake.
#[derive(Clone)]
pub(crate) struct InProcess {
    pub(crate) intake: Arc<Intake>,
    pub(crate) engine: Engine,
    /// Changes after each reconcile of a Kyma.
    pub(crate) reconciled: watch::Receiver<()>,
}

impl InProcess {
    /// Starts the agent once the past sessions are `recorded` and the first Kyma is reconciled: then the agent's namespace exists.
    pub(crate) async fn serve(mut self, agent: Embedded, recorded: oneshot::Receiver<()>, drain: Drain) {
        let stop = drain.watch();
        let started = async {
            let _ = recorded.await;
            let _ = self.reconciled.changed().await;
            self.runtime().await;
        };
        tokio::select! {
            () = started => {}
            () = stop.signaled() => return,
        }
        agent.start(self, &drain).await;
        stop.signaled().await;
    }

    /// The Kyma that has the receiver's own cluster, as a runtime.
    fn current(&self) -> Option<Runtime> {
        let state = self.engine.state().read();
        let kyma = state.own_kyma()?.to_owned();
        let id = state.kymas.runtime_id_of(&kyma)?;
        let (renewed_by, not_after) = (Timestamp::MAX, Timestamp::MAX);
        Some(Runtime { id, kyma, certificate: Arc::from([]), renewed_by, not_after })
    }

    /// Waits until a Kyma has the cluster.
    async fn runtime(&mut self) -> Runtime {
        loop {
            if let Some(runtime) = self.current() {
                return runtime;
            }
            self.changed().await;
        }
    }

    /// Pending when the engine has ended.
    async fn changed(&mut self) {
        if self.reconciled.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Transport for InProcess {
    type Connection = Connection;

    async fn connect(mut self) -> Result<Connection, SendError> {
        let runtime = self.runtime().await;
        Ok(Connection { runtime: Arc::new(runtime), path: self })
    }

    fn renewals(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn fate(&self, _: &Connection) -> Fate {
        Fate::Keep
    }

    fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
}

/// Ends when another Kyma, or none, has the cluster.
pub(crate) struct Connection {
    runtime: Arc<Runtime>,
    path: InProcess,
}

impl Channel for Connection {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) -> SendError {
        while self.path.current().as_ref() == Some(&*self.runtime) {
            self.path.changed().await;
        }
        SendError::Closed
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let (intake, runtime, request) =
            (Arc::clone(&self.path.intake), Arc::clone(&self.runtime), request.clone());
        async move {
            match tokio::time::timeout(deadline, intake.take(&runtime, &request)).await {
                Ok(Ok(response)) => Ok(response),
                Ok(Err(RefusedRequest { status, message, retry_after })) => {
                    Err(SendError::Status { status: status.as_u16(), message, retry_after })
                }
                Err(_) => Err(SendError::Timeout),
            }
        }
    }
}
