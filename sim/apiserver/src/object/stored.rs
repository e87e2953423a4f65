//! Objects as small heads and shared text.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    intern::intern,
    meta::{as_object, metadata_mut, object, put},
};

/// An immutable object.
///
/// Fields that differ between clusters are separate, so that the rest is shared. Metadata requests do not
/// parse the body.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) uid: Uuid,
    pub(crate) revision: u64,
    /// 0: none.
    pub(crate) generation: u64,
    created: i64,
    /// Start of deletion.
    deleted: Option<i64>,
    grace: Option<u32>,
    namespace: Arc<str>,
    name: Arc<str>,
    /// Labels, annotations, finalizers.
    meta: Option<Arc<str>>,
    body: Arc<str>,
    status: Option<Arc<str>>,
    owners: Option<Arc<str>>,
    managed: Option<Arc<str>>,
    /// Of the `managed` entries.
    times: Box<[i64]>,
}

impl Stored {
    /// Takes everything but the revision from the object.
    pub(crate) fn new(mut object: Value, revision: u64) -> Self {
        let status = object.as_object_mut().and_then(|map| map.remove("status"));
        let metadata = metadata_mut(&mut object);
        let mut take = |field: &str| metadata.remove(field);
        let text = |value: Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
        let uid = text(take("uid")).and_then(|uid| uid.parse().ok()).unwrap_or_default();
        let generation = take("generation").and_then(|value| value.as_u64()).unwrap_or_default();
        let created = text(take("creationTimestamp")).and_then(|time| seconds(&time)).unwrap_or_default();
        let deleted = text(take("deletionTimestamp")).and_then(|time| seconds(&time));
        let grace = take("deletionGracePeriodSeconds").and_then(|value| value.as_u64());
        let namespace = text(take("namespace")).unwrap_or_default();
        let name = text(take("name")).unwrap_or_default();
        take("resourceVersion");
        let owners = take("ownerReferences");
        let mut managed = take("managedFields");
        let times = take_times(managed.as_mut());
        let meta = object.as_object_mut().and_then(|map| map.remove("metadata"));
        let meta = meta.filter(|meta| meta.as_object().is_some_and(|meta| !meta.is_empty()));
        let shared = |value: Value| intern(&value.to_string());
        Self {
            uid,
            revision,
            generation,
            created,
            deleted,
            grace: grace.and_then(|grace| u32::try_from(grace).ok()),
            namespace: intern(&namespace),
            name: intern(&name),
            meta: meta.map(shared),
            body: shared(object),
            status: status.map(shared),
            owners: owners.map(shared),
            managed: managed.map(shared),
            times,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.is_some()
    }

    /// Unix seconds.
    pub(crate) fn deleted_at(&self) -> Option<i64> {
        self.deleted
    }

    pub(crate) fn render(&self) -> Value {
        let mut object = parse(&self.body);
        let map = as_object(&mut object);
        put(map, "status", self.status.as_deref().map(parse));
        map.insert("metadata".into(), self.metadata());
        object
    }

    pub(crate) fn render_metadata(&self) -> Value {
        object([("metadata", self.metadata())])
    }

    /// Renders the fields that selectors use.
    pub(crate) fn head(&self) -> Value {
        let mut head = object([("metadata", self.meta.as_deref().map(parse).unwrap_or_default())]);
        self.put_name(metadata_mut(&mut head));
        head
    }

    fn put_name(&self, metadata: &mut Map<String, Value>) {
        metadata.insert("name".into(), Value::from(&*self.name));
        put(metadata, "namespace", (!self.namespace.is_empty()).then(|| Value::from(&*self.namespace)));
    }

    fn metadata(&self) -> Value {
        let mut whole = self.meta.as_deref().map(parse).unwrap_or_default();
        let metadata = as_object(&mut whole);
        self.put_name(metadata);
        metadata.insert("uid".into(), Value::String(self.uid.to_string()));
        metadata.insert("resourceVersion".into(), Value::String(self.revision.to_string()));
        metadata.insert("creationTimestamp".into(), time(self.created));
        put(metadata, "generation", (self.generation > 0).then(|| json!(self.generation)));
        put(metadata, "deletionTimestamp", self.deleted.map(time));
        put(metadata, "deletionGracePeriodSeconds", self.grace.map(Value::from));
        put(metadata, "ownerReferences", self.owners.as_deref().map(parse));
        put(metadata, "managedFields", self.managed.as_deref().map(|managed| self.managed_fields(managed)));
        whole
    }

    fn managed_fields(&self, managed: &str) -> Value {
        let mut entries = parse(managed);
        for (entry, &at) in entries.as_array_mut().into_iter().flatten().zip(self.times.iter()) {
            if let (Value::Object(entry), true) = (entry, at != 0) {
                entry.insert("time".into(), time(at));
            }
        }
        entries
    }

    pub(crate) fn owner_uids(&self) -> Vec<Uuid> {
        let owners = self.owners.as_deref().map(parse);
        let owners = owners.as_ref().and_then(Value::as_array);
        let uid = |owner: &Value| owner.get("uid")?.as_str()?.parse().ok();
        owners.map(|owners| owners.iter().filter_map(uid).collect()).unwrap_or_default()
    }
}

/// Removes the times, so that equal entries share text.
fn take_times(managed: Option<&mut Value>) -> Box<[i64]> {
    let entries = managed.and_then(Value::as_array_mut).into_iter().flatten();
    let entry_time = |entry: &mut Value| {
        let time = entry.as_object_mut().and_then(|entry| entry.remove("time"));
        time.as_ref().and_then(Value::as_str).and_then(seconds).unwrap_or_default()
    };
    entries.map(entry_time).collect()
}

fn parse(text: &str) -> Value {
    // Serialized from at most `DEEPEST` levels.
    serde_json::from_str(text).unwrap_or(Value::Object(Map::new()))
}

fn seconds(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// Kubernetes' format: UTC seconds.
pub(crate) fn time(seconds: i64) -> Value {
    Value::String(Timestamp::from_second(seconds).unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "status": {"ok": true},
            "metadata": {
                "name": "n", "namespace": "ns", "uid": "6e94b08b-d0ce-4eb4-82c1-f272f48599da", "generation": 2,
                "resourceVersion": "7", "creationTimestamp": "2026-11-21T17:15:13Z",
                "deletionTimestamp": "2026-11-21T17:15:14Z", "deletionGracePeriodSeconds": 0,
                "ownerReferences": [{"uid": "6e94b08b-d0ce-4eb4-82c1-f272f48599db", "kind": "K"}],
                "labels": {"a": "b"}, "finalizers": ["x/y"],
                "managedFields": [
                    {"manager": "m", "fieldsV1": {"f:data": {}}, "time": "2026-11-21T17:15:13Z"},
                    {"manager": "n", "fieldsV1": {"f:data": {}}},
                ],
            },
        })
    }

