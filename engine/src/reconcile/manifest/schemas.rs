//! Objects whose kinds the module itself defines: what they wait for, and how that ends.

use serde_json::Value;
use tidewatch_api::object::{Gvk, ObjectRef};
use tidewatch_deployer::{definitions::Sorted, readiness::ObjectReadiness};
use tidewatch_planner::watches::definitions;

use super::{
    Stopped,
    apply::{Applied, Awaited, Installer},
    is_crd,
};
use crate::{
    clusters::Gated,
    outcome::{Lost, Outcome, SERVED_AFTER},
    reconcile::manifest::ManifestReconciler,
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

    /// Takes up that a kind of this group is not served. `objects` are the module's: for its own CRDs nobody else's have to be watched.
    /// That one of them is established is an event; what is served a moment after that is not.
    pub(super) fn awaits_kind(&mut self, group: &str, objects: &[ObjectRef]) {
        let Some(own) = objects.iter().find(|object| defines(object, group)) else {
            self.awaited.groups.insert(group.to_owned());
            return;
        };
        let on_its_way = |(id, judged): &(ObjectRef, ObjectReadiness)| {
            defines(id, group) && matches!(judged, ObjectReadiness::Processing { .. })
        };
        if self.judged.iter().any(on_its_way) {
            self.awaited.status.push(own.gvk.clone());
        } else {
            self.awaited.untold = true;
        }
    }
}

/// Whether an object defines a kind of a group.
pub(super) fn defines(object: &ObjectRef, group: &str) -> bool {
    is_crd(&object.gvk) && object.name.split_once('.').is_some_and(|(_, of)| of == group)
}

/// Whether a Manifest may still be worked on.
pub(super) type GoOn<'a> = dyn Fn() -> bool + Send + Sync + 'a;

impl Installer<'_> {
    /// Applies phases in their order, the last one as far as its kinds are served. `stood` is what became before of those definitions
    /// that are not among them. `go_on` is asked before each: a Manifest may be left alone from now on.
    pub(super) async fn phases(
        &self,
        [first, main, custom]: [Vec<Value>; 3],
        stood: Vec<(ObjectRef, ObjectReadiness)>,
        go_on: &GoOn<'_>,
    ) -> Applied {
        let mut applied = Applied::default();
        for phase in [first, main] {
            if !go_on() {
                return nothing_more();
            }
            applied.take(stage(Stage::Apply, self.all(phase)).await);
        }
        stage(Stage::Apply, self.look_at_definitions(&mut applied)).await;
        let judged: Vec<_> = applied.judged.iter().cloned().chain(stood).collect();
        let served = applied.hold_back(self.definitions.sort(custom, &judged));
        if !go_on() {
            return nothing_more();
        }
        applied.take(stage(Stage::Apply, self.all(served)).await);
        applied
    }
}

/// Nothing more is written: the next reconcile finds that it has to leave the Manifest alone.
pub(super) fn left_alone() -> Lost {
    Lost::Behind("the Manifest is to be left alone".to_owned())
}

fn nothing_more() -> Applied {
    let stopped = Stopped { lost: Some(left_alone()), ..Stopped::for_good(String::new()) };
    Applied { failed: Some(stopped), ..Applied::default() }
}

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

#[cfg(test)]
mod tests {
    use tidewatch_deployer::readiness::Cause;

    use super::*;

    #[test]
    fn a_kind_of_the_modules_own_is_not_waited_for_as_one_that_others_bring() {
        let crd = ObjectRef {
            gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            namespace: String::new(),
            name: "beams.x.dev".into(),
        };
        let awaits = |group: &str, judged: Option<ObjectReadiness>| {
            let mut applied = Applied::default();
            applied.judged.extend(judged.map(|judged| (crd.clone(), judged)));
            applied.awaits_kind(group, std::slice::from_ref(&crd));
            let Awaited { status, end, groups, untold } = applied.awaited;
            (status.len(), end.len(), groups.len(), untold)
        };
        let cause = Cause { object: crd.clone(), text: "it is not established".into() };
        let processing = || ObjectReadiness::Processing { cause: cause.clone() };
        assert_eq!(awaits("y.dev", None), (0, 0, 1, false), "its definition is watched for");
        assert_eq!(
            awaits("x.dev", Some(processing())),
            (1, 0, 0, false),
            "that its own is established is an event"
        );
        // It is, and not served yet behind this API server, of which nothing tells.
        assert_eq!(awaits("x.dev", Some(ObjectReadiness::Ready)), (0, 0, 0, true));
        assert_eq!(awaits("x.dev", None), (0, 0, 0, true));
    }
}
