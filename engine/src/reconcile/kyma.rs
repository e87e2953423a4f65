//! One reconcile of a Kyma.

pub(crate) mod execute;
pub(crate) mod failures;
mod give_up;
pub(crate) mod needs;
mod remote;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Kyma, KymaSpec, Manifest, Module, ModuleTemplate, State,
    names::{self, field_managers, finalizers, labels},
};
use tidewatch_planner::{
    access::staying,
    gates::Facts,
    kyma::{Input, Plan, Sources, changes, plan, tell_pull_secret, tell_refused, with_leaving},
    needs::required,
    notice::{About, Notice},
    policy::rule,
    versions::{Choice, Fault, choose},
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
    events::Notifier,
    kcp::{Kcp, writes::lost},
    key::{Queue, Report},
    outcome::{Lost, Outcome, Why, error_report, found_report},
    queue::{Class, Push},
    reconcile::{
        followups::FollowUps,
        kyma::{execute::Executor, failures::Failures},
        kyma_deletion::KymaDeletion,
        owners::Owners,
        prepare::Preparer,
        pull_secret::PullSecrets,
        runtime_kyma::{remote_kyma, wishes, write_runtime_status},
        sources::Registries,
        windows::Windows,
    },
    stages::{Stage, stage},
    trigger::Trigger,
};

pub(crate) use execute::Executed;
pub(crate) use needs::Waiting;

/// Whether a cause is no reason to do before its turn what is being rolled out: it is the receiver's own (it has started, looks again, or
/// goes on with what was held or has failed), or tells what has become of its work.
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

/// The times at which releases that are being rolled out may change a Kyma, by module. Empty if an event or a user asks for the reconcile:
/// then everything that is due may change.
pub(crate) fn turns(
    kcp: &Kcp,
    rollout_window: Duration,
    kyma: &str,
    why: Why<'_>,
) -> BTreeMap<String, Timestamp> {
    if why.causes.is_empty() || why.may_be(|cause| !keeps_turns(cause)) {
        return BTreeMap::new();
    }
    kcp.index().turns(kyma, rollout_window, kcp.now())
}

/// The outcome of a dry run that could not read the content of an installed version; `None` outside of a dry run. A live engine goes by the
/// Manifest then, and the dry run would not show that a module can never be installed.
pub(crate) fn unread(kcp: &Kcp, sources: &Sources) -> Option<Outcome> {
    let fault = sources.faults().next().filter(|_| kcp.is_dry())?;
    let message = format!("what an installed module consists of cannot be read: {}", fault.message);
    Some(Outcome::retried(error_report(message), "module", None))
}

/// Reconciles Kymas: their modules, and the statuses in KCP and in the runtime.
pub(crate) struct KymaReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) queue: Queue,
    pub(crate) registries: Arc<Registries>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) waiting: Waiting,
    pub(crate) followups: Arc<FollowUps>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) failures: Arc<Failures>,
    pub(crate) preparer: Preparer,
    pub(crate) pull_secrets: Arc<PullSecrets>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) deletion: KymaDeletion,
    pub(crate) notifier: Arc<Notifier>,
}

