//! Merges a module's sources.

use std::collections::HashMap;

use serde_json::Value;
use tidewatch_api::object::ObjectRef;

use crate::bundle::BundleError;

const MAX_OBJECTS: usize = 5_000;

/// Concatenates the objects of named sources.
///
/// # Errors
/// An object in two sources, or more than 5,000 objects.
pub fn merge(sources: Vec<(String, Vec<Value>)>) -> Result<Vec<Value>, BundleError> {
    if sources.iter().map(|(_, objects)| objects.len()).sum::<usize>() > MAX_OBJECTS {
        return Err(BundleError::TooMany(MAX_OBJECTS));
    }
    let mut owners: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::new();
    for (source, (name, objects)) in sources.iter().enumerate() {
        for id in objects.iter().filter_map(ObjectRef::of) {
            let (group, kind, namespace, object) = id.identity();
            // The bundle uses this default, too.
            let key = format!(
                "{group}\n{kind}\n{}\n{object}",
                if namespace.is_empty() { "default" } else { namespace }
            );
            match owners.insert(key, source) {
                Some(before) if before != source => {
                    let first = sources.get(before).map(|(name, _)| name.clone()).unwrap_or_default();
                    return Err(BundleError::Duplicate(id.to_string(), first, name.clone()));
                }
                _ => {}
            }
        }
    }
    for (_, objects) in sources {
        all.extend(objects);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(namespace: Option<&str>, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
    }

    #[test]
    fn objects_of_all_sources_keep_their_order() {
        let of = |name: &str, objects: &[Value]| (name.to_owned(), objects.to_vec());
        let objects = [map(None, "a"), map(Some("n"), "a"), map(None, "b")];
        let all = merge(vec![of("raw-manifest", &objects[..1]), of("empty", &[]), of("more", &objects[1..])])
            .unwrap();
        assert_eq!(all, objects);
    }

    #[test]
    fn an_object_of_two_sources_names_both() {
        let of = |name: &str, object: Value| (name.to_owned(), vec![object]);
        let twice = merge(vec![of("raw-manifest", map(None, "a")), of("more", map(Some("default"), "a"))]);
        let error = twice.unwrap_err().to_string();
        assert!(
            ["raw-manifest", "more", "ConfigMap default/a"].iter().all(|part| error.contains(part)),
            "{error}"
        );
        assert!(merge(vec![("a".into(), vec![map(None, "a"), map(None, "a")])]).is_ok());
        let many = vec![map(None, "a"); MAX_OBJECTS / 2 + 1];
        assert_eq!(
            merge(vec![("a".into(), many.clone()), ("b".into(), many)]),
            Err(BundleError::TooMany(MAX_OBJECTS))
        );
    }
}
