//! The cluster's objects and request dispatch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    authorize::Known,
    controllers::Task,
    log::{Entry, Key, Log},
    refusal::Refusal,
    request::{Outcome, Request, Target, Verb},
};
use crate::{
    authz::Ask,
    kinds::{self, Kind, builtin},
    object::Stored,
};

/// Cluster settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the uids.
    pub seed: u64,
    /// Changes kept for watches and list pages.
    pub log_limit: usize,
    /// Maximum objects; more get 507.
    pub most_objects: usize,
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
            most_objects: 100_000,
            ready_after: Some(SignedDuration::ZERO),
            runs_pods: true,
            established_after: SignedDuration::ZERO,
            ignore_cel: false,
        }
    }
}

/// A simulated cluster.
#[derive(Debug)]
pub struct Cluster {
    pub(super) options: Options,
    pub(super) withholds_readiness: bool,
    /// Of the last change.
    pub(super) revision: u64,
    pub(super) objects: BTreeMap<Key, Arc<Stored>>,
    pub(super) log: Log,
    /// Custom kinds by storage key.
    pub(super) custom: BTreeMap<Arc<str>, Arc<Vec<Arc<Kind>>>>,
    /// Revision of a CRD's schema by storage key: older watches of its objects expire.
    pub(super) floors: BTreeMap<Arc<str>, u64>,
    /// Objects by owner.
    pub(super) dependents: BTreeMap<Uuid, BTreeSet<Key>>,
    /// May have lost all owners.
    pub(super) suspects: BTreeSet<Key>,
    /// Deleted, but kept.
    pub(super) held: BTreeSet<Key>,
    pub(super) due: BTreeSet<(Timestamp, Task)>,
    pub(super) known: Known,
    /// Whether roles changed since the last aggregation.
    pub(super) roles_changed: bool,
    uids: u64,
    pub(super) addresses: u32,
    pub(super) node_ports: u16,
}

impl Cluster {
    /// Creates a cluster with its initial namespaces.
    pub fn new(options: Options, now: Timestamp) -> Self {
        let mut cluster = Self {
            revision: 0,
            objects: BTreeMap::new(),
            log: Log::new(options.log_limit.max(1)),
            custom: BTreeMap::new(),
            dependents: BTreeMap::new(),
            suspects: BTreeSet::new(),
            floors: BTreeMap::new(),
            held: BTreeSet::new(),
            due: BTreeSet::new(),
            known: Known::default(),
            roles_changed: false,
            uids: 0,
            addresses: 1,
            node_ports: 0,
            options,
            withholds_readiness: false,
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            cluster.start_with(
                "namespaces",
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
                now,
            );
        }
        cluster
    }

    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the cluster has no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Drops changes up to `revision`; older watches and pages get 410.
    pub fn forget(&mut self, revision: u64) {
        self.log.trim(revision.min(self.revision));
    }

    /// Applies a request and runs the controllers that react at once.
    pub fn apply(&mut self, request: &Request, now: Timestamp) -> Outcome {
        let outcome = self.answer(request, now).into();
        if request.verb.writes() {
            self.settle(now);
        }
        outcome
    }

    fn answer(&mut self, request: &Request, now: Timestamp) -> Result<Outcome, Refusal> {
        let target = &request.target;
        if !request.user.may_all() {
            self.authorize(&request.user, &Ask::of(request.verb.name(), target, &request.query))?;
        }
        if let Some(review) = self.review(request)? {
            return Ok(review);
        }
        let kind = self.find(target).ok_or_else(Refusal::unknown_path)?;
        check_shape(&kind, target, &request.verb)?;
        match &request.verb {
            Verb::Get if target.subresource == "scale" => self.get_scale(&kind, target),
            Verb::Get => self.get(&kind, request),
            Verb::List => self.list(&kind, request),
            Verb::Watch => self.watch(&kind, request),
            Verb::Create(body) => self.create(&kind, request, body.clone(), now),
            Verb::Update(body) => self.update(&kind, request, body.clone(), now),
            Verb::Patch(how, patch) => self.patch(&kind, request, *how, patch, now),
            Verb::Delete(options) => self.delete(&kind, request, options, now),
            Verb::DeleteCollection(options) => self.delete_collection(&kind, request, options, now),
        }
    }

    pub(crate) fn find(&self, target: &Target) -> Option<Arc<Kind>> {
        let Target { group, version, resource, .. } = target;
        if let Some(kind) = builtin::find(group, version, resource) {
            return Some(Arc::clone(kind));
        }
        let key = kinds::qualified(resource, group);
        self.custom.get(key.as_str())?.iter().find(|kind| kind.version == *version).cloned()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        builtin::kinds().iter().chain(self.custom.values().flat_map(|kinds| kinds.iter()))
    }

