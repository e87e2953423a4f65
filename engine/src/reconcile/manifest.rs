//! Reconciles Manifests: applies and removes a module's objects in its runtime.

pub(crate) mod agent_watches;
mod apply;
mod blockers;
mod causes;
mod default_cr;
mod desired;
pub(crate) mod failures;
mod force;
mod install;
mod lineage;
mod orphaned;
mod related;
pub(crate) mod remove;
pub(crate) mod remover;
pub(crate) mod rendered;
pub(crate) mod scope;
pub(crate) mod source;
mod status;
mod status_delay;
pub(crate) mod sync;
mod transfer;
mod transforms;
mod unmanage;
mod verdict;
mod waits;
mod work;

use std::sync::Arc;

use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Manifest,
    names::{self, field_managers},
};
use tidewatch_planner::{force::Forced, manifest::required_finalizers, writers::has_own_inventory};

use self::{
    failures::ManifestFailures,
    scope::{Inputs, LastSync, SyncScope, named, spec_hash, target_hash},
    work::Work,
};
use super::owners::shares_with;
use crate::{
    clusters::{Clusters, Gated},
    config::EngineConfig,
    error::Error,
    events::Notifier,
    index::SecretRef,
    kcp::Kcp,
    key::WorkKey,
    outcome::Outcome,
    reconcile::{
        applied::AppliedStates,
        echoes::EchoFilter,
        manifest::{agent_watches::AgentWatches, remove::Removal, source::Bundles, sync::Syncer},
        owners::RuntimeOwners,
    },
    stages::{Stage, stage},
    trigger::{Trigger, Triggers, is_of_definition},
};

/// Reconciles Manifests: the objects of one module in one runtime.
pub(crate) struct ManifestReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) watched: Arc<AgentWatches>,
    pub(crate) failures: Arc<ManifestFailures>,
    pub(crate) bundles: Arc<Bundles>,
    pub(crate) removal: Removal,
    pub(crate) syncer: Arc<Syncer>,
    pub(crate) states: Arc<AppliedStates>,
    pub(crate) echoes: Arc<EchoFilter>,
    pub(crate) notifier: Arc<Notifier>,
}

/// The runtime of a Manifest, or how the reconcile ended without it.
enum Reached {
    Runtime(Gated),
    Ended(Outcome),
}

impl ManifestReconciler {
    pub(super) async fn reconcile(
        &self,
        key: &WorkKey,
        kyma: &str,
        name: &str,
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        let named = named(key, triggers.listed, triggers.count);
        let last = self.states.take_last_sync(key).filter(|_| named.is_some());
        let Some((manifest, secrets)) = self.manifest_of(kyma, name, last.as_ref()).await? else {
            self.kcp.index_mut().owners.release(kyma, name);
            self.states.forget(key);
            return Ok(Outcome::done());
        };
        if manifest.is_skipped() {
            self.watched.unwatch(kyma, name);
            return Ok(Outcome::done());
        }
        if let Some(finish) = self.report_orphaned(kyma, &manifest).await? {
            return Ok(finish);
        }
        let manifest = self.removal.with_remembered(manifest);
        let force = self.removal.forced(kyma, &manifest).await;
        let runtime = match self.reach(kyma, &manifest, force.as_ref()).await? {
            Reached::Runtime(runtime) => runtime,
            Reached::Ended(outcome) => return Ok(outcome),
        };
        if manifest.is_unmanaged() {
            // Stop watching before any path that applies or deletes.
            self.watched.unwatch(kyma, name);
        }
        if manifest.is_unmanaged() || manifest.metadata.deletion_timestamp.is_some() {
            // The future is large.
            return Box::pin(self.end(kyma, manifest, &runtime, force.as_ref())).await;
        }
        // Finalizers mean that the runtime may have objects. A new Manifest gets them only after its bundle is known.
        let mut manifest = manifest;
        let is_installed = manifest.status.as_ref().is_some_and(|status| !status.synced.is_empty());
        if is_installed {
            self.add_finalizers(&mut manifest).await?;
        }
        let (bundle, injected) = match stage(Stage::Render, self.bundles.bundle(&manifest, &runtime)).await {
            Ok(bundle) => bundle,
            Err(error) => return self.failures.unrendered(&manifest, error).await,
        };
        if !is_installed {
            self.add_finalizers(&mut manifest).await?;
        }
        let inputs = Inputs { injected, ..self.inputs(&manifest, &secrets) };
        let scope = last.and_then(|last| SyncScope::after(last, inputs, named));
        let is_retry = |trigger: &Trigger| matches!(trigger, Trigger::Retry { key: of, .. } if of == key);
        let is_retry = triggers.listed.iter().any(is_retry);
        let definitions_changed = triggers.may_include(is_of_definition);
        let work = Work { key, kyma, inputs, scope, is_retry, definitions_changed };
        Box::pin(self.install(work, &manifest, &runtime, bundle)).await
    }

