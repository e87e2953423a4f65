//! Installs a module: applies its objects and its default CR, judges them, and reports the result.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, State,
    object::{Gvk, ObjectId, ObjectRef},
    readiness::Readiness,
};
use tidewatch_deployer::{bundle::Bundle, namespace::terminating, readiness};
use tidewatch_planner::{
    manifest::{self, default_cr},
    manifest_status::Progress,
    notice::{About, Notice},
};

use super::{
    ManifestReconciler,
    agent_watches::namespace_kind,
    apply::Applied,
    default_cr::{DefaultCr, DefaultCrReport, create_default_cr},
    scope::{LastSync, SyncScope},
    sync::Synced,
    verdict::{
        Findings, NamespaceFound, PassStatus, Verdict, conclude, conclude_incomplete, conclude_terminating,
        due_with_status, namespaces_of,
    },
    work::Work,
};
use crate::{
    clusters::{Gated, objects},
    error::Error,
    gate::Mode,
    outcome::{Ending, Outcome, error_report},
    pace::RECHECK_RARELY,
    reconcile::suspended::Suspended,
    stages::{Stage, stage},
};

/// Maximum number of terminating namespaces to read per module.
const NAMESPACES: usize = 4;

/// A pass over a module whose objects are applied.
struct Pass<'a> {
    work: &'a Work<'a>,
    runtime: &'a Gated,
    manifest: &'a Manifest,
    status: PassStatus<'a>,
    /// Objects of the previous version that still exist.
    remaining: &'a [ObjectRef],
    /// The kinds in deletion; `None` if the wait is for more than deletions.
    deleting: Option<&'a [Gvk]>,
    /// Whether the agent was asked to watch more: an event may have been missed.
    has_new_watches: bool,
}

/// What a later pass may rely on if this one leaves nothing undone.
struct SyncResult<'a> {
    desired: HashMap<ObjectId, u64>,
    /// Removed objects still in KCP's inventory; `None` if a removal is incomplete.
    removed: Option<&'a [ObjectRef]>,
    cr: &'a DefaultCrReport,
}

impl ManifestReconciler {
    pub(super) async fn install(
        &self,
        work: Work<'_>,
        manifest: &Manifest,
        runtime: &Gated,
        bundle: Bundle,
    ) -> Result<Outcome, Error> {
        let first = Progress::Waiting(manifest::APPLYING.into());
        let Synced { manifest, mut applied, remaining, deleting, objects, removed, scope, desired } =
            self.syncer.sync(&work, manifest, runtime, bundle, first).await?;
        let cr =
            self.apply_default_cr(&work, &manifest, runtime, scope.as_ref(), &mut applied, &objects).await;
        self.judge_other_manager(&manifest, runtime, &objects, &mut applied).await;
        let has_new_watches =
            self.watched.watch(&work, &manifest.name_any(), &applied) || work.definitions_changed;
        let status = PassStatus {
            manifest: &manifest,
            objects: &objects,
            cr: &cr,
            jobs_completed: applied.jobs_completed,
            now: self.kcp.now(),
        };
        let (manifest, remaining, deleting) = (&manifest, remaining.as_slice(), deleting.as_deref());
        let pass = Pass { work: &work, runtime, manifest, status, remaining, deleting, has_new_watches };
        let result = SyncResult { desired, removed: removed.as_deref(), cr: &cr };
        if cr.is_known && applied.only_fails() {
            let unready = applied.failing.iter().chain(applied.not_ready()).map(ObjectId::from).collect();
            self.remember(&pass, result, unready);
            return self.end_failed(&pass, applied).await;
        }
        if applied.failed.is_some() {
            return self.end_failed(&pass, applied).await;
        }
        if !applied.terminating.is_empty() {
            return Box::pin(self.end_terminating(&pass, applied)).await;
        }
        if let Some(missing) = applied.missing.take() {
            let mut wait = self.wait_for_objects(&pass, missing.clone(), &applied).await;
            // The module's operator usually creates the kind of the default CR within moments.
            if cr.is_alone_missing && wait.has_pace(RECHECK_RARELY) {
                wait = Outcome::recheck_soon(wait.message().to_owned());
            }
            return Box::pin(self.end_incomplete(&pass, applied, &missing, wait)).await;
        }
        if let Some(first) = pass.remaining.first() {
            let awaited = format!("waiting for {first} of the previous version to be gone");
            let wait = self.wait_for_deletions(&pass, awaited.clone()).await;
            return Box::pin(self.end_incomplete(&pass, applied, &awaited, wait)).await;
        }
        self.end_applied(&pass, applied, result).await
    }

