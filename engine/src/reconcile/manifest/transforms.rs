//! Reads the control plane data that transforms of a module's objects need.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tidewatch_api::Manifest;
use tidewatch_deployer::{
    bundle::Bundle,
    transform::{self, Context, Injected},
};

use crate::{
    error::Error,
    reconcile::manifest::source::Bundles,
    stages::{Stage, stage},
};

/// Maximum number of Secrets that a module may ask for.
const INJECTED: usize = 16;

impl Bundles {
    /// Transforms a module's objects. Returns a number that changes if the injected data changes.
    ///
    /// Modules from a runtime's own template stay untransformed and get no control plane data.
    pub(super) async fn transform(&self, manifest: &Manifest, bundle: &mut Bundle) -> Result<u64, Error> {
        if manifest.is_of_runtime_template() {
            return Ok(0);
        }
        let module = manifest.module_name().unwrap_or_default();
        let asked: BTreeSet<String> =
            bundle.iter_mut().filter_map(|object| transform::requested_secret(module, object)).collect();
        let mut injected: BTreeMap<String, Injected> = BTreeMap::new();
        for name in asked.into_iter().take(INJECTED) {
            let api: Api<Secret> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
            let given = match stage(Stage::ReadKcp, api.get_opt(&name)).await {
                Ok(secret) => transform::secret_data(module, secret.as_ref()),
                Err(_) => Err("the control plane did not give it".to_owned()),
            };
            injected.insert(name, given);
        }
        let context = Context {
            module,
            images: &manifest.spec.localized_images,
            pull_secret: self.config.pull_secret.as_deref(),
            manager: manifest.spec.manager.as_ref(),
            injected: Some(&injected),
        };
        transform::transform(bundle.iter_mut(), &context)
            .map_err(|error| Error::Transform(Box::new(error)))?;
        Ok(transform::injected_hash(&injected))
    }
}
