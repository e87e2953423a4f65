//! Objects as differences from a pattern: a similar object's text with short UUIDs and times ([`dense`]).

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde::{Serialize, de::DeserializeOwned};

use super::dense;
use crate::{
    lists::{List, Lists},
    texts::as_number,
};

/// Number of patterns that triggers a cleanup.
const SHELF: usize = 1024;
/// A difference above 1/`WORTH` of the text makes it a pattern.
const WORTH: usize = 3;
/// In bytes.
const BLOCK: usize = 60;

/// Patterns and differences.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// By kind: the last pattern, and whether its object was settled.
    last: HashMap<u64, (Weak<[u8]>, bool)>,
    differences: Lists<[u8; BLOCK]>,
}

/// A stored object. Release it with [`Patterns::let_go`].
#[derive(Debug)]
#[must_use]
pub(super) struct Packed {
    pattern: Arc<[u8]>,
    /// Dense text, in bytes.
    size: u32,
    /// Differences, in bytes.
    taken: u32,
    differences: List,
}

impl Patterns {
    /// Packs an object of any `kind`. Only `settled` ones replace patterns: most of a fleet is idle.
    ///
    /// Serialization cannot fail: map keys are text.
    pub(super) fn pack(&mut self, kind: u64, object: &impl Serialize, settled: bool) -> Packed {
        let text = dense::dense(&serde_json::to_string(object).unwrap_or_default());
        let last =
            self.last.get(&kind).and_then(|(pattern, of_settled)| Some((pattern.upgrade()?, *of_settled)));
        if let Some((pattern, of_settled)) = last {
            let differences = compress_with_dict(&text, &pattern);
            // A kind's first object lacks parts of settled ones.
            if !settled || of_settled && differences.len() * WORTH <= text.len() {
                return self.keep(pattern, text.len(), &differences);
            }
        }
        if self.last.len() >= SHELF {
            self.last.retain(|_, (pattern, _)| pattern.strong_count() > 0);
        }
        let pattern: Arc<[u8]> = text.into();
        self.last.insert(kind, (Arc::downgrade(&pattern), settled));
        let differences = compress_with_dict(&pattern, &pattern);
        self.keep(Arc::clone(&pattern), pattern.len(), &differences)
    }

    fn keep(&mut self, pattern: Arc<[u8]>, size: usize, differences: &[u8]) -> Packed {
        let blocks = differences.chunks(BLOCK).map(|part| {
            let mut block = [0; BLOCK];
            block[..part.len()].copy_from_slice(part);
            block
        });
        let (size, taken) = (as_number(size), as_number(differences.len()));
        Packed { pattern, size, taken, differences: self.differences.put(blocks) }
    }

    pub(super) fn unpack<T: Default + DeserializeOwned>(&self, packed: &Packed) -> T {
        let mut differences =
            self.differences.of(&packed.differences).flatten().copied().collect::<Vec<u8>>();
        differences.truncate(packed.taken as usize);
        let text = decompress_with_dict(&differences, packed.size as usize, &packed.pattern);
        let text = text.ok().and_then(|text| dense::text(&text));
        let object = text.and_then(|text| serde_json::from_slice(&text).ok());
        // Only packed data gets here.
        debug_assert!(object.is_some(), "what is kept cannot be unpacked");
        if object.is_none() {
            tracing::error!("an object that is kept cannot be read; restart this receiver and report it");
        }
        object.unwrap_or_default()
    }

    pub(super) fn let_go(&mut self, packed: Packed) {
        self.differences.let_go(packed.differences);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.differences.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tidewatch_api::Manifest;

    use super::*;

    fn uuid(of: &str) -> String {
        uuid::Uuid::from_u128(xxhash_rust::xxh3::xxh3_128(of.as_bytes())).to_string()
    }

    fn manifest(runtime: &str, state: &str) -> Manifest {
        let condition = |type_: &str, second: usize| {
            json!({"type": type_, "status": "True", "reason": "Ready", "message": "all that is to be there is there",
                   "observedGeneration": 2, "lastTransitionTime": format!("2026-01-01T00:00:{:02}Z", (runtime.len() + second) % 60)})
        };
        let conditions: Vec<Value> = ["Resources", "Installation", "ModuleCR"]
            .iter()
            .enumerate()
            .map(|(n, t)| condition(t, n))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": format!("{runtime}-crane-3405691582"), "namespace": "kcp-system", "uid": uuid(runtime),
                "resourceVersion": format!("{}", runtime.len()), "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"operator.kyma-project.io/kyma-name": runtime, "operator.kyma-project.io/module-name": "crane",
                           "operator.kyma-project.io/channel": "regular", "operator.kyma-project.io/managed-by": "kcp"},
                "annotations": {"operator.kyma-project.io/fqdn": "example.dev/crane"},
                "finalizers": ["declarative.kyma-project.io/finalizer"],
                "ownerReferences": [{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "name": runtime, "uid": uuid(&format!("{runtime}-1"))}]},
            "spec": {},
            "status": {"state": state, "conditions": conditions}
        }))
        .unwrap()
    }

    #[test]
    fn of_those_that_are_alike_only_what_differs_is_kept() {
        let mut patterns = Patterns::default();
        // Still new.
        let bare = Manifest { status: None, ..manifest("kyma-1", "Ready") };
        let first = patterns.pack(1, &bare, false);
        let settled = patterns.pack(1, &manifest("kyma-1", "Ready"), true);
        let names: Vec<String> = (0..50).map(|n| format!("kyma-{n:05}-8f6c1b2d")).collect();
        let all: Vec<Packed> =
            names.iter().map(|name| patterns.pack(1, &manifest(name, "Ready"), true)).collect();
        let others = all.iter().filter(|packed| !Arc::ptr_eq(&packed.pattern, &settled.pattern)).count();
        assert_eq!(others, 0, "one pattern is for all of them");
        let kept: usize = all.iter().map(|packed| packed.taken as usize).sum();
        let size: usize = all.iter().map(|packed| packed.size as usize).sum();
        assert!(kept * 4 < size, "{kept} of {size} bytes");
        let text = |name: &str| serde_json::to_vec(&manifest(name, "Ready")).unwrap();
        let pattern = text("kyma-1");
        let as_text: usize = names.iter().map(|name| compress_with_dict(&text(name), &pattern).len()).sum();
        assert!(kept * 10 < as_text * 9, "{kept} bytes, as text {as_text}");
        for (packed, name) in all.iter().zip(&names) {
            assert_eq!(patterns.unpack::<Manifest>(packed), manifest(name, "Ready"));
        }
        assert_eq!((patterns.unpack(&first), patterns.unpack(&settled)), (bare, manifest("kyma-1", "Ready")));
    }

    #[test]
    fn patterns_go_with_the_last_who_needs_them() {
        let mut patterns = Patterns::default();
        for hash in 0..2 * SHELF as u64 {
            let packed = patterns.pack(hash, &manifest("a", "Ready"), true);
            patterns.let_go(packed);
        }
        assert!(patterns.last.len() <= SHELF && patterns.is_empty());
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(texts in prop::collection::vec("\\PC{0,40}", 1..8), states in prop::collection::vec(prop::bool::ANY, 8)) {
            let mut patterns = Patterns::default();
            for (text, settled) in texts.iter().zip(states) {
                let manifest = manifest(text, if settled { "Ready" } else { "Processing" });
                let packed = patterns.pack(7, &manifest, settled);
                prop_assert_eq!(patterns.unpack::<Manifest>(&packed), manifest);
            }
        }
    }
}