    /// Creates the default CR if it is missing. An earlier pass may know its state.
    async fn apply_default_cr(
        &self,
        work: &Work<'_>,
        manifest: &Manifest,
        runtime: &Gated,
        scope: Option<&SyncScope>,
        applied: &mut Applied,
        objects: &[ObjectRef],
    ) -> DefaultCrReport {
        let id = default_cr(manifest);
        let is_named = |scope: &SyncScope| id.as_ref().is_some_and(|cr| scope.names(cr));
        let cr = if let Some(scope) = scope.filter(|scope| !is_named(scope)) {
            Ok(scope.cr())
        } else if applied.failed.as_ref().is_none_or(Error::is_of_one_object) {
            let note = |cr: &ObjectRef, live: &_, is_made| {
                if is_made {
                    self.echoes.record_write(work.key, cr, live);
                } else {
                    self.echoes.record_read(work.key, cr, live);
                }
            };
            stage(Stage::Apply, create_default_cr(manifest, runtime, note)).await
        } else {
            Ok(DefaultCr::Unknown)
        };
        match cr {
            Ok(cr) => {
                if cr.is_anew(manifest) {
                    Box::pin(self.notify_recreated(work.kyma, manifest, runtime)).await;
                }
                let mut report = DefaultCrReport::new(id, &cr, self.config.module_cr_state);
                if report.exists == Some(false) && applied.failed.is_none() {
                    report.is_alone_missing = applied.missing.is_none();
                    applied.missing.get_or_insert("the kind of the default CR is not served yet".into());
                    if let Some(cr) = &report.id {
                        applied.awaits_kind(&cr.gvk.group, objects);
                    }
                }
                report
            }
            Err(error) => {
                if error.is_namespace_terminating() {
                    applied.terminating.extend(id.clone());
                } else if error.is_of_webhook() {
                    applied.set_unreported_wait(error.message());
                } else {
                    // The first failure is reported.
                    applied.failed.get_or_insert_with(|| error.into());
                }
                DefaultCrReport::unknown(id)
            }
        }
    }

    /// Judges a module manager that is not among the module's objects.
    async fn judge_other_manager(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        objects: &[ObjectRef],
        applied: &mut Applied,
    ) {
        if applied.failed.is_some() {
            return;
        }
        let Some(manager) = manifest::external_manager(manifest, objects) else { return };
        let judging = self.judge_manager(manifest, runtime, &manager, objects, applied);
        match stage(Stage::ReadRuntime, judging).await {
            Ok(()) => {}
            Err(error) if error.is_of_webhook() => applied.set_unreported_wait(error.message()),
            Err(error) => applied.failed = Some(error.into()),
        }
    }

    async fn end_failed(&self, pass: &Pass<'_>, mut applied: Applied) -> Result<Outcome, Error> {
        let Some(error) = applied.take_failed() else { return Ok(Outcome::done()) };
        // A Ready module stays Ready on a transient failure: the next retry often succeeds.
        let is_ready = pass.manifest.status.as_ref().is_some_and(|status| status.state == State::Ready);
        if error.is_transient() && is_ready && !pass.work.is_retry {
            let (report, next) = (error_report(error.to_string()), error.retry());
            return Ok(Outcome { state: Ending::Failed(report), next, due: None });
        }
        let status = |progress: Progress| pass.status.of(&progress);
        self.failures.failed_with(pass.work.kyma, pass.manifest, error, status).await
    }

    /// Ends a pass that skipped objects in terminating namespaces, and continued with the others.
    ///
    /// The agent watches namespaces meanwhile, so their end and their changed conditions are events. The reported remaining objects
    /// are as of the last such event.
    async fn end_terminating(&self, pass: &Pass<'_>, applied: Applied) -> Result<Outcome, Error> {
        let missing = applied.missing.clone().unwrap_or_default();
        let mut rest = self.wait_for_objects(pass, missing, &applied).await;
        if !pass.remaining.is_empty()
            && self.wait_for_deletions(pass, String::new()).await.has_pace(RECHECK_RARELY)
        {
            rest = Outcome::recheck_rarely(String::new());
        }
        let mut namespaces = Vec::new();
        for name in namespaces_of(&applied.terminating).into_iter().take(NAMESPACES) {
            let id = ObjectRef { gvk: namespace_kind(), namespace: String::new(), name: name.to_owned() };
            let live = stage(Stage::ReadRuntime, objects::get(pass.runtime, &id)).await;
            let is_read = live.is_ok();
            let terminating = live.ok().flatten().and_then(|live| terminating(name, &live));
            namespaces.push(NamespaceFound { name: name.to_owned(), terminating, is_read });
        }
        let kinds = [namespace_kind()];
        let has_events = self.watched.watches_status_of_all(pass.work.kyma, pass.runtime, &kinds).await;
        let verdict = conclude_terminating(
            &pass.status,
            &applied.terminating,
            &namespaces,
            &applied.suspended,
            &rest,
            has_events,
        );
        tracing::debug!(
            manifest = pass.manifest.name_any(),
            detail = verdict.outcome.message(),
            "objects were skipped"
        );
        let delay = self.report(pass, &verdict).await?;
        Ok(with_delay(verdict.outcome, delay, self.kcp.now()))
    }

