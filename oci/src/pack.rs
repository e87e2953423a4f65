//! Packs a module's manifests into an OCI artifact.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    BaseUrl, Digest, OciError,
    registry::{CONFIG_TYPE, DESCRIPTOR_TYPE, MANIFEST_TYPE},
    render::{is_one_object, render},
    unpack::tar_of,
};

const TAR_TYPE: &str = "application/x-tar";

/// Content of a module version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModulePackage {
    /// OCM component name, such as `kyma-project.io/module/x`.
    pub component_name: String,
    /// Version and tag.
    pub version: String,
    /// Manifests as YAML.
    pub raw_manifest: String,
    /// Default custom resource as YAML.
    pub default_cr: Option<String>,
    /// Image references.
    pub images: Vec<String>,
    /// Further manifests by resource name.
    pub sources: Vec<(String, String)>,
}

/// A packed module. Equal packages have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Config blob, which references the descriptor.
    pub config: PackedBlob,
    /// Descriptor, then one layer per local resource.
    pub layers: Vec<PackedBlob>,
    /// Image manifest.
    pub manifest: Vec<u8>,
    /// Manifest digest.
    pub digest: Digest,
    /// Digest of the `raw-manifest` layer.
    pub raw_manifest_digest: Digest,
}

/// Blob of a packed module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBlob {
    /// Media type.
    pub media_type: String,
    /// Digest.
    pub digest: Digest,
    /// Content.
    pub data: Vec<u8>,
    /// Resource in the blob.
    pub resource: Option<String>,
}

impl PackedBlob {
    fn new(media_type: impl Into<String>, data: Vec<u8>, resource: Option<String>) -> Self {
        Self { media_type: media_type.into(), digest: Digest::of(&data), data, resource }
    }

    fn descriptor(&self) -> Value {
        let mut descriptor =
            json!({"mediaType": self.media_type, "digest": self.digest.as_str(), "size": self.data.len()});
        if let Some(name) = &self.resource {
            // Ordered as by OCM tools. The names need no escaping.
            let artifact = format!(r#"[{{"kind":"resource","identity":{{"name":"{name}"}}}}]"#);
            descriptor["annotations"] = json!({"software.ocm.artifact": artifact});
        }
        descriptor
    }
}

impl Packed {
    /// Uploaded before the manifest.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &PackedBlob> {
        self.layers.iter().chain([&self.config])
    }
}

/// Packs a module like OCM tools, with tars for the descriptor and each local resource. Deterministic. Manifests must
/// pass [`render`].
///
/// The descriptor names its registry, `home`. Otherwise the Go manager finds no layers (`img.Parse`), and its
/// Manifest has no source.
pub fn pack(package: &ModulePackage, home: &BaseUrl) -> Result<Packed, OciError> {
    let ModulePackage { component_name, version, images, .. } = package;
    if !is_component_name(component_name) {
        let reason = format!(
            "'{component_name}' has to be a domain and a path in lower case, such as example.com/module/lighthouse"
        );
        return Err(OciError::Invalid { subject: "component name", reason });
    }
    let mut layers = resource_layers(package)?;
    let raw_manifest_digest = layers[0].digest.clone();

    let taken = layers.iter().filter_map(|layer| layer.resource.clone()).collect();
    let mut resources = image_resources(images, version, taken)?;
    resources.extend(layers.iter().map(|layer| local_resource(layer, version)));
    let mut descriptor = json!({
        "meta": {"schemaVersion": "v2"},
        "component": {
            "name": component_name,
            "version": version,
            "provider": "tidewatch",
            "repositoryContexts": [home.repository_context()],
            "sources": [],
            "componentReferences": [],
            "resources": resources,
        },
    });
    // serde_json's features must not change the key order, and with it the digest.
    descriptor.sort_all_objects();
    let text = serde_saphyr::to_string(&descriptor)
        .map_err(|e| OciError::malformed("component descriptor", format!("it cannot be written: {e}")))?;
    let tar = tar(&[("component-descriptor.yaml", &text)])?;
    layers.insert(0, PackedBlob::new(format!("{DESCRIPTOR_TYPE}+yaml+tar"), tar, None));

    let mut config = json!({"componentDescriptorLayer": layers[0].descriptor()});
    config.sort_all_objects();
    let config = PackedBlob::new(CONFIG_TYPE, config.to_string().into_bytes(), None);
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.descriptor(),
        "layers": layers.iter().map(PackedBlob::descriptor).collect::<Vec<_>>(),
        "annotations": {
            "software.ocm.componentversion": format!("{component_name}:{version}"),
            "software.ocm.creator": "Tidewatch",
        },
    });
    manifest.sort_all_objects();
    let manifest = manifest.to_string().into_bytes();
    Ok(Packed { config, layers, digest: Digest::of(&manifest), manifest, raw_manifest_digest })
}

