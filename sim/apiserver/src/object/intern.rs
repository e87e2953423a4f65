//! Interns text: one copy per process, because simulated clusters hold the same modules.
//!
//! The table holds weak references. A part is swept when its size has doubled.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Each part has its own lock, to reduce contention.
const PARTS: usize = 16;
/// Minimum bytes before a sweep, per part.
const SWEEP_FLOOR: usize = 64 * 1024;
/// Approximate overhead per entry, in bytes.
const ENTRY: usize = 64;

static TEXTS: LazyLock<[Mutex<Part>; PARTS]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::default()));

#[derive(Default)]
struct Part {
    known: HashMap<u64, Weak<str>>,
    /// Bytes since the last sweep, live ones included.
    held: usize,
    sweep_at: usize,
}

impl Part {
    fn intern(&mut self, hash: u64, text: &str) -> Arc<str> {
        if let Some(found) = self.known.get(&hash).and_then(Weak::upgrade) {
            // Rare hash collision: safely unshared.
            return if &*found == text { found } else { Arc::from(text) };
        }
        let fresh: Arc<str> = Arc::from(text);
        self.known.insert(hash, Arc::downgrade(&fresh));
        self.held += ENTRY + text.len();
        if self.held >= self.sweep_at {
            // Weak references keep the allocation.
            self.known.retain(|_, weak| weak.strong_count() > 0);
            self.held = self.alive().map(|text| ENTRY + text.len()).sum();
            self.sweep_at = self.held + self.held.max(SWEEP_FLOOR);
        }
        fresh
    }

    fn alive(&self) -> impl Iterator<Item = Arc<str>> {
        self.known.values().filter_map(Weak::upgrade)
    }
}

/// Intern table statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Distinct live texts.
    pub texts: usize,
    /// Live bytes, each text once.
    pub bytes: usize,
    /// Approximate bytes not yet freed.
    pub dead: usize,
}

pub(crate) fn intern(text: &str) -> Arc<str> {
    let hash = xxh3_64(text.as_bytes());
    // The map rehashes all bits.
    let index = usize::try_from(hash % PARTS as u64).unwrap_or_default();
    TEXTS[index].lock().intern(hash, text)
}

/// Returns statistics; walks the whole table.
pub fn shared() -> Shared {
    let mut sum = Shared::default();
    for part in TEXTS.iter() {
        let part = part.lock();
        let mut dead = part.held;
        for text in part.alive() {
            sum.texts += 1;
            sum.bytes += text.len();
            dead = dead.saturating_sub(ENTRY + text.len());
        }
        sum.dead += dead;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_text_is_shared_while_in_use() {
        let first = intern("only in this test: a");
        assert!(Arc::ptr_eq(&first, &intern("only in this test: a")));
        assert!(!Arc::ptr_eq(&first, &intern("only in this test: b")));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        assert_eq!(&*intern("only in this test: a"), "only in this test: a");
    }

    #[test]
    fn dropped_text_is_not_kept_for_long() {
        let mut part = Part::default();
        let kept = part.intern(0, "kept");
        for hash in 1..1_000 {
            drop(part.intern(hash, &"x".repeat(900_000)));
            assert!(part.known.len() <= 3 && part.held < 2_000_000, "{} bytes", part.held);
        }
        assert!(Arc::ptr_eq(&kept, &part.intern(0, "kept")));
    }
}
