//! Holds back objects until CRDs of their bundle are served.

use std::collections::BTreeMap;

use serde_json::Value;
use tidewatch_api::object::{Gvk, ObjectRef};

use crate::{
    kinds::{CRD, is},
    readiness::ObjectReadiness,
};

/// CRDs of a bundle, by the group and kind they define.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions(BTreeMap<(String, String), ObjectRef>);

/// Objects, split by whether their kinds are served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted {
    /// Objects that can be applied.
    pub served: Vec<Value>,
    /// Message about an unfinished CRD. Failed CRDs report their own errors.
    pub awaited: Option<String>,
    /// Number of objects held back.
    pub waiting: usize,
}

impl Definitions {
    /// Finds the CRDs among objects.
    #[must_use]
    pub fn of(objects: &[Value]) -> Self {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let defined = objects.iter().filter_map(|object| {
            let id = ObjectRef::of(object).filter(|id| is(&id.gvk, CRD))?;
            Some(((text(&object["spec"]["group"]), text(&object["spec"]["names"]["kind"])), id))
        });
        Self(defined.collect())
    }

    /// Returns the CRDs.
    pub fn all(&self) -> impl Iterator<Item = &ObjectRef> {
        self.0.values()
    }

    /// Returns the CRD of a kind.
    #[must_use]
    pub fn definition(&self, gvk: &Gvk) -> Option<&ObjectRef> {
        self.0.get(&(gvk.group.clone(), gvk.kind.clone()))
    }

    /// Splits objects by their CRDs' readiness. A failed CRD holds back only its own objects.
    #[must_use]
    pub fn sort(&self, objects: Vec<Value>, judged: &[(ObjectRef, ObjectReadiness)]) -> Sorted {
        let mut sorted = Sorted::default();
        for object in objects {
            let crd = ObjectRef::of(&object).and_then(|id| self.definition(&id.gvk));
            let Some(crd) = crd else {
                sorted.served.push(object);
                continue;
            };
            let readiness = judged.iter().find(|(id, _)| id.same_object(crd)).map(|(_, readiness)| readiness);
            match readiness {
                Some(ObjectReadiness::Ready) => {
                    sorted.served.push(object);
                    continue;
                }
                Some(ObjectReadiness::Processing { .. } | ObjectReadiness::Unknown) => {
                    let kind = crd.name.split_once('.').map_or("", |(_, group)| group);
                    let named = object["kind"].as_str().unwrap_or_default();
                    sorted
                        .awaited
                        .get_or_insert_with(|| format!("waiting for the kind {named}.{kind} to be served"));
                }
                Some(ObjectReadiness::Warning { .. } | ObjectReadiness::Error { .. }) | None => {}
            }
            sorted.waiting += 1;
        }
        sorted
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::readiness::Cause;

    fn crd(kind: &str) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
               "metadata": {"name": format!("{}s.x.dev", kind.to_lowercase())},
               "spec": {"group": "x.dev", "names": {"kind": kind}}})
    }

    fn object(kind: &str) -> Value {
        json!({"apiVersion": "x.dev/v1", "kind": kind, "metadata": {"name": "a", "namespace": "n"}})
    }

    #[test]
    fn an_object_waits_only_for_its_own_definition() {
        let kinds = ["Beacon", "Buoy", "Crane", "Dock"];
        let definitions = Definitions::of(&kinds.map(crd));
        let id = |kind: &str| ObjectRef::of(&crd(kind)).unwrap();
        let cause = |kind| Cause { object: id(kind), text: "c".into() };
        let judged = [
            (id("Beacon"), ObjectReadiness::Ready),
            (id("Buoy"), ObjectReadiness::Processing { cause: cause("Buoy") }),
            (id("Crane"), ObjectReadiness::Error { cause: cause("Crane") }),
            // The CRD of Dock was not applied.
        ];
        let objects = ["Dock", "Crane", "Buoy", "Beacon", "Other"].map(object);
        let sorted = definitions.sort(objects.to_vec(), &judged);
        assert_eq!(sorted.served, ["Beacon", "Other"].map(object));
        assert_eq!(sorted.waiting, 3);
        assert_eq!(sorted.awaited.as_deref(), Some("waiting for the kind Buoy.x.dev to be served"));
        let sorted = definitions.sort(vec![object("Crane"), object("Dock")], &judged);
        assert_eq!((sorted.served.len(), sorted.awaited, sorted.waiting), (0, None, 2));
    }

    #[test]
    fn only_crds_define_kinds() {
        let definitions = Definitions::of(&[crd("Beacon"), object("Beacon"), json!({"kind": "X"}), json!(1)]);
        let gvk = |api: &str| Gvk::of(api, "Beacon");
        assert_eq!(
            definitions.definition(&gvk("x.dev/v7")).map(|crd| crd.name.as_str()),
            Some("beacons.x.dev")
        );
        assert_eq!(definitions.definition(&gvk("y.dev/v1")), None);
    }
}
