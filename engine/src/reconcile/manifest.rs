//! Reconciles Manifests: applies and removes a module's objects in its runtime.

mod apply;
mod blockers;
mod causes;
mod contents;
mod default_cr;
pub(crate) mod failures;
mod force;
mod give_up;
mod hand_over;
pub(crate) mod hold;
mod incomplete;
mod inside;
mod lineage;
pub(crate) mod passed;
pub(crate) mod remove;
pub(crate) mod remover;
pub(crate) mod rendered;
mod schemas;
pub(crate) mod source;
mod status;
mod stray;
mod stuck;
pub(crate) mod sync;
pub(crate) mod told;
mod transforms;
mod work;

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Manifest, State,
    names::{self, field_managers},
    readiness::Readiness,
};
use tidewatch_deployer::{bundle::Bundle, readiness};
use tidewatch_planner::{
    force::Forced,
    manifest::{self, default_cr, held_by},
    manifest_status::{self, Progress},
    notice::{About, Notice},
    writers::has_own_inventory,
};

use self::{
    default_cr::{DefaultCr, cr_condition, create_default_cr},
    failures::ManifestFailures,
    hold::Holds,
    inside::fuller,
    passed::{Mark, Only, Passed, Passes, asked, named, place},
    status::{not_looked, said},
    sync::Synced,
    work::Work,
};
use super::{owners::shares_with, suspended::Suspended};
use crate::{
    clusters::{Clusters, Gated},
    config::EngineConfig,
    error::Error,
    events::Notifier,
    gate::Mode,
    index::SecretRef,
    kcp::Kcp,
    key::WorkKey,
    outcome::{Ending, Outcome, error_report, found_report},
    pace::RECHECK_RARELY,
    reconcile::{
        manifest::{remove::Removal, source::Bundles, sync::Syncer, told::Watched},
        owners::Owners,
        seen::Seen,
    },
    stages::{Stage, stage},
    trigger::{Trigger, Triggers, is_of_definition},
};

/// Reconciles Manifests: the objects of one module in one runtime.
pub(crate) struct ManifestReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) watched: Arc<Watched>,
    pub(crate) failures: Arc<ManifestFailures>,
    pub(crate) bundles: Arc<Bundles>,
    pub(crate) removal: Removal,
    pub(crate) syncer: Arc<Syncer>,
    pub(crate) passes: Arc<Passes>,
    pub(crate) holds: Holds,
    pub(crate) seen: Arc<Seen>,
    pub(crate) notifier: Arc<Notifier>,
}