    /// Ends a pass that waits for an object, and reports failures of the existing ones.
    async fn end_incomplete(
        &self,
        pass: &Pass<'_>,
        mut applied: Applied,
        awaited: &str,
        wait: Outcome,
    ) -> Result<Outcome, Error> {
        let searched = self.look_for_causes(pass, &mut applied).await;
        let readiness = module_readiness(pass.manifest, &applied);
        let verdict = conclude_incomplete(&pass.status, readiness, searched, awaited, wait);
        let delay = self.report(pass, &verdict).await?;
        Ok(with_delay(verdict.outcome, delay, self.kcp.now()))
    }

    async fn end_applied(
        &self,
        pass: &Pass<'_>,
        mut applied: Applied,
        result: SyncResult<'_>,
    ) -> Result<Outcome, Error> {
        let searched = self.look_for_causes(pass, &mut applied).await;
        let readiness = module_readiness(pass.manifest, &applied);
        let is_processing = matches!(readiness, Readiness::Processing(_));
        let unready = applied.unready();
        let has_events = readiness != Readiness::Ready
            && self.watched.watches_status(pass.work.kyma, pass.runtime, &unready).await;
        let others_unready = !unready.is_empty();
        let (status, suspended) = (&pass.status, applied.suspended.as_slice());
        let verdict =
            conclude(&Findings { status, readiness, suspended, others_unready, has_events, searched });
        let delay = self.report(pass, &verdict).await?;
        if applied.is_clean() {
            self.remember(pass, result, applied.not_ready().map(ObjectId::from).collect());
        }
        Ok(match delay {
            Some(left) if is_processing => Outcome::after(left, verdict.outcome.message().to_owned()),
            _ => verdict.outcome,
        })
    }

    /// Writes a verdict's status, and notifies its conflict. Returns how long the status is delayed.
    async fn report(&self, pass: &Pass<'_>, verdict: &Verdict<'_>) -> Result<Option<Duration>, Error> {
        let Some(status) = &verdict.status else { return Ok(None) };
        let delay = self.write_status(pass.work.key, pass.manifest, status, verdict.may_delay).await?;
        if let (None, Some(conflict)) = (delay, verdict.conflict) {
            self.notify_conflict(pass.work.kyma, pass.manifest, conflict).await;
        }
        Ok(delay)
    }

    async fn look_for_causes(&self, pass: &Pass<'_>, applied: &mut Applied) -> super::causes::CauseSearch {
        stage(Stage::ReadRuntime, self.causes(pass.work.key, pass.manifest, pass.runtime, applied)).await
    }

    /// The outcome of a wait for objects that must exist first.
    async fn wait_for_objects(&self, pass: &Pass<'_>, message: String, applied: &Applied) -> Outcome {
        self.wait_outcome(pass.work.kyma, pass.runtime, message, &applied.awaited, pass.has_new_watches).await
    }

    async fn wait_for_deletions(&self, pass: &Pass<'_>, message: String) -> Outcome {
        self.watched.deletion_outcome(pass.work.kyma, pass.runtime, pass.deleting, message).await
    }

    /// Keeps the result of this pass for the next one, in live mode only.
    fn remember(&self, pass: &Pass<'_>, result: SyncResult<'_>, unready: HashSet<ObjectId>) {
        let SyncResult { desired, removed: Some(removed), cr } = result else { return };
        if matches!(self.kcp.gate.mode(), Mode::Live) {
            let sync = LastSync {
                inputs: pass.work.inputs,
                desired,
                unready,
                removed: removed.iter().map(ObjectId::from).collect(),
                cr_exists: cr.exists,
                cr_state: cr.state.clone(),
            };
            self.states.put_last_sync(pass.work.key, sync, pass.status.objects);
        }
    }

    async fn notify_conflict(&self, kyma: &str, manifest: &Manifest, conflict: &Suspended) {
        let (about, message) = (About::Manifest(manifest.name_any()), conflict.message());
        if !conflict.is_trial() {
            tracing::warn!(
                kyma,
                manifest = manifest.name_any(),
                detail = message,
                "an object is not reverted for a while, because another writer keeps changing it"
            );
        }
        let notice = Notice::warning(about, "FieldConflict", message);
        let _alone = self.notifier.notify(kyma, None, &[notice]).await;
    }

    /// Notifies the runtime's user that the deleted default CR was created again, and how to prevent that.
    async fn notify_recreated(&self, kyma: &str, manifest: &Manifest, runtime: &Gated) {
        let cr = default_cr(manifest).map(|cr| cr.to_string()).unwrap_or_default();
        let module = manifest.module_name().unwrap_or_default();
        let message = format!(
            "{cr}, the default custom resource of module '{module}', was deleted and is made anew; with customResourcePolicy: \
             Ignore at the module it stays away"
        );
        let notice = Notice::warning(About::RuntimeKyma, "DefaultCRRecreated", message);
        self.notifier.notify_user(kyma, runtime, notice).await;
    }
}

fn module_readiness(manifest: &Manifest, applied: &Applied) -> Readiness {
    readiness::of_module(manifest.spec.manager.as_ref(), &applied.judged)
}

fn with_delay(outcome: Outcome, delay: Option<Duration>, now: jiff::Timestamp) -> Outcome {
    match delay {
        Some(left) => due_with_status(outcome, left, now),
        None => outcome,
    }
}
