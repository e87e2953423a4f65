//! A runtime's client that asks the gate before each write.

use std::{ops::Deref, sync::Arc};

use tidewatch_api::object::ObjectRef;

use super::{client::RuntimeClient, error::RuntimeError};
use crate::gate::{Gate, Held, Permit, Side};

#[derive(Clone, Debug)]
pub(crate) struct Gated {
    client: RuntimeClient,
    gate: Gate,
    kyma: Arc<str>,
    /// Writes only the status of a pause.
    is_for_pause_status: bool,
    /// The Kyma, if the runtime is KCP's own cluster: then it is the runtime's Kyma, too.
    own_kyma: Option<Arc<ObjectRef>>,
}

impl Gated {
    pub(crate) fn new(client: RuntimeClient, gate: Gate, kyma: &str) -> Self {
        Self { client, gate, kyma: kyma.into(), is_for_pause_status: false, own_kyma: None }
    }

    /// The one client that may write in a paused runtime. For the status of the pause only.
    pub(crate) fn for_pause_status(&self) -> Self {
        Self { is_for_pause_status: true, ..self.clone() }
    }

    /// The client of KCP's own cluster, whose Kyma is `kyma`.
    pub(crate) fn of_own_cluster(self, kyma: ObjectRef) -> Self {
        Self { own_kyma: Some(Arc::new(kyma)), ..self }
    }

    /// The Kyma in KCP, if the runtime is KCP's own cluster.
    pub(crate) fn own_kyma(&self) -> Option<&ObjectRef> {
        self.own_kyma.as_deref()
    }

    /// Whether the runtime is KCP's own cluster.
    pub(crate) const fn is_own_cluster(&self) -> bool {
        self.own_kyma.is_some()
    }

    #[cfg(test)]
    pub(crate) fn through(&self, gate: Gate) -> Self {
        Self { gate, ..self.clone() }
    }

    pub(crate) fn permit(&self) -> Result<Permit, Held> {
        if self.is_for_pause_status { self.gate.kcp() } else { self.gate.runtime() }
    }

    /// Awaits a write, if it is still allowed when its turn comes. Preparing it may have taken a while.
    pub(crate) async fn write<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, RuntimeError>, Held> {
        self.client.write_if(name, || self.permit().map(drop), call).await
    }

    pub(crate) fn side(&self) -> Side {
        Side::Runtime { kyma: self.kyma.to_string() }
    }
}

impl Deref for Gated {
    type Target = RuntimeClient;

    fn deref(&self) -> &RuntimeClient {
        &self.client
    }
}
