//! What the sender needs of the way to the receiver. In the agent that is a [`Connector`](super::Connector); a
//! simulation brings one without sockets.

use super::{Fate, SendError};
use jiff::Timestamp;
use std::{collections::BTreeMap, time::Duration};
use tidewatch_wire::{Route, v3};
use tokio::sync::watch;

/// Makes connections to one receiver.
pub trait Transport: Clone + Send + 'static {
    /// A connection that was made.
    type Connection: Channel;

    /// Makes a connection, within a time limit of its own.
    fn connect(self) -> impl Future<Output = Result<Self::Connection, SendError>> + Send + 'static;

    /// Changes when [`fate`](Self::fate) may have.
    fn renewals(&self) -> watch::Receiver<()>;

    /// What a connection is still good for.
    fn fate(&self, connection: &Self::Connection) -> Fate;

    /// The routes of watches that are not for the engine alone have changed.
    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>);
}

/// One connection. When it is dropped, it is closed as soon as its requests have ended.
pub trait Channel: Send + 'static {
    /// When the certificate it was made with ends.
    fn not_after(&self) -> Timestamp;

    /// Resolves when the connection has ended, with the reason. Cancel-safe; not to be called again after it has resolved.
    fn closed(&mut self) -> impl Future<Output = SendError> + Send;

    /// Sends a request and reads its answer, within `deadline`. Dropping the exchange gives it up.
    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<Self>;
}
