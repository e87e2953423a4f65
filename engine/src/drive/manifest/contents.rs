//! What each object of a Manifest is to be, hashed: an upgrade looks only at what it changes.

use serde_json::Value;
use tidewatch_api::{
    ModuleTerms,
    names::{annotations, labels},
};

use crate::{
    alike,
    plan::{drift, manifest::Bundle, object::ObjectRef},
};

/// The hashes of all objects of a Manifest, sorted. The same in all runtimes that have the same version of the module.
pub(super) type Contents = Vec<u64>;

/// Where an object says which Manifest it is of.
const OWN: [(&str, &str); 2] = [("labels", labels::COMPONENT), ("annotations", annotations::OWNED_BY)];

/// The objects of a bundle and their hashes, in which the name of their Manifest is left out: `own` is what its objects say it is. What
/// may be left as it is in an object is a part of what it is to be.
pub(super) fn of(bundle: &mut Bundle, own: (&str, &str), terms: &ModuleTerms) -> Vec<(ObjectRef, u64)> {
    let own = [own.1.to_owned(), format!("{}/{}", own.0, own.1)];
    let each = |object: &mut Value| {
        let id = ObjectRef::of(object)?;
        let marks = OWN.map(|(field, key)| object["metadata"][field].as_object_mut()?.remove(key));
        // Of one that is marked for another Manifest, that is a part of it.
        let all = marks.iter().zip(&own);
        let others: Vec<&str> =
            all.filter_map(|(mark, own)| mark.as_ref()?.as_str().filter(|mark| mark != own)).collect();
        let hash = alike::hash_of(&(drift::hash(object), &terms.ignore_fields, others));
        for ((field, key), mark) in OWN.iter().zip(marks) {
            if let Some(mark) = mark {
                object["metadata"][field][key] = mark;
            }
        }
        Some((id, hash))
    };
    bundle.iter_mut().filter_map(each).collect()
}

/// As they are kept.
pub(super) fn kept(contents: &[(ObjectRef, u64)]) -> Contents {
    let mut kept: Contents = contents.iter().map(|(_, hash)| *hash).collect();
    kept.sort_unstable();
    kept
}

/// Whether an object was to be the same before.
pub(super) fn is_among(before: &Contents, hash: u64) -> bool {
    before.binary_search(&hash).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::plan::{
        manifest::{Scope, bundle},
        object::Gvk,
        transform,
    };

    /// A ConfigMap of a Manifest.
    fn bundle_of(manifest: &str, color: &str) -> Bundle {
        let rendered = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"},
            "data": {"color": color}});
        let scopes = BTreeMap::from([(Gvk::of("v1", "ConfigMap"), Scope::Namespaced)]);
        bundle(("kcp", manifest), vec![rendered], &scopes).unwrap()
    }

    fn hash(mut bundle: Bundle, manifest: &str, terms: &ModuleTerms) -> u64 {
        let before = bundle.clone();
        let all = of(&mut bundle, ("kcp", manifest), terms);
        assert_eq!(bundle, before, "it is as it was");
        all[0].1
    }

    #[test]
    fn what_is_to_be_the_same_has_the_same_hash_in_all_runtimes() {
        let plain = ModuleTerms::default();
        let first = hash(bundle_of("a-m", "white"), "a-m", &plain);
        assert_eq!(first, hash(bundle_of("b-m", "white"), "b-m", &plain));
        assert_ne!(first, hash(bundle_of("a-m", "red"), "a-m", &plain));
        let mut marked = bundle_of("a-m", "white");
        transform::mark(&mut marked.main[0], ("kcp", "a-other"));
        assert_ne!(first, hash(marked, "a-m", &plain), "another Manifest's marks");
        let ignores: ModuleTerms = serde_json::from_value(json!({"ignoreFields": [
            {"kind": "ConfigMap", "paths": ["/data/color"]}]}))
        .unwrap();
        assert_ne!(first, hash(bundle_of("a-m", "white"), "a-m", &ignores), "what is its user's to change");
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let id = || ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: "a".into() };
        let kept = kept(&[(id(), 7), (id(), 3), (id(), 5)]);
        assert!([3, 5, 7].iter().all(|hash| is_among(&kept, *hash)) && !is_among(&kept, 4));
    }
}
