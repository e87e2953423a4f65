//! Labels and annotations.

use std::collections::BTreeMap;

use kube::ResourceExt;

/// The value of a key among labels or annotations.
///
/// They are few, and their keys begin alike: to compare each with the one that is wanted, by their lengths first, takes less time than to find
/// its place by order, which reads the same beginnings again and again.
#[must_use]
pub fn mark<'a>(marks: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    marks.iter().find(|(found, _)| *found == key).map(|(_, value)| value.as_str())
}

/// A label of an object.
pub(crate) fn label<'a>(object: &'a impl ResourceExt, key: &str) -> Option<&'a str> {
    mark(object.labels(), key)
}

/// An annotation of an object.
pub(crate) fn annotation<'a>(object: &'a impl ResourceExt, key: &str) -> Option<&'a str> {
    mark(object.annotations(), key)
}

/// Whether the object carries this label, and its value says so.
pub(crate) fn is_true(object: &impl ResourceExt, key: &str) -> bool {
    label(object, key).is_some_and(is_enabled)
}

/// Whether the value of a label says yes: `true`, in upper or lower case as the Go manager reads it.
#[must_use]
pub fn is_enabled(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_by_its_whole_key() {
        let marks = ["a/b", "a/bc", "a/c"].map(|key| (key.to_owned(), format!("of {key}"))).into();
        assert_eq!(mark(&marks, "a/bc"), Some("of a/bc"));
        assert_eq!((mark(&marks, "a/"), mark(&marks, "a/cd")), (None, None));
    }

    #[test]
    fn a_label_says_yes_in_any_case() {
        assert!(["true", "True", "TRUE"].into_iter().all(is_enabled));
        assert!(!["", "yes", "1", "false", " true"].into_iter().any(is_enabled));
    }
}
