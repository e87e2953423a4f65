//! Text that is equal is kept once in the whole process.
//!
//! Ten thousand simulated clusters hold the same modules: the same text. The table holds weak references only. The memory of
//! text that no object needs any more is given back when the table is swept, which is when as much has come as was alive.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Locks are per part, so that threads seldom wait for each other.
const PARTS: usize = 16;
/// Before so many bytes have come a part is not swept: 1 MiB for all of them.
const SWEEP_FLOOR: usize = 64 * 1024;
/// What an entry takes beside its text, about.
const ENTRY: usize = 64;

static TEXTS: LazyLock<[Mutex<Part>; PARTS]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::default()));

#[derive(Default)]
struct Part {
    known: HashMap<u64, Weak<str>>,
    /// Bytes of what was alive after the last sweep, and of what has come since.
    held: usize,
    /// With so many the dead ones are removed.
    sweep_at: usize,
}

impl Part {
    fn intern(&mut self, hash: u64, text: &str) -> Arc<str> {
        if let Some(found) = self.known.get(&hash).and_then(Weak::upgrade) {
            // Another text with the same hash stays unshared: rare, and not wrong.
            return if &*found == text { found } else { Arc::from(text) };
        }
        let fresh: Arc<str> = Arc::from(text);
        self.known.insert(hash, Arc::downgrade(&fresh));
        self.held += ENTRY + text.len();
        if self.held >= self.sweep_at {
            // A weak reference keeps all memory of its text.
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

/// What the table holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Different texts alive.
    pub texts: usize,
    /// Their bytes, each text once.
    pub bytes: usize,
    /// Bytes of texts that nobody needs any more, and that are still there, about.
    pub dead: usize,
}

/// The shared copy of a text.
pub(crate) fn intern(text: &str) -> Arc<str> {
    let hash = xxh3_64(text.as_bytes());
    // The low bits choose the part; the table inside hashes all of them again.
    let index = usize::try_from(hash % PARTS as u64).unwrap_or_default();
    TEXTS[index].lock().intern(hash, text)
}

/// What is alive in the table now; walks all of it.
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
    fn equal_text_is_one_text_and_dead_text_goes() {
        let first = intern("only in this test: a");
        assert!(Arc::ptr_eq(&first, &intern("only in this test: a")));
        assert!(!Arc::ptr_eq(&first, &intern("only in this test: b")));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        assert_eq!(&*intern("only in this test: a"), "only in this test: a");
    }

    #[test]
    fn dead_text_is_not_kept_for_long() {
        let mut part = Part::default();
        let kept = part.intern(0, "kept");
        for hash in 1..1_000 {
            drop(part.intern(hash, &"x".repeat(900_000)));
            assert!(part.known.len() <= 3 && part.held < 2_000_000, "{} bytes", part.held);
        }
        assert!(Arc::ptr_eq(&kept, &part.intern(0, "kept")));
    }
}
