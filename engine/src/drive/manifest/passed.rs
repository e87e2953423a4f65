//! What the last pass over a Manifest has found, so that the next one looks only at what something was heard of, and at what was
//! not ready. Whatever it does not know makes it look at everything.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

use kube::ResourceExt;
use parking_lot::Mutex;
use tidewatch_api::Manifest;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    kcp::state::SecretRef,
    key::{Cause, WorkKey},
    oci::lru::Lru,
    plan::object::ObjectRef,
};

/// Manifests remembered, of the whole fleet. One that is forgotten is looked at as a whole.
const REMEMBERED: u64 = 50_000;
/// The epoch of events of the v2 contract. They come before their change is committed: what they name may not be all that is to come.
const V2: &str = "v2";

/// The last passes that have left nothing undone.
#[derive(Debug)]
pub(in crate::drive) struct Passes(Mutex<Lru<u64, Passed>>);

impl Default for Passes {
    fn default() -> Self {
        Self(Mutex::new(Lru::new(REMEMBERED)))
    }
}

/// What a pass has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Of what it was asked to bring about; see [`mark`].
    pub(super) mark: u64,
    /// What was not ready.
    pub(super) unready: Vec<ObjectRef>,
    /// What is gone, and still in the inventory that KCP has.
    pub(super) gone: Vec<ObjectRef>,
    /// Whether the default CR was there; `None`: none is wanted.
    pub(super) cr: Option<bool>,
}

fn key(kyma: &str, name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{kyma}\n{name}").as_bytes())
}

impl Passes {
    /// What the last pass has found. It counts no more: the pass that begins now may not get to its end.
    pub(super) fn take(&self, kyma: &str, name: &str) -> Option<Passed> {
        self.0.lock().remove(&key(kyma, name))
    }

    /// Forgets all of it.
    pub(in crate::drive) fn forget(&self) {
        *self.0.lock() = Lru::new(REMEMBERED);
    }

    pub(super) fn put(&self, kyma: &str, name: &str, passed: Passed) {
        self.0.lock().insert(key(kyma, name), passed, 1);
    }
}

/// The same number for as long as a Manifest asks for the same, in the same cluster.
pub(super) fn mark(manifest: &Manifest, secrets: &[SecretRef]) -> u64 {
    let mut mark = Xxh3::new();
    let metadata = &manifest.metadata;
    (&metadata.uid, metadata.generation, manifest.labels(), manifest.annotations()).hash(&mut mark);
    metadata.deletion_timestamp.is_some().hash(&mut mark);
    for SecretRef { name, uid, resource_version } in secrets {
        (name, uid, resource_version).hash(&mut mark);
    }
    mark.finish()
}

/// Which objects a pass looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Only {
    /// Those that something was heard of, as events name them.
    named: BTreeSet<String>,
    before: Passed,
}

impl Only {
    /// What has to be looked at after a pass for these causes; `None`: everything.
    pub(super) fn after(before: Passed, mark: u64, named: Option<BTreeSet<String>>) -> Option<Self> {
        let named = named.filter(|_| before.mark == mark && before.cr != Some(false))?;
        Some(Self { named, before })
    }

    /// Whether an object has to be looked at.
    pub(super) fn has(&self, object: &ObjectRef) -> bool {
        self.before.unready.iter().any(|o| o.same_object(object)) || self.names(object)
    }

    /// Whether something was heard of an object.
    pub(super) fn names(&self, object: &ObjectRef) -> bool {
        self.named.contains(&object.to_string())
    }

    /// Whether nothing is left to remove of these, which are not wanted any more.
    pub(super) fn all_gone(&self, gone: &[ObjectRef]) -> bool {
        gone.iter().all(|object| self.before.gone.iter().any(|o| o.same_object(object)))
    }

    /// Whether the default CR was there; `None`: none is wanted.
    pub(super) const fn cr(&self) -> Option<bool> {
        self.before.cr
    }
}

