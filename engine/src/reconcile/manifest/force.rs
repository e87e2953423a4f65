//! Forced deletion of a Manifest: removes as much as possible and waits for nothing.

use kube::ResourceExt;
use tidewatch_api::{Manifest, inventory, object::ObjectRef};
use tidewatch_deployer::prune;
use tidewatch_planner::{
    force::{self, Forced},
    notice::About,
};

use crate::{
    clusters::{
        Gated,
        objects::{self, Deleted, ObjectError},
    },
    error::Error,
    outcome::Outcome,
    reconcile::manifest::remove::Removal,
    stages::{Stage, stage},
};

impl Removal {
    /// Returns the forced deletion of the Manifest itself or of its Kyma.
    pub(super) async fn forced(&self, kyma: &str, manifest: &Manifest) -> Option<Forced> {
        if let Some(own) = force::forced(manifest) {
            return Some(own);
        }
        manifest.metadata.deletion_timestamp.as_ref()?;
        let known = self.kcp.index().kymas.get(kyma)?;
        let forced = force::forced(known.as_ref())?;
        // Only KCP knows the user that set it.
        let fresh = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(kyma)).await.ok().flatten();
        Some(fresh.as_ref().and_then(force::forced).unwrap_or(forced))
    }

    /// Removes objects without waiting, reports those left, and releases the Manifest.
    ///
    /// Without a reachable runtime, everything stays. `whole`: the inventory is known to be complete.
    pub(super) async fn force(
        &self,
        kyma: &str,
        manifest: &Manifest,
        whole: bool,
        runtime: Option<&Gated>,
        force: &Forced,
    ) -> Result<Outcome, Error> {
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let all = || inventory.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut left = match runtime {
            None => all(),
            Some(runtime) => {
                match stage(Stage::Delete, self.tear_down(kyma, manifest, runtime, &inventory)).await {
                    Ok(left) => left,
                    Err(error) if error.is_cut_off() => all(),
                    Err(error) => return self.failures.failed(manifest, error.into()).await,
                }
            }
        };
        if !whole {
            left.insert(0, "whatever its inventory had before somebody changed it".to_owned());
        }
        let name = manifest.name_any();
        tracing::warn!(
            kyma,
            manifest = name,
            by = force.by,
            why = force.reason,
            left = left.len(),
            "deleted by force"
        );
        let message = format!("Manifest {name}");
        let notices = [About::Manifest(name), About::Kyma].map(|about| force.notice(about, &message, &left));
        self.notifier.audit(kyma, &notices).await?;
        self.release_manifest(manifest).await
    }

    async fn tear_down(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        inventory: &[ObjectRef],
    ) -> Result<Vec<String>, ObjectError> {
        let crs = self.default_crs_or_present(kyma, manifest, runtime).await?;
        let users = match self.skipped(manifest, runtime, &crs).await {
            Ok(users) => users,
            Err(error) if error.is_cut_off() => return Err(error),
            Err(_) => Vec::new(),
        };
        let mut left: Vec<String> = users.iter().map(ToString::to_string).collect();
        let own = match self.without_others(kyma, runtime, crs.clone()).await {
            Err(error) if error.is_transient() || error.is_cut_off() => return Err(error),
            // The owner of the runtime is unknown, so they may be another Kyma's.
            Err(_) => {
                left.extend(crs.iter().map(ToString::to_string));
                Vec::new()
            }
            Ok(own) => own,
        };
        for cr in own {
            if self.is_needed(kyma, &manifest.name_any(), &cr) {
                continue;
            }
            match objects::remove(runtime, &cr).await {
                Ok(Deleted::Gone) => {}
                Err(error) if error.is_transient() || error.is_cut_off() => return Err(error),
                Ok(Deleted::Going) => left.push(Forced::deleting_label(&cr)),
                Err(_) => left.push(cr.to_string()),
            }
        }
        left.extend(
            self.remover.remove_by_force(kyma, manifest, runtime, prune::prune(inventory, &[])).await?,
        );
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidewatch_api::names::{annotations, finalizers, labels};

    use super::*;
    use crate::reconcile::tests::{engine_on, not_found, runtime_on};

    fn manifest() -> Value {
        json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Manifest",
            "metadata": {"name": "beacon", "namespace": "kcp-system", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizers::MANIFEST],
                "annotations": {annotations::FORCE_DELETE: "the cluster is another team's"}, "labels": {labels::KYMA_NAME: "harbour"}},
            "spec": {"resource": {"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b", "namespace": "n"}}},
            "status": {"state": "Deleting", "synced": [{"version": "v1", "kind": "ConfigMap", "name": "c", "namespace": "n"}]}})
    }

    #[tokio::test]
    async fn refused_calls_do_not_block_forced_deletion() {
        for code in [401, 403, 500] {
            let runtime = runtime_on(move |_| {
                (
                    code,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code}),
                )
            });
            let (engine, requests) = engine_on(|method, path| match method {
                "PATCH" if path.ends_with("/manifests/beacon") => (200, manifest()),
                "POST" => {
                    (201, json!({"kind": "Event", "apiVersion": "v1", "metadata": {}, "involvedObject": {}}))
                }
                _ => not_found(),
            });
            let manifest: Manifest = serde_json::from_value(manifest()).unwrap();
            let force = force::forced(&manifest).unwrap();
            let left = engine
                .dispatcher
                .reconcilers
                .manifest
                .removal
                .tear_down("harbour", &manifest, &runtime, &[])
                .await
                .unwrap();
            assert_eq!(left, ["Beacon.x.dev n/b"], "{code}: it may be another Kyma's by now");
            let finish = Box::pin(engine.dispatcher.reconcilers.manifest.removal.force(
                "harbour",
                &manifest,
                true,
                Some(&runtime),
                &force,
            ))
            .await
            .unwrap();
            assert!(finish == Outcome::done(), "{code}: {finish:?}");
            assert!(
                requests
                    .lock()
                    .iter()
                    .any(|line| line.starts_with("PATCH") && line.ends_with("/manifests/beacon")),
                "{code}"
            );
        }
    }
}
