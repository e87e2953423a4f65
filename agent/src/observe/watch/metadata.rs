//! kube's type keeps all metadata and parses a tree first; annotations and `managedFields` dominate it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, api::ApiResource, core::DynamicResourceScope};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use std::{borrow::Cow, collections::BTreeMap, fmt};

use super::super::fingerprint::is_kymas;

/// Minimal metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Metadata {
    /// Identity, version, generation, deletion, labels and Kyma's annotations only.
    #[serde(default, deserialize_with = "needed")]
    pub metadata: ObjectMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Needed {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<Kymas>,
}

#[derive(Default)]
struct Kymas(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Kymas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Kymas {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if is_kymas(&key) {
                self.0.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(self)
    }
}

fn needed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let Needed {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        deletion_timestamp,
        labels,
        annotations,
    } = Needed::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        deletion_timestamp,
        labels,
        annotations: annotations.map(|kymas| kymas.0).filter(|kymas| !kymas.is_empty()),
        ..ObjectMeta::default()
    })
}

impl Resource for Metadata {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        of.api_version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_needed_metadata_is_kept() {
        let object = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {
                "name": "one", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
                "deletionTimestamp": "2026-01-01T00:00:00Z", "creationTimestamp": "2025-01-01T00:00:00Z",
                "labels": {"a": "b"}, "annotations": {"c": "d", "operator.kyma-project.io/e": "f"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            },
        });
        let all: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
        let read: Metadata = serde_json::from_value(object).unwrap();
        let kept = ObjectMeta {
            creation_timestamp: None,
            annotations: Some([("operator.kyma-project.io/e".to_owned(), "f".to_owned())].into()),
            managed_fields: None,
            ..all
        };
        assert_eq!(read.metadata, kept);
        assert!(kept.generation == Some(3) && kept.deletion_timestamp.is_some());
        assert_eq!(serde_json::from_value::<Metadata>(json!({})).unwrap().metadata, ObjectMeta::default());
    }
}