    pub(crate) fn serves(&self, group: &str, version: &str) -> bool {
        let reviews = version == "v1" && matches!(group, "authentication.k8s.io" | "authorization.k8s.io");
        reviews || self.kinds().any(|kind| kind.group == group && kind.version == version)
    }

    /// Not interned, since it may not exist.
    pub(super) fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
        let namespace = if kind.namespaced { namespace } else { "" };
        Key { resource: Arc::clone(&kind.storage), namespace: namespace.into(), name: name.into() }
    }

    pub(super) fn uid(&mut self) -> Uuid {
        self.uids += 1;
        let mut bytes = [0_u8; 16];
        for (place, byte) in
            bytes.iter_mut().zip(self.options.seed.to_le_bytes().into_iter().chain(self.uids.to_le_bytes()))
        {
            *place = byte;
        }
        uuid::Builder::from_random_bytes(xxh3_128(&bytes).to_le_bytes()).into_uuid()
    }

    pub(super) fn store(&mut self, kind: &Kind, object: Value, now: Timestamp) -> Arc<Stored> {
        self.revision += 1;
        let stored = Arc::new(Stored::new(object, self.revision));
        let key = Key {
            resource: Arc::clone(&kind.storage),
            namespace: Arc::clone(stored.namespace()),
            name: Arc::clone(stored.name()),
        };
        let before = self.objects.insert(key.clone(), Arc::clone(&stored));
        self.relate(&key, before.as_deref(), Some(&stored));
        if stored.is_deleted() {
            self.held.insert(key.clone());
        } else {
            self.held.remove(&key);
        }
        self.known.changed(&key);
        self.log.push(Entry {
            revision: self.revision,
            key: key.clone(),
            before,
            after: Arc::clone(&stored),
            gone: false,
        });
        self.notice(kind, &key, &stored, now);
        stored
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(before) = self.objects.remove(key) else { return };
        self.relate(key, Some(&before), None);
        self.known.changed(key);
        self.held.remove(key);
        self.revision += 1;
        let after = Arc::new(Stored::new(before.render(), self.revision));
        let uid = before.uid;
        self.log.push(Entry {
            revision: self.revision,
            key: key.clone(),
            before: Some(before),
            after,
            gone: true,
        });
        self.gone(key, uid);
    }

    fn relate(&mut self, key: &Key, before: Option<&Stored>, after: Option<&Stored>) {
        let owners = |stored: Option<&Stored>| stored.map(Stored::owner_uids).unwrap_or_default();
        let (before, after) = (owners(before), owners(after));
        if before == after {
            return;
        }
        for owner in before {
            if let Some(all) = self.dependents.get_mut(&owner) {
                all.remove(key);
                if all.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
        for owner in after {
            self.dependents.entry(owner).or_default().insert(key.clone());
            self.suspects.insert(key.clone());
        }
    }
}

/// Refuses verbs that the path does not support.
pub(crate) fn check_shape(kind: &Kind, target: &Target, verb: &Verb) -> Result<(), Refusal> {
    if !kind.namespaced && !target.namespace.is_empty() {
        return Err(Refusal::unknown_path());
    }
    match target.subresource.as_str() {
        "" => {}
        "status" if kind.has_status => {}
        "scale" if kind.scale.is_some() => {}
        _ if !target.is_simulated() => return Err(target.not_simulated()),
        _ if !kind.is_builtin() => return Err(Refusal::not_found(kind, &target.name)),
        _ => return Err(Refusal::unknown_path()),
    }
    let whole = target.name.is_empty();
    let fits = match verb {
        Verb::Get | Verb::Update(_) | Verb::Patch(..) => !whole,
        Verb::Delete(_) => !whole && target.subresource.is_empty(),
        Verb::List => whole,
        Verb::Watch => true,
        // Only in one namespace.
        Verb::DeleteCollection(_) | Verb::Create(_) => {
            whole && (!kind.namespaced || !target.namespace.is_empty())
        }
    };
    let namespaced_name = whole || !kind.namespaced || !target.namespace.is_empty();
    if matches!(verb, Verb::DeleteCollection(_)) && kind.plural == "namespaces" && kind.group.is_empty() {
        return Err(Refusal::method_not_allowed());
    }
    if fits && namespaced_name { Ok(()) } else { Err(Refusal::method_not_allowed()) }
}
