//! One reconcile of a Manifest: its objects in the runtime.

mod apply;
mod default_cr;
mod remove;
mod source;
mod standing;

pub(super) use standing::Standing;

use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Manifest, ManifestStatus, State,
    names::{self, field_managers, finalizers},
};

use self::{
    apply::{Applied, Installer},
    default_cr::{cr_condition, create_default_cr},
    remove::remove,
};
use super::{
    Finish, Lost, NEXT_TRY, Shared,
    apply::ObjectError,
    chain, error_report,
    gate::{Gated, Held},
    kcp_writes::lost,
};
use crate::{
    kcp::state::default_cr,
    key::Report,
    plan::{
        manifest::{self as plan, Bundle, Progress},
        notice::{About, Kind, Notice},
        object::ObjectRef,
        owners::Speaker,
        readiness::{self, Facts, Readiness},
    },
    stages::{Stage, stage},
};

/// What a reconcile found out before it stopped.
pub(super) struct Stopped {
    pub(super) message: String,
    /// Whether trying again can help without anybody changing anything.
    pub(super) retryable: bool,
    /// Whether the client should be built anew.
    pub(super) discredits_client: bool,
    /// The kind of failure.
    pub(super) class: &'static str,
    /// It is no failure: nothing may be written now.
    pub(super) held: Option<Held>,
}

impl From<ObjectError> for Stopped {
    fn from(error: ObjectError) -> Self {
        Self {
            held: error.held(),
            message: error.message(),
            retryable: error.is_retryable(),
            discredits_client: error.discredits_client(),
            class: error.class(),
        }
    }
}

impl Stopped {
    const fn for_good(message: String) -> Self {
        Self { message, retryable: false, discredits_client: false, class: "final", held: None }
    }
}

