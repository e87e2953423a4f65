//! Simulated controllers: CRDs, workloads, garbage collection, namespaces.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    cluster::Cluster,
    delete::{CRD_CLEANUP, Propagation},
    log::Key,
    roles::is_cluster_role,
    workloads,
};
use crate::{
    fields::managed::{Door, Managed, Writer},
    kinds::{Kind, builtin, custom, storage_key},
    object::{
        Stored,
        intern::intern,
        meta::{self, metadata_mut},
        stored,
    },
    schema::shape,
};

const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Limits rounds of controller reactions: a safeguard, since each round changes objects.
const MOST_ROUNDS: usize = 64;

/// Retry interval while readiness is withheld.
const LATER: Duration = Duration::from_secs(1);

/// Delayed work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Establish(Key),
    Ready(Key),
}

impl Cluster {
    /// Time of the next delayed work.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Shifts due times with the cluster's clock.
    pub(crate) fn shift_due(&mut self, by: SignedDuration) {
        let due = std::mem::take(&mut self.due);
        self.due = due.into_iter().map(|(at, task)| (at.saturating_add(by).unwrap_or(at), task)).collect();
    }

    /// Whether to stop workloads from becoming ready. Ready ones stay so.
    pub fn withhold_readiness(&mut self, withhold: bool) {
        self.withholds_readiness = withhold;
    }

    /// Runs due work and its consequences.
    pub fn run_due(&mut self, now: Timestamp) {
        self.settle(now);
    }

