//! Objects whose kinds the module itself defines: what they wait for, and how that ends.

use serde_json::Value;

use super::{
    apply::{Applied, Installer},
    is_crd,
};
use crate::{
    drive::{Finish, Shared, gate::Gated},
    plan::{
        manifest::Sorted,
        object::{Gvk, ObjectRef},
        readiness::ObjectReadiness,
    },
    stages::{Stage, stage},
};

impl Applied {
    /// Takes up what waits for its CRD, and gives back what can be applied.
    pub(super) fn hold_back(&mut self, sorted: Sorted) -> Vec<Value> {
        self.left_out |= sorted.held > 0;
        if let Some(what) = sorted.awaited {
            self.missing.get_or_insert(what);
            // All that is judged by now was applied before: CRDs, and what they are not needed for.
            let definitions = self.judged.iter().map(|(id, _)| &id.gvk).filter(|gvk| is_crd(gvk));
            self.awaited.extend(definitions.cloned());
        }
        sorted.served
    }
}

impl Installer<'_> {
    /// Applies phases in their order, the last one as far as its kinds are served. `stood` is what became before of those definitions
    /// that are not among them.
    pub(super) async fn phases(
        &self,
        [first, main, custom]: [Vec<Value>; 3],
        stood: Vec<(ObjectRef, ObjectReadiness)>,
    ) -> Applied {
        let mut applied = Applied::default();
        for phase in [first, main] {
            applied.take(stage(Stage::Apply, self.all(phase)).await);
        }
        stage(Stage::Apply, self.look_at_definitions(&mut applied)).await;
        let judged: Vec<_> = applied.judged.iter().cloned().chain(stood).collect();
        let served = applied.hold_back(self.definitions.sort(custom, &judged));
        applied.take(stage(Stage::Apply, self.all(served)).await);
        applied
    }
}

impl Shared {
    /// How a reconcile ends whose objects wait for others: by an event where all that is waited for are CRDs of which the agent
    /// tells, else by another look, soon at first and then seldom.
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
        if kinds.is_empty() && !applied.untold {
            // The kind of the default CR: its operator makes it in a moment, as a rule.
            return Finish::Recheck(what);
        }
        if applied.untold || !self.is_told_of_status(kyma, runtime, &kinds).await {
            return Finish::Patient(what);
        }
        Finish::Waiting(what)
    }
}
