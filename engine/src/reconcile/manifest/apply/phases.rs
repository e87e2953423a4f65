//! Phases of a bundle: objects whose kinds the bundle itself defines wait for these to be served.

use serde_json::Value;
use tidewatch_api::object::ObjectRef;
use tidewatch_deployer::{definitions::Sorted, readiness::ObjectReadiness};

use super::{Applied, Installer};
use crate::{
    outcome::Lost,
    reconcile::manifest::stopped::Stopped,
    stages::{Stage, stage},
};

impl Applied {
    /// Takes up what waits for its CRD, and gives back what can be applied.
    pub(in crate::reconcile::manifest) fn hold_back(&mut self, sorted: Sorted) -> Vec<Value> {
        self.left_out |= sorted.held > 0;
        if let Some(what) = sorted.awaited {
            self.missing.get_or_insert(what);
            // All that is judged by now was applied before: CRDs, and what they are not needed for.
            let definitions = self.judged.iter().map(|(id, _)| &id.gvk).filter(|gvk| gvk.is_crd());
            self.awaited.status.extend(definitions.cloned());
        }
        sorted.served
    }

    /// Takes up that a kind of this group is not served. `objects` are the module's: for its own CRDs nobody else's have to be watched.
    /// That one of them is established is an event; what is served a moment after that is not.
    pub(in crate::reconcile::manifest) fn awaits_kind(&mut self, group: &str, objects: &[ObjectRef]) {
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
pub(in crate::reconcile::manifest) fn defines(object: &ObjectRef, group: &str) -> bool {
    object.gvk.is_crd() && object.name.split_once('.').is_some_and(|(_, of)| of == group)
}

/// Whether a Manifest may still be worked on.
pub(in crate::reconcile::manifest) type GoOn<'a> = dyn Fn() -> bool + Send + Sync + 'a;

impl Installer<'_> {
    /// Applies phases in their order, the last one as far as its kinds are served. `stood` is what became before of those definitions
    /// that are not among them. `go_on` is asked before each: a Manifest may be left alone from now on.
    pub(in crate::reconcile::manifest) async fn phases(
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
pub(in crate::reconcile::manifest) fn left_alone() -> Lost {
    Lost::Behind("the Manifest is to be left alone".to_owned())
}

fn nothing_more() -> Applied {
    let stopped = Stopped { lost: Some(left_alone()), ..Stopped::for_good(String::new()) };
    Applied { failed: Some(stopped), ..Applied::default() }
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::Gvk;
    use tidewatch_deployer::readiness::Cause;

    use super::{super::Awaited, *};

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
