//! Remembers the last pass over a Manifest. The next pass then reads only changed and unready objects, or all if anything is unknown.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    num::NonZeroUsize,
    sync::Arc,
};

use kube::ResourceExt;
use lru::LruCache;
use parking_lot::Mutex;
use tidewatch_api::{Manifest, State, names::RUNTIME_NAMESPACE, object::ObjectRef, readiness::CrState};
use tidewatch_deployer::{definitions::Definitions, readiness::ObjectReadiness};
use xxhash_rust::xxh3::Xxh3;

use super::{contents::Contents, default_cr::DefaultCr};
use crate::{
    alike,
    index::SecretRef,
    key::WorkKey,
    trigger::{Change, Trigger},
};

/// Manifests remembered in the fleet. An evicted one is read as a whole.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();
/// The epoch of v2 contract events. They precede the commit of their change, so more changes may follow.
const V2: &str = "v2";

/// Results of last passes, by Manifest.
#[derive(Debug)]
pub(crate) struct Passes {
    kept: Mutex<LruCache<u64, Kept>>,
    /// Shared between runtimes with the same module version.
    contents: Mutex<alike::Shared<Contents>>,
}

impl Default for Passes {
    fn default() -> Self {
        Self { kept: Mutex::new(LruCache::new(REMEMBERED)), contents: Mutex::default() }
    }
}

/// Hashes that identify a pass's wanted state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The Manifest and its cluster; see [`place`].
    pub(super) place: u64,
    /// The Manifest's wanted state; see [`asked`].
    pub(super) asked: u64,
    /// The injected control plane data.
    pub(super) given: u64,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) mark: Mark,
    pub(super) contents: Arc<Contents>,
    /// Objects not ready or not applied.
    pub(super) unready: Vec<ObjectRef>,
    /// Removed objects that KCP's inventory still has.
    pub(super) gone: Vec<ObjectRef>,
    /// Whether the default CR existed; `None`: unwanted.
    pub(super) cr: Option<bool>,
    pub(super) said: Option<CrState>,
}

/// [`Passed`] in a compact form: usually all objects are ready and there is no message.
#[derive(Debug)]
struct Kept {
    mark: Mark,
    contents: Arc<Contents>,
    cr: Option<bool>,
    said: Option<State>,
    rest: Option<Box<Rest>>,
}

#[derive(Debug)]
struct Rest {
    unready: Vec<ObjectRef>,
    gone: Vec<ObjectRef>,
    message: String,
}

impl From<Passed> for Kept {
    fn from(Passed { mark, contents, unready, gone, cr, said }: Passed) -> Self {
        let (said, message) = said.map(|CrState { state, message }| (state, message)).unzip();
        let rest = Rest { unready, gone, message: message.unwrap_or_default() };
        let any = !(rest.unready.is_empty() && rest.gone.is_empty() && rest.message.is_empty());
        Self { mark, contents, cr, said, rest: any.then(|| Box::new(rest)) }
    }
}

impl From<Kept> for Passed {
    fn from(Kept { mark, contents, cr, said, rest }: Kept) -> Self {
        let (unready, gone, message) =
            rest.map(|rest| (rest.unready, rest.gone, rest.message)).unwrap_or_default();
        let said = said.map(|state| CrState { state, message });
        Self { mark, contents, unready, gone, cr, said }
    }
}

fn key(kyma: &str, name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{kyma}\n{name}").as_bytes())
}

impl Passes {
    /// Removes and returns the last result, because the new pass may not finish.
    pub(super) fn take(&self, kyma: &str, name: &str) -> Option<Passed> {
        self.kept.lock().pop(&key(kyma, name)).map(Passed::from)
    }

    /// Forgets the last result: the next pass reads everything.
    pub(crate) fn forget_one(&self, kyma: &str, name: &str) {
        self.kept.lock().pop(&key(kyma, name));
    }

    /// Forgets all results.
    pub(crate) fn forget(&self) {
        self.kept.lock().clear();
    }

    pub(super) fn put(&self, kyma: &str, name: &str, passed: Passed) {
        self.kept.lock().put(key(kyma, name), passed.into());
    }

