use super::super::{
    condition::Conditions,
    message::{Baseline, Message},
};
use crate::{config, metrics::Metrics};
use jiff::Timestamp;
use std::time::Duration;
use tidewatch_delivery::outbox::KeepNames;
use tokio::sync::{mpsc, watch};

/// Dependencies of all watches.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Bounded: floods wait in the API server.
    pub changes: mpsc::Sender<Message>,
    /// State to compare with before reports.
    pub baseline: watch::Receiver<Baseline>,
    /// The watches' conditions.
    pub conditions: Conditions,
    /// Watches that report complete lists.
    pub keep_names: KeepNames,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: fn() -> Timestamp,
    /// Shortest interval of list checks.
    pub check_every: Duration,
    /// Changes after a pause of the process; watches then list again.
    pub resumed: watch::Receiver<u64>,
}

/// Settings of a watch. Name, group, resource and route are fixed while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The watch's configuration.
    pub spec: config::Watch,
    /// Limit of tracked objects.
    pub max_objects: usize,
}

/// Waits for changed settings. Pending forever without a sender.
pub(super) async fn renewed(wanted: &mut Option<watch::Receiver<Wanted>>) {
    let renewed = match wanted {
        Some(wanted) => wanted.changed().await.is_ok(),
        None => false,
    };
    if !renewed {
        std::future::pending::<()>().await;
    }
}
