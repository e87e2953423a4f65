//! A Manifest's objects, before they are applied: read, verified, rendered, ordered.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{Manifest, SourceType};

use super::Stopped;
use crate::{
    drive::{Shared, apply, chain, gate::Gated},
    journal::word,
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
        let place = (local, source.repo.as_str(), source.name.as_str(), source.ref_.as_str());
        let rendered = self.rendered(place, media_type).await?;
        let mut scopes = BTreeMap::new();
        for gvk in plan::foreign_kinds(&rendered) {
            if let Some(scope) = apply::scope(runtime, &gvk).await? {
                scopes.insert(gvk, scope);
            }
        }
        plan::bundle((&self.config.namespace, &manifest.name_any()), rendered, &scopes)
            .map_err(|e| Stopped::for_good(e.to_string()))
    }

    /// The objects of a layer. Of a layer a record has its objects only, since it may hold Secrets.
    async fn rendered(
        &self,
        (local, repo, name, digest): (bool, &str, &str, &str),
        media_type: &'static str,
    ) -> Result<Vec<Value>, Stopped> {
        let what = || format!("layer {digest}");
        if let Some(played) = self.journal.played(&what()) {
            return self.played_objects(digest, played);
        }
        let rendered = self.rendered_anew((local, repo, name, digest), media_type).await;
        if let Ok(objects) = &rendered {
            self.journal.layer(digest, objects);
        }
        self.journal.read(what, || match &rendered {
            Ok(objects) => json!({"objects": objects.len()}),
            Err(stopped) => {
                json!({"refused": stopped.message, "retryable": stopped.retryable, "class": stopped.class})
            }
        });
        rendered
    }

    fn played_objects(&self, digest: &str, played: Option<Value>) -> Result<Vec<Value>, Stopped> {
        let lacks = || Stopped::for_good(format!("the record has no word of the layer {digest}"));
        let played = played.ok_or_else(lacks)?;
        match played["refused"].as_str() {
            Some(message) => Err(Stopped {
                retryable: played["retryable"].as_bool().unwrap_or_default(),
                class: word(played["class"].as_str().unwrap_or("final")),
                ..Stopped::for_good(message.to_owned())
            }),
            None => self.journal.played_layer(digest).ok_or_else(lacks),
        }
    }

    async fn rendered_anew(
        &self,
        (local, repo, name, digest): (bool, &str, &str, &str),
        media_type: &'static str,
    ) -> Result<Vec<Value>, Stopped> {
        let layer = self.layer(local, repo, name, digest).await?;
        // Unpacking and parsing is work for a CPU, of up to 32 MiB: not for the threads that wait for I/O.
        tokio::task::spawn_blocking(move || oci::manifests_of(&layer, media_type))
            .await
            .map_err(|_| Stopped::for_good("the module's manifest could not be read".to_owned()))?
            .map_err(|e| {
                Stopped::for_good(format!("the module's manifest ({digest}) cannot be used: {}", chain(&e)))
            })
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
