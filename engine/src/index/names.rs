//! Manifest names by Kyma.

use std::collections::{BTreeSet, HashMap};

use crate::lines::Lines;

/// Non-empty sets, by Kyma.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, Lines>);

impl Names {
    pub(super) fn of(&self, kyma: &str) -> impl Iterator<Item = &str> {
        self.0.get(kyma).into_iter().flat_map(Lines::iter)
    }

    pub(super) fn has_any(&self, kyma: &str) -> bool {
        self.0.contains_key(kyma)
    }

    pub(super) fn contains(&self, kyma: &str, name: &str) -> bool {
        self.of(kyma).any(|other| other == name)
    }

    pub(super) fn insert(&mut self, kyma: &str, name: &str) {
        if !self.contains(kyma, name) {
            let all: BTreeSet<&str> = self.of(kyma).chain([name]).collect();
            let all = Lines::of(all.iter().copied());
            self.0.insert(kyma.to_owned(), all);
        }
    }

    pub(super) fn remove(&mut self, kyma: &str, name: &str) {
        if !self.contains(kyma, name) {
            return;
        }
        let all: BTreeSet<&str> = self.of(kyma).filter(|other| *other != name).collect();
        if all.is_empty() {
            self.0.remove(kyma);
        } else {
            let all = Lines::of(all.iter().copied());
            self.0.insert(kyma.to_owned(), all);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_sets_by_kyma(changes in prop::collection::vec(("[ab]", "[a-c]{1,2}", prop::bool::ANY), 0..40)) {
            let mut names = Names::default();
            let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (kyma, name, is_there) in changes {
                let set = sets.entry(kyma.clone()).or_default();
                if is_there {
                    names.insert(&kyma, &name);
                    set.insert(name.clone());
                } else {
                    names.remove(&kyma, &name);
                    set.remove(&name);
                }
                prop_assert_eq!(names.contains(&kyma, &name), is_there);
                prop_assert!(names.of(&kyma).eq(set.iter().map(String::as_str)));
                prop_assert_eq!(names.has_any(&kyma), !set.is_empty());
            }
            for (kyma, set) in sets {
                for name in &set {
                    names.remove(&kyma, name);
                }
                prop_assert!(!names.has_any(&kyma));
            }
            prop_assert!(names.0.is_empty());
        }
    }
}
