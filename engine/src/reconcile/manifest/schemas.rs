//! Objects whose kinds the module itself defines: what they wait for, and how that ends.

use tidewatch_api::object::Gvk;
use tidewatch_planner::watches::definitions;

use super::apply::Awaited;
use crate::{
    clusters::Gated,
    outcome::{Outcome, SERVED_AFTER},
    reconcile::manifest::ManifestReconciler,
};

impl ManifestReconciler {
    /// How a reconcile ends whose objects wait for others: by an event where the agent tells of all that is waited for, else by another
    /// look, soon at first and then seldom. `fresh`: of some of it nobody was told until just now.
    pub(super) async fn missed(
        &self,
        kyma: &str,
        runtime: &Gated,
        what: String,
        awaited: &Awaited,
        fresh: bool,
    ) -> Outcome {
        let kinds = |kinds: &[Gvk]| {
            let mut kinds = kinds.to_vec();
            kinds.sort();
            kinds.dedup();
            kinds
        };
        let told = !awaited.untold
            && self.watched.watches_status(kyma, runtime, &kinds(&awaited.status)).await
            && self.watched.watches_deletions(kyma, runtime, &kinds(&awaited.end)).await
            && (awaited.groups.is_empty()
                || self.watched.watches_status_of_all(kyma, runtime, &definitions()).await);
        match told {
            true if fresh && !awaited.groups.is_empty() => {
                // By an event that comes before that, this is not forgotten.
                Outcome::waiting(what).due_at(Some(self.kcp.now() + SERVED_AFTER))
            }
            true => Outcome::waiting(what),
            false => Outcome::recheck_rarely(what),
        }
    }
}
