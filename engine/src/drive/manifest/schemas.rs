//! Objects whose kinds the module itself defines: what they wait for, and how that ends.

use serde_json::Value;

use super::{
    apply::{Applied, Awaited, Installer},
    is_crd,
    told::definitions,
};
use crate::{
    drive::{Finish, SERVED_AFTER, Shared, gate::Gated},
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
            self.awaited.status.extend(definitions.cloned());
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
    /// How a reconcile ends whose objects wait for others: by an event where the agent tells of all that is waited for, else by another
    /// look, soon at first and then seldom. `fresh`: of some of it nobody was told until just now.
    pub(super) async fn missed(
        &self,
        kyma: &str,
        runtime: &Gated,
        what: String,
        awaited: &Awaited,
        fresh: bool,
    ) -> Finish {
        let kinds = |kinds: &[Gvk]| {
            let mut kinds = kinds.to_vec();
            kinds.sort();
            kinds.dedup();
            kinds
        };
        let told = !awaited.untold
            && self.is_told_of_status(kyma, runtime, &kinds(&awaited.status)).await
            && self.is_told_of_ends(kyma, runtime, &kinds(&awaited.end)).await
            && (awaited.groups.is_empty() || self.is_told_of_all(kyma, runtime, &definitions()).await);
        match told {
            true if fresh && !awaited.groups.is_empty() => {
                // By an event that comes before that, this is not forgotten.
                Finish::RecheckAt(self.now() + SERVED_AFTER, Box::new(Finish::Waiting(what)))
            }
            true => Finish::Waiting(what),
            false => Finish::Patient(what),
        }
    }
}