impl ManifestReconciler {
    pub(super) async fn reconcile(
        &self,
        key: &WorkKey,
        (kyma, name): (&str, &str),
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        let named = named(key, triggers.listed, triggers.count);
        let passed = self.passes.take(kyma, name).filter(|_| named.is_some());
        let Some((manifest, secrets)) = self.manifest_of(kyma, name, passed.as_ref()).await? else {
            self.kcp.index_mut().owners.release(kyma, name);
            return Ok(Outcome::done());
        };
        if manifest.is_skipped() {
            self.watched.unwatch(kyma, name);
            return Ok(Outcome::done());
        }
        if let Some(finish) = self.leave_orphaned(kyma, &manifest).await? {
            return Ok(finish);
        }
        let manifest = self.removal.with_remembered(manifest);
        let force = self.removal.forced(kyma, &manifest).await;
        let runtime = match self.clusters.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) if manifest.metadata.deletion_timestamp.is_some() && why.cluster_is_gone() => {
                return match self.clusters.confirm_deleted(kyma).await? {
                    None => self.removal.release_with_cluster(&manifest).await,
                    Some(wait) => Ok(wait),
                };
            }
            Err(why) => {
                return match &force {
                    Some(force) => {
                        let whole = has_own_inventory(&manifest);
                        Box::pin(self.removal.force(kyma, (&manifest, whole), None, force)).await
                    }
                    None => self.failures.failed(&manifest, Error::Final(why.message())).await,
                };
            }
        };
        match stage(Stage::ReadRuntime, self.owners.occupant(kyma, &runtime)).await {
            Ok(None) => {}
            // The runtime belongs to another Kyma, so no object in it is this Kyma's.
            Ok(Some(_)) if manifest.metadata.deletion_timestamp.is_some() => {
                return self.removal.release_manifest(&manifest).await;
            }
            Ok(Some(other)) => {
                return self.failures.failed(&manifest, Error::Final(shares_with(&other))).await;
            }
            Err(error) => return self.failures.failed(&manifest, error.into()).await,
        }
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
        let (bundle, given) = match stage(Stage::Render, self.bundles.bundle(&manifest, &runtime)).await {
            Ok(bundle) => bundle,
            Err(error) => return self.failures.unrendered(&manifest, error).await,
        };
        if !is_installed {
            self.add_finalizers(&mut manifest).await?;
        }
        let mark = Mark { given, ..self.mark(&manifest, &secrets) };
        let only = passed.and_then(|passed| Only::after(passed, mark, named));
        let again =
            triggers.listed.iter().any(|cause| matches!(cause, Trigger::Retry { key: of, .. } if of == key));
        let defined = triggers.may_include(is_of_definition);
        self.install(Work { key, kyma, mark, only, again, defined }, &manifest, &runtime, bundle).await
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
            return Box::pin(self.removal.force(kyma, (&manifest, whole), Some(runtime), force)).await;
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
    /// Uses the watched Manifest only if it is up to date and matches the last pass. Otherwise reads it from KCP.
    async fn manifest_of(
        &self,
        kyma: &str,
        name: &str,
        passed: Option<&Passed>,
    ) -> Result<Option<(Manifest, Vec<SecretRef>)>, Error> {
        let (secrets, watched) = {
            let state = self.kcp.index();
            (state.secrets_of(kyma), passed.and_then(|_| state.up_to_date(name)))
        };
        if let Some((passed, manifest)) = passed.zip(watched)
            && self.mark(&manifest, &secrets) == (Mark { given: 0, ..passed.mark })
            && has_own_inventory(&manifest)
        {
            return Ok(Some((manifest, secrets)));
        }
        let read = stage(Stage::ReadKcp, self.kcp.manifests().get_opt(name)).await;
        let manifest = read.map_err(|e| Error::kcp(format!("reading Manifest {name}"), e))?;
        Ok(manifest.map(|manifest| (manifest, secrets)))
    }

    /// Returns the mark as far as it is known before rendering.
    fn mark(&self, manifest: &Manifest, secrets: &[SecretRef]) -> Mark {
        let asked = asked(manifest, self.config.pull_secret.as_deref());
        Mark { place: place(manifest, secrets), asked, given: 0 }
    }

    /// Adds the finalizers. Call it before anything is created in the runtime.
    async fn add_finalizers(&self, manifest: &mut Manifest) -> Result<(), Error> {
        let wanted = held_by(manifest);
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

    async fn install(
        &self,
        work: Work<'_>,
        manifest: &Manifest,
        runtime: &Gated,
        bundle: Bundle,
    ) -> Result<Outcome, Error> {
        let first = Progress::Waiting(manifest::APPLYING.into());
        let Synced { manifest, mut applied, left, going, objects, gone, only, contents } =
            self.syncer.sync(&work, manifest, runtime, bundle, first).await?;
        let Work { key, kyma, mark, again, .. } = &work;
        let (kyma, mark, again) = (*kyma, *mark, *again);
        let manifest = &manifest;
        let cr_id = default_cr(manifest);
        let named = |only: &Only| cr_id.as_ref().is_some_and(|cr| only.names(cr));
        let cr = if let Some(only) = only.as_ref().filter(|only| !named(only)) {
            Ok(only.cr())
        } else if applied.failed.as_ref().is_none_or(Error::is_of_one_object) {
            stage(
                Stage::Apply,
                create_default_cr(manifest, runtime, |cr, live, is_made| {
                    if is_made { self.seen.wrote(key, cr, live) } else { self.seen.saw(key, cr, live) }
                }),
            )
            .await
        } else {
            Ok(DefaultCr::Unknown)
        };
        let (mut cr_there, mut only_cr) = (None, false);
        let mut cr_said = None;
        let unknown = !matches!(&cr, Ok(known) if *known != DefaultCr::Unknown);
        match cr {
            Ok(cr) => {
                cr_there = cr.there();
                if cr.is_anew(manifest) {
                    Box::pin(self.notify_recreated(kyma, manifest, runtime)).await;
                }
                cr_said = self.config.module_cr_state.then(|| cr.said()).flatten();
                if cr_there == Some(false) && applied.failed.is_none() {
                    only_cr = applied.missing.is_none();
                    applied.missing.get_or_insert("the kind of the default CR is not served yet".into());
                    if let Some(cr) = &cr_id {
                        applied.awaits_kind(&cr.gvk.group, &objects);
                    }
                }
            }
            Err(error) if error.is_of_leaving_namespace() => applied.stuck.extend(cr_id.clone()),
            Err(error) if error.is_of_webhook() => applied.waits_for(error.message()),
            // The first failure is reported.
            Err(error) => {
                applied.failed.get_or_insert_with(|| error.into());
            }
        }

        if applied.failed.is_none()
            && let Some(manager) = manifest::manager_beside(manifest, &objects)
        {
            let judging = self.judge_manager(manifest, runtime, (&manager, &objects), &mut applied);
            match stage(Stage::ReadRuntime, judging).await {
                Ok(()) => {}
                Err(error) if error.is_of_webhook() => applied.waits_for(error.message()),
                Err(error) => applied.failed = Some(error.into()),
            }
        }
        let fresh = self.watched.watch(&work, &manifest.name_any(), &applied) || work.defined;
        let cr_state = cr_id.clone().zip(cr_said.clone());
        let jobs_completed = applied.jobs_completed;
        let write = |progress: Progress| {
            if unknown {
                return not_looked(manifest, &progress, &objects, self.kcp.now());
            }
            let there = cr_condition(manifest, Some(cr_there == Some(true)));
            let status =
                manifest_status::manifest_status(manifest, &progress, &objects, there, self.kcp.now());
            let status = if jobs_completed {
                manifest_status::with_jobs_completed(status, manifest, self.kcp.now())
            } else {
                status
            };
            manifest_status::with_cr_state(status, manifest, cr_state.as_ref(), self.kcp.now())
        };
        if let Some(gone) = gone.as_ref().filter(|_| !unknown && applied.only_fails()) {
            let unready = applied.failing.iter().chain(applied.not_ready()).cloned().collect();
            let contents = Arc::clone(&contents);
            let passed =
                Passed { mark, contents, unready, gone: gone.clone(), cr: cr_there, said: cr_said.clone() };
            self.keep(kyma, manifest, passed);
        }
        if let Some(error) = applied.take_failed() {
            // A Ready module stays Ready on a transient failure: the next retry often succeeds.
            let is_ready = manifest.status.as_ref().is_some_and(|status| status.state == State::Ready);
            if error.is_transient() && is_ready && !again {
                let (report, next) = (error_report(error.to_string()), error.retry());
                return Ok(Outcome { state: Ending::Failed(report), next, due: None });
            }
            return self.failures.failed_with(kyma, manifest, error, write).await;
        }
        let leaving = async |what: String| self.watched.leaving(kyma, runtime, going.as_deref(), what).await;
        if !applied.stuck.is_empty() {
            let what = applied.missing.clone().unwrap_or_default();
            let mut rest = self.missed(kyma, runtime, what, &applied.awaited, fresh).await;
            if !left.is_empty() && leaving(String::new()).await.has_pace(RECHECK_RARELY) {
                rest = Outcome::recheck_rarely(String::new());
            }
            return Box::pin(self.left_out(manifest, runtime, &applied, rest, write)).await;
        }
        if let Some(what) = applied.missing.take() {
            let mut finish = self.missed(kyma, runtime, what.clone(), &applied.awaited, fresh).await;
            // The module's operator usually creates the kind within moments.
            if only_cr && finish.has_pace(RECHECK_RARELY) {
                finish = Outcome::recheck_soon(finish.message().to_owned());
            }
            return Box::pin(self.incomplete(manifest, runtime, applied, (what, finish), write)).await;
        }
        if let Some(first) = left.first() {
            let what = format!("waiting for {first} of the previous version to be gone");
            let finish = leaving(what.clone()).await;
            return Box::pin(self.incomplete(manifest, runtime, applied, (what, finish), write)).await;
        }
        let looked = stage(Stage::ReadRuntime, self.causes(manifest, runtime, &mut applied)).await;
        let (readiness, unready) =
            (readiness::of_module(manifest.spec.manager.as_ref(), &applied.judged), applied.unready());
        let parked = applied.parked.iter().find(|one| !one.is_trial()).or(applied.parked.first());
        if let (Readiness::Ready, Some(first)) = (&readiness, parked) {
            let report = found_report(State::Warning, first.message());
            let warned = manifest.status.as_ref().is_some_and(|status| status.state == State::Warning);
            if first.is_trial() && warned {
                // The reported warning is still valid until the trial ends.
                return Ok(Outcome::failed(report).due_at(Some(first.until)));
            }
            let status = write(Progress::Failed { state: report.state, message: report.message.clone() });
            self.kcp.write_manifest_status(manifest, &status).await?;
            self.notify_conflict(kyma, manifest, first).await;
            return Ok(Outcome::failed(report).due_at(Some(first.until)));
        }
        // A suspended object may be the reason. During a trial, the previous message stays.
        let conflict = parked.filter(|one| !one.is_trial());
        let before = manifest.status.as_ref().map(said).filter(|_| parked.is_some()).unwrap_or_default();
        let stays = manifest.status.as_ref().map(said).unwrap_or_default();
        let besides = |what: &str| match conflict {
            Some(one) => format!("{what}; {}", one.message()),
            None => match before.find(&format!("{what}; ")) {
                Some(at) => before[at..].to_owned(),
                None => fuller(&stays, what).to_owned(),
            },
        };
        let told = match &readiness {
            Readiness::Ready => Readiness::Ready,
            Readiness::Processing(what) => Readiness::Processing(besides(what)),
            Readiness::Warning(what) => Readiness::Warning(besides(what)),
            Readiness::Error(what) => Readiness::Error(besides(what)),
        };
        let status = write(Progress::Applied(told));
        let held = self.write_status(manifest, &status, looked.found).await?;
        if let Some(gone) = gone.filter(|_| applied.is_clean()) {
            let unready = applied.not_ready().cloned().collect();
            self.keep(kyma, manifest, Passed { mark, contents, unready, gone, cr: cr_there, said: cr_said });
        }
        if let Some((left, Readiness::Processing(what))) = held.zip(Some(&readiness)) {
            return Ok(Outcome::after(left, what.clone()));
        }
        if readiness == Readiness::Ready {
            return Ok(match status.state {
                State::Ready => Outcome::done(),
                // The state comes from the default CR. Each change of it is an event.
                _ => Outcome::waiting(said(&status)),
            });
        }
        if let Some(conflict) = conflict {
            self.notify_conflict(kyma, manifest, conflict).await;
        }
        let told = self.watched.watches_status(kyma, runtime, &unready).await;
        let finish = match readiness {
            // The Deployment's own deadline applies only if the module does not set one.
            Readiness::Processing(what) | Readiness::Warning(what)
                if unready.is_empty() && inside::deadline(manifest) == readiness::DEADLINE =>
            {
                Outcome::waiting(what)
            }
            // The agent reports changes, but not that a change failed to come before the deadline.
            Readiness::Processing(what) | Readiness::Warning(what) if told => {
                let deadline =
                    self.kcp.now().saturating_add(inside::deadline(manifest)).unwrap_or(Timestamp::MAX);
                Outcome::waiting(what).due_at(Some(deadline))
            }
            Readiness::Processing(what) | Readiness::Warning(what) => Outcome::recheck_soon(what),
            Readiness::Error(message) if unready.is_empty() || told => {
                Outcome::failed(found_report(State::Error, message))
            }
            Readiness::Error(message) => {
                Outcome::retried(found_report(State::Error, message), "unready", None)
            }
            Readiness::Ready => Outcome::done(),
        };
        // When a suspension ends, the object is reverted one more time.
        Ok(finish.if_waiting_due_by(looked.again).due_by(parked.map(|one| one.until)))
    }

    /// Keeps the result of this pass for the next one, in live mode only.
    fn keep(&self, kyma: &str, manifest: &Manifest, passed: Passed) {
        if matches!(self.kcp.gate.mode(), Mode::Live) {
            self.passes.put(kyma, &manifest.name_any(), passed);
        }
    }

    async fn notify_conflict(&self, kyma: &str, manifest: &Manifest, conflict: &Suspended) {
        let (about, message) = (About::Manifest(manifest.name_any()), conflict.message());
        if !conflict.is_trial() {
            tracing::warn!(
                kyma,
                manifest = manifest.name_any(),
                detail = message,
                "an object is left as somebody else makes it"
            );
        }
        let notice = Notice::warning(about, "FieldConflict", message);
        let _alone = self.notifier.notify(kyma, None, &[notice]).await;
    }

    /// Notifies the runtime's user that the deleted default CR was created again, and how to prevent that.
    pub(super) async fn notify_recreated(&self, kyma: &str, manifest: &Manifest, runtime: &Gated) {
        let cr = default_cr(manifest).map(|cr| cr.to_string()).unwrap_or_default();
        let module = manifest.module_name().unwrap_or_default();
        let notice = Notice::warning(
            About::RuntimeKyma,
            "DefaultCRRecreated",
            format!(
                "{cr}, the default custom resource of module '{module}', was deleted and is made anew; with customResourcePolicy: \
                 Ignore at the module it stays away"
            ),
        );
        self.notifier.notify_user(kyma, runtime, notice).await;
    }
}

#[cfg(test)]
mod tests;
