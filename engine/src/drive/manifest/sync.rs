//! Makes a runtime have what a Manifest's bundle says: its objects, and no others of its inventory.

use kube::ResourceExt;
use tidewatch_api::Manifest;

use super::{
    Stopped,
    apply::{Applied, Installer},
    is_crd,
};
use crate::{
    drive::{Lost, Shared, chain, gate::Gated},
    kcp::state::default_cr,
    plan::{
        manifest::{self as plan, Bundle, Definitions, Progress},
        object::ObjectRef,
        owners::Speaker,
        readiness::{self, Facts},
        transform,
    },
    stages::{Stage, stage},
};

/// What became of it.
pub(super) struct Synced {
    /// The Manifest with its status as it was written meanwhile.
    pub(super) manifest: Manifest,
    pub(super) applied: Applied,
    /// Objects of the version before that are not gone yet.
    pub(super) left: Vec<ObjectRef>,
    /// The inventory: the bundle's objects and those that are left.
    pub(super) objects: Vec<ObjectRef>,
}

impl Shared {
    /// Applies what is wanted and removes what is not any more. `first` is what the status says if the inventory grows.
    pub(super) async fn sync(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        mut bundle: Bundle,
        first: Progress,
    ) -> Result<Synced, Lost> {
        let before = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let gone = plan::prune(&before, &bundle.objects);
        let all = plan::union(&before, &bundle.objects);
        let mut manifest = manifest.clone();
        // Written before the first object is: whatever a crash leaves behind is in the inventory.
        if all.iter().any(|o| !before.iter().any(|b| b.same_object(o))) {
            let cr = super::cr_condition(&manifest, false);
            let status = plan::manifest_status(&manifest, &first, &all, cr, self.now());
            self.write_manifest_status(&manifest, &status).await?;
            manifest.status = Some(status);
        }
        let claim = |objects: &[ObjectRef]| {
            let owned: Vec<ObjectRef> = objects.iter().cloned().chain(default_cr(&manifest)).collect();
            self.state.write().owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);
        };
        self.journal.turn().await;
        claim(&all);
        self.mark_shared(kyma, &manifest, &mut bundle);

        let mut applied = Applied::default();
        let definitions = Definitions::of(&bundle.first);
        match manifest.terms() {
            Err(error) => applied.failed = Some(Stopped::for_good(chain(&error))),
            Ok(terms) => {
                let installer = Installer {
                    runtime,
                    standing: &self.standing,
                    kyma,
                    before: &before,
                    terms: &terms,
                    facts: Facts {
                        not_ready_since: readiness::not_ready_since(&manifest),
                        deadline: readiness::deadline_of(&terms),
                        ..Facts::default()
                    },
                    definitions: &definitions,
                    now: self.now(),
                };
                for phase in [bundle.first, bundle.main] {
                    applied.take(stage(Stage::Apply, installer.all(phase)).await);
                }
                stage(Stage::Apply, installer.look_at_definitions(&mut applied)).await;
                let served = applied.hold_back(definitions.sort(bundle.custom, &applied.judged));
                applied.take(stage(Stage::Apply, installer.all(served)).await);
            }
        }
        let mut left = gone;
        let mut kept = Vec::new();
        if applied.failed.is_none() {
            match stage(Stage::Delete, self.remove(kyma, &manifest, runtime, left.clone())).await {
                // A CRD that users have objects of stays theirs: the upgrade is complete without its removal.
                Ok(remaining) => {
                    let has_instances =
                        |(object, why): &(ObjectRef, Option<String>)| is_crd(&object.gvk) && why.is_some();
                    let (crds, rest): (Vec<_>, Vec<_>) = remaining.into_iter().partition(has_instances);
                    kept = crds.into_iter().map(|(object, _)| object).collect();
                    left = rest.into_iter().map(|(object, _)| object).collect();
                }
                Err(error) => applied.failed = Some(error.into()),
            }
        }
        let objects = plan::union(&plan::union(&left, &kept), &bundle.objects);
        // What was let go is not held against others any more.
        claim(&objects);
        Ok(Synced { manifest, applied, left, objects })
    }

    /// Marks objects that another Manifest has too for one of them.
    fn mark_shared(&self, kyma: &str, manifest: &Manifest, bundle: &mut Bundle) {
        let name = manifest.name_any();
        for object in bundle.iter_mut() {
            let Some(id) = ObjectRef::of(object) else { continue };
            let others = self.state.read().other_claims(kyma, &name, &id);
            let marked = plan::marked_for(&name, &others);
            if marked != name {
                transform::mark(object, (&self.config.namespace, marked));
            }
        }
    }
}