impl Shared {
    pub(super) async fn reconcile_manifest(&self, kyma: &str, name: &str) -> Result<Finish, Lost> {
        let read = stage(Stage::ReadKcp, self.manifests().get_opt(name)).await;
        let manifest = read.map_err(|e| lost(format!("reading Manifest {name}"), e))?;
        let Some(manifest) = manifest else {
            self.state.write().owners.release(kyma, name);
            return Ok(Finish::Done);
        };
        if manifest.is_skipped() {
            return Ok(Finish::Done);
        }
        let runtime = match self.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) if manifest.metadata.deletion_timestamp.is_some() && why.cluster_is_gone() => {
                return match self.doubts(kyma).await? {
                    None => self.let_manifest_go(&manifest).await,
                    Some(wait) => Ok(wait),
                };
            }
            Err(why) => return self.stopped(&manifest, Stopped::for_good(why.message())).await,
        };
        if manifest.metadata.deletion_timestamp.is_some() {
            return self.delete_manifest(kyma, &manifest, &runtime).await;
        }
        self.hold(&manifest).await?;
        let bundle = match stage(Stage::Render, self.bundle_of(&manifest, &runtime)).await {
            Ok(bundle) => bundle,
            Err(stopped) => return self.stopped(&manifest, stopped).await,
        };
        self.install(kyma, &manifest, &runtime, bundle).await
    }

    /// Finalizers, before anything is created in the runtime.
    async fn hold(&self, manifest: &Manifest) -> Result<(), Lost> {
        let mut wanted = vec![finalizers::MANIFEST];
        if manifest.spec.resource.is_some() {
            wanted.push(finalizers::DEFAULT_CR);
        }
        if wanted.iter().all(|w| manifest.finalizers().iter().any(|f| f == w)) {
            return Ok(());
        }
        let name = manifest.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Manifest",
            "metadata": {"name": name, "uid": manifest.uid(), "finalizers": wanted}
        });
        self.apply_kcp(&self.manifests(), &name, field_managers::DEFAULT_CR, false, &body).await.map(drop)
    }

    async fn install(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        bundle: Bundle,
    ) -> Result<Finish, Lost> {
        let before = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let gone = plan::prune(&before, &bundle.objects);
        let all = plan::union(&before, &bundle.objects);
        // Written before the first object is: whatever a crash leaves behind is in the inventory.
        let manifest = if all.iter().any(|o| !before.iter().any(|b| b.same_object(o))) {
            let progress = Progress::Waiting("the module's objects are being applied".into());
            let status =
                plan::manifest_status(manifest, &progress, &all, cr_condition(manifest, false), self.now());
            self.write_manifest_status(manifest, &status).await?;
            &Manifest { status: Some(status), ..manifest.clone() }
        } else {
            manifest
        };
        let owned: Vec<ObjectRef> = all.iter().cloned().chain(default_cr(manifest)).collect();
        self.state.write().owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);

        let terms = match manifest.terms() {
            Ok(terms) => terms,
            Err(error) => return self.stopped(manifest, Stopped::for_good(chain(&error))).await,
        };
        let installer = Installer {
            runtime,
            standing: &self.standing,
            kyma,
            before: &before,
            terms: &terms,
            facts: Facts { not_ready_since: readiness::not_ready_since(manifest), ..Facts::default() },
            now: self.now(),
        };
        let mut applied = Applied::default();
        for phase in [bundle.first, bundle.main, bundle.custom] {
            applied.take(stage(Stage::Apply, installer.all(phase)).await);
        }
        let mut left = Vec::new();
        if applied.failed.is_none() {
            match stage(Stage::Delete, remove(runtime, gone)).await {
                Ok(remaining) => left = remaining,
                Err(error) => applied.failed = Some(error.into()),
            }
        } else {
            left = gone;
        }
        let cr = if applied.failed.is_none() {
            stage(Stage::Apply, create_default_cr(manifest, runtime)).await
        } else {
            Ok(Some(false))
        };
        let mut cr_there = None;
        match cr {
            Ok(there) => {
                cr_there = there;
                if there == Some(false) && applied.failed.is_none() {
                    applied.missing.get_or_insert("the kind of the default CR is not served yet".into());
                }
            }
            Err(error) => applied.failed = Some(error.into()),
        }

        let objects = plan::union(&left, &bundle.objects);
        let write = |progress: Progress| {
            plan::manifest_status(
                manifest,
                &progress,
                &objects,
                cr_condition(manifest, cr_there == Some(true)),
                self.now(),
            )
        };
        if let Some(stopped) = applied.failed {
            return self.stopped_with(kyma, manifest, stopped, write).await;
        }
        if let Some(what) = applied.missing {
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(Finish::Recheck(what));
        }
        if let Some(first) = left.first() {
            let what = format!("waiting for {first} of the previous version to be gone");
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(Finish::Recheck(what));
        }
        let (readiness, told) = (readiness::of_module(manifest, &applied.judged), applied.is_told());
        if let (Readiness::Ready, Some(first)) = (&readiness, applied.parked.first()) {
            let report = Report { state: State::Warning, message: first.message() };
            let status = write(Progress::Failed { state: report.state, message: report.message.clone() });
            self.write_manifest_status(manifest, &status).await?;
            let (about, message) = (About::Manifest(manifest.name_any()), report.message.clone());
            let notice = Notice { about, kind: Kind::Warning, reason: "FieldConflict", message };
            self.tell(kyma, None, &[notice]).await;
            return Ok(Finish::RecheckAt(first.until, Box::new(Finish::Settled(report))));
        }
        let status = write(Progress::Applied(readiness.clone()));
        self.write_manifest_status(manifest, &status).await?;
        Ok(match readiness {
            Readiness::Ready => Finish::Done,
            // The agent reports the workload's next change.
            Readiness::Processing(what) if told => Finish::Waiting(what),
            Readiness::Processing(what) => Finish::Recheck(what),
            Readiness::Error(message) if told => Finish::Settled(error_report(message)),
            Readiness::Error(message) => Finish::Failed(error_report(message), "unready"),
        })
    }

    /// Ends a reconcile that stopped before anything was applied: the inventory stays as it is.
    async fn stopped(&self, manifest: &Manifest, stopped: Stopped) -> Result<Finish, Lost> {
        let inventory = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let write =
            |progress: Progress| plan::manifest_status(manifest, &progress, &inventory, None, self.now());
        let kyma = manifest.kyma_name().unwrap_or_default().to_owned();
        self.stopped_with(&kyma, manifest, stopped, write).await
    }

    pub(super) async fn stopped_with(
        &self,
        kyma: &str,
        manifest: &Manifest,
        stopped: Stopped,
        write: impl FnOnce(Progress) -> ManifestStatus,
    ) -> Result<Finish, Lost> {
        if let Some(held) = stopped.held {
            return Err(held.into());
        }
        if stopped.discredits_client {
            self.runtimes.invalidate(kyma);
        }
        let class = stopped.class;
        let next =
            if stopped.retryable { NEXT_TRY } else { "tried again when the module or the runtime changes" };
        let report = Report { state: State::Error, message: format!("{}; {next}", stopped.message) };
        let status = write(Progress::Failed { state: report.state, message: report.message.clone() });
        self.write_manifest_status(manifest, &status).await?;
        Ok(if stopped.retryable { Finish::Failed(report, class) } else { Finish::Settled(report) })
    }
}
