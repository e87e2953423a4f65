//! A runtime's client that asks the gate before each write.

use std::{ops::Deref, sync::Arc};

use super::{client::RuntimeClient, error::RuntimeError};
use crate::gate::{Gate, Held, Permit, Side};

#[derive(Clone, Debug)]
pub(crate) struct Gated {
    client: RuntimeClient,
    gate: Gate,
    kyma: Arc<str>,
    /// Writes only the status of a pause.
    is_for_pause_status: bool,
}

impl Gated {
    pub(crate) fn new(client: RuntimeClient, gate: Gate, kyma: &str) -> Self {
        Self { client, gate, kyma: kyma.into(), is_for_pause_status: false }
    }

    /// The one client that may write in a paused runtime. For the status of the pause only.
    pub(crate) fn for_pause_status(&self) -> Self {
        Self { is_for_pause_status: true, ..self.clone() }
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
