//! Hashes the relevant part of an object. The uid is included, so a recreated object differs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

const REPLICAS: [&str; 4] = ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"];
/// Readiness numbers of a `DaemonSet`.
const ON_NODES: [&str; 3] = ["desiredNumberScheduled", "numberAvailable", "updatedNumberScheduled"];

/// The relevant part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Spec and deletion.
    Spec,
    /// Spec, labels and Kyma's annotations, which the engine sets. Other annotations may be heartbeats.
    Marked,
    /// Status.
    Status,
}

pub(crate) fn is_kymas(annotation: &str) -> bool {
    annotation.split_once('/').is_some_and(|(domain, _)| domain.ends_with("kyma-project.io"))
}

/// Fingerprint from `metadata.generation`. `None` without a generation; use [`of_object`].
pub fn of_metadata(part: Part, metadata: &ObjectMeta) -> Option<u64> {
    let generation = metadata.generation?;
    let mut hash = Hash::new("generation", metadata);
    hash.number(generation.cast_unsigned());
    hash.flag(metadata.deletion_timestamp.is_some());
    if part == Part::Marked {
        hash.texts(metadata.labels.iter().flatten());
        let annotations = metadata.annotations.iter().flatten();
        hash.texts(annotations.filter(|(key, _)| is_kymas(key)));
    }
    Some(hash.end())
}

/// Whether generations in `group` rise with each change. A `PriorityClass` stays at 1.
pub fn counts_changes(group: &str) -> bool {
    group != "scheduling.k8s.io"
}

/// Fingerprint of a whole object.
pub fn of_object(part: Part, group: &str, object: &DynamicObject) -> u64 {
    match part {
        Part::Status => of_status(group, object),
        part if counts_changes(group) => {
            of_metadata(part, &object.metadata).unwrap_or_else(|| of_content(object))
        }
        Part::Spec | Part::Marked => of_content(object),
    }
}

/// Excludes resourceVersion, managedFields, timestamps and status.
fn of_content(object: &DynamicObject) -> u64 {
    let metadata = &object.metadata;
    let mut hash = Hash::new("content", metadata);
    hash.flag(metadata.deletion_timestamp.is_some());
    for map in [&metadata.labels, &metadata.annotations] {
        hash.texts(map.iter().flatten());
    }
    let finalizers = metadata.finalizers.iter().flatten();
    hash.number(finalizers.clone().count() as u64);
    finalizers.for_each(|finalizer| hash.text(finalizer));
    let owners = metadata.owner_references.iter().flatten();
    hash.number(owners.clone().count() as u64);
    owners.for_each(|owner| hash.text(&owner.uid));
    hash.map(&object.data, &["status"]);
    hash.end()
}

/// Excludes heartbeats, times and messages.
///
/// Fields added later count only where present: stored fingerprints of other objects stay valid.
fn of_status(group: &str, object: &DynamicObject) -> u64 {
    let mut hash = Hash::new("status", &object.metadata);
    let status = &object.data["status"];
    hash.value(&status["state"]);
    hash.value(&status["observedGeneration"]);
    let mut conditions: Vec<[&str; 3]> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| ["type", "status", "reason"].map(|key| condition[key].as_str().unwrap_or_default()))
        .collect();
    conditions.sort_unstable();
    hash.number(conditions.len() as u64);
    conditions.iter().flatten().for_each(|text| hash.text(text));
    if group == "apps" {
        for key in REPLICAS {
            hash.value(&status[key]);
        }
        for key in ON_NODES.into_iter().filter(|key| !status[key].is_null()) {
            hash.text(key);
            hash.value(&status[key]);
        }
    }
    // A condition about an older spec is outdated.
    let observed = status["conditions"].as_array().into_iter().flatten();
    let mut observed: Vec<(&str, i64)> = observed
        .filter_map(|c| Some((c["type"].as_str().unwrap_or_default(), c["observedGeneration"].as_i64()?)))
        .collect();
    if !observed.is_empty() {
        observed.sort_unstable();
        // Stored fingerprints depend on this text.
        hash.text("told");
        hash.number(observed.len() as u64);
        for (type_, generation) in observed {
            hash.text(type_);
            hash.number(generation.cast_unsigned());
        }
    }
    // The only status of a `PersistentVolumeClaim`.
    if group.is_empty() {
        hash.value(&status["phase"]);
    }
    let addresses = status["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let mut addresses: Vec<[&str; 2]> =
        addresses.map(|one| ["ip", "hostname"].map(|key| one[key].as_str().unwrap_or_default())).collect();
    if !addresses.is_empty() {
        addresses.sort_unstable();
        hash.text("addresses");
        hash.number(addresses.len() as u64);
        addresses.iter().flatten().for_each(|text| hash.text(text));
    }
    hash.end()
}

/// Prefixes parts with type or length against collisions.
struct Hash(Xxh3);

