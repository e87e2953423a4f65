//! The names that a watch has shown, so that a list tells what is gone.

use std::collections::HashSet;

use crate::index::KcpState;

/// The names of a kind that are in the state and not among these.
pub(super) type Others = fn(&KcpState, &HashSet<String>) -> Vec<String>;

/// Where the names stand that were shown before a list.
enum Before {
    Here(HashSet<String>),
    /// In the state: of what a fleet has thousands of, no name is held twice.
    State(Others),
}

/// See the module.
pub(super) struct Known {
    before: Before,
    listed: HashSet<String>,
}

impl Known {
    /// Nothing was shown yet. With `others`, all that is shown is in the state.
    pub(super) fn new(others: Option<Others>) -> Self {
        let before = others.map_or_else(|| Before::Here(HashSet::new()), Before::State);
        Self { before, listed: HashSet::new() }
    }

    /// A list begins. What the last one has shown, if it broke off, is in the state: what of it is gone by now is to be taken out.
    pub(super) fn list_begins(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        if let Before::Here(names) = &mut self.before {
            names.extend(listed);
        }
    }

    /// The list has this object.
    pub(super) fn listed(&mut self, name: &str) {
        self.listed.insert(name.to_owned());
    }

    /// The list has no object so far.
    pub(super) fn is_list_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The list is complete: what was shown before it, and is gone.
    pub(super) fn list_ends(&mut self, state: &KcpState) -> Vec<String> {
        let listed = std::mem::take(&mut self.listed);
        match &mut self.before {
            Before::State(others) => others(state, &listed),
            Before::Here(names) => {
                let before = std::mem::replace(names, listed);
                before.into_iter().filter(|name| !names.contains(name)).collect()
            }
        }
    }

    /// An object was made or changed.
    pub(super) fn shown(&mut self, name: &str) {
        if let Before::Here(names) = &mut self.before {
            names.insert(name.to_owned());
        }
    }

    /// An object is gone.
    pub(super) fn gone(&mut self, name: &str) {
        if let Before::Here(names) = &mut self.before {
            names.remove(name);
        }
    }
}
