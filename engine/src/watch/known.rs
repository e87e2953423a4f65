//! Names that a watch has shown, to detect deletions from a list.

use std::collections::HashSet;

use crate::index::KcpState;

/// Other names of a kind in the state.
pub(super) type Others = fn(&KcpState, &HashSet<String>) -> Vec<String>;

enum Before {
    Here(HashSet<String>),
    /// The state, so a fleet's names are not held twice.
    State(Others),
}

/// Names shown by a watch.
pub(super) struct Known {
    before: Before,
    listed: HashSet<String>,
}

impl Known {
    /// With `others`, the state holds all shown names.
    pub(super) fn new(others: Option<Others>) -> Self {
        let before = others.map_or_else(|| Before::Here(HashSet::new()), Before::State);
        Self { before, listed: HashSet::new() }
    }

    /// Starts a list. Names of an interrupted list count as shown, to detect their deletion.
    pub(super) fn list_begins(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        if let Before::Here(names) = &mut self.before {
            names.extend(listed);
        }
    }

    pub(super) fn listed(&mut self, name: &str) {
        self.listed.insert(name.to_owned());
    }

    pub(super) fn is_list_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Ends the list; returns deleted names.
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

    pub(super) fn shown(&mut self, name: &str) {
        if let Before::Here(names) = &mut self.before {
            names.insert(name.to_owned());
        }
    }

    pub(super) fn gone(&mut self, name: &str) {
        if let Before::Here(names) = &mut self.before {
            names.remove(name);
        }
    }
}
