//! The scope of a sync: after a complete one, the next reads only changed and unready objects, or all if anything is unknown.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{Hash, Hasher},
};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest,
    names::RUNTIME_NAMESPACE,
    object::{ObjectId, ObjectRef},
    readiness::CrState,
};
use tidewatch_deployer::{definitions::Definitions, readiness::ObjectReadiness};
use xxhash_rust::xxh3::Xxh3;

use super::default_cr::DefaultCr;
use crate::{
    index::SecretRef,
    key::WorkKey,
    trigger::{Change, Trigger},
};

/// The epoch of v2 contract events. They precede the commit of their change, so more changes may follow.
const V2: &str = "v2";

/// Hashes that identify the wanted state of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// The Manifest and its cluster; see [`target_hash`].
    pub(super) target: u64,
    /// The Manifest's wanted state; see [`spec_hash`].
    pub(super) spec: u64,
    /// The injected control plane data.
    pub(super) injected: u64,
}

/// The result of a complete sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastSync {
    pub(super) inputs: Inputs,
    /// Hashes of the wanted objects; see [`desired`](super::desired).
    pub(crate) desired: HashMap<ObjectId, u64>,
    /// Objects not ready or not applied.
    pub(super) unready: HashSet<ObjectId>,
    /// Removed objects that KCP's inventory still has.
    pub(super) removed: HashSet<ObjectId>,
    /// Whether the default CR existed; `None`: unwanted.
    pub(super) cr_exists: Option<bool>,
    pub(super) cr_state: Option<CrState>,
}

/// Returns a hash of the Manifest's identity and its cluster access.
pub(super) fn target_hash(manifest: &Manifest, secrets: &[SecretRef]) -> u64 {
    let mut mark = Xxh3::new();
    manifest.metadata.uid.hash(&mut mark);
    for SecretRef { name, uid, resource_version } in secrets {
        (name, uid, resource_version).hash(&mut mark);
    }
    mark.finish()
}

/// Returns a hash of the Manifest's wanted state, including its annotations with terms and further sources.
///
/// `pull_secret`: the name of the platform's image pull Secret.
pub(super) fn spec_hash(manifest: &Manifest, pull_secret: Option<&str>) -> u64 {
    let mut mark = Xxh3::new();
    pull_secret.hash(&mut mark);
    let metadata = &manifest.metadata;
    (metadata.generation, manifest.labels(), manifest.annotations()).hash(&mut mark);
    metadata.deletion_timestamp.is_some().hash(&mut mark);
    mark.finish()
}

/// The objects that a sync reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyncScope {
    /// Objects and whole kinds named by events.
    named: BTreeSet<ObjectRef>,
    /// Whether the wanted state changed: then changed objects are read too.
    has_new_inputs: bool,
    last: LastSync,
}

impl SyncScope {
    /// Returns the objects to read after a sync; `None`: all.
    pub(super) fn after(last: LastSync, inputs: Inputs, named: Option<BTreeSet<ObjectRef>>) -> Option<Self> {
        let named = named.filter(|_| last.inputs.target == inputs.target && last.cr_exists != Some(false))?;
        Some(Self { named, has_new_inputs: last.inputs != inputs, last })
    }

    /// Whether the wanted state changed.
    pub(super) const fn has_new_inputs(&self) -> bool {
        self.has_new_inputs
    }

    /// The hashes of the last sync.
    pub(super) const fn desired(&self) -> &HashMap<ObjectId, u64> {
        &self.last.desired
    }

    /// Whether the last sync applied an object with this hash. `None`: unknown.
    pub(super) fn is_unchanged(&self, object: &ObjectRef, hash: Option<u64>) -> bool {
        hash.is_some() && self.last.desired.get(&object.into()).copied() == hash
    }

