//! Status changes possibly by another writer.
//!
//! The watch may show an own write before its response, which then clears the suspicion.

use std::collections::HashMap;

use crate::key::WorkKey;

/// Per object. Beyond it, another writer is certain, or an extra look is harmless.
const MOST: usize = 16;

/// By `Kind/name`: the restoring reconcile, and the version seen.
#[derive(Debug, Default)]
pub(super) struct Suspicions(HashMap<String, Vec<(WorkKey, Option<String>)>>);

impl Suspicions {
    /// Notes a change without a known own write.
    pub(super) fn note(&mut self, object: &str, key: &WorkKey, version: Option<String>) {
        let all = self.0.entry(object.to_owned()).or_default();
        if all.len() < MOST {
            all.push((key.clone(), version));
        }
    }

    /// Clears an own write.
    pub(super) fn clear(&mut self, object: &str, version: &str) {
        let Some(all) = self.0.get_mut(object) else { return };
        all.retain(|(_, of)| of.as_deref() != Some(version));
        if all.is_empty() {
            self.0.remove(object);
        }
    }

    /// Clears a reconcile's suspicions; returns whether there were any.
    pub(super) fn take(&mut self, object: &str, key: &WorkKey) -> bool {
        let Some(all) = self.0.get_mut(object) else { return false };
        let before = all.len();
        all.retain(|(of, _)| of != key);
        let any = all.len() < before;
        if all.is_empty() {
            self.0.remove(object);
        }
        any
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_of(&self, object: &str, key: &WorkKey) -> bool {
        self.0.get(object).is_some_and(|all| all.iter().any(|(of, _)| of == key))
    }

    pub(super) fn has(&self, object: &str) -> bool {
        self.0.contains_key(object)
    }

    pub(super) fn forget(&mut self, object: &str) {
        self.0.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ours_after_all_is_nothing_to_set_right() {
        let mut all = Suspicions::default();
        let [kyma, catalog] = [WorkKey::Kyma { kyma: "a".into() }, WorkKey::Catalog { kyma: "a".into() }];
        all.note("Kyma/a", &kyma, Some("1".into()));
        all.clear("Kyma/a", "1");
        assert!(!all.take("Kyma/a", &kyma) && all.0.is_empty());
        all.note("Kyma/a", &kyma, Some("2".into()));
        all.note("Kyma/a", &kyma, Some("3".into()));
        all.note("Kyma/a", &catalog, Some("3".into()));
        all.clear("Kyma/a", "3");
        assert!(!all.take("Kyma/a", &catalog) && all.take("Kyma/a", &kyma) && !all.take("Kyma/a", &kyma));
        for version in 0..100 {
            all.note("Kyma/a", &kyma, Some(version.to_string()));
        }
        assert_eq!(all.0["Kyma/a"].len(), MOST);
        all.forget("Kyma/a");
        assert!(all.0.is_empty());
    }
}
