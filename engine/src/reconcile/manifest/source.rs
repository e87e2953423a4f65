//! Reads, verifies, renders and orders a Manifest's objects.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use serde_json::Value;
use tidewatch_api::{
    ImageSpec, Layer, Manifest, SourceType, inventory,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::{
    bundle::{self, Bundle, Scope},
    sources,
};
use tidewatch_oci::{Digest, OciError};

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    config::EngineConfig,
    error::{Error, chain},
    kcp::Kcp,
    reconcile::{manifest::rendered::Rendered, sources::Registries},
};

/// Reads and renders modules' objects.
pub(crate) struct Bundles {
    pub(crate) kcp: Kcp,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) registries: Arc<Registries>,
    pub(crate) rendered: Rendered,
}

impl Bundles {
    pub(crate) fn new(kcp: Kcp, config: Arc<EngineConfig>, registries: Arc<Registries>) -> Self {
        Self { kcp, config, registries, rendered: Rendered::default() }
    }

    /// Returns the module's ordered objects, and a number that changes with injected control plane data.
    pub(super) async fn bundle(&self, manifest: &Manifest, runtime: &Gated) -> Result<(Bundle, u64), Error> {
        let rendered = self.rendered(manifest).await?;
        let installed = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let mut scopes = BTreeMap::new();
        for gvk in bundle::foreign_kinds(&rendered) {
            if let Some(scope) = scope(runtime, &gvk, &installed).await? {
                scopes.insert(gvk, scope);
            }
        }
        let name = manifest.name_any();
        let mut bundle = bundle::bundle((&self.kcp.namespace, &name), rendered, &scopes)
            .map_err(|error| Error::Final(error.to_string()))?;
        let given = self.transform(manifest, &mut bundle).await?;
        Ok((bundle, given))
    }

    async fn rendered(&self, manifest: &Manifest) -> Result<Vec<Value>, Error> {
        let source = manifest.install_source().map_err(|e| Error::Final(e.to_string()))?;
        let terms = manifest.terms().map_err(|e| Error::Final(chain(&e)))?;
        let first = Layer {
            name: manifest.spec.install.name.clone(),
            ref_: source.ref_.clone(),
            type_: source.type_.as_str().to_owned(),
        };
        let local = manifest.is_of_runtime_template();
        let mut sources = Vec::new();
        for layer in std::iter::once(first).chain(terms.layers) {
            let media_type = media_type(&layer)?;
            let objects = self.objects_of(local, &source, &layer.ref_, media_type).await?;
            sources.push((layer.name, Vec::clone(&objects)));
        }
        sources::merge(sources).map_err(|error| Error::Final(error.to_string()))
    }

    async fn objects_of(
        &self,
        local: bool,
        source: &ImageSpec,
        digest: &str,
        media_type: &'static str,
    ) -> Result<Arc<Vec<Value>>, Error> {
        let read = self.layer(local, source, digest);
        let rendered = self.rendered.objects(local, digest, media_type, read);
        self.registries.limiter.wait(rendered).await.unwrap_or_else(|_| {
            let message = format!("the registry of {} is slow to give what modules are made of", source.repo);
            Err(Error::Crowded(message))
        })
    }

    async fn layer(&self, local: bool, source: &ImageSpec, digest: &str) -> Result<Arc<[u8]>, Error> {
        let read = async {
            let digest = Digest::parse(digest)?;
            self.registries.registry(local).layer(&source.repo, &source.name, &digest).await
        };
        read.await.map_err(|error: OciError| Error::Registry(Box::new(error)))
    }
}

/// Returns the media type of a layer. Refuses types that need their own renderer.
fn media_type(layer: &Layer) -> Result<&'static str, Error> {
    match layer.type_.as_str() {
        text if text == SourceType::OciDir.as_str() => Ok("application/x-tar"),
        text if text == SourceType::OciRef.as_str() => Ok("application/yaml"),
        other => Err(Error::Final(format!(
            "source '{}' of the module is of type {other}, which is not supported yet: only raw manifests in an OCI layer \
             ({} or {}) are",
            layer.name,
            SourceType::OciRef.as_str(),
            SourceType::OciDir.as_str()
        ))),
    }
}

/// Returns the scope of a kind; `None` if unknown.
///
/// An unreachable kind, such as of an aggregated API server, fails only when its objects are applied.
async fn scope(runtime: &Gated, gvk: &Gvk, installed: &[ObjectRef]) -> Result<Option<Scope>, ObjectError> {
    match objects::scope(runtime, gvk).await {
        Ok(Some(scope)) => return Ok(Some(scope)),
        Ok(None) => {}
        Err(error) if error.is_of_one_kind() && (error.is_answered() || !error.is_unreachable()) => {}
        Err(error) => return Err(error),
    }
    let of_kind = |o: &&ObjectRef| (&o.gvk.group, &o.gvk.kind) == (&gvk.group, &gvk.kind);
    // As installed: a different scope would mean a different object.
    Ok(installed
        .iter()
        .find(of_kind)
        .map(|object| if object.namespace.is_empty() { Scope::Cluster } else { Scope::Namespaced }))
}
