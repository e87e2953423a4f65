//! Deletes a Manifest: first user objects, then the default CR, the module's objects in a safe order, and the finalizers.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, ManifestStatus, inventory,
    names::finalizers,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::{
    namespace::{deletion_blockers, overdue_at},
    ownership::Disposition,
    prune,
};
use tidewatch_planner::{
    blockers::CRS_WAITED_FOR,
    manifest_status::{self, Progress},
    notice::{About, Notice},
    writers::{has_own_inventory, has_written_inventory},
};

use super::{
    agent_watches::AgentWatches,
    blockers::{BlockedBy, Obstacle},
    failures::ManifestFailures,
    remover::{Remover, UserObjects},
    scope::Inputs,
    source::Bundles,
    sync::Syncer,
    work::Work,
};
use crate::{
    clusters::{Gated, objects},
    error::Error,
    events::Notifier,
    kcp::Kcp,
    key::WorkKey,
    outcome::Outcome,
    reconcile::owners::RuntimeOwners,
    stages::{Stage, stage},
};

fn add(manifest: &mut Manifest, objects: &[ObjectRef]) {
    if !objects.is_empty() {
        let status = manifest.status.get_or_insert_default();
        status.synced =
            inventory::synced(&inventory::union(&inventory::inventory(&status.synced), objects)).into();
    }
}

/// Returns the reason why a long deletion does not finish.
async fn held_by(runtime: &Gated, object: &ObjectRef) -> String {
    // An unreadable object is reported by name only.
    let live = stage(Stage::ReadRuntime, objects::get(runtime, object)).await.ok().flatten();
    live.and_then(|live| deletion_blockers(object, &live)).map_or_else(
        || "it takes longer than a deletion does".to_owned(),
        |held| format!("{held}: whoever has set a finalizer has to take it away"),
    )
}

/// Ends Manifests: deletes, transfers, unmanages or forces them.
pub(crate) struct Removal {
    pub(crate) kcp: Kcp,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) watched: Arc<AgentWatches>,
    pub(crate) failures: Arc<ManifestFailures>,
    pub(crate) bundles: Arc<Bundles>,
    pub(crate) remover: Arc<Remover>,
    pub(crate) syncer: Arc<Syncer>,
    pub(crate) notifier: Arc<Notifier>,
}

impl Removal {
    /// Adds the remembered inventory if another writer changed or removed it.
    pub(super) fn with_remembered(&self, mut manifest: Manifest) -> Manifest {
        if has_written_inventory(&manifest) {
            return manifest;
        }
        let before = self.kcp.index().manifests.inventory(&manifest);
        add(&mut manifest, &before);
        manifest
    }

    /// Rebuilds an inventory that another writer changed or removed, without objects that are not engine-owned.
    ///
    /// Also returns why the inventory is unknown. Deleting without it would leave unmanaged objects in the runtime.
    pub(super) async fn with_inventory(
        &self,
        kyma: &str,
        mut manifest: Manifest,
        runtime: &Gated,
    ) -> (Manifest, Option<Error>) {
        if has_own_inventory(&manifest) {
            return (manifest, None);
        }
        let rendered = Box::pin(stage(Stage::Render, self.bundles.bundle(&manifest, runtime))).await;
        let failed = rendered.map(|(bundle, _)| add(&mut manifest, &bundle.objects)).err();
        let mut own = Vec::new();
        let mut objects =
            inventory::inventory(&manifest.status.clone().unwrap_or_default().synced).into_iter();
        while let Some(object) = objects.next() {
            match stage(Stage::ReadRuntime, objects::find(runtime, &object)).await {
                Ok(None) => {}
                Ok(Some(existing)) => match self.remover.verdict(kyma, &manifest, &object, &existing) {
                    Disposition::UserOwned => {
                        tracing::warn!(
                            kyma,
                            manifest = manifest.name_any(),
                            %object,
                            "not removed: somebody has written it into the inventory, and it carries no marks of ours"
                        );
                    }
                    _ => own.push(object),
                },
                // The removal reports this error. An unreachable server is not asked for the other objects.
                Err(error) => {
                    own.push(object);
                    if error.is_cut_off() {
                        own.extend(objects.by_ref());
                    }
                }
            }
        }
        if let Some(status) = &mut manifest.status {
            status.synced = inventory::synced(&own).into();
        }
        let unknown = |why: &str| {
            format!(
                "another client has changed or removed its inventory, and the objects to remove cannot be found: {why} \
                 (force the deletion to leave them in the runtime)"
            )
        };
        (manifest, failed.map(|error| error.described(unknown)))
    }

