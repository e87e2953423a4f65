//! Component descriptors, read once per version for the whole fleet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_api::{Layer, SourceType};

use super::{NEXT_TRY, Shared, chain};
use crate::{
    oci::{ComponentDescriptor, OciError, Registry},
    plan::{
        kyma::{ComponentVersion, Source, SourceFault},
        versions::{Choice, Chosen},
    },
};

/// The resource that every component of a module has.
const RAW_MANIFEST: &str = "raw-manifest";

/// Descriptors kept. A version is immutable (mission S1.1), so none goes stale.
const KEPT: usize = 4096;

/// Descriptors kept of those that runtimes name themselves. They cannot drive out the others.
const KEPT_FOR_TENANTS: usize = 256;

type Known = Mutex<HashMap<ComponentVersion, Arc<Source>>>;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Sources {
    central: Known,
    tenants: Known,
}

impl Sources {
    fn of(&self, local: bool) -> (&Known, usize) {
        if local { (&self.tenants, KEPT_FOR_TENANTS) } else { (&self.central, KEPT) }
    }
}

/// Further layers of a component that are remembered.
const LAYERS: usize = 64;

/// How a layer is packed.
fn packing(media_type: &str, type_: &str) -> SourceType {
    match type_ {
        "helmChart" => SourceType::HelmChart,
        _ if media_type.contains("helm.chart") => SourceType::HelmChart,
        "directoryTree" => SourceType::OciDir,
        _ if media_type.contains("tar") => SourceType::OciDir,
        _ => SourceType::OciRef,
    }
}

/// The layers of a component that a template may name.
fn further(descriptor: &ComponentDescriptor) -> BTreeMap<String, Option<Layer>> {
    let mut layers = BTreeMap::new();
    for resource in &descriptor.resources {
        let Some((digest, media_type)) = resource.local_blob() else { continue };
        if layers.contains_key(&resource.name) {
            layers.insert(resource.name.clone(), None);
        } else if layers.len() < LAYERS && resource.name != RAW_MANIFEST {
            let type_ = packing(media_type, &resource.type_).as_str().to_owned();
            let layer = Layer { name: resource.name.clone(), ref_: digest.as_str().to_owned(), type_ };
            layers.insert(resource.name.clone(), Some(layer));
        }
    }
    layers
}

impl Shared {
    /// The sources of all chosen versions.
    pub(super) async fn sources_of(
        &self,
        choices: &[Choice],
    ) -> BTreeMap<ComponentVersion, Result<Source, SourceFault>> {
        self.sources_for(choices.iter().filter_map(|c| c.outcome.as_ref().ok())).await
    }

    /// The same for versions, whoever has chosen them.
    pub(super) async fn sources_for<'a>(
        &self,
        versions: impl Iterator<Item = &'a Chosen> + Send,
    ) -> BTreeMap<ComponentVersion, Result<Source, SourceFault>> {
        let mut sources = BTreeMap::new();
        for chosen in versions {
            let key = ComponentVersion::of(chosen);
            if sources.contains_key(&key) {
                continue;
            }
            let source = self.source_of(&key).await;
            sources.insert(key, source);
        }
        sources
    }

    /// The registries as we see them, or as a tenant does.
    pub(super) const fn registry(&self, local: bool) -> &Registry {
        if local { &self.tenants } else { &self.registry }
    }

    async fn source_of(&self, key: &ComponentVersion) -> Result<Source, SourceFault> {
        let (known, _) = self.sources.of(key.local);
        if let Some(known) = known.lock().get(key) {
            return Ok(Source::clone(known));
        }
        let ComponentVersion { component, version, local } = key;
        let what = || format!("component {component}:{version}");
        if let Some(played) = self.journal.played(&what()) {
            let source = played_source(played)?;
            self.keep_source(key, &source);
            return Ok(source);
        }
        let read = async {
            let registry = self.registry(*local);
            let descriptor = registry.component_descriptor(&self.config.modules, component, version).await?;
            let resource = descriptor.raw_manifest()?;
            let (digest, media_type) = resource.local_blob().ok_or_else(|| OciError::Malformed {
                what: format!("the descriptor of {component}:{version}"),
                reason: "its raw-manifest is not a local blob".into(),
            })?;
            Ok::<_, OciError>(Source {
                repo: self.config.modules.clone(),
                layer: digest.as_str().to_owned(),
                type_: packing(media_type, &resource.type_),
                further: further(&descriptor),
                images: descriptor.images().map(str::to_owned).collect(),
            })
        };
        let source = read.await.map_err(|error| SourceFault {
            message: format!("component {component}:{version} cannot be read: {}; {NEXT_TRY}", chain(&error)),
            // A descriptor that is wrong or missing can be pushed anew, and a registry sends no events.
            retryable: true,
        });
        self.journal.read(what, || match &source {
            Ok(Source { repo, layer, type_, images, further }) => {
                json!({"repo": repo, "layer": layer, "type": type_.as_str(), "images": images, "further": further})
            }
            Err(fault) => json!({"refused": fault.message}),
        });
        let source = source?;
        self.keep_source(key, &source);
        Ok(source)
    }

    fn keep_source(&self, key: &ComponentVersion, source: &Source) {
        let (known, kept) = self.sources.of(key.local);
        let mut known = known.lock();
        if known.len() >= kept {
            known.clear();
        }
        known.insert(key.clone(), Arc::new(source.clone()));
    }
}