    /// Shares equal contents.
    pub(super) fn share(&self, contents: Contents) -> Arc<Contents> {
        self.contents.lock().share(alike::hash_of(&contents), contents)
    }
}

/// Returns a hash of the Manifest's identity and its cluster access.
pub(super) fn place(manifest: &Manifest, secrets: &[SecretRef]) -> u64 {
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
pub(super) fn asked(manifest: &Manifest, pull_secret: Option<&str>) -> u64 {
    let mut mark = Xxh3::new();
    pull_secret.hash(&mut mark);
    let metadata = &manifest.metadata;
    (metadata.generation, manifest.labels(), manifest.annotations()).hash(&mut mark);
    metadata.deletion_timestamp.is_some().hash(&mut mark);
    mark.finish()
}

/// The objects that a pass reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Only {
    /// Objects and whole kinds named by events.
    named: BTreeSet<ObjectRef>,
    /// Whether the wanted state changed: then changed objects are read too.
    is_anew: bool,
    before: Passed,
}

impl Only {
    /// Returns the objects to read after a pass; `None`: all.
    pub(super) fn after(before: Passed, mark: Mark, named: Option<BTreeSet<ObjectRef>>) -> Option<Self> {
        let named = named.filter(|_| before.mark.place == mark.place && before.cr != Some(false))?;
        Some(Self { named, is_anew: before.mark != mark, before })
    }

    /// Whether the wanted state changed.
    pub(super) const fn is_anew(&self) -> bool {
        self.is_anew
    }

    pub(super) const fn contents(&self) -> &Arc<Contents> {
        &self.before.contents
    }

