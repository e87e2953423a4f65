//! Changes of statuses that may be somebody else's. Of our own writes the watch may show one before its answer has come: then it is
//! told a moment later that it was ours.

use std::collections::HashMap;

use crate::key::WorkKey;

/// Changes of one object that are kept apart. Beyond, one of them is somebody else's for certain, or a look too many does no harm.
const MOST: usize = 16;

/// By `Kind/name`: who is to set it right, and the version in which it was seen.
#[derive(Debug, Default)]
pub(super) struct Suspicions(HashMap<String, Vec<(WorkKey, Option<String>)>>);

impl Suspicions {
    /// A change was seen that nobody of ours is known to have made.
    pub(super) fn note(&mut self, object: &str, key: &WorkKey, version: Option<String>) {
        let all = self.0.entry(object.to_owned()).or_default();
        if all.len() < MOST {
            all.push((key.clone(), version));
        }
    }

    /// This version was ours.
    pub(super) fn clear(&mut self, object: &str, version: &str) {
        let Some(all) = self.0.get_mut(object) else { return };
        all.retain(|(_, of)| of.as_deref() != Some(version));
        if all.is_empty() {
            self.0.remove(object);
        }
    }

    /// Whether there is anything for a reconcile to set right. What there was is looked at now.
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

    /// Whether there is anything for a reconcile to set right.
    pub(super) fn is_of(&self, object: &str, key: &WorkKey) -> bool {
        self.0.get(object).is_some_and(|all| all.iter().any(|(of, _)| of == key))
    }

    /// Whether there is anything of an object to set right.
    pub(super) fn has(&self, object: &str) -> bool {
        self.0.contains_key(object)
    }

    /// The object is gone.
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
