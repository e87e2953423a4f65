//! The path to the receiver: a [`Connector`](super::Connector), or a simulation.

use super::error::SendError;
use jiff::Timestamp;
use std::{collections::BTreeMap, time::Duration};
use tidewatch_wire::{Route, v3};
use tokio::sync::watch;

/// Usability of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Unchanged.
    Keep,
    /// Usable, but a newer certificate exists: connect again first.
    Replace,
    /// Unusable; the reason labels a metric.
    End(&'static str),
}

/// Connects to a receiver.
pub trait Transport: Clone + Send + 'static {
    /// The connection type.
    type Connection: Channel;

    /// Has its own time limit.
    fn connect(self) -> impl Future<Output = Result<Self::Connection, SendError>> + Send + 'static;

    /// Changes when [`fate`](Self::fate) may have.
    fn renewals(&self) -> watch::Receiver<()>;

    /// Called when the receiver wants another certificate.
    fn replace_certificate(&self) {}

    /// Returns the usability of a connection.
    fn fate(&self, connection: &Self::Connection) -> Fate;

    /// Sets routes other than the engine's, by watch.
    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>);
}

/// A connection; after a drop, it closes when its requests end.
pub trait Channel: Send + 'static {
    /// The certificate's expiry.
    fn not_after(&self) -> Timestamp;

    /// Waits for the end; returns the reason. Cancel-safe. Must not be called again afterwards.
    fn closed(&mut self) -> impl Future<Output = SendError> + Send;

    /// Sends a request and returns the answer. Dropping the future cancels it.
    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<Self>;
}
