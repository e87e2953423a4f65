//! Component descriptors, read once per version for the whole fleet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tidewatch_api::SourceType;

use super::{NEXT_TRY, Shared, chain};
use crate::{
    oci::{OciError, Registry},
    plan::{
        kyma::{ComponentVersion, Source, SourceFault},
        versions::{Choice, Chosen},
    },
};

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
        let (known, kept) = self.sources.of(key.local);
        if let Some(known) = known.lock().get(key) {
            return Ok(Source::clone(known));
        }
        let ComponentVersion { component, version, local } = key;
        let read = async {
            let registry = self.registry(*local);
            let descriptor = registry.component_descriptor(&self.config.modules, component, version).await?;
            let resource = descriptor.raw_manifest()?;
            let (digest, media_type) = resource.local_blob().ok_or_else(|| OciError::Malformed {
                what: format!("the descriptor of {component}:{version}"),
                reason: "its raw-manifest is not a local blob".into(),
            })?;
            let packed = media_type.contains("tar") || resource.type_ == "directoryTree";
            Ok::<_, OciError>(Source {
                repo: self.config.modules.clone(),
                layer: digest.as_str().to_owned(),
                type_: if packed { SourceType::OciDir } else { SourceType::OciRef },
                images: descriptor.images().map(str::to_owned).collect(),
            })
        };
        let source = read.await.map_err(|error| SourceFault {
            message: format!("component {component}:{version} cannot be read: {}; {NEXT_TRY}", chain(&error)),
            // A descriptor that is wrong or missing can be pushed anew, and a registry sends no events.
            retryable: true,
        })?;
        let mut known = known.lock();
        if known.len() >= kept {
            known.clear();
        }
        known.insert(key.clone(), Arc::new(source.clone()));
        Ok(source)
    }
}
