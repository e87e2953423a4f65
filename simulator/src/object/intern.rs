//! Text that is equal is kept once in the whole process.
//!
//! Ten thousand simulated clusters hold the same modules: the same text. The table holds weak references only, so
//! text that no object needs any more goes away with its last object.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Locks are per part, so that threads seldom wait for each other.
const PARTS: usize = 16;
/// A part is not swept below this size.
const SWEEP_FLOOR: usize = 1024;

static TEXTS: LazyLock<[Mutex<Part>; PARTS]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::default()));

#[derive(Default)]
struct Part {
    known: HashMap<u64, Weak<str>>,
    /// When the table has this many entries, the dead ones are removed.
    sweep_at: usize,
}

/// What the table holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Different texts alive.
    pub texts: usize,
    /// Their bytes, each text once.
    pub bytes: usize,
}

/// The shared copy of a text.
pub(crate) fn intern(text: &str) -> Arc<str> {
    let hash = xxh3_64(text.as_bytes());
    // The low bits choose the part; the table inside hashes all of them again.
    let index = usize::try_from(hash % PARTS as u64).unwrap_or_default();
    let mut part = TEXTS[index].lock();
    if let Some(found) = part.known.get(&hash).and_then(Weak::upgrade) {
        // Another text with the same hash stays unshared: rare, and not wrong.
        return if &*found == text { found } else { Arc::from(text) };
    }
    let fresh: Arc<str> = Arc::from(text);
    part.known.insert(hash, Arc::downgrade(&fresh));
    if part.known.len() >= part.sweep_at.max(SWEEP_FLOOR) {
        part.known.retain(|_, weak| weak.strong_count() > 0);
        part.sweep_at = part.known.len() * 2;
    }
    fresh
}

/// What is alive in the table now; walks all of it.
pub fn shared() -> Shared {
    let mut sum = Shared::default();
    for part in TEXTS.iter() {
        for text in part.lock().known.values().filter_map(Weak::upgrade) {
            sum.texts += 1;
            sum.bytes += text.len();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_text_is_one_text_and_dead_text_goes() {
        let first = intern("only in this test: a");
        assert!(Arc::ptr_eq(&first, &intern("only in this test: a")));
        assert!(!Arc::ptr_eq(&first, &intern("only in this test: b")));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        assert_eq!(&*intern("only in this test: a"), "only in this test: a");
    }
}
