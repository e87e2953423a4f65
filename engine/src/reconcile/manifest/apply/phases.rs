//! Applies a bundle in phases: custom objects wait until their kinds are served.

use serde_json::Value;
use tidewatch_api::object::ObjectRef;
use tidewatch_deployer::{definitions::Sorted, readiness::ObjectReadiness};

use super::{Applied, Installer};
use crate::{
    error::Error,
    stages::{Stage, stage},
};

impl Applied {
    /// Records objects that wait for their CRD, and returns the others.
    pub(in crate::reconcile::manifest) fn take_served(&mut self, sorted: Sorted) -> Vec<Value> {
        self.has_skipped |= sorted.waiting > 0;
        if let Some(message) = sorted.awaited {
            self.missing.get_or_insert(message);
            // CRDs judged so far were all applied before.
            let definitions = self.judged.iter().map(|(id, _)| &id.gvk).filter(|gvk| gvk.is_crd());
            self.awaited.status.extend(definitions.cloned());
        }
        sorted.served
    }

    /// Records that a kind of this group is not served. `objects` are the module's.
    ///
    /// Establishing a CRD is an event. Serving its kind moments later is not.
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
            self.awaited.without_event = true;
        }
    }
}

/// Whether an object is a CRD of a group.
pub(in crate::reconcile::manifest) fn defines(object: &ObjectRef, group: &str) -> bool {
    object.gvk.is_crd() && object.name.split_once('.').is_some_and(|(_, of)| of == group)
}

/// Whether to continue with a Manifest.
pub(in crate::reconcile::manifest) type MayContinue<'a> = dyn Fn() -> bool + Send + Sync + 'a;

impl Installer<'_> {
    /// Applies the phases in order. `served`: earlier results of other definitions.
    /// `may_continue` is called before each phase, because the Manifest may become skipped.
    pub(in crate::reconcile::manifest) async fn phases(
        &self,
        [first, main, custom]: [Vec<Value>; 3],
        served: Vec<(ObjectRef, ObjectReadiness)>,
        may_continue: &MayContinue<'_>,
    ) -> Applied {
        let mut applied = Applied::default();
        for phase in [first, main] {
            if !may_continue() {
                return skipped();
            }
            applied.take(stage(Stage::Apply, self.apply_all(phase)).await);
        }
        stage(Stage::Apply, self.recheck_definitions(&mut applied)).await;
        let judged: Vec<_> = applied.judged.iter().cloned().chain(served).collect();
        let served = applied.take_served(self.definitions.sort(custom, &judged));
        if !may_continue() {
            return skipped();
        }
        applied.take(stage(Stage::Apply, self.apply_all(served)).await);
        applied
    }
}

/// Stops all writes: the next reconcile skips the Manifest.
pub(in crate::reconcile::manifest) fn manifest_is_skipped() -> Error {
    Error::Outdated("the Manifest is to be left alone".to_owned())
}

fn skipped() -> Applied {
    Applied { failed: Some(manifest_is_skipped()), ..Applied::default() }
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::Gvk;
    use tidewatch_deployer::readiness::Cause;

    use super::{super::Awaited, *};

    #[test]
    fn own_kinds_are_awaited_by_status_others_by_group() {
        let crd = ObjectRef {
            gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            namespace: String::new(),
            name: "beams.x.dev".into(),
        };
        let awaits = |group: &str, judged: Option<ObjectReadiness>| {
            let mut applied = Applied::default();
            applied.judged.extend(judged.map(|judged| (crd.clone(), judged)));
            applied.awaits_kind(group, std::slice::from_ref(&crd));
            let Awaited { status, end, groups, without_event } = applied.awaited;
            (status.len(), end.len(), groups.len(), without_event)
        };
        let cause = Cause { object: crd.clone(), text: "it is not established".into() };
        let processing = || ObjectReadiness::Processing { cause: cause.clone() };
        assert_eq!(awaits("y.dev", None), (0, 0, 1, false), "its definition is watched for");
        assert_eq!(
            awaits("x.dev", Some(processing())),
            (1, 0, 0, false),
            "that its own is established is an event"
        );
        // It is established but not yet served, which no event reports.
        assert_eq!(awaits("x.dev", Some(ObjectReadiness::Ready)), (0, 0, 0, true));
        assert_eq!(awaits("x.dev", None), (0, 0, 0, true));
    }
}
