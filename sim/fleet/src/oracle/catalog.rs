//! Objects of all module versions, made once.

use serde_json::Value;

use crate::modules::{self, Id, Size};

/// Objects of a version, and objects of other versions only.
type Version = (Vec<(Id, Value)>, Vec<Id>);

/// By module and version. Version 0 has no objects.
pub(super) struct Catalog(Vec<Vec<Version>>);

impl Catalog {
    pub(super) fn new(Size { modules, objects }: Size) -> Self {
        let of = |module| (0..=modules::VERSIONS).map(|number| version(module, number, objects)).collect();
        Self((0..modules).map(of).collect())
    }

    pub(super) fn of(&self, module: usize, number: Option<u32>) -> (&[(Id, Value)], &[Id]) {
        let index = usize::try_from(number.unwrap_or_default()).unwrap_or_default();
        match self.0.get(module).and_then(|versions| versions.get(index)) {
            Some((wanted, unwanted)) => (wanted, unwanted),
            None => (&[], &[]),
        }
    }
}

fn version(module: usize, number: u32, objects: usize) -> Version {
    let mut wanted = Vec::new();
    if number > 0 {
        wanted = modules::objects(module, number, objects);
        wanted.push(modules::default_cr(module));
    }
    let mut unwanted: Vec<Id> = Vec::new();
    let all =
        [1, 2].into_iter().flat_map(|number| modules::objects(module, number, objects)).map(|(id, _)| id);
    for id in all.chain([modules::default_cr(module).0]) {
        if !wanted.iter().any(|(have, _)| *have == id) && !unwanted.contains(&id) {
            unwanted.push(id);
        }
    }
    (wanted, unwanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_expects_only_its_own_objects() {
        let catalog = Catalog::new(Size { modules: 1, objects: modules::MIN_OBJECTS });
        let sizes = |number| {
            let (wanted, unwanted) = catalog.of(0, number);
            (wanted.len(), unwanted.len())
        };
        assert_eq!((sizes(Some(1)), sizes(Some(2)), sizes(None)), ((5, 1), (6, 0), (0, 6)));
        assert_eq!(catalog.of(7, Some(1)).0.len(), 0);
    }
}
