use serde_json::Value;
use tidewatch_api::yaml;

use super::{
    Digest, OciError,
    render::MAX_DEPTH,
    unpack::{self, Caps},
};

/// Maximum bytes of a descriptor or manifest.
pub(super) const MAX_DESCRIPTOR: u64 = 1024 * 1024;

const MAX_NODES: usize = 50_000;
const MAX_RESOURCES: usize = 2000;
const FILE_NAME: &str = "component-descriptor.yaml";

/// A component and its resources. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentDescriptor {
    /// Name, such as `kyma-project.io/module/x`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Resources in written order.
    pub resources: Vec<Resource>,
}

/// Part of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Name, not unique.
    pub name: String,
    /// Such as `directoryTree` or `ociArtifact`.
    pub type_: String,
    /// Version.
    pub version: String,
    /// Location of the content.
    pub access: Access,
}

/// Location of a resource's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A layer of the component's artifact.
    LocalBlob {
        /// Layer digest.
        local_reference: Digest,
        /// Media type.
        media_type: String,
    },
    /// An external image.
    OciArtifact {
        /// Image reference.
        image_reference: String,
    },
    /// Unsupported type.
    Other(String),
}

impl ComponentDescriptor {
    /// Parses a descriptor layer: a tar with `component-descriptor.yaml`, or YAML or JSON. Limit: 1 MiB.
    pub fn parse(bytes: &[u8], media_type: &str) -> Result<Self, OciError> {
        let caps = Caps { bytes: MAX_DESCRIPTOR, entries: 16 };
        let files = unpack::files(bytes, media_type, caps).map_err(|e| malformed(e.to_string()))?;
        let file = files
            .iter()
            .find(|file| file.path.trim_start_matches("./") == FILE_NAME)
            .or(if files.len() == 1 { files.first() } else { None })
            .ok_or_else(|| malformed(format!("the archive holds no {FILE_NAME}")))?;
        let read = yaml::read(&file.text, yaml::options(MAX_NODES, MAX_DEPTH), |text, options| {
            serde_saphyr::from_str_with_options::<Value>(text, options)
        });
        let (value, _) = read.map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            malformed(format!("invalid YAML at line {line}"))
        })?;
        Self::from_value(&value)
    }

    fn from_value(value: &Value) -> Result<Self, OciError> {
        let schema = value.pointer("/meta/schemaVersion").and_then(Value::as_str);
        if schema != Some("v2") {
            return Err(malformed("meta.schemaVersion is not v2"));
        }
        let component = value.get("component").ok_or_else(|| malformed("component is missing"))?;
        let resources = match component.get("resources") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(resources)) => resources.as_slice(),
            Some(_) => return Err(malformed("component.resources is not a sequence")),
        };
        if resources.len() > MAX_RESOURCES {
            return Err(malformed(format!("it has more than {MAX_RESOURCES} resources")));
        }
        Ok(Self {
            name: required(component, "name")?,
            version: required(component, "version")?,
            resources: resources.iter().map(resource).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the manifests: the local blob `raw-manifest`.
    pub fn raw_manifest(&self) -> Result<&Resource, OciError> {
        self.only("raw-manifest")?.ok_or_else(|| malformed("it has no resource named raw-manifest"))
    }

    /// Returns the default custom resource.
    pub fn default_cr(&self) -> Result<Option<&Resource>, OciError> {
        self.only("default-cr")
    }

    /// Returns image references in written order.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().filter_map(|resource| match &resource.access {
            Access::OciArtifact { image_reference } => Some(image_reference.as_str()),
            _ => None,
        })
    }

    fn only(&self, name: &str) -> Result<Option<&Resource>, OciError> {
        let mut found = self.resources.iter().filter(|resource| resource.name == name);
        let first = found.next();
        if found.next().is_some() {
            return Err(malformed(format!("it has several resources named {name}")));
        }
        match first {
            Some(resource) if resource.local_blob().is_none() => {
                Err(malformed(format!("resource {name} is not a local blob")))
            }
            first => Ok(first),
        }
    }
}

impl Resource {
    /// Returns a local blob's digest and media type.
    pub fn local_blob(&self) -> Option<(&Digest, &str)> {
        match &self.access {
            Access::LocalBlob { local_reference, media_type } => Some((local_reference, media_type)),
            _ => None,
        }
    }
}

fn resource(value: &Value) -> Result<Resource, OciError> {
    let access = value.get("access").ok_or_else(|| malformed("a resource has no access"))?;
    let kind = required(access, "type")?;
    // OCM may omit the type's version; `localBlob` has an older name.
    let access = match kind.split('/').next().unwrap_or_default() {
        "localBlob" | "localOciBlob" => {
            let key = if access.get("localReference").is_some() { "localReference" } else { "digest" };
            Access::LocalBlob {
                local_reference: Digest::parse(&required(access, key)?)
                    .map_err(|_| malformed("a local blob has no sha256 digest as its reference"))?,
                media_type: optional(access, "mediaType"),
            }
        }
        "ociArtifact" | "ociRegistry" => {
            Access::OciArtifact { image_reference: required(access, "imageReference")? }
        }
        _ => Access::Other(kind),
    };
    Ok(Resource {
        name: required(value, "name")?,
        type_: optional(value, "type"),
        version: optional(value, "version"),
        access,
    })
}

