//! Rollout turns.

use tidewatch_api::{Manifest, names::labels};

use super::{GateDecision, Notes, View};
use crate::manifest::progress;

/// Before its turn an installed module stays silently. Channel or version changes by the user need no turn.
pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> GateDecision {
    let turn = view.facts.turns.and_then(|turns| turns.get(&view.module.entry.name));
    let Some(turn) = turn.filter(|turn| **turn > view.now) else { return GateDecision::Pass };
    let follows = |manifest: &&Manifest| {
        let label = manifest.metadata.labels.as_ref().and_then(|all| all.get(labels::CHANNEL));
        label == Some(&view.module.channel)
    };
    let stays = view.installed.filter(|manifest| manifest.metadata.deletion_timestamp.is_none());
    let Some(installed) = stays.filter(follows) else { return GateDecision::Pass };
    let (state, message) = progress(installed);
    GateDecision::Keep { state, message, maintenance: false, retry_at: Some(*turn) }
}