    /// Adds objects to read.
    pub(super) fn add<'a>(&mut self, objects: impl IntoIterator<Item = &'a ObjectRef>) {
        self.named.extend(objects.into_iter().map(ObjectRef::unversioned));
    }

    /// Whether to read an object.
    pub(super) fn reads(&self, object: &ObjectRef) -> bool {
        self.last.unready.contains(&object.into()) || self.names(object)
    }

    /// Whether an event named an object. A default CR may be named without its namespace, though its kind is cluster-scoped.
    pub(super) fn names(&self, object: &ObjectRef) -> bool {
        let bare = || ObjectRef { namespace: String::new(), ..object.unversioned() };
        self.named.contains(&object.unversioned())
            || self.named.contains(&object.all_of_kind())
            || object.namespace == RUNTIME_NAMESPACE && self.named.contains(&bare())
    }

    /// Whether the last sync removed all these objects.
    pub(super) fn has_removed(&self, objects: &[ObjectRef]) -> bool {
        objects.iter().all(|object| self.last.removed.contains(&object.into()))
    }

    /// Adds objects whose definition is read: a changed or unserved definition leaves their state unknown.
    pub(super) fn with_kinds<'a>(
        mut self,
        definitions: &Definitions,
        objects: impl IntoIterator<Item = &'a ObjectRef>,
    ) -> Self {
        let is_of_read = |object: &&ObjectRef| {
            definitions.definition(&object.gvk).is_some_and(|definition| self.reads(definition))
        };
        let more: Vec<&ObjectRef> = objects.into_iter().filter(is_of_read).collect();
        self.add(more);
        self
    }

    /// Returns the other definitions as ready: all were served.
    pub(super) fn served(&self, definitions: &Definitions) -> Vec<(ObjectRef, ObjectReadiness)> {
        let others = definitions.all().filter(|definition| !self.reads(definition));
        others.map(|definition| (definition.clone(), ObjectReadiness::Ready)).collect()
    }

    pub(super) fn cr(&self) -> DefaultCr {
        DefaultCr::AsBefore(self.last.cr_exists, self.last.cr_state.clone())
    }
}