fn required(value: &Value, key: &str) -> Result<String, OciError> {
    let text = optional(value, key);
    if text.is_empty() { Err(malformed(format!("a {key} is missing"))) } else { Ok(text) }
}

fn optional(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn malformed(reason: impl Into<String>) -> OciError {
    OciError::malformed("component descriptor", reason)
}

#[cfg(test)]
mod tests {
    use super::{super::unpack::tar_of, *};

    fn yaml(provider: &str, resources: &str) -> String {
        format!(
            "meta: {{schemaVersion: v2}}\ncomponent:\n  name: example.org/module/tide\n  version: 1.2.3\n  \
             creationTime: \"2026-01-02T03:04:05Z\"\n  provider: {provider}\n  repositoryContexts: []\n  \
             componentReferences: []\n  sources: []\n  resources:\n{resources}"
        )
    }

    fn blob(name: &str) -> String {
        let digest = Digest::of(name.as_bytes());
        format!(
            "  - name: {name}\n    type: directoryTree\n    version: 1.2.3\n    relation: local\n    access: {{type: \
             localBlob, localReference: \"{digest}\", mediaType: application/x-tar}}\n"
        )
    }

    const IMAGE: &str = "  - name: tide\n    type: ociArtifact\n    version: 1.2.3\n    relation: external\n    labels: \
                         [{name: x, value: y}]\n    access: {type: ociArtifact/v1, imageReference: \
                         \"example.org/tide:1.2.3\"}\n  - {name: s, access: {type: gitHub, commit: x}}\n";

    #[test]
    fn reads_every_descriptor_variant() {
        let text =
            yaml("'{\"name\":\"x\"}'", &(IMAGE.to_owned() + &blob("raw-manifest") + &blob("default-cr")));
        let tar = tar_of(&[(FILE_NAME, &text)]).unwrap();
        let kind = "application/vnd.ocm.software.component-descriptor.v2";
        let descriptor = ComponentDescriptor::parse(&tar, &format!("{kind}+yaml+tar")).unwrap();
        assert_eq!(
            (descriptor.name.as_str(), descriptor.version.as_str()),
            ("example.org/module/tide", "1.2.3")
        );
        let (digest, media_type) = descriptor.raw_manifest().unwrap().local_blob().unwrap();
        assert_eq!((digest, media_type), (&Digest::of(b"raw-manifest"), "application/x-tar"));
        assert_eq!(descriptor.default_cr().unwrap().unwrap().name, "default-cr");
        assert_eq!(descriptor.images().collect::<Vec<_>>(), ["example.org/tide:1.2.3"]);
        assert_eq!(descriptor.resources[1].access, Access::Other("gitHub".to_owned()));
        assert_eq!(ComponentDescriptor::parse(text.as_bytes(), &format!("{kind}+yaml")).unwrap(), descriptor);
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        let json = serde_json::to_vec(&value).unwrap();
        assert_eq!(ComponentDescriptor::parse(&json, &format!("{kind}+json")).unwrap(), descriptor);
        let map = yaml("{name: x, labels: []}", &blob("raw-manifest"));
        assert_eq!(ComponentDescriptor::parse(map.as_bytes(), "").unwrap().resources.len(), 1);
    }

    #[test]
    fn the_raw_manifest_must_be_exactly_one_local_blob() {
        let error = |resources: &str| {
            let descriptor = ComponentDescriptor::parse(yaml("x", resources).as_bytes(), "").unwrap();
            descriptor.raw_manifest().unwrap_err().to_string()
        };
        assert!(error(&blob("other")).contains("no resource named raw-manifest"));
        assert!(error(&(blob("raw-manifest") + &blob("raw-manifest"))).contains("several"));
        assert!(error(&IMAGE.replace("name: tide", "name: raw-manifest")).contains("not a local blob"));
    }

    #[test]
    fn malformed_descriptors_name_their_fault() {
        for (text, reason) in [
            ("", "schemaVersion"),
            ("meta: {schemaVersion: v3}", "schemaVersion"),
            ("meta: {schemaVersion: v2}", "component is missing"),
            ("meta: {schemaVersion: v2}\ncomponent: {version: 1.2.3}", "name is missing"),
            (
                "meta: {schemaVersion: v2}\ncomponent: {name: a, version: '1', resources: {}}",
                "not a sequence",
            ),
            ("meta: [", "invalid YAML at line"),
            (&yaml("x", &blob("a").replace("sha256", "md5")), "no sha256 digest"),
            (&yaml("x", "  - {name: a}\n"), "no access"),
        ] {
            let error = ComponentDescriptor::parse(text.as_bytes(), "").unwrap_err();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
        let tar = tar_of(&[("a.yaml", "a: 1"), ("b.yaml", "b: 1")]).unwrap();
        assert!(ComponentDescriptor::parse(&tar, "").unwrap_err().to_string().contains("holds no"));
    }
}
