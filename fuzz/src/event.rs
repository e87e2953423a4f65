use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    api::{DynamicObject, PartialObjectMeta},
    core::WatchEvent,
};
use serde::de::DeserializeOwned;
use tidewatch_agent::observe::fingerprint::{Part, of_metadata, of_object};

/// A line of a watch, or an object of a list.
///
/// # Panics
/// If a promise is broken.
pub fn watch_event(data: &[u8]) {
    if let Some(whole) = object::<DynamicObject>(data) {
        fingerprints(&whole);
    }
    if let Some(part) = object::<PartialObjectMeta<DynamicObject>>(data) {
        for counts in [Part::Spec, Part::Marked] {
            assert_eq!(of_metadata(counts, &part.metadata).is_some(), part.metadata.generation.is_some());
        }
    }
}

fn object<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    match serde_json::from_slice(data) {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) => {
            Some(object)
        }
        Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => None,
        Err(_) => serde_json::from_slice(data).ok(),
    }
}

fn fingerprints(object: &DynamicObject) {
    let parts = [(Part::Spec, "apps"), (Part::Marked, "apps"), (Part::Status, "apps"), (Part::Status, "")];
    for (part, group) in parts {
        let of = |object: &DynamicObject| of_object(part, group, object);
        let fingerprint = of(object);
        if part != Part::Status
            && let Some(by_metadata) = of_metadata(part, &object.metadata)
        {
            assert_eq!(fingerprint, by_metadata, "with and without the body");
        }
        // What changes by itself is no change.
        let mut same = object.clone();
        same.metadata.resource_version = Some("another".to_owned());
        same.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        same.metadata.creation_timestamp = None;
        assert_eq!(of(&same), fingerprint);
        // An object that was deleted and made again is another one.
        let mut again = object.clone();
        again.metadata.uid = Some(format!("{}-another", again.metadata.uid.unwrap_or_default()));
        assert_ne!(of(&again), fingerprint);
    }
    if object.metadata.generation.is_none() {
        let of = |object: &DynamicObject| of_object(Part::Spec, "", object);
        let mut labelled = object.clone();
        labelled.metadata.labels.get_or_insert_default().insert("fuzz".to_owned(), of(object).to_string());
        assert_ne!(of(&labelled), of(object), "a label is content");
    }
}