    pub(super) async fn delete(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Outcome, Error> {
        match stage(Stage::Delete, self.obstacle(kyma, manifest, runtime)).await {
            Ok(None) => {}
            Ok(Some(obstacle)) if obstacle.of == BlockedBy::OtherModules => {
                return self.make_way(kyma, manifest, runtime, obstacle).await;
            }
            Ok(Some(obstacle)) => return self.wait_for(kyma, manifest, runtime, obstacle, |_| false).await,
            Err(error) => return self.failures.failed(manifest, error).await,
        }
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let status = |left: &[ObjectRef], progress: Progress| -> ManifestStatus {
            manifest_status::manifest_status(manifest, &progress, left, None, self.kcp.now())
        };
        // Everything goes; `prune` exempts protected objects.
        let gone = prune::prune(&inventory, &[]);
        match stage(Stage::Delete, self.remover.remove(kyma, manifest, runtime, gone, UserObjects::Block))
            .await
        {
            Ok(remains) => match (remains.deleting(UserObjects::Block), remains.all().as_slice()) {
                (_, []) => self.release_manifest(manifest).await,
                (deleting, left @ [(first, why), ..]) => {
                    let since =
                        manifest.metadata.deletion_timestamp.as_ref().map_or(self.kcp.now(), |at| at.0);
                    let long_at = overdue_at(since);
                    let for_long = long_at <= self.kcp.now();
                    let why = match why {
                        None if for_long => Some(held_by(runtime, first).await),
                        why => why.clone(),
                    };
                    let message = why.as_ref().map_or_else(
                        || format!("waiting for {first} to be gone ({} left)", left.len()),
                        |why| format!("waiting for {first} to be gone ({why}; {} left)", left.len()),
                    );
                    let left: Vec<ObjectRef> = left.iter().map(|(object, _)| object.clone()).collect();
                    self.kcp
                        .write_manifest_status(manifest, &status(&left, Progress::Deleting(message.clone())))
                        .await?;
                    if for_long {
                        let notice = Notice::warning(
                            About::RuntimeKyma,
                            "ModuleDeletionHeld",
                            format!("module '{}': {message}", manifest.module_name().unwrap_or_default()),
                        )
                        .of_occasion(manifest.uid().unwrap_or_default());
                        self.notifier.notify_user(kyma, runtime, notice).await;
                    }
                    let look_at = (!for_long).then_some(long_at);
                    Ok(self
                        .watched
                        .deletion_outcome(kyma, runtime, deleting.as_deref(), message)
                        .await
                        .if_waiting_due_by(look_at))
                }
            },
            Err(error) => self.failures.failed(manifest, error.into()).await,
        }
    }

    /// Removes custom resources that other leaving modules may wait for, and waits for theirs.
    ///
    /// The rest of the module stays reconciled until then, because it serves those resources.
    async fn make_way(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        obstacle: Obstacle,
    ) -> Result<Outcome, Error> {
        let groups = self.kcp.index().manifests.groups_of_leaving(kyma);
        let goes =
            |object: &ObjectRef| prune::removal_rank(&object.gvk) == 0 && groups.contains(&object.gvk.group);
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let first = prune::prune(&inventory, &[]).into_iter().filter(&goes).collect();
        // This does not depend on a successful render.
        let removing = self.remover.remove(kyma, manifest, runtime, first, UserObjects::Block);
        if let Err(error) = stage(Stage::Delete, removing).await {
            return self.failures.failed(manifest, error.into()).await;
        }
        self.wait_for(kyma, manifest, runtime, obstacle, goes).await
    }

    /// Keeps reconciling a blocked module, except objects that `goes` selects, and reports the obstacle.
    async fn wait_for(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        Obstacle { message, kinds, existing, of }: Obstacle,
        goes: impl Fn(&ObjectRef) -> bool + Send,
    ) -> Result<Outcome, Error> {
        let says = manifest.status.as_ref().and_then(|status| status.last_operation.as_ref());
        if of == BlockedBy::Users && !says.is_some_and(|says| says.operation.starts_with(CRS_WAITED_FOR)) {
            Box::pin(self.notify_blocked(kyma, manifest, runtime, &existing)).await;
        }
        let (objects, missing, failure) = match stage(Stage::Render, self.bundles.bundle(manifest, runtime))
            .await
        {
            Ok((bundle, _)) => {
                let first = Progress::Deleting(message.clone());
                let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.name_any() };
                let inputs = Inputs::default();
                let work =
                    Work { key: &key, kyma, inputs, scope: None, is_retry: true, definitions_changed: false };
                let synced = self.syncer.sync(&work, manifest, runtime, bundle.without(goes), first).await?;
                (synced.objects, synced.applied.missing, synced.applied.failed)
            }
            Err(error) => {
                (inventory::inventory(&manifest.status.clone().unwrap_or_default().synced), None, Some(error))
            }
        };
        let failed = failure.is_some() || missing.is_some();
        let behind = |why: &str| format!("{message}; the module is not kept up to date meanwhile: {why}");
        let message = match failure {
            None => missing.as_deref().map_or_else(|| message.clone(), behind),
            Some(error) if !error.is_reported() => return Err(error),
            Some(error) => {
                if error.discredits_client() {
                    self.owners.clusters.discredit(kyma);
                }
                behind(&error.to_string())
            }
        };
        let progress = Progress::Deleting(message.clone());
        let status = manifest_status::manifest_status(manifest, &progress, &objects, None, self.kcp.now());
        self.kcp.write_manifest_status(manifest, &status).await?;
        Ok(if !failed && self.watched.watches_deletions_of_all(kyma, runtime, &kinds).await {
            Outcome::waiting(message)
        } else {
            Outcome::recheck_rarely(message)
        })
    }

