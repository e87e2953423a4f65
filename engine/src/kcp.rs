//! The control plane (KCP), as reconcilers see it: its index, and writes to its objects and statuses.

pub(crate) mod writes;

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Api, Client};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidewatch_api::{Kyma, Manifest};

use crate::{gate::Gate, index::KcpState};

/// Returns the present time. Injected, so that tests can set it.
pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The control plane. Cheap to clone: all clones share the index and the gate.
#[derive(Clone)]
pub(crate) struct Kcp {
    pub(crate) client: Client,
    /// The namespace of Kymas, Manifests and kubeconfig Secrets.
    pub(crate) namespace: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) state: Arc<RwLock<KcpState>>,
    pub(crate) clock: Clock,
}

impl Kcp {
    /// A control plane with an empty index.
    pub(crate) fn new(client: Client, namespace: &str, clock: Clock) -> Self {
        let (gate, state) = (Gate::default(), Arc::default());
        Self { client, namespace: namespace.into(), gate, state, clock }
    }

    /// The index, for reading. Never held across an await.
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, KcpState> {
        self.state.read()
    }

    /// The index, for changing. Never held across an await.
    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, KcpState> {
        self.state.write()
    }

    /// The present time.
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The Kymas of the namespace.
    pub(crate) fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The Manifests of the namespace.
    pub(crate) fn manifests(&self) -> Api<Manifest> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}