    /// Gets access to the runtime, and checks that it belongs to this Kyma.
    async fn reach(&self, kyma: &str, manifest: &Manifest, force: Option<&Forced>) -> Result<Reached, Error> {
        let is_deleting = manifest.metadata.deletion_timestamp.is_some();
        let runtime = match self.clusters.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) if is_deleting && why.cluster_is_gone() => {
                return Ok(Reached::Ended(match self.clusters.confirm_deleted(kyma).await? {
                    None => self.removal.release_with_cluster(manifest).await?,
                    Some(wait) => wait,
                }));
            }
            Err(why) => {
                return Ok(Reached::Ended(match force {
                    Some(force) => {
                        let whole = has_own_inventory(manifest);
                        Box::pin(self.removal.force(kyma, manifest, whole, None, force)).await?
                    }
                    None => self.failures.failed(manifest, Error::Final(why.message())).await?,
                }));
            }
        };
        Ok(match stage(Stage::ReadRuntime, self.owners.occupant(kyma, &runtime)).await {
            Ok(None) => Reached::Runtime(runtime),
            // The runtime belongs to another Kyma, so no object in it is this Kyma's.
            Ok(Some(_)) if is_deleting => Reached::Ended(self.removal.release_manifest(manifest).await?),
            Ok(Some(other)) => Reached::Ended(
                self.failures.failed(manifest, Error::Final(shares_with(&runtime, &other))).await?,
            ),
            Err(error) => Reached::Ended(self.failures.failed(manifest, error.into()).await?),
        })
    }

    /// Unmanages, transfers, deletes or force-deletes a Manifest.
    async fn end(
        &self,
        kyma: &str,
        manifest: Manifest,
        runtime: &Gated,
        force: Option<&Forced>,
    ) -> Result<Outcome, Error> {
        let (manifest, unknown) = self.removal.with_inventory(kyma, manifest, runtime).await;
        let whole = unknown.is_none();
        if let Some(error) = unknown.filter(|error| force.is_none() || !error.is_reported()) {
            return self.failures.unrendered(&manifest, error).await;
        }
        if manifest.is_unmanaged() {
            return self.removal.unmanage(kyma, &manifest, runtime, force.is_some()).await;
        }
        if let Some(force) = force {
            return Box::pin(self.removal.force(kyma, &manifest, whole, Some(runtime), force)).await;
        }
        let successor = self.kcp.index().successor(kyma, &manifest);
        if let Some(successor) = successor {
            self.watched.unwatch(kyma, &manifest.name_any());
            return self.removal.transfer(kyma, &manifest, &successor, runtime).await;
        }
        Box::pin(self.removal.delete(kyma, &manifest, runtime)).await
    }

    /// Returns the Manifest and the Secrets that give access to its runtime.
    ///
    /// Uses the watched Manifest only if it is up to date and matches the last sync. Otherwise reads it from KCP.
    async fn manifest_of(
        &self,
        kyma: &str,
        name: &str,
        last: Option<&LastSync>,
    ) -> Result<Option<(Manifest, Vec<SecretRef>)>, Error> {
        let (secrets, watched) = {
            let state = self.kcp.index();
            (state.secrets.of(kyma), last.and_then(|_| state.up_to_date(name)))
        };
        if let Some((last, manifest)) = last.zip(watched)
            && self.inputs(&manifest, &secrets) == (Inputs { injected: 0, ..last.inputs })
            && has_own_inventory(&manifest)
        {
            return Ok(Some((manifest, secrets)));
        }
        let read = stage(Stage::ReadKcp, self.kcp.manifests().get_opt(name)).await;
        let manifest = read.map_err(|e| Error::kcp(format!("reading Manifest {name}"), e))?;
        Ok(manifest.map(|manifest| (manifest, secrets)))
    }

    /// Returns the inputs as far as they are known before rendering.
    fn inputs(&self, manifest: &Manifest, secrets: &[SecretRef]) -> Inputs {
        let spec = spec_hash(manifest, self.config.pull_secret.as_deref());
        Inputs { target: target_hash(manifest, secrets), spec, injected: 0 }
    }

    /// Adds the finalizers. Call it before anything is created in the runtime.
    async fn add_finalizers(&self, manifest: &mut Manifest) -> Result<(), Error> {
        let wanted = required_finalizers(manifest);
        if wanted.iter().all(|w| manifest.finalizers().iter().any(|f| f == w)) {
            return Ok(());
        }
        let name = manifest.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Manifest",
            "metadata": {"name": name, "uid": manifest.uid(), "finalizers": wanted}
        });
        let held =
            self.kcp.apply(&self.kcp.manifests(), &name, field_managers::DEFAULT_CR, false, &body).await?;
        if let Some(held) = held.filter(|_| !self.kcp.is_dry()) {
            manifest.metadata = held.metadata;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
