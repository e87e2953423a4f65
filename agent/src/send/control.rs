//! A change of the configuration, for the task that owns the dirty set.

use std::collections::{BTreeMap, BTreeSet};
use tidewatch_wire::Route;
use tokio::sync::{mpsc, oneshot};

/// Which watches there are from now on.
#[derive(Debug)]
pub struct Control {
    /// Routes of the watches that are not for the engine alone.
    pub routes: BTreeMap<String, Vec<Route>>,
    /// The names of all watches, if no others are to be expected: of others nothing has to be remembered.
    pub complete: Option<BTreeSet<String>>,
    /// Watches that have ended, and report nothing any more: what is dirty under them is let go.
    pub forget: Vec<String>,
    /// Told, when it is done, how many keys were let go.
    pub done: oneshot::Sender<usize>,
}

/// The next change; never, without anybody who makes any. Cancel-safe.
pub(super) async fn next(control: &mut Option<mpsc::Receiver<Control>>) -> Option<Control> {
    match control {
        Some(control) => control.recv().await,
        None => std::future::pending().await,
    }
}
