//! What tests of replays share.

use anyhow::Result;
use tidewatch_replay::{Decision, Item, Options, Record, Replayed, replay};

/// On a thread of its own: a replay has a runtime of its own.
pub(crate) async fn played(record: Record) -> Result<(Record, Replayed)> {
    let play = tokio::task::spawn_blocking(move || {
        let replayed = replay(&record, &Options::default(), |_| {});
        (record, replayed)
    });
    let (record, replayed) = play.await?;
    Ok((record, replayed?))
}

pub(crate) fn decisions(replayed: &Replayed) -> impl Iterator<Item = &Decision> {
    replayed.items.iter().filter_map(|item| match item {
        Item::Decision(decision) => Some(decision),
        _ => None,
    })
}
