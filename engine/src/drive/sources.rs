//! Component descriptors, read once per version for the whole fleet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tidewatch_api::SourceType;

use super::{NEXT_TRY, Shared, chain};
use crate::{
    oci::OciError,
    plan::{
        kyma::{ComponentVersion, Source, SourceFault},
        versions::Choice,
    },
};

/// Descriptors kept. A version is immutable (mission S1.1), so none goes stale.
const KEPT: usize = 4096;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Sources(Mutex<HashMap<ComponentVersion, Arc<Source>>>);

impl Shared {
    /// The sources of all chosen versions.
    pub(super) async fn sources_of(
        &self,
        choices: &[Choice],
    ) -> BTreeMap<ComponentVersion, Result<Source, SourceFault>> {
        let mut sources = BTreeMap::new();
        for chosen in choices.iter().filter_map(|c| c.outcome.as_ref().ok()) {
            let key = (chosen.component.clone(), chosen.version.clone());
            if sources.contains_key(&key) {
                continue;
            }
            let source = self.source_of(&key).await;
            sources.insert(key, source);
        }
        sources
    }

    async fn source_of(&self, key: &ComponentVersion) -> Result<Source, SourceFault> {
        if let Some(known) = self.sources.0.lock().get(key) {
            return Ok(Source::clone(known));
        }
        let (component, version) = key;
        let read = async {
            let descriptor =
                self.registry.component_descriptor(&self.config.modules, component, version).await?;
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
        let mut known = self.sources.0.lock();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(key.clone(), Arc::new(source.clone()));
        Ok(source)
    }
}
