//! Many short lists that stay for long, in chunks. Each as an allocation of its own would lie among what comes and goes while a fleet
//! is installed, and keep the pages around it: with 1,000 runtimes that was more memory than the lists themselves (docs/concepts/scale.md).

use crate::texts::as_number;

/// Elements that are allocated together.
const CHUNK: usize = 1024;
/// The number of no node.
const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lists<T> {
    chunks: Vec<Vec<Node<T>>>,
    /// The first of the nodes that are free again.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<T> {
    value: T,
    next: u32,
}

/// A list that is kept. Whoever has it gives it back ([`Lists::let_go`]): one that is only dropped keeps its room.
#[derive(Debug)]
#[must_use]
pub(crate) struct List {
    first: u32,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: NONE }
    }
}

impl<T: Copy> Lists<T> {
    /// Keeps these.
    pub(crate) fn put(&mut self, values: impl DoubleEndedIterator<Item = T>) -> List {
        // From the end, as each names the next.
        let first = values.rev().fold(NONE, |next, value| self.take(Node { value, next }));
        List { first }
    }

    /// What is in a list.
    pub(crate) fn of(&self, list: &List) -> impl Iterator<Item = &T> {
        std::iter::successors(self.node(list.first), |node| self.node(node.next)).map(|node| &node.value)
    }

    /// Forgets a list; its room is for others now.
    pub(crate) fn let_go(&mut self, list: List) {
        let mut next = list.first;
        while let Some(node) = Self::node_mut(&mut self.chunks, next) {
            let number = next;
            next = std::mem::replace(&mut node.next, self.free);
            self.free = number;
        }
    }

    fn take(&mut self, new: Node<T>) -> u32 {
        if let Some(node) = Self::node_mut(&mut self.chunks, self.free) {
            let number = self.free;
            self.free = std::mem::replace(node, new).next;
            return number;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let Some(last) = self.chunks.last_mut() else { return NONE };
        last.push(new);
        as_number(before + last.len() - 1)
    }

    fn node(&self, number: u32) -> Option<&Node<T>> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }

    fn node_mut(chunks: &mut [Vec<Node<T>>], number: u32) -> Option<&mut Node<T>> {
        chunks.get_mut(number as usize / CHUNK)?.get_mut(number as usize % CHUNK)
    }

    /// Elements in all lists.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let free = std::iter::successors(self.node(self.free), |node| self.node(node.next)).count();
        self.chunks.iter().map(Vec::len).sum::<usize>() - free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn room_is_used_again() {
        let mut lists = Lists::default();
        for round in 0..3 * CHUNK {
            let all = [0, 1, 2, 10].map(|size| lists.put(0..size));
            assert_eq!(lists.len(), 13);
            for list in all {
                lists.let_go(list);
            }
            assert_eq!((lists.len(), lists.chunks.len()), (0, 1), "round {round}");
        }
        let all: Vec<List> = (0..=CHUNK).map(|_| lists.put(0..1)).collect();
        assert_eq!((lists.len(), lists.chunks.len()), (CHUNK + 1, 2));
        for list in all {
            lists.let_go(list);
        }
        assert_eq!(lists.len(), 0);
    }

    proptest! {
        /// `Some`: a list is kept; `None`: the one at that place is let go.
        #[test]
        fn what_is_kept_is_what_was_given(
            steps in prop::collection::vec((prop::option::of(prop::collection::vec(any::<u8>(), 0..9)), any::<prop::sample::Index>()), 1..60)
        ) {
            let mut lists = Lists::default();
            let mut kept: Vec<(List, Vec<u8>)> = Vec::new();
            for (step, which) in steps {
                if let Some(values) = step {
                    kept.push((lists.put(values.iter().copied()), values));
                } else if !kept.is_empty() {
                    let (list, _) = kept.swap_remove(which.index(kept.len()));
                    lists.let_go(list);
                }
                for (list, values) in &kept {
                    prop_assert_eq!(&lists.of(list).copied().collect::<Vec<_>>(), values);
                }
                prop_assert_eq!(lists.len(), kept.iter().map(|(_, values)| values.len()).sum::<usize>());
            }
        }
    }
}
