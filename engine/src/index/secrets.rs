//! Kubeconfig Secrets, and the reconciles that changed Secrets request.

use std::collections::{BTreeMap, HashMap};

use kube::ResourceExt;
use tidewatch_deployer::transform::DEPLOYER;

use super::{KcpState, Wanted, kyma_key, manifest_key, manifests::is_settled};
use crate::trigger::Change;

/// A kubeconfig Secret, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// resourceVersion.
    pub resource_version: String,
}

/// By Kyma, then by name. Normally one per Kyma.
#[derive(Debug, Default)]
pub struct Secrets(HashMap<String, BTreeMap<String, SecretRef>>);

impl Secrets {
    /// A Kyma's Secrets, by name.
    pub fn of(&self, kyma: &str) -> Vec<SecretRef> {
        self.0.get(kyma).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Replaces or removes a Secret; returns whether that changes it.
    pub(super) fn set(&mut self, kyma: &str, name: &str, secret: Option<SecretRef>) -> bool {
        let secrets = self.0.entry(kyma.to_owned()).or_default();
        let new = secret.clone();
        let old = match secret {
            Some(secret) => secrets.insert(name.to_owned(), secret),
            None => secrets.remove(name),
        };
        if secrets.is_empty() {
            self.0.remove(kyma);
        }
        old != new
    }
}

impl KcpState {
    /// Applies a kubeconfig Secret or its deletion.
    pub fn apply_secret(&mut self, kyma: &str, name: &str, secret: Option<SecretRef>) -> Vec<Wanted> {
        if !self.secrets.set(kyma, name, secret) || !self.kymas.contains(kyma) {
            return Vec::new();
        }
        let freed = self.own_cluster_left(kyma);
        let unsettled = self.manifests.of(kyma).filter(|manifest| !is_settled(manifest));
        let keys = unsettled.map(|manifest| manifest_key(kyma, &manifest.name_any()));
        let wanted = std::iter::once(kyma_key(kyma)).chain(keys).map(|key| (key, Change::Kubeconfig));
        wanted.chain(freed).collect()
    }

    /// Requests every Kyma: all runtimes get the pull Secret.
    pub fn pull_secret_changed(&self) -> Vec<Wanted> {
        self.kymas.iter().map(|(kyma, _)| (kyma_key(kyma), Change::PullSecret)).collect()
    }

    /// Requests the deployer's Manifests, the only ones with Secret data.
    pub fn module_secret_changed(&self) -> Vec<Wanted> {
        let manifests = self.manifests.of_module(DEPLOYER);
        let owned = manifests.filter_map(|manifest| Some((manifest.kyma_name()?, manifest.name_any())));
        owned.map(|(kyma, name)| (manifest_key(kyma, &name), Change::ModuleSecret)).collect()
    }
}
