//! Storage requests, which may only grow: no API server shrinks a claim.

use std::borrow::Cow;

use serde_json::Value;
use tidewatch_api::object::ObjectRef;

use super::quantity;

pub(super) type Path<'a> = Vec<Cow<'a, str>>;

const OF_CLAIM: [&str; 4] = ["spec", "resources", "requests", "storage"];
const OF_VOLUME: [&str; 3] = ["spec", "capacity", "storage"];
const TEMPLATES: [&str; 2] = ["spec", "volumeClaimTemplates"];

/// Whether the kind requests storage.
#[must_use]
pub fn can_grow(object: &ObjectRef) -> bool {
    let kind = (object.gvk.group.as_str(), object.gvk.kind.as_str());
    [("", "PersistentVolumeClaim"), ("", "PersistentVolume"), ("apps", "StatefulSet")].contains(&kind)
}

pub(super) fn grown<'a>(object: &ObjectRef, wanted: &Value, live: &Value) -> Vec<Path<'a>> {
    if !can_grow(object) {
        return Vec::new();
    }
    let mut paths: Vec<Path<'a>> = match object.gvk.kind.as_str() {
        "PersistentVolumeClaim" => vec![OF_CLAIM.map(Cow::from).to_vec()],
        "PersistentVolume" => vec![OF_VOLUME.map(Cow::from).to_vec()],
        _ => {
            let templates = wanted["spec"]["volumeClaimTemplates"].as_array().map_or(0, Vec::len);
            let of = |index: usize| TEMPLATES.map(Cow::from).into_iter().chain([index.to_string().into()]);
            (0..templates).map(|index| of(index).chain(OF_CLAIM.map(Cow::from)).collect()).collect()
        }
    };
    paths.retain(|path| {
        let pointer: String = path.iter().flat_map(|part| ["/", part]).collect();
        let at = |object: &Value| object.pointer(&pointer).and_then(quantity::read);
        matches!((at(live), at(wanted)), (Some(live), Some(wanted)) if live > wanted)
    });
    paths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::drift::{Difference, Ignored, difference};

    const MANAGER: &str = "installer";

    fn claim(size: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "logs", "namespace": "n"},
               "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
    }

    fn enlarged(size: &str) -> Value {
        let mut live = claim(size);
        live["metadata"]["managedFields"] = json!([
            {"manager": MANAGER, "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:spec": {"f:accessModes": {}}}},
            {"manager": "user", "operation": "Update", "apiVersion": "v1",
             "fieldsV1": {"f:spec": {"f:resources": {"f:requests": {"f:storage": {}}}}}}]);
        live
    }

    fn found(live: &Value, wanted: &Value) -> (Value, Option<Difference>) {
        let ignored = Ignored::default().and_grown(&ObjectRef::of(wanted).unwrap(), wanted, live);
        let kept = ignored.with_live_values(wanted, live);
        let difference = difference(live, &kept, MANAGER, &ignored);
        (kept, difference)
    }

    #[test]
    fn a_claim_larger_than_desired_keeps_its_size() {
        for (live, wanted) in [("30Gi", "20Gi"), ("1Ti", "900Gi"), ("3G", "2Gi"), ("2147483649", "2Gi")] {
            let (kept, difference) = found(&enlarged(live), &claim(wanted));
            assert_eq!(kept["spec"]["resources"]["requests"]["storage"], live);
            assert_eq!(difference, None, "{live} {wanted}");
        }
    }

    #[test]
    fn a_claim_smaller_than_desired_is_enlarged() {
        for (live, wanted) in [("20Gi", "30Gi"), ("2G", "2Gi"), ("nonsense", "2Gi"), ("20Gi", "nonsense")] {
            let (kept, difference) = found(&enlarged(live), &claim(wanted));
            assert_eq!(kept["spec"]["resources"]["requests"]["storage"], wanted);
            assert!(difference.is_some(), "{live} {wanted}");
        }
    }

    #[test]
    fn each_claim_template_keeps_its_larger_size() {
        let set = |sizes: [&str; 2]| {
            let of = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "store", "namespace": "n"},
                   "spec": {"volumeClaimTemplates": sizes.map(of)}})
        };
        let (kept, _) = found(&set(["3Gi", "1Gi"]), &set(["2Gi", "2Gi"]));
        assert_eq!(kept, set(["3Gi", "2Gi"]));
    }

    #[test]
    fn only_core_claims_keep_a_larger_size() {
        let of = |size: &str| {
            json!({"apiVersion": "x.dev/v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"},
                                     "spec": {"resources": {"requests": {"storage": size}}}})
        };
        assert_eq!(found(&of("3Gi"), &of("2Gi")).0, of("2Gi"));
    }
}