/// What a record says of a component.
fn played_source(played: Option<Value>) -> Result<Source, SourceFault> {
    let fault = |message: &str| SourceFault { message: message.to_owned(), retryable: true };
    let played = played.ok_or_else(|| fault("the record has no word of this component"))?;
    if let Some(message) = played["refused"].as_str() {
        return Err(fault(message));
    }
    let part = |name: &str| played[name].as_str().unwrap_or_default().to_owned();
    let images = played["images"].as_array().into_iter().flatten();
    Ok(Source {
        repo: part("repo"),
        layer: part("layer"),
        type_: if part("type") == SourceType::OciDir.as_str() {
            SourceType::OciDir
        } else {
            SourceType::OciRef
        },
        images: images.filter_map(Value::as_str).map(str::to_owned).collect(),
        further: serde_json::from_value(played["further"].clone()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Access, Digest, Resource};

    #[test]
    fn layers_are_found_by_name() {
        let digest = |text: &str| Digest::of(text.as_bytes());
        let blob = |name: &str, type_: &str, media_type: &str, content: &str| Resource {
            name: name.into(),
            type_: type_.into(),
            version: "1.0.0".into(),
            access: Access::LocalBlob { local_reference: digest(content), media_type: media_type.into() },
        };
        let image = Resource {
            name: "web".into(),
            type_: "ociArtifact".into(),
            version: "1.0.0".into(),
            access: Access::OciArtifact { image_reference: "example.test/web:1".into() },
        };
        let tar = "application/x-tar";
        let descriptor = ComponentDescriptor {
            name: "example.test/module".into(),
            version: "1.0.0".into(),
            resources: vec![
                blob("raw-manifest", "directoryTree", tar, "a"),
                blob("crds", "directoryTree", tar, "b"),
                blob("plain", "yaml", "application/yaml", "c"),
                blob("chart", "helmChart", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "d"),
                blob("twice", "yaml", "application/yaml", "e"),
                blob("twice", "yaml", "application/yaml", "f"),
                image,
            ],
        };
        let source = Source {
            repo: String::new(),
            layer: String::new(),
            type_: SourceType::OciDir,
            images: Vec::new(),
            further: further(&descriptor),
        };
        let layers = source.layers(&["plain".into(), "crds".into(), "chart".into()]).unwrap();
        let found: Vec<_> =
            layers.iter().map(|l| (l.name.as_str(), l.ref_.clone(), l.type_.as_str())).collect();
        let of = |text: &str| digest(text).as_str().to_owned();
        assert_eq!(
            found,
            [("plain", of("c"), "oci-ref"), ("crds", of("b"), "oci-dir"), ("chart", of("d"), "helm-chart")]
        );
        for (name, says) in
            [("twice", "several"), ("web", "no resource 'web'"), ("raw-manifest", "no resource")]
        {
            let why = source.layers(&[name.into()]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
