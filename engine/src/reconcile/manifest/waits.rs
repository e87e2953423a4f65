//! Waits for kinds that the module itself defines.

use tidewatch_api::object::Gvk;
use tidewatch_planner::watches::definitions;

use super::apply::Awaited;
use crate::{
    clusters::Gated,
    outcome::{Outcome, SERVED_AFTER},
    reconcile::manifest::ManifestReconciler,
};

impl ManifestReconciler {
    /// Returns the outcome of a reconcile whose objects wait for others.
    ///
    /// If the agent watches everything awaited, an event ends the wait. Otherwise rechecks become rare after a quick start.
    /// `fresh`: some of the watches were requested only in this pass.
    pub(super) async fn wait_outcome(
        &self,
        kyma: &str,
        runtime: &Gated,
        message: String,
        awaited: &Awaited,
        fresh: bool,
    ) -> Outcome {
        let kinds = |kinds: &[Gvk]| {
            let mut kinds = kinds.to_vec();
            kinds.sort();
            kinds.dedup();
            kinds
        };
        let told = !awaited.without_event
            && self.watched.watches_status(kyma, runtime, &kinds(&awaited.status)).await
            && self.watched.watches_deletions_of_installed(kyma, runtime, &kinds(&awaited.end)).await
            && (awaited.groups.is_empty()
                || self.watched.watches_status_of_all(kyma, runtime, &definitions()).await);
        match told {
            true if fresh && !awaited.groups.is_empty() => {
                // An earlier event does not cancel this due time.
                Outcome::waiting(message).due_at(Some(self.kcp.now() + SERVED_AFTER))
            }
            true => Outcome::waiting(message),
            false => Outcome::recheck_rarely(message),
        }
    }
}
