//! What the agent of a runtime tells of what a Manifest waits for. Where it does, nobody has to look again and again.

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

/// The kind of a namespace.
pub(super) fn namespace_kind() -> Gvk {
    Gvk::of("v1", "Namespace")
}

/// What may end what a pass has left undone, besides what is watched anyway.
fn awaited(applied: &Applied) -> Vec<Wait> {
    let mut waits = Vec::new();
    let groups = &applied.awaited.groups;
    if !groups.is_empty() {
        waits.extend(watches::definitions().map(|kind| Wait { kind, only: groups.clone() }));
    }
    let spaces: BTreeSet<String> = applied.stuck.iter().map(|object| object.namespace.clone()).collect();
    if !spaces.is_empty() {
        waits.push(Wait { kind: namespace_kind(), only: spaces });
    }
    waits.sort();
    waits
}

/// Knows which objects of a runtime its agent watches.
pub(crate) struct Watched {
    pub(crate) kcp: Kcp,
    pub(crate) followups: Arc<FollowUps>,
}

impl Watched {
    /// Has told to a Manifest, from now on, what becomes of all that may end what a pass has left undone, and nothing else. Returns
    /// whether there is something of which it was not told before: that may have happened already.
    pub(super) fn watch(&self, work: &Work<'_>, name: &str, applied: &Applied) -> bool {
        let (mut waits, kyma) = (awaited(applied), work.kyma);
        let before = self.kcp.index().owners.waits_of(kyma, name);
        if applied.failed.is_some() {
            // It may not have got to what it waited for before.
            let found: BTreeSet<Gvk> = waits.iter().map(|wait| wait.kind.clone()).collect();
            waits.extend(before.iter().filter(|wait| !found.contains(&wait.kind)).cloned());
            waits.sort();
        }
        let changed = waits != before;
        let more = waits.iter().any(|wait| !before.contains(wait));
        if changed {
            self.kcp.index_mut().wait_for(kyma, name, waits);
        }
        // What has just been defined may be what the agent could not be told to watch.
        if changed || work.defined {
            self.followups.agent_config(kyma, &[]);
        }
        more
    }

    /// A Manifest waits for nothing any more that would be told to it.
    pub(super) fn unwatch(&self, kyma: &str, name: &str) {
        if self.kcp.index().owners.waits_of(kyma, name).is_empty() {
            return;
        }
        self.kcp.index_mut().wait_for(kyma, name, None::<Wait>);
        self.followups.agent_config(kyma, &[]);
    }

    /// How a reconcile ends that waits for objects of these kinds to be gone, and, without, for something else.
    pub(super) async fn leaving(
        &self,
        kyma: &str,
        runtime: &Gated,
        going: Option<&[Gvk]>,
        what: String,
    ) -> Outcome {
        match going {
            Some(kinds) if self.watches_deletions(kyma, runtime, kinds).await => Outcome::waiting(what),
            _ => Outcome::recheck_rarely(what),
        }
    }

    /// Those of the kinds of which an event for our engine tells how what modules install changes, and its state where there is one:
    /// all but what the safety resync is for, such as others' annotations and the marks of field managers.
    pub(super) async fn watched_kinds(
        &self,
        kyma: &str,
        runtime: &Gated,
        kinds: impl IntoIterator<Item = &Gvk> + Send,
    ) -> BTreeSet<Gvk> {
        let Some(watches) = self.watches(kyma) else { return BTreeSet::new() };
        let mut told = BTreeSet::new();
        for gvk in kinds {
            let sees = |watch: &AgentWatch, field| {
                watch.field == field && (watch.labels.is_empty() || watches::is_of_installed(watch))
            };
            let is_told = |field| is_watched(&watches, runtime, gvk, move |watch| sees(watch, field));
            if is_told(WatchedField::Spec).await
                && (!watches::has_state(&gvk.group, &gvk.kind) || is_told(WatchedField::Status).await)
            {
                told.insert(gvk.clone());
            }
        }
        told
    }

    /// Whether the end of each object of these kinds is an event for our engine.
    pub(super) async fn watches_changes(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        self.are_watched(kyma, runtime, kinds, |watch| watch.labels.is_empty()).await
    }

    /// Whether each change of state of each object of these kinds is one.
    pub(crate) async fn watches_status_of_all(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        let is = |watch: &AgentWatch| watch.labels.is_empty() && watch.field == WatchedField::Status;
        self.are_watched(kyma, runtime, kinds, is).await
    }

    /// Whether the end of each object that modules install of these kinds is one.
    pub(super) async fn watches_deletions(&self, kyma: &str, runtime: &Gated, kinds: &[Gvk]) -> bool {
        let ours = |watch: &AgentWatch| watch.labels.is_empty() || watches::is_of_installed(watch);
        self.are_watched(kyma, runtime, kinds, ours).await
    }

    /// Whether each change of state of what modules install of these kinds is one.
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

    /// What the agent of a runtime watches, if its path is proven. A watch that begins later than this reports what has happened
    /// before, too.
    fn watches(&self, kyma: &str) -> Option<Arc<Configured>> {
        let state = self.kcp.index();
        state.agent_config(kyma).filter(|_| state.path(kyma).is_some_and(|path| path.proven))
    }
}

/// Whether there is such a watch of ours for a kind.
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