/// The objects that the causes of work on a Manifest name, of `count` that there were; `None` where one of them may be about any
/// object.
///
/// What has changed in KCP names none: what the Manifest asks for is in the mark.
pub(super) fn named(own: &WorkKey, causes: &[Cause], count: usize) -> Option<BTreeSet<String>> {
    if causes.is_empty() || causes.len() < count {
        return None;
    }
    let own = own.to_string();
    let mut named = BTreeSet::new();
    for cause in causes {
        match cause {
            // One without a name is about all of its kind.
            Cause::Event { epoch, object, .. } if epoch != V2 && !object.ends_with([' ', '/']) => {
                named.insert(object.clone());
            }
            Cause::Kcp { object, change } if *object == own && matches!(*change, "added" | "changed") => {}
            // Its Kyma's plan has changed it.
            Cause::Kcp { object, .. } if object.starts_with("Kyma/") => {}
            Cause::Retry { key, reason, .. } if *key == own && *reason == "waiting" => {}
            Cause::Due { .. } => {}
            _ => return None,
        }
    }
    Some(named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::object::Gvk;

    fn own() -> WorkKey {
        WorkKey::Manifest { kyma: "k".into(), name: "m".into() }
    }

    fn event(epoch: &str, object: &str) -> Cause {
        Cause::Event { epoch: epoch.into(), seq: 1, watch: "w".into(), object: object.into() }
    }

    fn kcp(object: &str, change: &'static str) -> Cause {
        Cause::Kcp { object: object.into(), change }
    }

    fn object(kind: &str, name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("apps/v1", kind), namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn events_and_the_manifests_own_changes_name_what_is_to_be_looked_at() {
        let causes = [
            event("e", &object("Deployment", "a").to_string()),
            kcp("Manifest/m", "changed"),
            kcp("Kyma/k", "module release changed"),
            Cause::Retry { key: "Manifest/m".into(), attempt: 1, reason: "waiting" },
        ];
        let found = named(&own(), &causes, 4).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["Deployment.apps n/a"]);
    }

    #[test]
    fn whatever_else_it_is_everything_is_looked_at() {
        let one = event("e", "ConfigMap n/a");
        assert!(named(&own(), std::slice::from_ref(&one), 1).is_some());
        assert!(named(&own(), std::slice::from_ref(&one), 2).is_none(), "there was another one");
        assert!(named(&own(), &[], 0).is_none());
        let at = jiff::Timestamp::UNIX_EPOCH;
        let retry = |key: &str, reason| Cause::Retry { key: key.into(), attempt: 1, reason };
        for cause in [
            event("v2", "ConfigMap n/a"),
            event("e", "ConfigMap "),
            event("e", "ConfigMap n/"),
            kcp("Manifest/other", "a shared object was let go"),
            kcp("Manifest/m", "kubeconfig secret changed"),
            retry("Manifest/m", "unreachable"),
            retry("Kyma/k", "waiting"),
            Cause::Start,
            Cause::FallbackPoll,
            Cause::SafetyResync,
            Cause::SecondLook { object: "ConfigMap n/a".into() },
            Cause::Mode { mode: "live" },
        ] {
            assert_eq!(named(&own(), &[one.clone(), cause.clone()], 2), None, "{cause:?}");
        }
        assert!(named(&own(), &[one, Cause::Due { at }], 2).is_some());
    }

    #[test]
    fn a_pass_after_a_whole_one_looks_at_what_is_named_and_at_what_was_not_ready() {
        let (a, b, c) = (object("Deployment", "a"), object("Deployment", "b"), object("Deployment", "c"));
        let memory = Passes::default();
        let passed = Passed { mark: 7, unready: vec![a.clone()], gone: vec![c.clone()], cr: Some(true) };
        memory.put("k", "m", passed.clone());
        assert_eq!(memory.take("k", "n"), None);
        assert_eq!(memory.take("k", "m"), Some(passed.clone()));
        assert_eq!(memory.take("k", "m"), None, "the pass that has begun may fail");
        memory.put("k", "m", passed.clone());
        memory.forget();
        assert_eq!(memory.take("k", "m"), None);
        let heard = || Some(BTreeSet::from([b.to_string()]));
        let only = Only::after(passed.clone(), 7, heard()).unwrap();
        assert!(only.has(&a) && only.has(&b) && !only.has(&c));
        assert!(!only.names(&a) && only.names(&b));
        assert!(
            only.all_gone(std::slice::from_ref(&c))
                && only.all_gone(&[])
                && !only.all_gone(std::slice::from_ref(&b))
        );
        assert_eq!(Only::after(passed.clone(), 8, heard()), None, "it asks for something else");
        assert_eq!(Only::after(passed.clone(), 7, None), None);
        assert_eq!(Only::after(Passed { cr: Some(false), ..passed }, 7, heard()), None);
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
        let secret = SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() };
        let of = |m: &Manifest| mark(m, std::slice::from_ref(&secret));
        let first = of(&manifest("1", 1, "a"));
        assert_eq!(first, of(&manifest("2", 1, "a")), "its status");
        assert_ne!(first, of(&manifest("2", 2, "a")));
        assert_ne!(first, of(&manifest("2", 1, "b")));
        let other = SecretRef { resource_version: "2".into(), ..secret.clone() };
        assert_ne!(first, mark(&manifest("1", 1, "a"), &[other]), "it may be another cluster");
    }
}
