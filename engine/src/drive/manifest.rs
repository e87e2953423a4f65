//! One reconcile of a Manifest: its objects in the runtime.

mod apply;
mod blockers;
mod causes;
mod default_cr;
mod force;
mod give_up;
mod hand_over;
mod remove;
mod rendered;
mod schemas;
mod source;
mod standing;
mod sync;
mod transforms;

pub(super) use rendered::Rendered;
pub(super) use standing::Standing;

use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Manifest, ManifestStatus, State,
    names::{self, field_managers, finalizers},
};

use self::{
    default_cr::{DefaultCr, cr_condition, create_default_cr},
    sync::Synced,
};
use super::{
    Finish, Lost, NEXT_TRY, Shared,
    apply::ObjectError,
    error_report,
    gate::{Gated, Held},
    kcp_writes::lost,
};
use crate::{
    key::Report,
    plan::{
        manifest::{self as plan, Bundle, Progress},
        notice::{About, Kind, Notice},
        object::Gvk,
        readiness::{self, Readiness},
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
            // A connection by which an answer has come is good.
            discredits_client: error.discredits_client() && !(error.is_unreachable() && error.is_answered()),
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
            self.journal.turn().await;
            self.state.write().owners.release(kyma, name);
            return Ok(Finish::Done);
        };
        if manifest.is_skipped() {
            return Ok(Finish::Done);
        }
        let force = self.forced(kyma, &manifest);
        let runtime = match self.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) if manifest.metadata.deletion_timestamp.is_some() && why.cluster_is_gone() => {
                return match self.doubts(kyma).await? {
                    None => self.let_manifest_go(&manifest).await,
                    Some(wait) => Ok(wait),
                };
            }
            Err(why) => {
                return match &force {
                    Some(force) => self.force_manifest(kyma, &manifest, None, force).await,
                    None => self.stopped(&manifest, Stopped::for_good(why.message())).await,
                };
            }
        };
        if manifest.is_unmanaged() {
            // Before anything that applies or deletes, however the Manifest is to end.
            return self.give_up(kyma, &manifest, &runtime, force.is_some()).await;
        }
        if let Some(force) = &force {
            return self.force_manifest(kyma, &manifest, Some(&runtime), force).await;
        }
        if manifest.metadata.deletion_timestamp.is_some() {
            self.journal.turn().await;
            let successor = self.state.read().successor(kyma, &manifest);
            if let Some(successor) = successor {
                return self.hand_over(kyma, &manifest, &successor, &runtime).await;
            }
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
        let first = Progress::Waiting("the module's objects are being applied".into());
        let Synced { manifest, mut applied, left, objects } =
            self.sync(kyma, manifest, runtime, bundle, first).await?;
        let manifest = &manifest;
        let cr = if applied.failed.is_none() {
            stage(Stage::Apply, create_default_cr(manifest, runtime)).await
        } else {
            Ok(DefaultCr::Unknown)
        };
        let mut cr_there = None;
        let mut cr_state = None;
        match cr {
            Ok(cr) => {
                cr_there = cr.there();
                if cr.is_anew(manifest) {
                    self.tell_anew(kyma, manifest, runtime).await;
                }
                cr_state = self.config.module_cr_state.then(|| cr.state(manifest)).flatten();
                if cr_there == Some(false) && applied.failed.is_none() {
                    applied.missing.get_or_insert("the kind of the default CR is not served yet".into());
                }
            }
            Err(error) => applied.failed = Some(error.into()),
        }

        let write = |progress: Progress| {
            let there = cr_condition(manifest, cr_there == Some(true));
            let status = plan::manifest_status(manifest, &progress, &objects, there, self.now());
            plan::with_cr_state(status, manifest, cr_state.as_ref(), self.now())
        };
        if let Some(stopped) = applied.failed {
            return self.stopped_with(kyma, manifest, stopped, write).await;
        }
        if let Some(what) = applied.missing.take() {
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(self.missed(kyma, runtime, what, &applied).await);
        }
        if let Some(first) = left.first() {
            let what = format!("waiting for {first} of the previous version to be gone");
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(Finish::Recheck(what));
        }
        let look = stage(Stage::ReadRuntime, self.causes(manifest, runtime, &mut applied)).await;
        let (readiness, unready) = (readiness::of_module(manifest, &applied.judged), applied.unready());
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
        if readiness == Readiness::Ready {
            return Ok(match status.state {
                State::Ready => Finish::Done,
                // What its default CR says; each change of that is an event.
                _ => Finish::Waiting(said(&status)),
            });
        }
        // The agent reports the next change of state.
        let told = self.is_told_of_status(kyma, runtime, &unready).await;
        Ok(causes::looking_again(
            look,
            match readiness {
                Readiness::Processing(what) if unready.is_empty() => Finish::Waiting(what),
                // But not that there was none for too long; a Deployment tells that itself.
                Readiness::Processing(what) if told => Finish::RecheckAt(
                    self.now() + causes::deadline(manifest),
                    Box::new(Finish::Waiting(what)),
                ),
                Readiness::Processing(what) => Finish::Recheck(what),
                Readiness::Error(message) if unready.is_empty() || told => {
                    Finish::Settled(error_report(message))
                }
                Readiness::Error(message) => Finish::Failed(error_report(message), "unready"),
                Readiness::Ready => Finish::Done,
            },
        ))
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
        self.journal.turn().await;
        if stopped.discredits_client {
            self.runtimes.invalidate(kyma);
        }
        let class = stopped.class;
        let next =
            if stopped.retryable { NEXT_TRY } else { "tried again when the module or the runtime changes" };
        let message = format!("{}; {next}", stopped.message);
        // What is on its way out stays so, whatever goes wrong with it.
        let (state, progress) = if manifest.metadata.deletion_timestamp.is_some() {
            (State::Deleting, Progress::Deleting(message.clone()))
        } else {
            (State::Error, Progress::Failed { state: State::Error, message: message.clone() })
        };
        let report = Report { state, message };
        let status = write(progress);
        self.write_manifest_status(manifest, &status).await?;
        Ok(if stopped.retryable { Finish::Failed(report, class) } else { Finish::Settled(report) })
    }
}

fn said(status: &ManifestStatus) -> String {
    status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default()
}

fn is_crd(gvk: &Gvk) -> bool {
    gvk.group == "apiextensions.k8s.io" && gvk.kind == "CustomResourceDefinition"
}