/// The layers of the raw manifest, the default custom resource and further sources.
fn resource_layers(package: &ModulePackage) -> Result<Vec<PackedBlob>, OciError> {
    let ModulePackage { raw_manifest, default_cr, sources, .. } = package;
    let mut layers = vec![resource_layer("raw-manifest", "manifest.yaml", raw_manifest)?];
    if let Some(cr) = default_cr {
        layers.push(resource_layer("default-cr", "default-cr.yaml", cr)?);
        // The template names one object.
        if !is_one_object(cr) {
            let reason =
                "it has to be exactly one object (apiVersion, kind, metadata.name), and no list".to_owned();
            return Err(OciError::Invalid { subject: "default custom resource", reason });
        }
    }
    for (name, yaml) in sources {
        // It becomes part of unescaped JSON.
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if name.is_empty() || !plain || layers.iter().any(|layer| layer.resource.as_deref() == Some(name)) {
            let reason =
                "it is empty, a duplicate, or has other characters than letters, digits, '-', '_' and '.'"
                    .to_owned();
            return Err(OciError::Invalid { subject: "source name", reason });
        }
        layers.push(resource_layer(name, "manifest.yaml", yaml)?);
    }
    Ok(layers)
}

/// Whether OCM tools and `ModuleReleaseMeta` accept the name: a domain of at least two parts, and a path.
fn is_component_name(name: &str) -> bool {
    let begins = |part: &str| part.starts_with(|first: char| first.is_ascii_lowercase());
    let plain = |part: &str, more: &[u8]| {
        begins(part)
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || more.contains(&b))
    };
    let Some((domain, path)) = name.split_once('/') else { return false };
    let Some((_, top)) = domain.rsplit_once('.') else { return false };
    name.len() <= 255
        && domain.split('.').all(|label| plain(label, b""))
        && top.len() >= 2
        && top.bytes().all(|b| b.is_ascii_lowercase())
        && path.split('/').all(|part| part.split('.').all(|part| plain(part, b"_")))
}

/// A layer with Kubernetes objects. Rejects duplicates, except between layers.
fn resource_layer(name: &str, file: &str, yaml: &str) -> Result<PackedBlob, OciError> {
    let tar = tar(&[(file, yaml)])?;
    let rendered =
        render(&tar, TAR_TYPE).map_err(|source| OciError::Manifests { subject: name.to_owned(), source })?;
    if let Some(mistake) = rendered.mistakes.first() {
        let reason = format!("'{name}': {mistake}; take one of them out");
        return Err(OciError::Invalid { subject: "manifest", reason });
    }
    Ok(PackedBlob::new(TAR_TYPE, tar, Some(name.to_owned())))
}

fn local_resource(layer: &PackedBlob, version: &str) -> Value {
    json!({
        "name": layer.resource.as_deref().unwrap_or_default(),
        "type": "directoryTree",
        "version": version,
        "relation": "local",
        "access": {
            "type": "localBlob",
            "localReference": layer.digest.as_str(),
            "mediaType": layer.media_type,
        },
        "digest": {
            "hashAlgorithm": "SHA-256",
            "normalisationAlgorithm": "genericBlobDigest/v1",
            "value": layer.digest.hex(),
        },
    })
}

/// OCM requires unique names.
fn image_resources(
    images: &[String],
    version: &str,
    mut names: BTreeSet<String>,
) -> Result<Vec<Value>, OciError> {
    names.extend(["raw-manifest".to_owned(), "default-cr".to_owned()]);
    let mut resources = Vec::with_capacity(images.len());
    for image in images {
        let without_digest = image.split('@').next().unwrap_or_default();
        let last = without_digest.rsplit('/').next().unwrap_or_default();
        let (base, tag) = last.split_once(':').unwrap_or((last, ""));
        if base.is_empty() {
            return Err(OciError::Invalid {
                subject: "image reference",
                reason: "it has no name".to_owned(),
            });
        }
        let mut name = base.to_owned();
        let mut number = 2;
        while !names.insert(name.clone()) {
            name = format!("{base}-{number}");
            number += 1;
        }
        let semantic = semver::Version::parse(tag.trim_start_matches('v')).is_ok();
        resources.push(json!({
            "name": name,
            "type": "ociArtifact",
            "version": if semantic { tag } else { version },
            "relation": "external",
            "access": {"type": "ociArtifact", "imageReference": image},
        }));
    }
    Ok(resources)
}

