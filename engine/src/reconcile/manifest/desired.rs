//! Hashes of wanted objects, so that an upgrade reads only objects that it changes.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
};

use serde_json::Value;
use tidewatch_api::{
    ModuleTerms,
    names::{annotations, labels},
    object::{ObjectId, ObjectRef, content_hash},
};
use tidewatch_deployer::bundle::Bundle;
use xxhash_rust::xxh3::Xxh3;

/// The fields that name an object's Manifest.
const OWN: [(&str, &str); 2] = [("labels", labels::COMPONENT), ("annotations", annotations::OWNED_BY)];

/// Returns a bundle's objects and their hashes, without the Manifest's name (`own`). Ignored fields count.
///
/// Objects marked for another Manifest have no hash: their owner may change without an upgrade.
pub(super) fn hashes(
    bundle: &mut Bundle,
    own: (&str, &str),
    terms: &ModuleTerms,
) -> Vec<(ObjectRef, Option<u64>)> {
    let own = [own.1.to_owned(), format!("{}/{}", own.0, own.1)];
    let each = |object: &mut Value| {
        let id = ObjectRef::of(object)?;
        // `get_mut`, because indexing would create the missing field.
        let marks = OWN.map(|(field, key)| object["metadata"].get_mut(field)?.as_object_mut()?.remove(key));
        let is_own = marks.iter().zip(&own).all(|(mark, own)| mark.as_ref().is_none_or(|mark| mark == own));
        let hash = is_own.then(|| hash_of(object, terms));
        for ((field, key), mark) in OWN.iter().zip(marks) {
            if let Some(mark) = mark {
                object["metadata"][field][key] = mark;
            }
        }
        Some((id, hash))
    };
    bundle.iter_mut().filter_map(each).collect()
}

fn hash_of(object: &Value, terms: &ModuleTerms) -> u64 {
    let mut hasher = Xxh3::new();
    (content_hash(object), &terms.ignore_fields).hash(&mut hasher);
    hasher.finish()
}

/// The known hashes, by object.
pub(super) fn by_object<'a>(
    hashes: impl IntoIterator<Item = &'a (ObjectRef, Option<u64>)>,
) -> HashMap<ObjectId, u64> {
    hashes.into_iter().filter_map(|(object, hash)| Some((object.into(), (*hash)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use tidewatch_api::object::Gvk;
    use tidewatch_deployer::{
        bundle::{Scope, bundle},
        transform,
    };

    use super::*;

    fn bundle_of(manifest: &str, color: &str) -> Bundle {
        let rendered = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"},
            "data": {"color": color}});
        let scopes = BTreeMap::from([(Gvk::of("v1", "ConfigMap"), Scope::Namespaced)]);
        bundle(("kcp", manifest), vec![rendered], &scopes).unwrap()
    }

    fn hash(mut bundle: Bundle, manifest: &str, terms: &ModuleTerms) -> Option<u64> {
        let before = bundle.clone();
        let all = hashes(&mut bundle, ("kcp", manifest), terms);
        assert_eq!(bundle, before, "it is as it was");
        all[0].1
    }

    #[test]
    fn equal_content_has_equal_hashes_in_all_runtimes() {
        let plain = ModuleTerms::default();
        let first = hash(bundle_of("a-m", "white"), "a-m", &plain);
        assert!(first.is_some());
        assert_eq!(first, hash(bundle_of("b-m", "white"), "b-m", &plain));
        assert_ne!(first, hash(bundle_of("a-m", "red"), "a-m", &plain));
        let mut marked = bundle_of("a-m", "white");
        transform::mark(&mut marked.main[0], ("kcp", "a-other"));
        assert_eq!(hash(marked, "a-m", &plain), None, "another Manifest's marks");
        let ignores: ModuleTerms = serde_json::from_value(json!({"ignoreFields": [
            {"kind": "ConfigMap", "paths": ["/data/color"]}]}))
        .unwrap();
        assert_ne!(first, hash(bundle_of("a-m", "white"), "a-m", &ignores), "what is its user's to change");
    }

    #[test]
    fn an_object_without_marks_is_hashed() {
        let mut bare = bundle_of("a-m", "white");
        bare.main[0]["metadata"] = json!({"name": "a", "namespace": "n"});
        assert!(hash(bare, "a-m", &ModuleTerms::default()).is_some());
    }
}
