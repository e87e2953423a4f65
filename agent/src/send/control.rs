//! Configuration changes for the sender.

use std::collections::{BTreeMap, BTreeSet};
use tidewatch_wire::Route;
use tokio::sync::{mpsc, oneshot};

/// A changed set of watches.
#[derive(Debug)]
pub struct Control {
    /// Routes other than the engine's, by watch.
    pub routes: BTreeMap<String, Vec<Route>>,
    /// All watches, once known; names of others are dropped.
    pub complete: Option<BTreeSet<String>>,
    /// Ended watches; their keys are dropped.
    pub forget: Vec<String>,
    /// Takes the number of dropped keys.
    pub done: oneshot::Sender<usize>,
}

/// Pending forever without a channel. Cancel-safe.
pub(super) async fn next(control: &mut Option<mpsc::Receiver<Control>>) -> Option<Control> {
    match control {
        Some(control) => control.recv().await,
        None => std::future::pending().await,
    }
}