    #[test]
    fn a_stored_object_is_rendered_unchanged() {
        assert_eq!(Stored::new(object(), 7).render(), object());
        let bare = json!({"metadata": {
            "name": "n", "uid": Uuid::nil().to_string(), "resourceVersion": "1",
            "creationTimestamp": "2026-11-21T17:15:13Z",
        }});
        assert_eq!(Stored::new(bare.clone(), 1).render(), bare);
    }

    #[test]
    fn metadata_is_rendered_without_the_rest() {
        let stored = Stored::new(object(), 7);
        assert_eq!(stored.render_metadata(), json!({"metadata": object()["metadata"]}));
        let head = json!({"metadata": {"name": "n", "namespace": "ns", "labels": {"a": "b"}, "finalizers": ["x/y"]}});
        assert_eq!(stored.head(), head);
    }

    #[test]
    fn objects_with_equal_bodies_share_their_text() {
        let mut other = object();
        other["metadata"]["name"] = "another".into();
        other["metadata"]["uid"] = Uuid::from_u128(5).to_string().into();
        other["metadata"]["creationTimestamp"] = "2026-11-22T17:15:13Z".into();
        other["metadata"]["managedFields"][0]["time"] = "2026-11-22T17:15:13Z".into();
        let (one, two) = (Stored::new(object(), 1), Stored::new(other, 2));
        assert!(Arc::ptr_eq(&one.body, &two.body));
        assert!(Arc::ptr_eq(one.managed.as_ref().unwrap(), two.managed.as_ref().unwrap()));
    }
}
