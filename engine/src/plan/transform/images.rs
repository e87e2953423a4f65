//! Images of the component in place of those that a manifest names: a copy of a module in another registry works without a change of
//! its manifests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{CONTAINERS, INIT_CONTAINERS, containers_of};

/// Images by what does not change from registry to registry: the last part of the name, and the tag.
#[derive(Debug, Default)]
pub(super) struct Images<'a> {
    by_name: BTreeMap<&'a str, &'a str>,
    /// They are right as they are.
    all: BTreeSet<&'a str>,
}

/// What counts of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts<'a> {
    /// `name:tag`.
    name: &'a str,
    /// `sha256:…`.
    digest: Option<&'a str>,
}

/// A reference with a tag; `None` for anything else, such as text that is none.
fn parts(reference: &str) -> Option<Parts<'_>> {
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    let last = rest.rsplit('/').next()?;
    let (name, tag) = last.split_once(':')?;
    let plain = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_reference = plain(name, "._-")
        && plain(tag, "._-")
        && tag.len() <= 128
        && rest.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:[]".contains(c))
        && digest.is_none_or(|digest| plain(digest, ":+._-"));
    is_reference.then_some(Parts { name: last, digest })
}

impl<'a> Images<'a> {
    /// Of the references in a Manifest. Of two with the same name and tag the first counts.
    pub(super) fn of(references: &'a [String]) -> Self {
        let mut images = Self::default();
        for reference in references {
            let Some(Parts { name, .. }) = parts(reference) else { continue };
            images.by_name.entry(name).or_insert(reference);
            images.all.insert(reference);
        }
        images
    }

    /// In all containers of a Deployment or a `StatefulSet`: their images, and the environment variables that name one.
    pub(super) fn localise(&self, object: &mut Value) {
        if self.by_name.is_empty() {
            return;
        }
        for kind in [CONTAINERS, INIT_CONTAINERS] {
            for container in containers_of(object, kind) {
                self.replace(&mut container["image"]);
                let variables = container.get_mut("env").and_then(Value::as_array_mut);
                for variable in variables.into_iter().flatten() {
                    if let Some(value) = variable.get_mut("value") {
                        self.replace(value);
                    }
                }
            }
        }
    }

    fn replace(&self, value: &mut Value) {
        let Some(text) = value.as_str().filter(|text| !self.all.contains(text)) else { return };
        let Some(Parts { name, digest }) = parts(text) else { return };
        let Some(image) = self.by_name.get(name) else { return };
        // The same content, wherever it is read from.
        let localised = match digest {
            Some(digest) if !image.contains('@') => format!("{image}@{digest}"),
            _ => (*image).to_owned(),
        };
        *value = localised.into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_name_and_tag_is_the_same_image() {
        let ours = [
            "copy.test/a/web:1.2".to_owned(),
            "copy.test/b/web:1.2".into(),
            "copy.test/db:3@sha256:1f".into(),
        ];
        let images = Images::of(&ours);
        for (before, after) in [
            ("example.test/web:1.2", "copy.test/a/web:1.2"),
            ("example.test:5000/deep/er/web:1.2", "copy.test/a/web:1.2"),
            ("web:1.2", "copy.test/a/web:1.2"),
            // A digest says what it is; that of the component counts.
            ("example.test/web:1.2@sha256:ab", "copy.test/a/web:1.2@sha256:ab"),
            ("example.test/db:3@sha256:ab", "copy.test/db:3@sha256:1f"),
            ("example.test/db:3", "copy.test/db:3@sha256:1f"),
            // Right already, though another one comes first.
            ("copy.test/b/web:1.2", "copy.test/b/web:1.2"),
            ("example.test/web:1.3", "example.test/web:1.3"),
            ("example.test/website:1.2", "example.test/website:1.2"),
            ("example.test/web", "example.test/web"),
            ("example.test/web@sha256:ab", "example.test/web@sha256:ab"),
        ] {
            let mut value = json!(before);
            images.replace(&mut value);
            assert_eq!(value, json!(after));
        }
    }

    #[test]
    fn text_that_is_no_reference_stays() {
        let ours = ["copy.test/web:1".to_owned(), "no reference".into(), "copy.test/untagged".into()];
        let images = Images::of(&ours);
        assert_eq!(images.by_name.len(), 1);
        for text in
            ["", ":", "web:", ":1", "run web:1", "--image=web:1", "http://h/web:1?x", "a,web:1", "web:1 "]
        {
            let mut value = json!(text);
            images.replace(&mut value);
            assert_eq!(value, json!(text));
        }
        for mut value in [json!(null), json!(1), json!(["web:1"])] {
            let before = value.clone();
            images.replace(&mut value);
            assert_eq!(value, before);
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_text_it_is_done_once(text in "\\PC{0,60}", image in "[a-z]{1,4}(/[a-z]{1,3})?:[0-9]{1,2}") {
            let ours = [format!("copy.test/{image}")];
            let images = Images::of(&ours);
            for text in [text, format!("other.test/{image}")] {
                let mut once = json!(text);
                images.replace(&mut once);
                let mut twice = once.clone();
                images.replace(&mut twice);
                assert_eq!(once, twice);
            }
        }
    }
}
