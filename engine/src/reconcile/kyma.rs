//! Reconciles a Kyma.

pub(crate) mod execute;
pub(crate) mod failures;
pub(crate) mod needs;
mod remote;
mod unmanage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, Manifest, Module, ModuleTemplate, State,
    names::{self, field_managers, finalizers, labels},
};
use tidewatch_planner::{
    access::staying_templates,
    gates::Facts,
    kyma::{Input, Plan, Sources, module_notices, plan, report_pull_secret, report_refused, with_deleting},
    notice::{About, Notice},
    policy::{Policy, PolicyEffect, apply},
    requirements::required,
    versions::{Fault, ResolvedModule, choose},
};

use super::{
    owners::shares_with,
    prepare::{Schema, is_of_prepared},
    sources::rest_of,
    suspended::Suspended,
};
use crate::{
    clusters::{Clusters, Gated, objects::ObjectError},
    config::EngineConfig,
    error::Error,
    events::Notifier,
    kcp::Kcp,
    key::{Queue, Report},
    outcome::{Outcome, error_report, found_report},
    queue::{Class, Push},
    reconcile::{
        followups::FollowUps,
        kyma::{execute::Executor, failures::Failures},
        kyma_deletion::KymaDeletion,
        owners::RuntimeOwners,
        prepare::Preparer,
        pull_secret::PullSecrets,
        runtime_kyma::{remote_kyma, wishes, write_runtime_status},
        sources::Registries,
        windows::Windows,
    },
    stages::{Stage, stage},
    trigger::{Trigger, Triggers},
};

pub(crate) use execute::Executed;
pub(crate) use needs::WaitingKymas;

/// Whether a trigger keeps rollout turns: it comes from the engine itself or reports progress.
fn keeps_turns(cause: &Trigger) -> bool {
    match cause {
        Trigger::Start
        | Trigger::FallbackPoll
        | Trigger::SafetyResync
        | Trigger::OtherConfiguration
        | Trigger::Due { .. }
        | Trigger::Mode { .. }
        | Trigger::Retry { .. } => true,
        Trigger::Kcp { change, .. } => change.is_progress(),
        Trigger::Event { .. } | Trigger::SecondLook { .. } => false,
    }
}

/// The rollout turn of each module of a Kyma. Empty if an event or a user triggers the reconcile: then all due changes may happen.
pub(crate) fn turns(
    kcp: &Kcp,
    rollout_window: Duration,
    kyma: &str,
    triggers: Triggers<'_>,
) -> BTreeMap<String, Timestamp> {
    if triggers.listed.is_empty() || triggers.may_include(|cause| !keeps_turns(cause)) {
        return BTreeMap::new();
    }
    kcp.index().turns(kyma, rollout_window, kcp.now())
}

/// The outcome of a dry run that could not read an installed version; `None` otherwise.
///
/// A live engine uses the Manifest instead, and the dry run would hide that the module can never be installed.
pub(crate) fn unread(kcp: &Kcp, sources: &Sources) -> Option<Outcome> {
    let fault = sources.faults().next().filter(|_| kcp.is_dry())?;
    let message = format!("what an installed module consists of cannot be read: {}", fault.message);
    Some(Outcome::retried(error_report(message), "module", None))
}

pub(crate) struct KymaReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) queue: Queue,
    pub(crate) registries: Arc<Registries>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) waiting: WaitingKymas,
    pub(crate) followups: Arc<FollowUps>,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) failures: Arc<Failures>,
    pub(crate) preparer: Preparer,
    pub(crate) pull_secrets: Arc<PullSecrets>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) deletion: KymaDeletion,
    pub(crate) notifier: Arc<Notifier>,
}