impl Hash {
    fn new(part: &str, metadata: &ObjectMeta) -> Self {
        let mut hash = Self(Xxh3::new());
        hash.text(part);
        hash.text(metadata.uid.as_deref().unwrap_or_default());
        hash
    }

    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.0.update(&[u8::from(flag)]);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn texts<'a>(&mut self, map: impl Iterator<Item = (&'a String, &'a String)> + Clone) {
        self.number(map.clone().count() as u64);
        for (key, value) in map {
            self.text(key);
            self.text(value);
        }
    }

    /// The JSON parser limits the depth to 128.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.0.update(b"z"),
            Value::Bool(flag) => {
                self.0.update(b"b");
                self.flag(*flag);
            }
            Value::Number(number) => {
                self.0.update(b"n");
                self.text(&number.to_string());
            }
            Value::String(text) => {
                self.0.update(b"s");
                self.text(text);
            }
            Value::Array(items) => {
                self.0.update(b"a");
                self.number(items.len() as u64);
                for item in items {
                    self.value(item);
                }
            }
            Value::Object(_) => {
                self.0.update(b"o");
                self.map(value, &[]);
            }
        }
    }

    /// Key order does not matter.
    fn map(&mut self, map: &Value, without: &[&str]) {
        let entries = map.as_object().into_iter().flatten();
        let mut entries: Vec<_> = entries.filter(|(key, _)| !without.contains(&key.as_str())).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        self.number(entries.len() as u64);
        for (key, value) in entries {
            self.text(key);
            self.value(value);
        }
    }

    fn end(self) -> u64 {
        self.0.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn deployment() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "a", "namespace": "n", "uid": "u1", "generation": 3, "resourceVersion": "10"},
            "spec": {"replicas": 1},
            "status": {
                "state": "Ready", "observedGeneration": 3, "replicas": 1, "readyReplicas": 1,
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "Fine", "message": "m", "lastHeartbeatTime": "t"},
                    {"type": "Other", "status": "False", "reason": "No"}
                ]
            }
        })
    }

    fn config_map() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u1", "resourceVersion": "10",
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"},
                "managedFields": [{"manager": "kubectl", "time": "2026-01-01T00:00:00Z"}]
            },
            "data": {"key": "value", "other": "one"}
        })
    }

    /// Whether the fingerprint changes.
    fn changes(part: Part, base: &Value, pointer: &str, value: Value) -> bool {
        let mut changed = base.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = changed.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        let of = |value: &Value| of_object(part, "apps", &object(value.clone()));
        of(base) != of(&changed)
    }

    #[test]
    fn spec_of_a_kind_with_generation() {
        let base = deployment();
        let changes = |pointer, value| changes(Part::Spec, &base, pointer, value);
        assert!(changes("/metadata/generation", json!(4)));
        assert!(changes("/metadata/uid", json!("u2")));
        assert!(changes("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")));
        assert!(!changes("/metadata/resourceVersion", json!("11")));
        assert!(!changes("/metadata/labels", json!({"a": "b"})));
        assert!(!changes("/status/state", json!("Error")));
        let whole = object(base.clone());
        assert_eq!(of_metadata(Part::Spec, &whole.metadata), Some(of_object(Part::Spec, "apps", &whole)));
    }

    #[test]
    fn labels_and_kyma_annotations_count_only_for_marked() {
        let base = deployment();
        let marked = |pointer, value: Value| {
            assert!(!changes(Part::Spec, &base, pointer, value.clone()), "for nobody else");
            changes(Part::Marked, &base, pointer, value)
        };
        assert!(marked("/metadata/labels", json!({"a": "b"})));
        assert!(marked(
            "/metadata/annotations",
            json!({"operator.kyma-project.io/managed-by-reconciler-disclaimer": "mine"})
        ));
        assert!(!marked(
            "/metadata/annotations",
            json!({"deployment.kubernetes.io/revision": "2", "plain": "x"})
        ));
        assert!(
            !marked("/metadata/resourceVersion", json!("11")) && !marked("/status/state", json!("Error"))
        );
        assert!(changes(Part::Marked, &base, "/metadata/generation", json!(4)));
    }

    #[test]
    fn spec_of_a_kind_with_constant_generation() {
        let of = |description: &str| {
            let object = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": "a", "uid": "u", "generation": 1}, "value": 7, "description": description});
            of_object(Part::Spec, "scheduling.k8s.io", &serde_json::from_value(object).unwrap())
        };
        assert_ne!(of("ours"), of("mine"));
        assert_eq!(of("ours"), of("ours"));
    }

    #[test]
    fn spec_of_a_kind_without_generation() {
        let base = config_map();
        let changes = |pointer, value| changes(Part::Spec, &base, pointer, value);
        assert_eq!(of_metadata(Part::Spec, &object(base.clone()).metadata), None);
        assert!(changes("/data/key", json!("new")));
        assert!(changes("/data/more", json!("x")));
        assert!(changes("/data", json!({"key": "value"})));
        assert!(changes("/metadata/uid", json!("u2")));
        assert!(changes("/metadata/labels", json!({"a": "c"})));
        assert!(changes("/metadata/annotations", json!({"a": "b"})));
        assert!(changes("/metadata/finalizers", json!(["f"])));
        assert!(changes("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")));
        assert!(!changes("/metadata/resourceVersion", json!("11")));
        assert!(!changes("/metadata/managedFields", json!([])));
        assert!(!changes("/metadata/creationTimestamp", json!("2027-01-01T00:00:00Z")));
        assert!(!changes("/status", json!({"phase": "x"})));
    }

    #[test]
    fn the_status_fingerprint_covers_state_counts_and_conditions() {
        let base = deployment();
        let changes = |pointer, value| changes(Part::Status, &base, pointer, value);
        assert!(changes("/status/state", json!("Error")));
        assert!(changes("/status/observedGeneration", json!(4)));
        assert!(changes("/status/readyReplicas", json!(0)));
        assert!(changes("/status/conditions/0/status", json!("False")));
        assert!(changes("/status/conditions/0/reason", json!("Broken")));
        assert!(changes("/status/conditions", json!([])));
        assert!(changes("/metadata/uid", json!("u2")));
        assert!(!changes("/status/conditions/0/message", json!("other")));
        assert!(!changes("/status/conditions/0/lastHeartbeatTime", json!("later")));
        assert!(!changes("/spec/replicas", json!(9)));
        assert!(!changes("/metadata/generation", json!(9)));
        let mut swapped = base.clone();
        swapped["status"]["conditions"].as_array_mut().unwrap().swap(0, 1);
        let of = |value: &Value, group| of_object(Part::Status, group, &object(value.clone()));
        assert_eq!(of(&base, "apps"), of(&swapped, "apps"), "the order of conditions means nothing");
        let mut fewer = base.clone();
        fewer["status"]["readyReplicas"] = json!(0);
        assert_eq!(of(&base, "other"), of(&fewer, "other"), "replicas count for workloads only");
        let mut lost = base.clone();
        lost["status"]["phase"] = json!("Lost");
        assert_ne!(of(&base, ""), of(&lost, ""), "a claim says nothing else");
        assert_eq!(of(&base, "other"), of(&lost, "other"));
    }

    #[test]
    fn a_daemon_sets_node_counts_change_its_fingerprint() {
        let mut base = deployment();
        base["kind"] = json!("DaemonSet");
        base["status"] = json!({"observedGeneration": 3, "desiredNumberScheduled": 3, "currentNumberScheduled": 3,
                                "numberReady": 3, "numberAvailable": 3, "updatedNumberScheduled": 3, "numberMisscheduled": 0});
        let changes = |key: &str| changes(Part::Status, &base, &format!("/status/{key}"), json!(2));
        for counts in ["desiredNumberScheduled", "numberAvailable", "updatedNumberScheduled"] {
            assert!(changes(counts), "{counts}");
        }
        assert!(!changes("numberMisscheduled"));
    }

    #[test]
    fn a_conditions_observed_generation_changes_the_fingerprint() {
        let base = json!({"apiVersion": "x.dev/v1", "kind": "Gate", "metadata": {"name": "a", "uid": "u", "generation": 2},
                          "status": {"conditions": [{"type": "Programmed", "status": "True", "reason": "Fine", "observedGeneration": 1}]}});
        assert!(changes(Part::Status, &base, "/status/conditions/0/observedGeneration", json!(2)));
        assert!(!changes(Part::Status, &base, "/status/conditions/0/observedGeneration", json!(1)));
    }

    #[test]
    fn load_balancer_addresses_change_the_fingerprint() {
        let service = |ingress: Value| {
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "n", "uid": "u"},
                                 "status": {"loadBalancer": {"ingress": ingress}}});
            of_object(Part::Status, "", &object(service))
        };
        let (one, two) = (json!({"ip": "192.0.2.1"}), json!({"hostname": "a.example"}));
        assert_ne!(service(json!([])), service(json!([one])), "its first address");
        assert_ne!(service(json!([one])), service(json!([two])));
        assert_ne!(service(json!([{"ip": "a.example"}])), service(json!([two])), "a name is no address");
        assert_eq!(service(json!([one, two])), service(json!([two, one])), "their order means nothing");
        assert_eq!(service(json!([one])), service(json!([{"ip": "192.0.2.1", "ports": []}])));
    }

    #[test]
    fn odd_statuses_do_not_panic() {
        for status in [
            json!(null),
            json!("text"),
            json!([1]),
            json!({"conditions": {"a": 1}}),
            json!({"conditions": [7]}),
            json!({"loadBalancer": {"ingress": [7, {"ip": {}}]}}),
        ] {
            let mut odd = deployment();
            odd["status"] = status;
            of_object(Part::Status, "apps", &object(odd));
        }
    }
}
