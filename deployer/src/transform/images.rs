//! Replaces images with the component's, so that copies of a module in other registries work.

use oci_client::Reference;
use serde_json::Value;

use super::{CONTAINERS, INIT_CONTAINERS, containers_of};

/// Images of the component. Matching must equal the Go manager's: other texts would restart workloads on migration.
#[derive(Debug, Default)]
pub(super) struct Images(Vec<Image>);

#[derive(Debug)]
struct Image {
    name: String,
    /// Includes `docker.io` and `library`.
    text: String,
}

/// Full reference, and last part of its name with its tag.
fn image(text: &str) -> Option<Image> {
    let reference: Reference = text.parse().ok()?;
    let last = reference.repository().rsplit('/').next()?;
    // The parser adds a default tag.
    let tag = reference.tag().filter(|tag| {
        reference.digest().is_some() || text.strip_suffix(*tag).is_some_and(|t| t.ends_with(':'))
    });
    let name = tag.map_or_else(|| last.to_owned(), |tag| format!("{last}:{tag}"));
    let text = match (tag, reference.digest()) {
        (None, None) => format!("{}/{}", reference.registry(), reference.repository()),
        _ => reference.whole(),
    };
    Some(Image { name, text })
}

impl Images {
    /// The first of equal name and tag counts.
    pub(super) fn of(references: &[String]) -> Self {
        Self(references.iter().filter_map(|reference| image(reference)).collect())
    }

    /// Replaces images in containers and their environment variables.
    pub(super) fn localise(&self, object: &mut Value) {
        if self.0.is_empty() {
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
        let Some(text) = value.as_str().filter(|text| self.0.iter().any(|image| text.contains(&image.name)))
        else {
            return;
        };
        let Some(Image { name, .. }) = image(text) else { return };
        if let Some(image) = self.0.iter().find(|image| image.name == name) {
            *value = image.text.clone().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn images_are_matched_by_name_and_tag() {
        let digest = |of: char| format!("sha256:{}", of.to_string().repeat(64));
        let (image_digest, component) = (digest('a'), digest('1'));
        let references = [
            "copy.test/a/web:1.2".to_owned(),
            "copy.test/b/web:1.2".into(),
            format!("copy.test/db:3@{component}"),
            format!("copy.test/cache@{component}"),
            "worker:7".into(),
            "team/tool:2".into(),
        ];
        let images = Images::of(&references);
        for (before, after) in [
            ("example.test/web:1.2", "copy.test/a/web:1.2"),
            ("example.test:5000/deep/er/web:1.2", "copy.test/a/web:1.2"),
            ("web:1.2", "copy.test/a/web:1.2"),
            // The component decides about the digest.
            (&format!("example.test/web:1.2@{image_digest}"), "copy.test/a/web:1.2"),
            (&format!("example.test/db:3@{image_digest}"), &format!("copy.test/db:3@{component}")),
            ("example.test/db:3", &format!("copy.test/db:3@{component}")),
            ("copy.test/b/web:1.2", "copy.test/a/web:1.2"),
            // Without a tag, on both sides.
            (&format!("example.test/cache@{image_digest}"), &format!("copy.test/cache@{component}")),
            ("example.test/cache", &format!("copy.test/cache@{component}")),
            ("example.test/cache:latest", "example.test/cache:latest"),
            ("example.test/worker:7", "docker.io/library/worker:7"),
            ("example.test/tool:2", "docker.io/team/tool:2"),
            ("example.test/web:1.3", "example.test/web:1.3"),
            ("example.test/website:1.2", "example.test/website:1.2"),
            ("example.test/web", "example.test/web"),
            (&format!("example.test/web@{image_digest}"), &format!("example.test/web@{image_digest}")),
        ] {
            let mut value = json!(before);
            images.replace(&mut value);
            assert_eq!(value, json!(after), "{before}");
        }
    }

    #[test]
    fn invalid_image_references_are_unchanged() {
        let references = ["copy.test/web:1".to_owned(), "no reference".into()];
        let images = Images::of(&references);
        assert_eq!(images.0.len(), 1);
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
        fn image_replacement_is_idempotent(text in "\\PC{0,60}", image in "[a-z]{1,4}(/[a-z]{1,3})?:[0-9]{1,2}") {
            let references = [format!("copy.test/{image}")];
            let images = Images::of(&references);
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