impl KymaReconciler {
    pub(crate) async fn reconcile(
        &self,
        name: &str,
        class: Class,
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        // Even if this reconcile fails, the triggers do not come again. A full look trusts no record.
        if triggers.may_include(|cause| cause.is_full_look() || is_of_prepared(cause)) {
            self.clusters.records.change_existing(name, |record| record.prepared.hash = None);
        }
        let read = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(name)).await;
        let kyma = read.map_err(|e| Error::kcp(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma else {
            self.clusters.forget(name);
            self.windows.forget(name);
            self.waiting.forget(name);
            self.notifier.sent.set_unreported(name, BTreeSet::new());
            return Ok(Outcome::done());
        };
        if kyma.metadata.deletion_timestamp.is_some() {
            self.windows.forget(name);
            // Boxed: its future is large.
            return Box::pin(self.deletion.reconcile(&kyma)).await;
        }
        if kyma.is_skipped() {
            return Ok(Outcome::done());
        }
        self.adopt(&kyma).await?;
        let runtime = match self.clusters.access(name).await? {
            Ok(runtime) => runtime,
            // The runtime's state is unknown; nothing is changed.
            Err(why) => return self.failures.blocked(&kyma, why.message()).await,
        };
        match self.reconcile_reachable(&kyma, &runtime, class, triggers).await {
            Ok(finish) => Ok(finish),
            Err(Error::Runtime(ObjectError::Kind(why))) => {
                // The engine's CRDs are not served. This is never an empty list of modules.
                self.clusters.records.change_existing(name, |record| record.prepared.hash = None);
                Ok(Outcome::recheck_soon(why.to_string()))
            }
            Err(Error::Runtime(error)) => self.failures.runtime_failed(&kyma, &error).await,
            // The runtime is unreachable, so its state is unknown.
            Err(Error::Crds(error)) if error.is_unreachable() => {
                self.failures.runtime_failed(&kyma, &error).await
            }
            Err(Error::Crds(error)) => self.failures.crds_failed(&kyma, &error).await,
            Err(error) => Err(error),
        }
    }

    /// Sets finalizer and label before anything is created.
    async fn adopt(&self, kyma: &Kyma) -> Result<(), Error> {
        let has_label =
            kyma.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_KCP);
        if has_label && kyma.finalizers().iter().any(|f| f == finalizers::KYMA) {
            return Ok(());
        }
        let name = kyma.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": name, "uid": kyma.uid(), "finalizers": [finalizers::KYMA],
                         "labels": {labels::MANAGED_BY: labels::MANAGED_BY_KCP}}
        });
        self.kcp
            .apply(&self.kcp.kymas(), &name, field_managers::LIFECYCLE_MANAGER, false, &body)
            .await
            .map(drop)
    }

    /// Applies the central policy to the requested modules.
    fn apply_policy(&self, kyma: &Kyma, wanted: &KymaSpec, policy: &Policy) -> (KymaSpec, PolicyEffect) {
        let state = self.kcp.index();
        let offered = |spec: &KymaSpec, module: &Module| {
            let alone = KymaSpec { modules: vec![module.clone()], ..spec.clone() };
            // A missing template may just be being replaced; that is waited for.
            let is_none = |fault: &Fault| {
                matches!(
                    fault,
                    Fault::ChannelNone { .. } | Fault::NoSuchChannel { .. } | Fault::NotOffered { .. }
                )
            };
            let modules = choose(&alone, &state.catalog, &[]);
            !modules.iter().any(|module| module.outcome.as_ref().err().is_some_and(is_none))
        };
        apply(wanted, policy, kyma.labels(), offered)
    }

    /// The wait for the CRD by which the list of modules was read, before a missing entry removes a module.
    async fn wait_for_list_schema(&self, kyma: &str, runtime: &Gated) -> Result<Option<Outcome>, Error> {
        const WAIT: &str = "the CRD of the Kyma in the runtime is not, or was not until just now, the one that the list of modules is \
                            read by; nothing is removed for not being in it before that is mended";
        Ok(match stage(Stage::ReadRuntime, self.preparer.schema_of_list(kyma, runtime)).await? {
            Schema::Ours => None,
            Schema::Mended(at) => Some(Outcome::waiting(WAIT.to_owned()).due_at(Some(at))),
            Schema::Other => Some(Outcome::recheck_soon(WAIT.to_owned())),
        })
    }

    /// The outcome if another Kyma has the runtime, or if this one has just gone from KCP's own cluster.
    async fn displaced(&self, kyma: &Kyma, runtime: &Gated, found: &Value) -> Result<Option<Outcome>, Error> {
        if let Some(other) = self.owners.note_occupant(&kyma.name_any(), runtime, found) {
            return self.failures.blocked(kyma, shares_with(runtime, &other)).await.map(Some);
        }
        // Its deletion is an event.
        Ok((runtime.is_own_cluster() && found.is_null()).then(Outcome::done))
    }

    async fn reconcile_reachable(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        class: Class,
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        let (name, causes) = (kyma.name_any(), triggers.listed);
        let found = stage(Stage::ReadRuntime, remote_kyma(runtime)).await?;
        if let Some(end) = self.displaced(kyma, runtime, &found).await? {
            return Ok(end);
        }
        let kept = stage(Stage::Prepare, self.preparer.prepare(kyma, runtime)).await.map_err(Error::Crds)?;
        self.followups.agent_config(&name, causes);
        self.followups.agent_certificate(&name, causes.first());
        self.followups.legacy_watcher(&name, causes.first());
        let remote = stage(Stage::ReadRuntime, self.runtime_kyma_of(kyma, runtime, found)).await?;
        self.failures.reached(&name);
        let wanted = match wishes(&remote) {
            Ok(wanted) => wanted,
            Err(why) => return self.failures.unreadable(kyma, runtime, &remote, why).await,
        };
        let pull_secret = self.pull_secrets.sync(&name, runtime).await?;

        let policy = self.kcp.index().policy.get();
        let (wanted, effect) = match &policy {
            Ok(Some(policy)) => {
                let (wanted, effect) = self.apply_policy(kyma, &wanted, policy);
                (wanted, Ok(Some(effect)))
            }
            Ok(None) => (wanted, Ok(None)),
            Err(fault) => (wanted, Err(fault)),
        };
        let local = stage(Stage::ReadRuntime, self.local_templates(kyma, runtime, &wanted)).await?;
        let manifests = self.kcp.index().manifests.list(&name);
        let all = with_deleting(kyma, &wanted, &manifests);
        let mut choices = self.choices_of(&name, &all, &local.templates);
        let sources = stage(Stage::Resolve, self.registries.sources_of(&choices)).await?;
        let leaving = choices.split_off(wanted.modules.len());
        self.note_required(&name, required(&choices));
        let needs = self.needs_of(kyma, &name, runtime, &choices, &manifests, triggers).await?;
        // As late as possible, so that the plan uses the latest versions.
        let (manifests, mandatory, installed) = {
            let state = self.kcp.index();
            let manifests = state.manifests.list(&name);
            let installed = staying_templates(&choices, &manifests, &state.catalog);
            (manifests, state.catalog.mandatory(), installed)
        };
        let windows = self.windows.policy();
        let turns = turns(&self.kcp, self.config.rollout_window, &name, triggers);
        let mut plan = plan(&Input {
            kyma,
            wanted: &wanted,
            modules: &choices,
            sources: &sources,
            manifests: &manifests,
            facts: Facts {
                restricted: &self.config.restricted_modules,
                policy: effect.as_ref().map(Option::as_ref).map_err(|fault| *fault),
                windows: windows.as_deref(),
                min_window: self.config.min_window,
                unmet_requirements: Some(&needs.waits),
                lost_requirements: Some(&needs.gone),
                mandatory: &mandatory,
                turns: Some(&turns),
                installed: Some(&installed),
                deleting: &leaving,
            },
            now: self.kcp.now(),
        });
        if removes_modules(&plan, kyma)
            && let Some(wait) = self.wait_for_list_schema(&name, runtime).await?
        {
            return Ok(wait);
        }
        if let Some(synced) = &pull_secret {
            report_pull_secret(&mut plan.status, kyma, synced, self.kcp.now());
            plan.retry |= synced.is_err();
        }
        // Failures of registries alone are retried when the registries may work.
        let rest = rest_of(&sources).filter(|_| !matches!(pull_secret, Some(Err(_))));
        plan.notices.extend(local.notices);
        plan.recheck_at = plan.recheck_at.into_iter().chain(needs.look_at).chain(until_of(&kept)).min();
        plan.notices.extend(kept.iter().filter(|kept| !kept.is_trial()).map(notice_of));
        let waits = plan.status.modules.iter().any(|module| module.maintenance);
        self.note_window(&name, windows.as_ref(), waits);
        self.unmanage_modules(&name, &plan, causes).await?;
        let Executed { behind, refused } =
            self.executor.execute(&name, &plan, &manifests, class, causes).await?;
        report_refused(&mut plan.status, kyma, &refused, self.kcp.now());
        let mut open = self.notifier.sent.unreported(&name);
        plan.notices.extend(module_notices(kyma, &plan.status, &manifests, &mut open));
        self.notifier.sent.set_unreported(&name, open);
        self.kcp.write_kyma_status(kyma, &plan.status).await?;
        stage(Stage::WriteRuntime, write_runtime_status(runtime, &remote, &plan.status)).await?;
        self.followups.catalog(&name, &remote, triggers);
        let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
        let later = self.notifier.notify(&name, Some((runtime, uid)), &plan.notices).await;
        plan.recheck_at = plan.recheck_at.into_iter().chain(later).min();
        match behind {
            Some(behind) => Err(behind),
            // Only a change of the list or the catalog can fix this, and both are events.
            None if !refused.is_empty() && !plan.retry => {
                let why: Vec<_> =
                    refused.into_iter().map(|(module, why)| format!("{module}: {why}")).collect();
                Ok(Outcome::failed(error_report(why.join("; "))).due_at(plan.recheck_at))
            }
            None => Ok(unread(&self.kcp, &sources).unwrap_or_else(|| outcome_of(&plan, rest))),
        }
    }

    /// Chooses the version of each module. Later catalog changes that concern this Kyma trigger its reconcile.
    fn choices_of(
        &self,
        kyma: &str,
        wanted: &KymaSpec,
        local: &[Arc<ModuleTemplate>],
    ) -> Vec<ResolvedModule> {
        // The list is mostly unchanged, so a read lock is enough.
        if let Some(choices) = self.kcp.index().choose(kyma, wanted, local) {
            return choices;
        }
        let (noted, choices) = {
            let mut state = self.kcp.index_mut();
            (state.record_list(kyma, wanted), choose(wanted, &state.catalog, local))
        };
        for (key, change) in noted {
            let cause = Some(Trigger::Kcp { object: key.clone(), change });
            self.queue.push(key, Push { class: Class::Rollout, trigger: cause, guards: Vec::new() });
        }
        choices
    }

    /// Notes required modules before their Manifests are read; their later changes trigger the Kyma.
    fn note_required(&self, kyma: &str, modules: BTreeSet<String>) {
        let is_known = self.kcp.index().kymas.waits(kyma).required == modules;
        if !is_known && let Some(waits) = self.kcp.index_mut().kymas.waits_mut(kyma) {
            waits.required = modules;
        }
    }
}

