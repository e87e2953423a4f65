//! The module `lighthouse`, made for these tests, in two versions.
//!
//! 1.1.0 has one object less than 1.0.0 (the Service), one more (a `ConfigMap`) and another
//! image in its Deployment; so an update shows an apply, a creation and a pruning.

/// `raw-manifest.yaml` of 1.0.0.
pub const LIGHTHOUSE_1_0_0: &str = include_str!("../fixtures/lighthouse/1.0.0/raw-manifest.yaml");
/// `raw-manifest.yaml` of 1.1.0.
pub const LIGHTHOUSE_1_1_0: &str = include_str!("../fixtures/lighthouse/1.1.0/raw-manifest.yaml");
/// `default-cr.yaml` of both: the Beacon `default` in `kyma-system`.
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
    fn the_versions_differ_by_one_object_each_way_and_the_image() {
        let (old, new) = (objects(LIGHTHOUSE_1_0_0), objects(LIGHTHOUSE_1_1_0));
        assert_eq!((old.len(), new.len()), (9, 9));
        assert_eq!(old.difference(&new).collect::<Vec<_>>(), ["Service lighthouse-metrics"]);
        assert_eq!(new.difference(&old).collect::<Vec<_>>(), ["ConfigMap lighthouse-settings"]);
        assert!(LIGHTHOUSE_1_0_0.contains("image: example.local/lighthouse:1.0.0"));
        assert!(LIGHTHOUSE_1_1_0.contains("image: example.local/lighthouse:1.1.0"));
        assert_eq!(objects(LIGHTHOUSE_DEFAULT_CR), BTreeSet::from(["Beacon default".to_owned()]));
    }
}