/// Returns the objects and kinds that a reconcile's triggers name; `None`: any object may be affected.
///
/// `count` is the number of triggers. An agent that lists again reports each kind that it watches.
///
/// KCP changes name no objects, because the mark covers the wanted state.
pub(super) fn named(own: &WorkKey, causes: &[Trigger], count: usize) -> Option<BTreeSet<ObjectRef>> {
    if causes.is_empty() || causes.len() < count {
        return None;
    }
    let mut named = BTreeSet::new();
    for cause in causes {
        match cause {
            Trigger::Event { epoch, object, .. } if epoch != V2 => {
                named.insert(if object.is_all_of_kind() {
                    object.all_of_kind()
                } else {
                    object.unversioned()
                });
            }
            Trigger::Kcp { object, change: Change::Added | Change::Changed } if object == own => {}
            // The Kyma's plan changed it.
            Trigger::Kcp { object: WorkKey::Kyma { .. }, .. } | Trigger::Due { .. } => {}
            // A pass that began has noted its unfinished work. Otherwise its purpose is unknown.
            Trigger::Retry { key, reason, .. } if key == own && reason.was_begun() => {}
            _ => return None,
        }
    }
    Some(named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::{Layer, ModuleTerms, State, names::annotations, object::Gvk};

    use super::*;
    use crate::trigger::Reason;

    fn own() -> WorkKey {
        WorkKey::Manifest { kyma: "k".into(), name: "m".into() }
    }

    fn event(epoch: &str, object: ObjectRef) -> Trigger {
        Trigger::Event {
            epoch: epoch.into(),
            seq: 1,
            watch: "w".into(),
            object,
            span: crate::spans::EventSpan::default(),
        }
    }

    fn kcp(object: WorkKey, change: Change) -> Trigger {
        Trigger::Kcp { object, change }
    }

    fn kyma() -> WorkKey {
        WorkKey::Kyma { kyma: "k".into() }
    }

    fn config_map() -> ObjectRef {
        ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: "a".into() }
    }

    fn retry(key: WorkKey, reason: Reason) -> Trigger {
        Trigger::Retry { key, attempt: 1, reason }
    }

    fn object(kind: &str, name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("apps/v1", kind), namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn events_and_own_changes_narrow_the_sync() {
        let causes = [
            event("e", object("Deployment", "a")),
            kcp(own(), Change::Changed),
            kcp(kyma(), Change::ModuleRelease),
            retry(own(), Reason::Waiting),
            retry(own(), Reason::Failed("invalid")),
        ];
        let found = named(&own(), &causes, 5).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [object("Deployment", "a").unversioned()]);
        for reason in [Reason::Held, Reason::Crowded, Reason::Suspended, Reason::Answers] {
            let named = named(&own(), &[retry(own(), reason)], 1);
            assert_eq!(named, None, "the triggers of the reconcile before are lost: {reason:?}");
        }
    }

    #[test]
    fn a_nameless_event_selects_all_objects_of_its_kind() {
        for namespace in ["", "n"] {
            let all = ObjectRef { namespace: namespace.into(), ..object("Deployment", "") };
            let named = named(&own(), &[event("e", all.clone())], 1);
            let scope = SyncScope::after(LastSync::default(), Inputs::default(), named).unwrap();
            assert!(
                scope.reads(&object("Deployment", "a")) && scope.reads(&object("Deployment", "b")),
                "{all}"
            );
            assert!(
                !scope.reads(&object("DeploymentSet", "a")) && !scope.reads(&object("StatefulSet", "a")),
                "{all}"
            );
            let of_another = ObjectRef { gvk: Gvk::of("v1", "Deployment"), ..object("Deployment", "a") };
            assert!(!scope.reads(&of_another), "{all}");
        }
    }

    #[test]
    fn any_other_trigger_asks_for_a_full_sync() {
        let one = event("e", config_map());
        assert!(named(&own(), std::slice::from_ref(&one), 1).is_some());
        assert!(named(&own(), std::slice::from_ref(&one), 2).is_none(), "there was another one");
        assert!(named(&own(), &[], 0).is_none());
        let at = jiff::Timestamp::UNIX_EPOCH;
        let other = WorkKey::Manifest { kyma: "k".into(), name: "other".into() };
        for cause in [
            event("v2", config_map()),
            kcp(other, Change::SharedObjectReleased),
            kcp(own(), Change::Kubeconfig),
            retry(kyma(), Reason::Waiting),
            Trigger::Start,
            Trigger::FallbackPoll,
            Trigger::SafetyResync,
            Trigger::SecondLook { object: config_map() },
            Trigger::Mode { mode: "live" },
        ] {
            assert_eq!(named(&own(), &[one.clone(), cause.clone()], 2), None, "{cause:?}");
        }
        assert!(named(&own(), &[one, Trigger::Due { at }], 2).is_some());
    }

    fn ids<'a>(objects: impl IntoIterator<Item = &'a ObjectRef>) -> HashSet<ObjectId> {
        objects.into_iter().map(ObjectId::from).collect()
    }

    #[test]
    fn a_sync_after_a_complete_one_reads_named_and_unready_objects() {
        let (a, b, c) = (object("Deployment", "a"), object("Deployment", "b"), object("Deployment", "c"));
        let inputs = Inputs { target: 1, spec: 7, injected: 1 };
        let cr_state = Some(CrState { state: State::Warning, message: "too dark".into() });
        let last = LastSync {
            inputs,
            desired: HashMap::from([((&a).into(), 1), ((&b).into(), 2)]),
            unready: ids([&a]),
            removed: ids([&c]),
            cr_exists: Some(true),
            cr_state: cr_state.clone(),
        };
        let named = || Some(BTreeSet::from([b.unversioned()]));
        let scope = SyncScope::after(last.clone(), inputs, named()).unwrap();
        assert_eq!(scope.cr(), DefaultCr::AsBefore(Some(true), cr_state));
        assert!(scope.reads(&a) && scope.reads(&b) && !scope.reads(&c));
        assert!(!scope.names(&a) && scope.names(&b));
        assert!(scope.is_unchanged(&b, Some(2)) && !scope.is_unchanged(&b, Some(1)));
        assert!(!scope.is_unchanged(&b, None) && !scope.is_unchanged(&c, Some(2)));
        let has_removed = |objects: &[&ObjectRef]| {
            scope.has_removed(&objects.iter().map(|object| (*object).clone()).collect::<Vec<_>>())
        };
        assert!(has_removed(&[&c]) && has_removed(&[]) && !has_removed(&[&b]));
        assert!(!scope.has_new_inputs());
        for other in [Inputs { spec: 8, ..inputs }, Inputs { injected: 2, ..inputs }] {
            let scope = SyncScope::after(last.clone(), other, named()).unwrap();
            assert!(scope.has_new_inputs() && scope.reads(&b));
        }
        let elsewhere = Inputs { target: 2, ..inputs };
        assert_eq!(SyncScope::after(last.clone(), elsewhere, named()), None, "another cluster");
        assert_eq!(SyncScope::after(last.clone(), inputs, None), None);
        assert_eq!(SyncScope::after(LastSync { cr_exists: Some(false), ..last }, inputs, named()), None);
    }

    #[test]
    fn an_event_matches_a_default_cr_without_a_namespace() {
        let of = |namespace: &str| ObjectRef { namespace: namespace.into(), ..object("Beacon", "b") };
        let requests = BTreeSet::from([of("").unversioned()]);
        let before = LastSync { cr_exists: Some(true), ..LastSync::default() };
        let scope = SyncScope::after(before, Inputs::default(), Some(requests)).unwrap();
        assert!(scope.names(&of("")) && scope.names(&of("kyma-system")) && !scope.names(&of("n")));
    }

    #[test]
    fn a_due_time_looks_only_at_unready_objects() {
        let (a, b) = (object("Deployment", "a"), object("Deployment", "b"));
        let due = [Trigger::Due { at: jiff::Timestamp::UNIX_EPOCH }];
        let before = LastSync { unready: ids([&a]), cr_exists: Some(true), ..LastSync::default() };
        let scope = SyncScope::after(before, Inputs::default(), named(&own(), &due, 1)).unwrap();
        assert!(scope.reads(&a), "so that its pods are read");
        assert!(!scope.reads(&b) && !scope.names(&a));
    }

    #[test]
    fn a_changed_definition_selects_its_objects() {
        let definition = |kind: &str| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                   "metadata": {"name": format!("{}s.x.dev", kind.to_lowercase())},
                   "spec": {"group": "x.dev", "names": {"kind": kind}}})
        };
        let id = |kind: &str| ObjectRef::of(&definition(kind)).unwrap();
        let of = |kind: &str| ObjectRef {
            gvk: Gvk::of("x.dev/v1", kind),
            namespace: "n".into(),
            name: "o".into(),
        };
        let definitions = Definitions::of(&["Beacon", "Buoy", "Crane"].map(definition));
        let before = LastSync { unready: ids([&id("Buoy")]), cr_exists: Some(true), ..LastSync::default() };
        let requests = BTreeSet::from([id("Beacon").unversioned()]);
        let scope = SyncScope::after(before, Inputs::default(), Some(requests)).unwrap();
        let objects = [of("Beacon"), of("Buoy"), of("Crane"), object("Deployment", "a")];
        assert!(objects.iter().all(|object| !scope.reads(object)));
        let scope = scope.with_kinds(&definitions, &objects);
        assert!(scope.reads(&of("Beacon")), "its definition was changed");
        assert!(scope.reads(&of("Buoy")), "its definition was not ready");
        assert!(!scope.reads(&of("Crane")) && !scope.reads(&object("Deployment", "a")));
        assert!(scope.names(&of("Beacon")), "a default CR is read then");
        assert_eq!(scope.served(&definitions), [(id("Crane"), ObjectReadiness::Ready)]);
    }

    #[test]
    fn the_input_hash_covers_the_spec_and_the_cluster() {
        let manifest = |version: &str, generation: i64, label: &str| -> Manifest {
            serde_json::from_value(json!({
                "metadata": {"name": "m", "uid": "u", "generation": generation, "resourceVersion": version,
                             "labels": {"l": label}},
                "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}}
            }))
            .unwrap()
        };
        let of = |m: &Manifest| spec_hash(m, None);
        let first = of(&manifest("1", 1, "a"));
        assert_eq!(first, of(&manifest("2", 1, "a")), "its status");
        assert_ne!(first, of(&manifest("2", 2, "a")));
        assert_ne!(first, of(&manifest("2", 1, "b")));
        assert_ne!(first, spec_hash(&manifest("1", 1, "a"), Some("pull")), "its workloads name it");
        let secret = SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() };
        let here = target_hash(&manifest("1", 1, "a"), std::slice::from_ref(&secret));
        assert_eq!(here, target_hash(&manifest("2", 2, "b"), std::slice::from_ref(&secret)));
        let other = SecretRef { resource_version: "2".into(), ..secret.clone() };
        assert_ne!(here, target_hash(&manifest("1", 1, "a"), &[other]), "it may be another cluster");
        let mut another = manifest("1", 1, "a");
        another.metadata.uid = Some("v".into());
        assert_ne!(
            here,
            target_hash(&another, std::slice::from_ref(&secret)),
            "nobody knows what it has applied"
        );
        // Wanted state outside the spec: a deadline, a further source.
        let with = |terms: &ModuleTerms| {
            let mut manifest = manifest("1", 1, "a");
            let text = terms.to_annotation().unwrap_or_default();
            manifest.metadata.annotations = Some([(annotations::MODULE_TERMS.to_owned(), text)].into());
            of(&manifest)
        };
        let layer =
            |digest: &str| Layer { name: "crds".into(), ref_: digest.into(), type_: "oci-dir".into() };
        let terms = |digest: &str| ModuleTerms { layers: vec![layer(digest)], ..ModuleTerms::default() };
        let patient = ModuleTerms { progress_deadline_seconds: Some(60), ..terms("sha256:0a") };
        assert_eq!(with(&terms("sha256:0a")), with(&terms("sha256:0a")));
        assert_ne!(with(&terms("sha256:0a")), with(&terms("sha256:0b")));
        assert_ne!(with(&terms("sha256:0a")), with(&patient));
    }
}
