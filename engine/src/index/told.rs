//! Module names and states of Kyma statuses. Equal lists are stored once.

use std::{collections::HashMap, sync::Arc};

use tidewatch_api::{ModuleStatus, State};

use crate::alike::{Shared, hash_of};

type Modules = Vec<(String, State)>;

/// By Kyma; none is empty.
#[derive(Debug, Default)]
pub(super) struct Told {
    of: HashMap<String, Arc<Modules>>,
    all: Shared<Modules>,
}

impl Told {
    pub(super) fn put(&mut self, kyma: &str, modules: &[Arc<ModuleStatus>]) {
        if modules.is_empty() {
            return self.forget(kyma);
        }
        let modules: Modules = modules.iter().map(|m| (m.name.clone(), m.state)).collect();
        let told = self.all.share(hash_of(&modules), modules);
        self.of.insert(kyma.to_owned(), told);
    }

    pub(super) fn forget(&mut self, kyma: &str) {
        self.of.remove(kyma);
    }

    pub(super) fn of(&self, kyma: &str) -> Arc<Modules> {
        self.of.get(kyma).map(Arc::clone).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, state: State) -> Arc<ModuleStatus> {
        Arc::new(ModuleStatus { name: name.into(), state, ..ModuleStatus::default() })
    }

    #[test]
    fn what_many_say_is_held_once_and_goes_with_the_last_of_them() {
        let mut told = Told::default();
        let both = || vec![module("crane", State::Ready), module("buoy", State::Unmanaged)];
        told.put("a", &both());
        told.put("b", &both());
        assert!(Arc::ptr_eq(&told.of("a"), &told.of("b")));
        told.put("b", &[module("crane", State::Error)]);
        assert_eq!(
            *told.of("a"),
            [("crane".to_owned(), State::Ready), ("buoy".to_owned(), State::Unmanaged)]
        );
        assert_eq!(*told.of("b"), [("crane".to_owned(), State::Error)]);
        told.put("a", &[]);
        assert!(told.of("a").is_empty() && !told.of.contains_key("a"));
        told.forget("b");
        assert!(told.of.is_empty() && told.of("b").is_empty());
    }
}
