//! Objects whose kinds the module itself defines: what they wait for, and how that ends.

use serde_json::Value;

use super::{apply::Applied, is_crd};
use crate::{
    drive::{Finish, Shared, gate::Gated},
    plan::{manifest::Sorted, object::Gvk},
};

impl Applied {
    /// Takes up what waits for its CRD, and gives back what can be applied.
    pub(super) fn hold_back(&mut self, sorted: Sorted) -> Vec<Value> {
        if let Some(what) = sorted.awaited {
            self.missing.get_or_insert(what);
            // All that is judged by now was applied before: CRDs, and what they are not needed for.
            let definitions = self.judged.iter().map(|(id, _)| &id.gvk).filter(|gvk| is_crd(gvk));
            self.awaited.extend(definitions.cloned());
        }
        sorted.served
    }
}

impl Shared {
    /// How a reconcile ends whose objects wait for others: by an event where all that is waited for are CRDs of which the agent
    /// tells, else by another look.
    pub(super) async fn missed(
        &self,
        kyma: &str,
        runtime: &Gated,
        what: String,
        applied: &Applied,
    ) -> Finish {
        let mut kinds: Vec<Gvk> = applied.awaited.clone();
        kinds.sort();
        kinds.dedup();
        if kinds.is_empty() || applied.untold || !self.is_told_of_status(kyma, runtime, &kinds).await {
            return Finish::Recheck(what);
        }
        Finish::Waiting(what)
    }
}
