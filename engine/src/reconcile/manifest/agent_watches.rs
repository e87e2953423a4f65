//! Decides whether the agent watches awaited objects. If so, an event ends the wait, and no polling is needed.

use std::{collections::BTreeSet, sync::Arc};

use tidewatch_api::{object::Gvk, watcher::WatchedField};
use tidewatch_planner::{
    agent::{AgentWatch, ENGINE_ROUTE},
    watches,
};

use super::{apply::Applied, work::Work};
use crate::{
    clusters::{Gated, objects},
    index::{Configured, owners::Wait},
    kcp::Kcp,
    outcome::Outcome,
    reconcile::followups::FollowUps,
};

pub(super) fn namespace_kind() -> Gvk {
    Gvk::of("v1", "Namespace")
}

/// Returns the waits that the agent must watch in addition.
fn awaited(applied: &Applied) -> Vec<Wait> {
    let mut waits = Vec::new();
    let groups = &applied.awaited.groups;
    if !groups.is_empty() {
        waits.extend(watches::definitions().map(|kind| Wait { kind, only: groups.clone() }));
    }
    let spaces: BTreeSet<String> =
        applied.terminating.iter().map(|object| object.namespace.clone()).collect();
    if !spaces.is_empty() {
        waits.push(Wait { kind: namespace_kind(), only: spaces });
    }
    waits.sort();
    waits
}

/// Knows which objects of a runtime its agent watches.
pub(crate) struct AgentWatches {
    pub(crate) kcp: Kcp,
    pub(crate) followups: Arc<FollowUps>,
}

impl AgentWatches {
    /// Replaces the waits of a Manifest. Returns whether any wait is new: its event may have happened already.
    pub(super) fn watch(&self, work: &Work<'_>, name: &str, applied: &Applied) -> bool {
        let (mut waits, kyma) = (awaited(applied), work.kyma);
        let before = self.kcp.index().owners.waits_of(kyma, name);
        if applied.failed.is_some() {
            // After a failure, earlier waits may still apply.
            let found: BTreeSet<Gvk> = waits.iter().map(|wait| wait.kind.clone()).collect();
            waits.extend(before.iter().filter(|wait| !found.contains(&wait.kind)).cloned());
            waits.sort();
        }
        let changed = waits != before;
        let more = waits.iter().any(|wait| !before.contains(wait));
        if changed {
            self.kcp.index_mut().wait_for(kyma, name, waits);
        }
        // A newly defined kind may be one that the agent could not watch before.
        if changed || work.definitions_changed {
            self.followups.agent_config(kyma, &[]);
        }
        more
    }

    /// Removes all waits of a Manifest.
    pub(super) fn unwatch(&self, kyma: &str, name: &str) {
        if self.kcp.index().owners.waits_of(kyma, name).is_empty() {
            return;
        }
        self.kcp.index_mut().wait_for(kyma, name, None::<Wait>);
        self.followups.agent_config(kyma, &[]);
    }

    /// Returns the outcome of waiting for deletions of these kinds; `None`: it waits for more than deletions.
    pub(super) async fn deletion_outcome(
        &self,
        kyma: &str,
        runtime: &Gated,
        deleting: Option<&[Gvk]>,
        message: String,
    ) -> Outcome {
        match deleting {
            Some(kinds) if self.watches_deletions_of_installed(kyma, runtime, kinds).await => {
                Outcome::waiting(message)
            }
            _ => Outcome::recheck_rarely(message),
        }
    }

    /// Returns the kinds whose spec and status changes reach the engine for all installed objects.
    ///
    /// The safety resync covers the rest, such as others' annotations and managed fields.
    pub(super) async fn watched_kinds(
        &self,
        kyma: &str,
        runtime: &Gated,
        kinds: impl IntoIterator<Item = &Gvk> + Send,
    ) -> BTreeSet<Gvk> {
        let Some(watches) = self.watches(kyma) else { return BTreeSet::new() };
        let mut reported = BTreeSet::new();
        for gvk in kinds {
            let sees = |watch: &AgentWatch, field| {
                watch.field == field && (watch.labels.is_empty() || watches::selects_installed(watch))
            };
            let is_watched_field =
                |field| is_watched(&watches, runtime, gvk, move |watch| sees(watch, field));
            if is_watched_field(WatchedField::Spec).await
                && (!watches::has_state(&gvk.group, &gvk.kind)
                    || is_watched_field(WatchedField::Status).await)
            {
                reported.insert(gvk.clone());
            }
        }
        reported
    }

    /// Whether the deletion of any object of these kinds is an event.
    pub(super) async fn watches_deletions_of_all(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        self.are_watched(kyma, runtime, kinds, |watch| watch.labels.is_empty()).await
    }

    /// Whether each status change of any object of these kinds is an event.
    pub(crate) async fn watches_status_of_all(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        let is = |watch: &AgentWatch| watch.labels.is_empty() && watch.field == WatchedField::Status;
        self.are_watched(kyma, runtime, kinds, is).await
    }

    /// Whether the deletion of each installed object of these kinds is an event.
    pub(super) async fn watches_deletions_of_installed(
        &self,
        kyma: &str,
        runtime: &Gated,
        kinds: &[Gvk],
    ) -> bool {
        let ours = |watch: &AgentWatch| watch.labels.is_empty() || watches::selects_installed(watch);
        self.are_watched(kyma, runtime, kinds, ours).await
    }

    /// Whether each status change of installed objects of these kinds is an event.
    pub(super) async fn watches_status(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        self.are_watched(kyma, runtime, kinds, |watch| watch.field == WatchedField::Status).await
    }

    async fn are_watched(
        &self,
        kyma: &str,
        runtime: &Gated,
        kinds: &[Gvk],
        is: impl Fn(&AgentWatch) -> bool,
    ) -> bool {
        let Some(watches) = self.watches(kyma) else { return false };
        for gvk in kinds {
            if !is_watched(&watches, runtime, gvk, &is).await {
                return false;
            }
        }
        true
    }

    /// Returns the agent's configuration if its path is proven. A watch that starts later also reports earlier changes.
    fn watches(&self, kyma: &str) -> Option<Arc<Configured>> {
        let state = self.kcp.index();
        state.agents.config(kyma).filter(|_| state.kymas.event_path(kyma).is_some_and(|path| path.proven))
    }
}

async fn is_watched(
    watched: &Configured,
    runtime: &Gated,
    gvk: &Gvk,
    is: impl Fn(&AgentWatch) -> bool,
) -> bool {
    let Some(plural) = objects::plural(runtime, gvk).await else { return false };
    watched.config.watches.iter().any(|watch| {
        (watch.group.as_str(), watch.resource.as_str()) == (gvk.group.as_str(), plural.as_str())
            && watch.route == ENGINE_ROUTE
            && is(watch)
    })
}