fn until_of(kept: &[Suspended]) -> Option<Timestamp> {
    kept.iter().map(|kept| kept.until).min()
}

fn notice_of(kept: &Suspended) -> Notice {
    Notice::warning(About::Kyma, "FieldConflict", kept.message())
}

/// Whether a plan deletes a Manifest or manages an unmanaged module again.
fn removes_modules(plan: &Plan, kyma: &Kyma) -> bool {
    let unmanaged = |module: &str| kyma.module_status(module).is_some_and(|m| m.state == State::Unmanaged);
    !plan.delete.is_empty() || plan.apply.iter().filter_map(Manifest::module_name).any(unmanaged)
}

fn outcome_of(plan: &Plan, rest: Option<Duration>) -> Outcome {
    let message = plan.status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default();
    let outcome = match plan.status.state {
        State::Ready => Outcome::done(),
        // Something could not be read or requested.
        state if plan.retry => Outcome::retried(Report { state, message, is_found: false }, "module", rest),
        state @ (State::Error | State::Warning) => Outcome::failed(found_report(state, message)),
        _ => Outcome::waiting(message),
    };
    outcome.due_at(plan.recheck_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewatch_api::object::{Gvk, ObjectRef};

    use crate::trigger::{Change, Reason};

    #[test]
    fn only_changes_by_users_end_a_kymas_rollout_turn() {
        let key = crate::key::WorkKey::Kyma { kyma: "harbour".into() };
        let kcp = |change| Trigger::Kcp { object: key.clone(), change };
        let ours = [
            Trigger::Start,
            Trigger::FallbackPoll,
            Trigger::SafetyResync,
            Trigger::retry(&key, Reason::Kcp),
            Trigger::Due { at: Timestamp::UNIX_EPOCH },
            kcp(Change::ManifestStatus),
        ];
        assert!(ours.iter().all(keeps_turns), "a poll, or how its modules are, is no reason to be early");
        let object = ObjectRef { gvk: Gvk::of("v1", "Kyma"), namespace: "a".into(), name: "b".into() };
        let event = Trigger::Event {
            epoch: "e".into(),
            seq: 1,
            watch: "kyma".into(),
            object,
            span: crate::spans::EventSpan::default(),
        };
        let somebodys = [event, kcp(Change::Changed), kcp(Change::ModuleRelease)];
        assert!(!somebodys.iter().any(keeps_turns));
    }
}