fn tar(files: &[(&str, &str)]) -> Result<Vec<u8>, OciError> {
    tar_of(files).map_err(|e| OciError::malformed("archive", format!("it cannot be written: {e}")))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Access, ComponentDescriptor,
            unpack::{Caps, files},
        },
        *,
    };

    fn home() -> BaseUrl {
        BaseUrl::parse("registry.example.org/kyma/modules", &[]).unwrap()
    }

    fn package() -> ModulePackage {
        ModulePackage {
            sources: Vec::new(),
            component_name: "example.org/module/tide".to_owned(),
            version: "1.10".to_owned(),
            raw_manifest: "apiVersion: v1\nkind: Namespace\nmetadata: {name: tide}\n".to_owned(),
            default_cr: Some("apiVersion: x.io/v1\nkind: Tide\nmetadata: {name: default}\n".to_owned()),
            images: ["a.example/x/tide:v2.0.1", "b.example:5000/tide", "c.example/raw-manifest@sha256:00"]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    #[test]
    fn the_artifact_has_the_shape_of_the_ocm_tools() {
        let packed = pack(&package(), &home()).unwrap();
        assert_eq!(packed, pack(&package(), &home()).unwrap());
        let manifest: Value = serde_json::from_slice(&packed.manifest).unwrap();
        let types = |key: &str| -> Vec<&str> {
            manifest["layers"].as_array().unwrap().iter().filter_map(|layer| layer[key].as_str()).collect()
        };
        assert_eq!(manifest["config"]["mediaType"], CONFIG_TYPE);
        assert_eq!(
            types("mediaType"),
            [
                "application/vnd.ocm.software.component-descriptor.v2+yaml+tar",
                "application/x-tar",
                "application/x-tar"
            ]
        );
        assert_eq!(
            manifest["layers"][1]["annotations"]["software.ocm.artifact"],
            r#"[{"kind":"resource","identity":{"name":"raw-manifest"}}]"#
        );
        assert_eq!(manifest["annotations"]["software.ocm.componentversion"], "example.org/module/tide:1.10");
        let config: Value = serde_json::from_slice(&packed.config.data).unwrap();
        assert_eq!(config["componentDescriptorLayer"], manifest["layers"][0]);
    }

    #[test]
    fn a_module_cannot_contain_an_object_twice() {
        let map = |namespace: &str, name: &str| {
            format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
            )
        };
        let packed = |manifest: String, more: String| {
            let sources = vec![("more".to_owned(), more)];
            pack(&ModulePackage { raw_manifest: manifest, sources, ..package() }, &home()).map(drop)
        };
        let alternatives = (map("n", "a") + &map("m", "a"), map("n", "a"));
        assert!(packed(alternatives.0, alternatives.1).is_ok());
        for (manifest, more) in [
            (map("n", "a") + &map("n", "a"), map("n", "b")),
            (map("n", "b"), map("n", "a") + &map("n", "a")),
            (map("default", "a") + &map("''", "a"), map("n", "b")),
        ] {
            let error = packed(manifest, more).unwrap_err().to_string();
            assert!(error.contains("ConfigMap") && error.contains("twice"), "{error}");
        }
    }

    #[test]
    fn a_module_has_one_default_cr() {
        let tide = |name: &str| format!("---\napiVersion: x.io/v1\nkind: Tide\nmetadata: {{name: {name}}}\n");
        let packed =
            |cr: String| pack(&ModulePackage { default_cr: Some(cr), ..package() }, &home()).map(drop);
        assert!(packed(tide("a")).is_ok());
        let listed =
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: x.io/v1, kind: Tide, metadata: {name: a}}]\n";
        for wrong in [tide("a") + &tide("b"), listed.to_owned()] {
            let error = packed(wrong.clone()).unwrap_err().to_string();
            assert!(
                error.contains("default custom resource is not valid: it has to be exactly one object"),
                "{wrong}: {error}"
            );
        }
        for (wrong, why) in [
            ("apiVersion: x.io/v1\nkind: Tide\n", "metadata.name is missing"),
            ("kind: Tide\nmetadata: {name: a}\n", "apiVersion is missing"),
            ("apiVersion: x.io/v1\nmetadata: {name: a}\n", "kind is missing"),
        ] {
            let error = packed(wrong.to_owned()).unwrap_err();
            let OciError::Manifests { subject, source } = &error else { panic!("{error}") };
            assert!(subject == "default-cr" && source.to_string().contains(why), "{source}");
        }
    }

    #[test]
    fn the_descriptor_reads_back() {
        let packed = pack(&package(), &home()).unwrap();
        let descriptor =
            ComponentDescriptor::parse(&packed.layers[0].data, &packed.layers[0].media_type).unwrap();
        assert_eq!(descriptor.version, "1.10", "a version stays text");
        assert_eq!(descriptor.raw_manifest().unwrap().local_blob().unwrap().0, &packed.raw_manifest_digest);
        assert_eq!(descriptor.images().collect::<Vec<_>>(), package().images);
        let names: Vec<_> =
            descriptor.resources.iter().map(|r| (r.name.as_str(), r.version.as_str())).collect();
        assert_eq!(
            names,
            [
                ("tide", "v2.0.1"),
                ("tide-2", "1.10"),
                ("raw-manifest-2", "1.10"),
                ("raw-manifest", "1.10"),
                ("default-cr", "1.10")
            ]
        );
        assert!(
            matches!(&descriptor.resources[3].access, Access::LocalBlob { media_type, .. } if media_type == TAR_TYPE)
        );
    }

    #[test]
    fn the_descriptors_repository_context_suits_the_go_manager() {
        let text = |home: &str| {
            let home = BaseUrl::parse(home, &["127.0.0.1:5000".to_owned()]).unwrap();
            let packed = pack(&package(), &home).unwrap();
            let layer = &packed.layers[0];
            let files = files(&layer.data, &layer.media_type, Caps { bytes: 1 << 20, entries: 1 }).unwrap();
            let descriptor: Value = serde_saphyr::from_str(&files[0].text).unwrap();
            descriptor["component"]["repositoryContexts"].clone()
        };
        let context = json!({"type": "OCIRegistry", "componentNameMapping": "urlPath"});
        let with = |more: Value| {
            let mut context = context.clone();
            context.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([context])
        };
        let (https, http) = ("registry.example.org/kyma/modules", "127.0.0.1:5000");
        assert_eq!(text(https), with(json!({"baseUrl": "registry.example.org", "subPath": "kyma/modules"})));
        assert_eq!(text(http), with(json!({"baseUrl": "http://127.0.0.1:5000"})));
    }

    #[test]
    fn a_component_name_is_a_domain_and_a_path() {
        for name in ["example.dev/crane", "kyma-project.io/module/api-gateway", "a.bc/c_d.e/f1"] {
            assert!(is_component_name(name), "{name}");
        }
        let long = format!("example.dev/{}", "a".repeat(255));
        for name in ["", "crane", "example/crane", "example.dev", "example.dev/", "example.dev/Crane", &long]
        {
            assert!(!is_component_name(name), "{name}");
        }
        for name in [
            "example.dev//a",
            "example.dev/a b",
            "example.dev/../a",
            "example..dev/a",
            "1.dev/a",
            "a.b/c",
            "a.b1/c",
        ] {
            assert!(!is_component_name(name), "{name}");
        }
        let unnamed = ModulePackage { component_name: "Crane".into(), ..package() };
        let error = pack(&unnamed, &home()).unwrap_err().to_string();
        assert!(error.contains("'Crane'") && error.contains("example.com/module/lighthouse"), "{error}");
    }

    #[test]
    fn an_invalid_manifest_is_not_packed() {
        let broken = ModulePackage { raw_manifest: "kind: Namespace\n".to_owned(), ..package() };
        assert_eq!(pack(&broken, &home()).unwrap_err().metric_label(), "manifests");
        let nameless = ModulePackage { images: vec!["example.org/".to_owned()], ..package() };
        assert_eq!(pack(&nameless, &home()).unwrap_err().metric_label(), "invalid");
    }
}