    /// Notifies the runtime's user once of blocking resources. The status names them.
    async fn notify_blocked(&self, kyma: &str, manifest: &Manifest, runtime: &Gated, kinds: &[Gvk]) {
        let kinds: Vec<String> = kinds.iter().map(|gvk| format!("{}.{}", gvk.kind, gvk.group)).collect();
        let notice = Notice::warning(About::RuntimeKyma, "ModuleDeletionBlocked", format!(
                "module '{}' is not removed before your resources of it are: {}; its entry in the status of this Kyma names them",
                manifest.module_name().unwrap_or_default(),
                kinds.join(", ")
            )).of_occasion(manifest.uid().unwrap_or_default());
        self.notifier.notify_user(kyma, runtime, notice).await;
    }

    /// Removes the engine's finalizers, and reports other finalizers that remain.
    pub(super) async fn release_manifest(&self, manifest: &Manifest) -> Result<Outcome, Error> {
        const ENGINE: [&str; 3] = [finalizers::MANIFEST, finalizers::DEFAULT_CR, finalizers::LABEL_REMOVAL];
        self.kcp.drop_finalizers(&self.kcp.manifests(), manifest, &ENGINE).await?;
        let others: Vec<&str> =
            manifest.finalizers().iter().map(String::as_str).filter(|one| !ENGINE.contains(one)).collect();
        if manifest.metadata.deletion_timestamp.is_some() && !others.is_empty() {
            let message = format!(
                "the module is removed; its Manifest {} waits for the finalizer {}: whoever has set it has to take it away",
                manifest.name_any(),
                others.join(", ")
            );
            let status = manifest_status::manifest_status(
                manifest,
                &Progress::Deleting(message.clone()),
                &[],
                None,
                self.kcp.now(),
            );
            self.kcp.write_manifest_status(manifest, &status).await?;
            return Ok(Outcome::waiting(message));
        }
        Ok(Outcome::done())
    }

    /// Removes all finalizers of a Manifest whose cluster is gone: no controller can act there.
    pub(super) async fn release_with_cluster(&self, manifest: &Manifest) -> Result<Outcome, Error> {
        let all: Vec<&str> = manifest.finalizers().iter().map(String::as_str).collect();
        self.kcp.drop_finalizers(&self.kcp.manifests(), manifest, &all).await?;
        Ok(Outcome::done())
    }
}

#[cfg(test)]
mod tests;
