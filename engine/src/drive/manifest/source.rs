//! A Manifest's objects, before they are applied: read, verified, rendered, ordered.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::{Manifest, SourceType};

use super::Stopped;
use crate::{
    drive::{Shared, apply, chain, gate::Gated},
    oci::{self, Digest, OciError},
    plan::manifest::{self as plan, Bundle},
};

impl Shared {
    /// Reads, verifies, renders and orders the module's objects.
    pub(super) async fn bundle_of(&self, manifest: &Manifest, runtime: &Gated) -> Result<Bundle, Stopped> {
        let source = manifest.install_source().map_err(|e| Stopped::for_good(e.to_string()))?;
        let media_type = match source.type_ {
            SourceType::OciDir => "application/x-tar",
            SourceType::OciRef => "application/yaml",
            other => {
                let message = format!("install sources of type {} are not supported yet", other.as_str());
                return Err(Stopped::for_good(message));
            }
        };
        let local = manifest.is_of_runtime_template();
        let layer = self.layer(local, &source.repo, &source.name, &source.ref_).await?;
        // Unpacking and parsing is work for a CPU, of up to 32 MiB: not for the threads that wait for I/O.
        let rendered = tokio::task::spawn_blocking(move || oci::manifests_of(&layer, media_type))
            .await
            .map_err(|_| Stopped::for_good("the module's manifest could not be read".to_owned()))?
            .map_err(|e| {
                Stopped::for_good(format!(
                    "the module's manifest ({}) cannot be used: {}",
                    source.ref_,
                    chain(&e)
                ))
            })?;
        let mut scopes = BTreeMap::new();
        for gvk in plan::foreign_kinds(&rendered) {
            if let Some(scope) = apply::scope(runtime, &gvk).await? {
                scopes.insert(gvk, scope);
            }
        }
        plan::bundle((&self.config.namespace, &manifest.name_any()), rendered, &scopes)
            .map_err(|e| Stopped::for_good(e.to_string()))
    }

    async fn layer(&self, local: bool, repo: &str, name: &str, digest: &str) -> Result<Arc<[u8]>, Stopped> {
        let read = async {
            let digest = Digest::parse(digest)?;
            self.registry(local).layer(repo, name, &digest).await
        };
        read.await.map_err(|error: OciError| Stopped {
            message: format!("the module's layer cannot be read: {}", chain(&error)),
            // Content that does not match its digest may be pushed again, and a registry sends no events.
            retryable: error.is_retryable()
                || matches!(error, OciError::DigestMismatch { .. } | OciError::NotFound { .. }),
            discredits_client: false,
            class: error.metric_label(),
            held: None,
        })
    }
}
