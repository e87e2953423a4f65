//! Labels and annotations.

use std::collections::BTreeMap;

use kube::ResourceExt;

/// Value of `key`, by a scan: keys are few and share long prefixes, which makes the map's lookup slower.
#[must_use]
pub fn mark<'a>(marks: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    marks.iter().find(|(found, _)| *found == key).map(|(_, value)| value.as_str())
}

pub(crate) fn label<'a>(object: &'a impl ResourceExt, key: &str) -> Option<&'a str> {
    mark(object.labels(), key)
}

pub(crate) fn annotation<'a>(object: &'a impl ResourceExt, key: &str) -> Option<&'a str> {
    mark(object.annotations(), key)
}

/// Whether the label is present and enabled.
pub(crate) fn is_true(object: &impl ResourceExt, key: &str) -> bool {
    label(object, key).is_some_and(is_enabled)
}

/// Whether a label's value is `true`, in any case like in the Go manager.
#[must_use]
pub fn is_enabled(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_is_found_by_its_whole_key() {
        let marks = ["a/b", "a/bc", "a/c"].map(|key| (key.to_owned(), format!("of {key}"))).into();
        assert_eq!(mark(&marks, "a/bc"), Some("of a/bc"));
        assert_eq!((mark(&marks, "a/"), mark(&marks, "a/cd")), (None, None));
    }

    #[test]
    fn a_label_is_true_in_any_case() {
        assert!(["true", "True", "TRUE"].into_iter().all(is_enabled));
        assert!(!["", "yes", "1", "false", " true"].into_iter().any(is_enabled));
    }
}