    fn tick(&mut self, now: Timestamp) {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            match self.due.pop_first() {
                Some((_, Task::Establish(key))) => self.establish(&key, now),
                Some((_, task @ Task::Ready(_))) if self.withholds_readiness => {
                    self.due.insert((now.saturating_add(LATER).unwrap_or(now), task));
                }
                Some((_, Task::Ready(key))) => self.ready(&key, now),
                None => return,
            }
        }
    }

    /// Adds an initial object.
    pub(super) fn start_with(&mut self, plural: &str, mut object: Value, now: Timestamp) {
        let Some(kind) = builtin::find("", "v1", plural) else { return };
        crate::kinds::defaults::set(&mut object, kind);
        crate::kinds::defaults::admit(&mut object, kind);
        let uid = self.uid();
        let metadata = metadata_mut(&mut object);
        metadata.insert("uid".into(), uid.to_string().into());
        metadata.insert("creationTimestamp".into(), stored::time(now.as_second()));
        self.store(kind, object, now);
    }

    pub(super) fn namespace(&self, name: &str) -> Option<&Arc<Stored>> {
        let key = Key { resource: storage_key("namespaces", ""), namespace: "".into(), name: name.into() };
        self.objects.get(&key)
    }

    /// Whether content keeps a deleted object.
    pub(super) fn is_held(&self, kind: &Kind, stored: &Stored) -> bool {
        kind.is("", "namespaces") && self.content(stored.name()).next().is_some()
    }

    fn content(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Arc<Stored>)> {
        self.objects.iter().filter(move |(key, _)| *key.namespace == *namespace)
    }

    /// Reacts to a stored object.
    pub(super) fn notice(&mut self, kind: &Kind, key: &Key, stored: &Stored, now: Timestamp) {
        self.roles_changed |= is_cluster_role(key);
        let task = match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Namespace") if !stored.is_deleted() => return self.furnish(stored.name(), now),
            ("apiextensions.k8s.io", _) => {
                let object = stored.render();
                if is_established(&object) {
                    let spec = object.get("spec").cloned().unwrap_or_default();
                    self.serve(&served_key(&object), custom::kinds(&spec), custom::stored_version(&spec));
                    if object.pointer("/status/acceptedNames") == spec.get("names") {
                        return;
                    }
                }
                let at = now.saturating_add(self.options.established_after).unwrap_or(now);
                (at, Task::Establish(key.clone()))
            }
            ("apps", "Deployment" | "StatefulSet" | "DaemonSet") if !stored.is_deleted() => {
                let object = stored.render();
                let observed = object.pointer("/status/observedGeneration").and_then(Value::as_u64);
                let Some(after) = self.options.ready_after.filter(|_| observed != Some(stored.generation))
                else {
                    return;
                };
                (now.saturating_add(after).unwrap_or(now), Task::Ready(key.clone()))
            }
            _ => return,
        };
        self.due.insert(task);
    }

    /// Serves a CRD's kinds. Rewrites objects with the new storage schema.
    fn serve(&mut self, storage: &Arc<str>, kinds: Arc<Vec<Arc<Kind>>>, stored_version: &str) {
        let before = self.custom.insert(Arc::clone(storage), Arc::clone(&kinds));
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &kinds)) {
            return;
        }
        self.floors.insert(Arc::clone(storage), self.revision);
        let kind = kinds.iter().find(|kind| kind.version == stored_version);
        let Some(kind) = kind.filter(|_| before.is_some()) else { return };
        for (_, stored) in self.objects.iter_mut().filter(|(key, _)| key.resource == *storage) {
            let mut object = stored.render();
            shape::prune(&mut object, kind.schema());
            shape::default(&mut object, kind.schema());
            *stored = Arc::new(Stored::new(object, stored.revision));
        }
    }

    fn furnish(&mut self, name: &Arc<str>, now: Timestamp) {
        let account = Key {
            resource: storage_key("serviceaccounts", ""),
            namespace: Arc::clone(name),
            name: intern("default"),
        };
        if self.objects.contains_key(&account) {
            return;
        }
        let metadata = |own: &str| json!({"name": own, "namespace": &**name});
        self.start_with(
            "serviceaccounts",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("default")}),
            now,
        );
        let root = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("kube-root-ca.crt"),
            "data": {"ca.crt": "simulated"},
        });
        self.start_with("configmaps", root, now);
    }

    /// Reacts to a removed object.
    pub(super) fn gone(&mut self, key: &Key, uid: Uuid) {
        self.roles_changed |= is_cluster_role(key);
        if &*key.resource == CRDS
            && let Some((plural, group)) = key.name.split_once('.')
        {
            let served = storage_key(plural, group);
            self.custom.remove(&served);
            self.floors.remove(&served);
        }
        self.suspects.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
    }

    pub(super) fn kind_of(&self, key: &Key) -> Option<Arc<Kind>> {
        builtin::by_storage(&key.resource)
            .cloned()
            .or_else(|| self.custom.get(&key.resource).and_then(|kinds| kinds.first()).cloned())
    }

    /// Runs controllers until nothing changes.
    pub(super) fn settle(&mut self, now: Timestamp) {
        for _ in 0..MOST_ROUNDS {
            let before = self.revision;
            self.tick(now);
            self.collect(now);
            self.propagate(now);
            self.end_crds(now);
            self.end_namespaces(now);
            self.judge_api_services(now);
            self.aggregate_roles(now);
            if self.revision == before {
                return;
            }
        }
    }

    fn deleted_of(&self, resource: &str) -> Vec<(Key, Arc<Stored>)> {
        self.deleted().filter(|(key, _)| &*key.resource == resource).collect()
    }

    pub(super) fn deleted(&self) -> impl Iterator<Item = (Key, Arc<Stored>)> {
        self.held.iter().filter_map(|key| Some((key.clone(), self.objects.get(key).cloned()?)))
    }

    /// Deletes the objects of deleted CRDs.
    fn end_crds(&mut self, now: Timestamp) {
        for (key, stored) in self.deleted_of(CRDS) {
            let object = stored.render();
            let served = served_key(&object);
            let instances: Vec<(Key, Arc<Stored>)> = self
                .objects
                .iter()
                .filter(|(key, _)| key.resource == served)
                .map(|(key, stored)| (key.clone(), Arc::clone(stored)))
                .collect();
            let mut left = false;
            for (key, stored) in instances {
                if let Some(kind) = self.kind_of(&key) {
                    left |= self.end(&kind, &key, &stored, Propagation::Background, now).is_some();
                }
            }
            let Some(kind) = self.kind_of(&key) else { continue };
            if !left && meta::finalizers(&object).contains(&CRD_CLEANUP) {
                self.release(&kind, &key, CRD_CLEANUP, now);
                continue;
            }
            let mut object = object;
            let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
            let pending =
                conditions.into_iter().flatten().find(|one| one["reason"] == "InstanceDeletionPending");
            if let Some(Value::Object(pending)) = pending.filter(|_| left) {
                pending.insert("reason".into(), "InstanceDeletionInProgress".into());
                pending.insert("message".into(), "CustomResource deletion is in progress".into());
                self.store(&kind, object, now);
            }
        }
    }

    /// Deletes the content of deleted namespaces.
    fn end_namespaces(&mut self, now: Timestamp) {
        for (key, stored) in self.deleted_of("namespaces") {
            let content: Vec<(Key, Arc<Stored>)> =
                self.content(&key.name).map(|(key, stored)| (key.clone(), Arc::clone(stored))).collect();
            for (key, stored) in content {
                if let (false, Some(kind)) = (stored.is_deleted(), self.kind_of(&key)) {
                    self.end(&kind, &key, &stored, Propagation::Background, now);
                }
            }
            let Some(kind) = builtin::find("", "v1", "namespaces") else { return };
            if self.content(&key.name).next().is_none() {
                let mut object = Self::render(kind, &stored);
                if !meta::finalizers(&object).is_empty() {
                    let conditions = self.remaining(&key.name, now);
                    let before = object.pointer("/status/conditions").cloned();
                    let is_said = same_conditions(before.as_ref(), &conditions);
                    let is_final = object.pointer("/spec/finalizers").is_none();
                    if is_final && is_said {
                        continue;
                    }
                    meta::child_mut(&mut object, "spec").remove("finalizers");
                    if !is_said {
                        meta::child_mut(&mut object, "status").insert("conditions".into(), conditions);
                    }
                    self.store(kind, object, now);
                    continue;
                }
                self.remove(&key);
                continue;
            }
            let mut object = Self::render(kind, &stored);
            let conditions = self.remaining(&key.name, now);
            let before = object.pointer("/status/conditions").cloned();
            if !same_conditions(before.as_ref(), &conditions) {
                meta::child_mut(&mut object, "status").insert("conditions".into(), conditions);
                self.write_status(kind, &stored, object, "kube-controller-manager", now);
            }
        }
    }

    fn remaining(&self, namespace: &str, now: Timestamp) -> Value {
        let mut kinds: Vec<(String, usize)> = Vec::new();
        let mut finalizers: Vec<(String, usize)> = Vec::new();
        let count = |list: &mut Vec<(String, usize)>, name: &str| match list
            .iter_mut()
            .find(|(known, _)| known == name)
        {
            Some((_, times)) => *times += 1,
            None => list.push((name.to_owned(), 1)),
        };
        for (key, stored) in self.content(namespace) {
            // Kubernetes appends the dot to core resources.
            let resource = if key.resource.contains('.') {
                key.resource.to_string()
            } else {
                format!("{}.", key.resource)
            };
            count(&mut kinds, &resource);
            for finalizer in meta::finalizers(&stored.render()) {
                count(&mut finalizers, finalizer);
            }
        }
        let told = |list: &[(String, usize)], what: &str, joint: &str| {
            let parts: Vec<String> =
                list.iter().map(|(name, times)| format!("{name} {what} {times} {joint}")).collect();
            parts.join(", ")
        };
        let time = stored::time(now.as_second());
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time});
        json!([
            condition(
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered"
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                "False",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed"
            ),
            condition(
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization"
            ),
            if kinds.is_empty() {
                condition(
                    "NamespaceContentRemaining",
                    "False",
                    "ContentRemoved",
                    "All content successfully removed",
                )
            } else {
                condition(
                    "NamespaceContentRemaining",
                    "True",
                    "SomeResourcesRemain",
                    &format!("Some resources are remaining: {}", told(&kinds, "has", "resource instances")),
                )
            },
            if finalizers.is_empty() {
                condition(
                    "NamespaceFinalizersRemaining",
                    "False",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                )
            } else {
                condition(
                    "NamespaceFinalizersRemaining",
                    "True",
                    "SomeFinalizersRemain",
                    &format!(
                        "Some content in the namespace has finalizers remaining: {}",
                        told(&finalizers, "in", "resource instances")
                    ),
                )
            },
        ])
    }

    fn establish(&mut self, key: &Key, now: Timestamp) {
        let (Some(stored), Some(kind)) = (self.objects.get(key).cloned(), self.kind_of(key)) else { return };
        let mut object = Self::render(&kind, &stored);
        let established = is_established(&object);
        let time = stored::time(now.as_second());
        let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": time});
        let names = object.pointer("/spec/names").cloned().unwrap_or_default();
        let status = meta::child_mut(&mut object, "status");
        status.insert("acceptedNames".into(), names);
        let conditions = status.get("conditions").cloned().filter(|_| established);
        status.insert(
            "conditions".into(),
            conditions.unwrap_or(json!([
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ])),
        );
        self.write_status(&kind, &stored, object, "kube-apiserver", now);
    }

    fn ready(&mut self, key: &Key, now: Timestamp) {
        let (Some(stored), Some(kind)) = (self.objects.get(key).cloned(), self.kind_of(key)) else { return };
        let mut object = Self::render(&kind, &stored);
        let status = workloads::status(&kind.kind, &object, self.options.runs_pods, now);
        if let Some(object) = object.as_object_mut() {
            object.insert("status".to_owned(), status);
        }
        self.write_status(&kind, &stored, object, "kube-controller-manager", now);
    }

    pub(super) fn write_status(
        &mut self,
        kind: &Arc<Kind>,
        before: &Stored,
        object: Value,
        author: &str,
        now: Timestamp,
    ) {
        let writer = Writer {
            manager: author.to_owned(),
            api_version: kind.api_version(),
            subresource: "status".to_owned(),
            door: Door::BuiltinStatus,
        };
        self.write_as(&writer, kind, before, object, now);
    }

    /// Stores a controller's change with its ownership.
    pub(super) fn write_as(
        &mut self,
        writer: &Writer,
        kind: &Kind,
        before: &Stored,
        mut object: Value,
        now: Timestamp,
    ) {
        let live = Self::render(kind, before);
        let mut managed = Managed::of(&live);
        if !managed.0.is_empty() {
            managed.update(&live, &object, kind.schema(), writer, now.as_second());
            managed.put(&mut object);
        }
        self.store(kind, object, now);
    }
}

fn served_key(object: &Value) -> Arc<str> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    storage_key(text("/spec/names/plural"), text("/spec/group"))
}

fn is_established(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| {
        one.get("type") == Some(&json!("Established")) && one.get("status") == Some(&json!("True"))
    })
}

pub(super) fn same_conditions(before: Option<&Value>, after: &Value) -> bool {
    let bare = |value: &Value| -> Vec<Value> {
        let list = value.as_array().cloned().unwrap_or_default();
        list.into_iter()
            .map(|mut one| {
                meta::as_object(&mut one).remove("lastTransitionTime");
                one
            })
            .collect()
    };
    before.is_some_and(|before| bare(before) == bare(after))
}