    /// Adds objects to read.
    pub(super) fn look_at<'a>(&mut self, objects: impl IntoIterator<Item = &'a ObjectRef>) {
        self.named.extend(objects.into_iter().map(ObjectRef::unversioned));
    }

    /// Whether to read an object.
    pub(super) fn has(&self, object: &ObjectRef) -> bool {
        self.before.unready.iter().any(|o| o.same_object(object)) || self.names(object)
    }

    /// Whether an event named an object. The default CR may have a namespace though its kind is cluster-scoped.
    pub(super) fn names(&self, object: &ObjectRef) -> bool {
        let bare = || ObjectRef { namespace: String::new(), ..object.unversioned() };
        self.named.contains(&object.unversioned())
            || self.named.contains(&object.all_of_kind())
            || object.namespace == RUNTIME_NAMESPACE && self.named.contains(&bare())
    }

    /// Whether all these unwanted objects are gone.
    pub(super) fn all_gone(&self, gone: &[ObjectRef]) -> bool {
        gone.iter().all(|object| self.before.gone.iter().any(|o| o.same_object(object)))
    }

    /// Adds objects whose definition is read: a changed or unserved definition leaves their state unknown.
    pub(super) fn with_kinds<'a>(
        mut self,
        definitions: &Definitions,
        objects: impl IntoIterator<Item = &'a ObjectRef>,
    ) -> Self {
        let of_such = |object: &&ObjectRef| {
            definitions.definition(&object.gvk).is_some_and(|definition| self.has(definition))
        };
        let more: Vec<&ObjectRef> = objects.into_iter().filter(of_such).collect();
        self.look_at(more);
        self
    }

    /// Returns the other definitions as ready: all were served.
    pub(super) fn stood(&self, definitions: &Definitions) -> Vec<(ObjectRef, ObjectReadiness)> {
        let others = definitions.all().filter(|definition| !self.has(definition));
        others.map(|definition| (definition.clone(), ObjectReadiness::Ready)).collect()
    }

    pub(super) fn cr(&self) -> DefaultCr {
        DefaultCr::AsBefore(self.before.cr, self.before.said.clone())
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
    use tidewatch_api::{Layer, ModuleTerms, names::annotations, object::Gvk};

    use super::*;
    use crate::trigger::Reason;

    fn own() -> WorkKey {
        WorkKey::Manifest { kyma: "k".into(), name: "m".into() }
    }

    fn event(epoch: &str, object: ObjectRef) -> Trigger {
        Trigger::Event { epoch: epoch.into(), seq: 1, watch: "w".into(), object }
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
    fn events_and_the_manifests_own_changes_name_what_is_to_be_looked_at() {
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
    fn an_event_without_a_name_is_about_all_of_its_kind_and_no_other() {
        for namespace in ["", "n"] {
            let all = ObjectRef { namespace: namespace.into(), ..object("Deployment", "") };
            let named = named(&own(), &[event("e", all.clone())], 1);
            let only = Only::after(Passed::default(), Mark::default(), named).unwrap();
            assert!(only.has(&object("Deployment", "a")) && only.has(&object("Deployment", "b")), "{all}");
            assert!(
                !only.has(&object("DeploymentSet", "a")) && !only.has(&object("StatefulSet", "a")),
                "{all}"
            );
            let of_another = ObjectRef { gvk: Gvk::of("v1", "Deployment"), ..object("Deployment", "a") };
            assert!(!only.has(&of_another), "{all}");
        }
    }

    #[test]
    fn whatever_else_it_is_everything_is_looked_at() {
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

    #[test]
    fn a_pass_after_a_whole_one_looks_at_what_is_named_and_at_what_was_not_ready() {
        let (a, b, c) = (object("Deployment", "a"), object("Deployment", "b"), object("Deployment", "c"));
        let memory = Passes::default();
        let mark = Mark { place: 1, asked: 7, given: 1 };
        let contents = memory.share(vec![1, 2]);
        let said = Some(CrState { state: State::Warning, message: "too dark".into() });
        let (unready, gone) = (vec![a.clone()], vec![c.clone()]);
        let passed = Passed { mark, contents, unready, gone, cr: Some(true), said: said.clone() };
        memory.put("k", "m", passed.clone());
        assert!(Arc::ptr_eq(&memory.share(vec![1, 2]), &passed.contents), "runtimes have them together");
        assert_eq!(memory.take("k", "n"), None);
        assert_eq!(memory.take("k", "m"), Some(passed.clone()));
        assert_eq!(memory.take("k", "m"), None, "the pass that has begun may fail");
        memory.put("k", "m", passed.clone());
        memory.forget();
        assert_eq!(memory.take("k", "m"), None);
        let heard = || Some(BTreeSet::from([b.unversioned()]));
        let only = Only::after(passed.clone(), mark, heard()).unwrap();
        assert_eq!(only.cr(), DefaultCr::AsBefore(Some(true), said));
        assert!(only.has(&a) && only.has(&b) && !only.has(&c));
        assert!(!only.names(&a) && only.names(&b));
        assert!(
            only.all_gone(std::slice::from_ref(&c))
                && only.all_gone(&[])
                && !only.all_gone(std::slice::from_ref(&b))
        );
        assert!(!only.is_anew());
        for other in [Mark { asked: 8, ..mark }, Mark { given: 2, ..mark }] {
            let only = Only::after(passed.clone(), other, heard()).unwrap();
            assert!(only.is_anew() && only.has(&b), "it asks for something else");
        }
        let elsewhere = Mark { place: 2, ..mark };
        assert_eq!(Only::after(passed.clone(), elsewhere, heard()), None, "it is another one");
        assert_eq!(Only::after(passed.clone(), mark, None), None);
        assert_eq!(Only::after(Passed { cr: Some(false), ..passed }, mark, heard()), None);
    }

    #[test]
    fn what_is_kept_is_what_was_found() {
        let mark = Mark { place: 1, asked: 7, given: 1 };
        let contents = Arc::new(vec![1]);
        let (one, other) = (vec![object("Deployment", "a")], vec![object("Deployment", "b")]);
        let says = |message: &str| Some(CrState { state: State::Ready, message: message.into() });
        for (unready, gone) in
            [(vec![], vec![]), (one.clone(), vec![]), (vec![], other.clone()), (one, other)]
        {
            for said in [None, says(""), says("bright")] {
                let is_bare = unready.is_empty()
                    && gone.is_empty()
                    && said.as_ref().is_none_or(|s| s.message.is_empty());
                let (contents, unready, gone) = (Arc::clone(&contents), unready.clone(), gone.clone());
                let passed = Passed { mark, contents, unready, gone, cr: Some(true), said };
                let kept = Kept::from(passed.clone());
                assert_eq!(kept.rest.is_none(), is_bare);
                assert_eq!(Passed::from(kept), passed);
            }
        }
        assert!(size_of::<Kept>() <= 48, "{} bytes", size_of::<Kept>());
    }

    #[test]
    fn a_default_cr_without_a_namespace_is_known_by_its_event() {
        let of = |namespace: &str| ObjectRef { namespace: namespace.into(), ..object("Beacon", "b") };
        let heard = BTreeSet::from([of("").unversioned()]);
        let before = Passed { cr: Some(true), ..Passed::default() };
        let only = Only::after(before, Mark::default(), Some(heard)).unwrap();
        assert!(only.names(&of("")) && only.names(&of("kyma-system")) && !only.names(&of("n")));
    }

    #[test]
    fn a_look_at_a_set_time_is_one_at_what_was_not_ready() {
        let (a, b) = (object("Deployment", "a"), object("Deployment", "b"));
        let due = [Trigger::Due { at: jiff::Timestamp::UNIX_EPOCH }];
        let before = Passed { unready: vec![a.clone()], cr: Some(true), ..Passed::default() };
        let only = Only::after(before, Mark::default(), named(&own(), &due, 1)).unwrap();
        assert!(only.has(&a), "so that its pods are read");
        assert!(!only.has(&b) && !only.names(&a));
    }

    #[test]
    fn with_a_definition_its_objects_are_looked_at() {
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
        let before = Passed { unready: vec![id("Buoy")], cr: Some(true), ..Passed::default() };
        let heard = BTreeSet::from([id("Beacon").unversioned()]);
        let only = Only::after(before, Mark::default(), Some(heard)).unwrap();
        let objects = [of("Beacon"), of("Buoy"), of("Crane"), object("Deployment", "a")];
        assert!(objects.iter().all(|object| !only.has(object)));
        let only = only.with_kinds(&definitions, &objects);
        assert!(only.has(&of("Beacon")), "its definition was changed");
        assert!(only.has(&of("Buoy")), "its definition was not ready");
        assert!(!only.has(&of("Crane")) && !only.has(&object("Deployment", "a")));
        assert!(only.names(&of("Beacon")), "a default CR is read then");
        assert_eq!(only.stood(&definitions), [(id("Crane"), ObjectReadiness::Ready)]);
    }

    #[test]
    fn the_mark_is_of_what_is_asked_for_and_where() {
        let manifest = |version: &str, generation: i64, label: &str| -> Manifest {
            serde_json::from_value(json!({
                "metadata": {"name": "m", "uid": "u", "generation": generation, "resourceVersion": version,
                             "labels": {"l": label}},
                "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}}
            }))
            .unwrap()
        };
        let of = |m: &Manifest| asked(m, None);
        let first = of(&manifest("1", 1, "a"));
        assert_eq!(first, of(&manifest("2", 1, "a")), "its status");
        assert_ne!(first, of(&manifest("2", 2, "a")));
        assert_ne!(first, of(&manifest("2", 1, "b")));
        assert_ne!(first, asked(&manifest("1", 1, "a"), Some("pull")), "its workloads name it");
        let secret = SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() };
        let here = place(&manifest("1", 1, "a"), std::slice::from_ref(&secret));
        assert_eq!(here, place(&manifest("2", 2, "b"), std::slice::from_ref(&secret)));
        let other = SecretRef { resource_version: "2".into(), ..secret.clone() };
        assert_ne!(here, place(&manifest("1", 1, "a"), &[other]), "it may be another cluster");
        let mut another = manifest("1", 1, "a");
        another.metadata.uid = Some("v".into());
        assert_ne!(here, place(&another, std::slice::from_ref(&secret)), "nobody knows what it has applied");
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