impl KymaReconciler {
    pub(crate) async fn reconcile(&self, name: &str, class: Class, why: Why<'_>) -> Result<Outcome, Lost> {
        // Whatever becomes of this: what is heard now is not told again. And a look at the whole does not trust what was done before.
        if why.may_be(|cause| cause.is_full_look() || is_of_prepared(cause)) {
            self.clusters.records.change_known(name, |record| record.prepared.hash = None);
        }
        let read = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(name)).await;
        let kyma = read.map_err(|e| lost(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma else {
            self.clusters.forget(name);
            self.windows.forget(name);
            self.waiting.forget(name);
            self.notifier.told.keep_open(name, BTreeSet::new());
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
            // Nothing is known of the runtime, and nothing is changed.
            Err(why) => return self.failures.blocked(&kyma, why.message()).await,
        };
        match self.reconcile_reachable(&kyma, &runtime, class, why).await {
            Ok(finish) => Ok(finish),
            Err(Trouble::Lost(lost)) => Err(lost),
            Err(Trouble::Runtime(ObjectError::Kind(why))) => {
                // Our CRDs are not served: not there any more, or not yet. Never an empty list of modules.
                self.clusters.records.change_known(name, |record| record.prepared.hash = None);
                Ok(Outcome::recheck_soon(why.to_string()))
            }
            Err(Trouble::Runtime(error)) => self.failures.runtime_failed(&kyma, &error).await,
            // Of one that does not answer nobody knows what it has.
            Err(Trouble::Crds(error)) if error.is_unreachable() => {
                self.failures.runtime_failed(&kyma, &error).await
            }
            Err(Trouble::Crds(error)) => self.failures.crds_failed(&kyma, &error).await,
        }
    }

    /// Finalizer and label, before anything is created anywhere.
    async fn adopt(&self, kyma: &Kyma) -> Result<(), Lost> {
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

    async fn reconcile_reachable(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        class: Class,
        why: Why<'_>,
    ) -> Result<Outcome, Trouble> {
        let (name, causes) = (kyma.name_any(), why.causes);
        let found = stage(Stage::ReadRuntime, remote_kyma(runtime)).await?;
        if let Some(other) = self.owners.note_occupant(&name, &found) {
            return Ok(self.failures.blocked(kyma, shares_with(&other)).await?);
        }
        let kept =
            stage(Stage::Prepare, self.preparer.prepare(kyma, runtime)).await.map_err(Trouble::Crds)?;
        self.followups.agent_config(&name, causes);
        self.followups.legacy_watcher(&name, causes.first());
        let remote = stage(Stage::ReadRuntime, self.runtime_kyma_of(kyma, runtime, found)).await?;
        self.failures.reached(&name);
        let wanted = match wishes(&remote) {
            Ok(wanted) => wanted,
            Err(why) => return Ok(self.failures.unreadable(kyma, runtime, &remote, why).await?),
        };
        let pull_secret = self.pull_secrets.sync(&name, runtime).await?;

        let policy = self.kcp.index().policy();
        let (wanted, ruled) = match &policy {
            Ok(Some(policy)) => {
                let state = self.kcp.index();
                let offered = |spec: &KymaSpec, module: &Module| {
                    let alone = KymaSpec { modules: vec![module.clone()], ..spec.clone() };
                    // What is only not there yet, as a template that is being replaced, is waited for.
                    let is_none = |fault: &Fault| {
                        matches!(
                            fault,
                            Fault::ChannelNone { .. }
                                | Fault::NoSuchChannel { .. }
                                | Fault::NotOffered { .. }
                        )
                    };
                    let choices = choose(&alone, state.catalog(), &[]);
                    !choices.iter().any(|choice| choice.outcome.as_ref().err().is_some_and(is_none))
                };
                let (wanted, ruled) = rule(&wanted, policy, kyma.labels(), offered);
                (wanted, Ok(Some(ruled)))
            }
            Ok(None) => (wanted, Ok(None)),
            Err(fault) => (wanted, Err(fault)),
        };
        let local = stage(Stage::ReadRuntime, self.local_templates(kyma, runtime, &wanted)).await?;
        let seen = self.kcp.index().manifests_of(&name);
        let all = with_leaving(kyma, &wanted, &seen);
        let mut choices = self.choices_of(&name, &all, &local.templates);
        let sources = stage(Stage::Resolve, self.registries.sources_of(&choices)).await?;
        let leaving = choices.split_off(wanted.modules.len());
        self.note_required(&name, required(&choices));
        let needs = self.needs_of(kyma, &name, runtime, (&choices, &seen), why).await?;
        // As late as can be: what has changed since is not written over, and would have to be planned again.
        let (manifests, mandatory, installed) = {
            let state = self.kcp.index();
            let manifests = state.manifests_of(&name);
            let installed = staying(&choices, &manifests, state.catalog());
            (manifests, state.mandatory(), installed)
        };
        let windows = self.windows.policy();
        let turns = turns(&self.kcp, self.config.rollout_window, &name, why);
        let mut plan = plan(&Input {
            kyma,
            wanted: &wanted,
            choices: &choices,
            sources: &sources,
            manifests: &manifests,
            facts: Facts {
                restricted: &self.config.restricted_modules,
                ruled: ruled.as_ref().map(Option::as_ref).map_err(|fault| *fault),
                windows: windows.as_deref(),
                min_window: self.config.min_window,
                needs: Some(&needs.waits),
                gone: Some(&needs.gone),
                mandatory: &mandatory,
                turns: Some(&turns),
                installed: Some(&installed),
                leaving: &leaving,
            },
            now: self.kcp.now(),
        });
        if takes_away(&plan, kyma) {
            let what = "the CRD of the Kyma in the runtime is not, or was not until just now, the one that the list of modules is read \
                        by; nothing is removed for not being in it before that is mended";
            match stage(Stage::ReadRuntime, self.preparer.schema_of_list(&name, runtime)).await? {
                Schema::Ours => {}
                Schema::Mended(at) => {
                    return Ok(Outcome::waiting(what.to_owned()).due_at(Some(at)));
                }
                Schema::Other => return Ok(Outcome::recheck_soon(what.to_owned())),
            }
        }
        if let Some(synced) = &pull_secret {
            tell_pull_secret(&mut plan.status, kyma, synced, self.kcp.now());
            plan.retry |= synced.is_err();
        }
        // What only registries are to blame for is tried again when they may work.
        let rest = rest_of(&sources).filter(|_| !matches!(pull_secret, Some(Err(_))));
        plan.notices.extend(local.notices);
        plan.look_at = plan.look_at.into_iter().chain(needs.look_at).chain(until_of(&kept)).min();
        plan.notices.extend(kept.iter().filter(|kept| !kept.is_trial()).map(notice_of));
        let waits = plan.status.modules.iter().any(|module| module.maintenance);
        self.note_window(&name, windows.as_ref(), waits);
        self.unmanage_modules(&name, &plan, causes).await?;
        let Executed { behind, refused } =
            self.executor.execute(&name, &plan, &manifests, class, causes).await?;
        tell_refused(&mut plan.status, kyma, &refused, self.kcp.now());
        let mut open = self.notifier.told.open(&name);
        plan.notices.extend(changes(kyma, &plan.status, &manifests, &mut open));
        self.notifier.told.keep_open(&name, open);
        self.kcp.write_kyma_status(kyma, &plan.status).await?;
        stage(Stage::WriteRuntime, write_runtime_status(runtime, &remote, &plan.status)).await?;
        self.followups.catalog(&name, &remote, why);
        let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
        let later = self.notifier.notify(&name, Some((runtime, uid)), &plan.notices).await;
        plan.look_at = plan.look_at.into_iter().chain(later).min();
        match behind {
            Some(behind) => Err(behind.into()),
            // Only a change of the list, or of the catalog, can mend that, and both are events.
            None if !refused.is_empty() && !plan.retry => {
                let why: Vec<_> =
                    refused.into_iter().map(|(module, why)| format!("{module}: {why}")).collect();
                Ok(Outcome::failed(error_report(why.join("; "))).due_at(plan.look_at))
            }
            None => Ok(unread(&self.kcp, &sources).unwrap_or_else(|| outcome_of(&plan, rest))),
        }
    }

    /// The version of each module, by the catalog as it stands; from then on, a change of it that concerns this Kyma
    /// asks for its reconcile.
    fn choices_of(&self, kyma: &str, wanted: &KymaSpec, local: &[Arc<ModuleTemplate>]) -> Vec<Choice> {
        // As a rule the list is the one of the last time, and nobody has to wait.
        if let Some(choices) = self.kcp.index().choose(kyma, wanted, local) {
            return choices;
        }
        let (noted, choices) = {
            let mut state = self.kcp.index_mut();
            (state.note(kyma, wanted), choose(wanted, state.catalog(), local))
        };
        for (key, change) in noted {
            let cause = Some(Trigger::Kcp { object: key.clone(), change });
            self.queue.push(key, Push { class: Class::Rollout, cause, guards: Vec::new() });
        }
        choices
    }

    /// Notes which modules others need, before their Manifests are looked at: what changes of these from then on asks for a
    /// reconcile of the Kyma, the mandatory ones included.
    fn note_required(&self, kyma: &str, modules: BTreeSet<String>) {
        let is_known = self.kcp.index().required(kyma) == &modules;
        if !is_known {
            self.kcp.index_mut().require(kyma, modules);
        }
    }
}

/// Until when the first of these is left alone.
fn until_of(kept: &[Suspended]) -> Option<Timestamp> {
    kept.iter().map(|kept| kept.until).min()
}

/// Somebody keeps changing what every module stands on.
fn notice_of(kept: &Suspended) -> Notice {
    Notice::warning(About::Kyma, "FieldConflict", kept.message())
}

/// Whether a plan removes something, or takes back what its user has taken over.
fn takes_away(plan: &Plan, kyma: &Kyma) -> bool {
    let unmanaged = |module: &str| kyma.module_status(module).is_some_and(|m| m.state == State::Unmanaged);
    !plan.delete.is_empty() || plan.apply.iter().filter_map(Manifest::module_name).any(unmanaged)
}

/// What stops a reconcile.
enum Trouble {
    Lost(Lost),
    Runtime(ObjectError),
    /// The runtime does not take what it needs before anything else.
    Crds(ObjectError),
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<ObjectError> for Trouble {
    fn from(error: ObjectError) -> Self {
        Self::Runtime(error)
    }
}

fn outcome_of(plan: &Plan, rest: Option<Duration>) -> Outcome {
    let message = plan.status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default();
    let outcome = match plan.status.state {
        State::Ready => Outcome::done(),
        // Something could not be read, or not be asked for.
        state if plan.retry => Outcome::retried(Report { state, message, is_found: false }, "module", rest),
        state @ (State::Error | State::Warning) => Outcome::failed(found_report(state, message)),
        _ => Outcome::waiting(message),
    };
    outcome.due_at(plan.look_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewatch_api::object::{Gvk, ObjectRef};

    use crate::trigger::{Change, Reason};

    #[test]
    fn only_what_somebody_does_ends_a_kymas_turn() {
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
        let event = Trigger::Event { epoch: "e".into(), seq: 1, watch: "kyma".into(), object };
        let somebodys = [event, kcp(Change::Changed), kcp(Change::ModuleRelease)];
        assert!(!somebodys.iter().any(keeps_turns));
    }
}
