//! Overlapping steps on the same thing: the latest active one counts.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Active steps by thing.
#[derive(Debug)]
pub(super) struct InForce<K, V>(Mutex<State<K, V>>);

#[derive(Debug)]
struct State<K, V> {
    next: u64,
    steps: BTreeMap<K, Vec<(u64, V)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl<K, V> Default for InForce<K, V> {
    fn default() -> Self {
        Self(Mutex::new(State { next: 0, steps: BTreeMap::new() }))
    }
}

impl<K: Ord, V: Copy> InForce<K, V> {
    pub(super) fn begin(&self, key: K, value: V) -> Ticket {
        let mut state = self.0.lock();
        let ticket = state.next;
        state.next += 1;
        state.steps.entry(key).or_default().push((ticket, value));
        Ticket(ticket)
    }

    /// `apply` gets the value that counts then, under the lock.
    pub(super) fn end<R>(&self, key: &K, Ticket(over): Ticket, apply: impl FnOnce(Option<V>) -> R) -> R {
        let mut state = self.0.lock();
        let mut left = None;
        if let Some(steps) = state.steps.get_mut(key) {
            steps.retain(|(ticket, _)| *ticket != over);
            left = steps.last().map(|(_, value)| *value);
        }
        if left.is_none() {
            state.steps.remove(key);
        }
        apply(left)
    }

    pub(super) fn now<R>(&self, key: &K, apply: impl FnOnce(Option<V>) -> R) -> R {
        let state = self.0.lock();
        apply(state.steps.get(key).and_then(|steps| steps.last()).map(|(_, value)| *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_running_step_of_overlapping_ones_applies() {
        let clocks = InForce::default();
        let first = clocks.begin("a", 1);
        let second = clocks.begin("a", 2);
        let other = clocks.begin("b", 3);
        assert_eq!(clocks.now(&"a", |now| now), Some(2));
        assert_eq!(clocks.end(&"a", first, |left| left), Some(2), "the one that began later goes on");
        let third = clocks.begin("a", 4);
        assert_eq!(clocks.end(&"a", third, |left| left), Some(2), "what was before counts again");
        assert_eq!(clocks.end(&"a", second, |left| left), None);
        assert_eq!(clocks.end(&"b", other, |left| left), None);
        assert!(clocks.0.lock().steps.is_empty(), "nothing is kept of what is over");
    }
}
