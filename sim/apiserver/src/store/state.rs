//! State that requests read and write, and controllers act on.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    addresses::Addresses,
    definitions::{is_established, served_key},
    log::Key,
    objects::Objects,
    refusal::Refusal,
    render::render,
    rights::Rights,
    schedule::{Schedule, Task},
    served::Served,
    tokens::{self, TokenKey},
};
use crate::{
    fields::managed::{FieldScope, Managed, Writer},
    kinds::{Kind, builtin, custom, defaults, storage_key},
    object::{Stored, intern::intern, meta::metadata_mut, stored},
    schema::shape,
};

pub(super) const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const SERVICE_ACCOUNTS: &str = "serviceaccounts";
const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// Cluster settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the uids.
    pub seed: u64,
    /// Changes kept for watches and list pages.
    pub log_limit: usize,
    /// Maximum objects; more get 507.
    pub max_objects: usize,
    /// Delay of workload status; `None`: never.
    pub ready_after: Option<SignedDuration>,
    /// Whether pods run. If not, only workloads without pods become ready.
    pub runs_pods: bool,
    /// Delay until CRDs are established.
    pub established_after: SignedDuration,
    /// Whether to ignore CEL rules with a warning, rather than refuse them.
    pub ignore_cel: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            log_limit: 256,
            max_objects: 100_000,
            ready_after: Some(SignedDuration::ZERO),
            runs_pods: true,
            established_after: SignedDuration::ZERO,
            ignore_cel: false,
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) options: Options,
    pub(super) objects: Objects,
    pub(super) served: Served,
    pub(super) schedule: Schedule,
    pub(super) rights: Rights,
    pub(super) addresses: Addresses,
    /// Whether `ClusterRoles` changed since the last aggregation.
    pub(super) roles_changed: bool,
    pub(super) withholds_readiness: bool,
    /// Without it, there are no tokens.
    pub(super) token_key: Option<TokenKey>,
}

impl State {
    /// Creates the initial namespaces.
    pub(super) fn new(options: Options, now: Timestamp) -> Self {
        let mut state = Self {
            objects: Objects::new(options.seed, options.log_limit),
            served: Served::default(),
            schedule: Schedule::default(),
            rights: Rights::default(),
            addresses: Addresses::default(),
            roles_changed: false,
            withholds_readiness: false,
            token_key: None,
            options,
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            state.add_initial("namespaces", namespace, now);
        }
        state
    }

    fn add_initial(&mut self, plural: &str, mut object: Value, now: Timestamp) {
        let Some(kind) = builtin::find("", "v1", plural) else { return };
        defaults::set(&mut object, kind);
        defaults::admit(&mut object, kind);
        let uid = self.objects.uid();
        let metadata = metadata_mut(&mut object);
        metadata.insert("uid".into(), uid.to_string().into());
        metadata.insert("creationTimestamp".into(), stored::time(now.as_second()));
        self.store(kind, object, now);
    }

    /// Stores an object; schedules the controllers' delayed work.
    pub(super) fn store(&mut self, kind: &Kind, object: Value, now: Timestamp) -> Arc<Stored> {
        let (key, stored) = self.objects.insert(kind, object);
        self.rights.object_changed(&key);
        self.roles_changed |= &*key.resource == CLUSTER_ROLES;
        self.react(kind, &key, &stored, now);
        stored
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if !self.objects.remove(key) {
            return;
        }
        self.rights.object_changed(key);
        self.roles_changed |= &*key.resource == CLUSTER_ROLES;
        if &*key.resource == SERVICE_ACCOUNTS {
            tokens::remove_secrets(self, key);
        }
        if &*key.resource == CRDS
            && let Some((plural, group)) = key.name.split_once('.')
        {
            self.served.withdraw(&storage_key(plural, group));
        }
    }

    fn react(&mut self, kind: &Kind, key: &Key, stored: &Stored, now: Timestamp) {
        match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Namespace") if !stored.is_deleted() => self.furnish(stored.name(), now),
            ("apiextensions.k8s.io", _) => {
                let object = stored.render();
                let is_served = is_established(&object);
                if is_served {
                    self.serve(&object);
                }
                if !is_served || object.pointer("/status/acceptedNames") != object.pointer("/spec/names") {
                    self.schedule.add(Task::Establish(key.clone()), now, self.options.established_after);
                }
            }
            ("apps", "Deployment" | "StatefulSet" | "DaemonSet") if !stored.is_deleted() => {
                let object = stored.render();
                let observed = object.pointer("/status/observedGeneration").and_then(Value::as_u64);
                if let Some(delay) = self.options.ready_after.filter(|_| observed != Some(stored.generation))
                {
                    self.schedule.add(Task::Ready(key.clone()), now, delay);
                }
            }
            ("", "Secret") if self.token_key.is_some() && !stored.is_deleted() => {
                let object = stored.render();
                if object["type"] == tokens::SECRET_TYPE && object.pointer("/data/token").is_none() {
                    self.schedule.add(Task::Token(key.clone()), now, SignedDuration::ZERO);
                }
            }
            _ => {}
        }
    }

    /// Serves a CRD's kinds. Rewrites objects with the new storage schema.
    fn serve(&mut self, definition: &Value) {
        let spec = definition.get("spec").cloned().unwrap_or_default();
        let (storage, kinds) = (served_key(definition), custom::kinds(&spec));
        let version = custom::stored_version(&spec);
        let replaces = self.served.serve(&storage, &kinds, self.objects.revision());
        if let Some(kind) = kinds.iter().find(|kind| replaces && kind.version == version) {
            self.objects.rewrite(&storage, |object| {
                shape::prune(object, kind.schema());
                shape::default(object, kind.schema());
            });
        }
    }

    /// Refuses new content of a missing or deleted namespace.
    pub(super) fn check_namespace(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Refusal> {
        let stored = self.namespace(namespace).ok_or_else(|| Refusal::namespace_missing(namespace))?;
        if stored.is_deleted() { Err(Refusal::terminating(kind, name, namespace)) } else { Ok(()) }
    }

    pub(super) fn namespace(&self, name: &str) -> Option<&Arc<Stored>> {
        self.objects.find(builtin::find("", "v1", "namespaces")?, "", name)
    }

    /// Creates the initial objects of a namespace.
    fn furnish(&mut self, name: &Arc<str>, now: Timestamp) {
        let account = Key {
            resource: storage_key("serviceaccounts", ""),
            namespace: Arc::clone(name),
            name: intern("default"),
        };
        if self.objects.get(&account).is_some() {
            return;
        }
        let metadata = |own: &str| json!({"name": own, "namespace": &**name});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("default")});
        self.add_initial("serviceaccounts", account, now);
        let root = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("kube-root-ca.crt"),
            "data": {"ca.crt": "simulated"},
        });
        self.add_initial("configmaps", root, now);
    }

    /// Stores a controller's status with its ownership.
    pub(super) fn write_status(
        &mut self,
        kind: &Kind,
        before: &Stored,
        object: Value,
        manager: &str,
        now: Timestamp,
    ) {
        let writer = Writer {
            manager: manager.to_owned(),
            api_version: kind.api_version(),
            subresource: "status".to_owned(),
            scope: FieldScope::BuiltinStatus,
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
        let live = render(kind, before);
        let mut managed = Managed::of(&live);
        if !managed.0.is_empty() {
            managed.update(&live, &object, kind.schema(), writer, now.as_second());
            managed.put(&mut object);
        }
        self.store(kind, object, now);
    }
}
