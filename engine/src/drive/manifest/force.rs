//! A Manifest whose deletion somebody has forced: what can go goes, and nothing is waited for.

use kube::ResourceExt;
use tidewatch_api::Manifest;

use crate::{
    drive::{
        Finish, Lost, Shared,
        apply::{self, Deleted, ObjectError},
        gate::Gated,
    },
    plan::{
        force::{self, Forced},
        manifest as plan,
        notice::About,
        object::ObjectRef,
    },
    stages::{Stage, stage},
};

impl Shared {
    /// Whether the deletion of a Manifest is forced: by itself, or with that of its Kyma.
    pub(super) async fn forced(&self, kyma: &str, manifest: &Manifest) -> Option<Forced> {
        if let Some(own) = force::forced(manifest) {
            return Some(own);
        }
        manifest.metadata.deletion_timestamp.as_ref()?;
        let seen = self.look("forced").await.kyma(kyma)?;
        let forced = force::forced(seen.as_ref())?;
        // Who has set it only KCP knows.
        let fresh = stage(Stage::ReadKcp, self.kymas().get_opt(kyma)).await.ok().flatten();
        Some(fresh.as_ref().and_then(force::forced).unwrap_or(forced))
    }

    /// Removes what the runtime lets go at once, tells what it leaves, and lets the Manifest go. Without a runtime, or with
    /// one that cannot be reached, everything in it is left.
    pub(super) async fn force_manifest(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: Option<&Gated>,
        force: &Forced,
    ) -> Result<Finish, Lost> {
        let inventory = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let all = || inventory.iter().map(ToString::to_string).collect::<Vec<_>>();
        let left = match runtime {
            None => all(),
            Some(runtime) => {
                match stage(Stage::Delete, self.tear_down(kyma, manifest, runtime, &inventory)).await {
                    Ok(left) => left,
                    Err(error) if error.is_cut_off() => all(),
                    Err(error) => return self.stopped(manifest, error.into()).await,
                }
            }
        };
        let name = manifest.name_any();
        tracing::warn!(
            kyma,
            manifest = name,
            by = force.by,
            why = force.why,
            left = left.len(),
            "deleted by force"
        );
        let what = format!("Manifest {name}");
        let notices = [About::Manifest(name), About::Kyma].map(|about| force.notice(about, &what, &left));
        self.audit(kyma, &notices).await?;
        self.let_manifest_go(manifest).await
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
        for cr in crs {
            if self.is_needed(kyma, &manifest.name_any(), &cr).await {
                continue;
            }
            match apply::remove(runtime, &cr).await {
                Ok(Deleted::Gone) => {}
                Err(error) if error.is_passing() || error.is_cut_off() => return Err(error),
                Ok(Deleted::Going) => left.push(Forced::going(&cr)),
                Err(_) => left.push(cr.to_string()),
            }
        }
        left.extend(self.remove_by_force(kyma, manifest, runtime, plan::prune(inventory, &[])).await?);
        Ok(left)
    }
}
