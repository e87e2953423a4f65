//! Test module `lighthouse`.
//!
//! 1.1.0 drops a Service, adds a `ConfigMap` and changes the image.

/// Objects of 1.0.0.
pub const LIGHTHOUSE_1_0_0: &str = include_str!("../fixtures/lighthouse/1.0.0/raw-manifest.yaml");
/// Objects of 1.1.0.
pub const LIGHTHOUSE_1_1_0: &str = include_str!("../fixtures/lighthouse/1.1.0/raw-manifest.yaml");
/// Beacon `default` in `kyma-system`.
pub const LIGHTHOUSE_DEFAULT_CR: &str = include_str!("../fixtures/lighthouse/default-cr.yaml");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn objects(yaml: &str) -> BTreeSet<String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        documents
            .iter()
            .map(|object| {
                format!(
                    "{} {}",
                    object["kind"].as_str().unwrap(),
                    object["metadata"]["name"].as_str().unwrap()
                )
            })
            .collect()
    }

    #[test]
    fn the_versions_differ_in_two_objects_and_the_image() {
        let (old, new) = (objects(LIGHTHOUSE_1_0_0), objects(LIGHTHOUSE_1_1_0));
        assert_eq!((old.len(), new.len()), (9, 9));
        assert_eq!(old.difference(&new).collect::<Vec<_>>(), ["Service lighthouse-metrics"]);
        assert_eq!(new.difference(&old).collect::<Vec<_>>(), ["ConfigMap lighthouse-settings"]);
        assert!(LIGHTHOUSE_1_0_0.contains("image: example.local/lighthouse:1.0.0"));
        assert!(LIGHTHOUSE_1_1_0.contains("image: example.local/lighthouse:1.1.0"));
        assert_eq!(objects(LIGHTHOUSE_DEFAULT_CR), BTreeSet::from(["Beacon default".to_owned()]));
    }
}
