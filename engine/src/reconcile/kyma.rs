//! One reconcile of a Kyma.

mod execute;
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
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, KymaStatus, Manifest, Module, ModuleTemplate, State,
    names::{self, field_managers, finalizers, labels},
};

use super::{
    Lost, Outcome, Shared, Why,
    apply::ObjectError,
    error_report, found_report,
    kyma_deletion::{remote_kyma, shares_with},
    prepare::{Schema, is_of_prepared},
    sources::rest_of,
};
use crate::{gate::Gated, kcp::writes::lost, reconcile::suspended::Suspended};
pub(crate) use execute::Executed;
pub(crate) use needs::Waiting;
pub(crate) use remote::wishes;
pub(crate) use remote::{marked_by, runtime_kyma, write_runtime_status};

use tidewatch_planner::{
    access::staying,
    gates::Facts,
    kyma::{
        Input, Plan, Sources, changes, crds_failed_status, failed_status, plan, tell_pull_secret,
        tell_refused, with_leaving,
    },
    needs::required,
    notice::{About, Notice},
    policy::rule,
    versions::{Choice, Fault, choose},
};

use crate::{
    index::OF_OUR_WORK,
    key::{Cause, Report},
    queue::{Class, Push},
    stages::{Stage, stage},
};

/// Whether a cause is no reason to do before its turn what is being rolled out: it is the receiver's own (it has started, looks again, or
/// goes on with what was held or has failed), or tells what has become of its work.
fn keeps_turns(cause: &Cause) -> bool {
    match cause {
        Cause::Start
        | Cause::FallbackPoll
        | Cause::SafetyResync
        | Cause::OtherConfiguration
        | Cause::Due { .. }
        | Cause::Mode { .. }
        | Cause::Retry { .. } => true,
        Cause::Kcp { change, .. } => OF_OUR_WORK.contains(change),
        Cause::Event { .. } | Cause::SecondLook { .. } => false,
    }
}

impl Shared {
    pub(crate) async fn reconcile_kyma(
        &self,
        name: &str,
        class: Class,
        why: Why<'_>,
    ) -> Result<Outcome, Lost> {
        // Whatever becomes of this: what is heard now is not told again. And a look at the whole does not trust what was done before.
        if why.may_be(|cause| cause.is_whole_look() || is_of_prepared(cause)) {
            self.prepared.forget(name);
        }
        let read = stage(Stage::ReadKcp, self.kymas().get_opt(name)).await;
        let kyma = read.map_err(|e| lost(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma else {
            self.runtimes.invalidate(name);
            self.reached.forget(name);
            self.budgets.forget(name);
            self.prepared.remove(name);
            self.agents.forget(name);
            self.catalogs.forget(name);
            self.exchanged.forget(name);
            self.gone.forget(name);
            self.windows.forget(name);
            self.waiting.forget(name);
            self.history.forget(name);
            self.told.keep_open(name, BTreeSet::new());
            return Ok(Outcome::done());
        };
        if kyma.metadata.deletion_timestamp.is_some() {
            self.windows.forget(name);
            // Boxed: its future is large.
            return Box::pin(self.delete_kyma(&kyma)).await;
        }
        if kyma.is_skipped() {
            return Ok(Outcome::done());
        }
        self.adopt(&kyma).await?;
        let runtime = match self.access(name).await? {
            Ok(runtime) => runtime,
            // Nothing is known of the runtime, and nothing is changed.
            Err(why) => return self.blocked(&kyma, why.message()).await,
        };
        match self.reconcile_reachable(&kyma, &runtime, class, why).await {
            Ok(finish) => Ok(finish),
            Err(Trouble::Lost(lost)) => Err(lost),
            Err(Trouble::Runtime(ObjectError::Kind(why))) => {
                // Our CRDs are not served: not there any more, or not yet. Never an empty list of modules.
                self.prepared.forget(name);
                Ok(Outcome::recheck_soon(why.to_string()))
            }
            Err(Trouble::Runtime(error)) => self.runtime_failed(&kyma, &error).await,
            // Of one that does not answer nobody knows what it has.
            Err(Trouble::Crds(error)) if error.is_unreachable() => self.runtime_failed(&kyma, &error).await,
            Err(Trouble::Crds(error)) => self.runtime_failed_with(&kyma, &error, crds_failed_status).await,
        }
    }

    /// What the releases that are being rolled out would change of a Kyma before its turn, if nobody but the receiver itself asks.
    /// What somebody asks for does what is due by then.
    pub(crate) fn turns(&self, kyma: &str, why: Why<'_>) -> BTreeMap<String, Timestamp> {
        if why.causes.is_empty() || why.may_be(|cause| !keeps_turns(cause)) {
            return BTreeMap::new();
        }
        self.look().turns(kyma, self.config.rollout_window, self.now())
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
        self.apply_kcp(&self.kymas(), &name, field_managers::LIFECYCLE_MANAGER, false, &body).await.map(drop)
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
        if let Some(other) = self.has_taken(&name, &found) {
            return Ok(self.blocked(kyma, shares_with(&other)).await?);
        }
        let kept = stage(Stage::Prepare, self.prepare(kyma, runtime)).await.map_err(Trouble::Crds)?;
        self.want_agent(&name, causes);
        self.want_exchange(&name, causes.first().cloned());
        let remote = stage(Stage::ReadRuntime, self.runtime_kyma_of(kyma, runtime, found)).await?;
        self.observer.reachable(&name, true);
        let wanted = match wishes(&remote) {
            Ok(wanted) => wanted,
            Err(why) => return self.unreadable(kyma, runtime, &remote, why).await,
        };
        let pull_secret = self.sync_pull_secret(&name, runtime).await?;

        let policy = self.look().policy();
        let (wanted, ruled) = match &policy {
            Ok(Some(policy)) => {
                let state = self.look();
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
        let seen = self.look().manifests_of(&name);
        let all = with_leaving(kyma, &wanted, &seen);
        let mut choices = self.choices_of(&name, &all, &local.templates);
        let sources = stage(Stage::Resolve, self.sources_of(&choices)).await?;
        let leaving = choices.split_off(wanted.modules.len());
        self.note_required(&name, required(&choices));
        let needs = self.needs_of(kyma, &name, runtime, (&choices, &seen), why).await?;
        // As late as can be: what has changed since is not written over, and would have to be planned again.
        let (manifests, mandatory, installed) = {
            let state = self.look();
            let manifests = state.manifests_of(&name);
            let installed = staying(&choices, &manifests, state.catalog());
            (manifests, state.mandatory(), installed)
        };
        let windows = self.windows.policy();
        let turns = self.turns(&name, why);
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
            now: self.now(),
        });
        if takes_away(&plan, kyma) {
            let what = "the CRD of the Kyma in the runtime is not, or was not until just now, the one that the list of modules is read \
                        by; nothing is removed for not being in it before that is mended";
            match stage(Stage::ReadRuntime, self.schema_of_list(&name, runtime)).await? {
                Schema::Ours => {}
                Schema::Mended(at) => {
                    return Ok(Outcome::waiting(what.to_owned()).due_at(Some(at)));
                }
                Schema::Other => return Ok(Outcome::recheck_soon(what.to_owned())),
            }
        }
        if let Some(synced) = &pull_secret {
            tell_pull_secret(&mut plan.status, kyma, synced, self.now());
            plan.retry |= synced.is_err();
        }
        // What only registries are to blame for is tried again when they may work.
        let rest = rest_of(&sources).filter(|_| !matches!(pull_secret, Some(Err(_))));
        plan.notices.extend(local.notices);
        plan.look_at = plan.look_at.into_iter().chain(needs.look_at).chain(until_of(&kept)).min();
        plan.notices.extend(kept.iter().filter(|kept| !kept.is_trial()).map(notice_of));
        let waits = plan.status.modules.iter().any(|module| module.maintenance);
        self.note_window(&name, windows.as_ref(), waits);
        self.give_modules_up(&name, &plan, causes).await?;
        let Executed { behind, refused } = self.execute(&name, &plan, &manifests, class, causes).await?;
        tell_refused(&mut plan.status, kyma, &refused, self.now());
        let mut open = self.told.open(&name);
        plan.notices.extend(changes(kyma, &plan.status, &manifests, &mut open));
        self.told.keep_open(&name, open);
        self.write_kyma_status(kyma, &plan.status).await?;
        stage(Stage::WriteRuntime, write_runtime_status(runtime, &remote, &plan.status)).await?;
        self.want_catalog(&name, &remote, why);
        let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
        let later = self.tell(&name, Some((runtime, uid)), &plan.notices).await;
        plan.look_at = plan.look_at.into_iter().chain(later).min();
        match behind {
            Some(behind) => Err(behind.into()),
            // Only a change of the list, or of the catalog, can mend that, and both are events.
            None if !refused.is_empty() && !plan.retry => {
                let why: Vec<_> =
                    refused.into_iter().map(|(module, why)| format!("{module}: {why}")).collect();
                Ok(Outcome::failed(error_report(why.join("; "))).due_at(plan.look_at))
            }
            None => Ok(self.unread(&sources).unwrap_or_else(|| outcome_of(&plan, rest))),
        }
    }

    /// How a dry run ends that could not read what an installed version consists of. A receiver would go by what its Manifest says, and
    /// nobody would hear that another one of its modules can never be installed.
    pub(crate) fn unread(&self, sources: &Sources) -> Option<Outcome> {
        let fault = sources.faults().next().filter(|_| self.is_dry())?;
        let message = format!("what an installed module consists of cannot be read: {}", fault.message);
        Some(Outcome::retried(error_report(message), "module", None))
    }

    /// The version of each module, by the catalog as it stands; from then on, a change of it that concerns this Kyma
    /// asks for its reconcile.
    fn choices_of(&self, kyma: &str, wanted: &KymaSpec, local: &[Arc<ModuleTemplate>]) -> Vec<Choice> {
        // As a rule the list is the one of the last time, and nobody has to wait.
        if let Some(choices) = self.look().choose(kyma, wanted, local) {
            return choices;
        }
        let (noted, choices) = {
            let mut state = self.change();
            (state.note(kyma, wanted), choose(wanted, state.catalog(), local))
        };
        for (key, change) in noted {
            let cause = Some(Cause::Kcp { object: key.to_string(), change });
            self.queue.push(key, Push { class: Class::Rollout, cause, guards: Vec::new() });
        }
        choices
    }

    /// Notes which modules others need, before their Manifests are looked at: what changes of these from then on asks for a
    /// reconcile of the Kyma, the mandatory ones included.
    fn note_required(&self, kyma: &str, modules: BTreeSet<String>) {
        let is_known = self.look().required(kyma) == &modules;
        if !is_known {
            self.change().require(kyma, modules);
        }
    }

    /// It cannot go on until something changes, and that is an event. Only the status is written.
    async fn blocked(&self, kyma: &Kyma, message: String) -> Result<Outcome, Lost> {
        let status = self.failed(kyma, message.clone());
        self.write_kyma_status(kyma, &status).await?;
        Ok(Outcome::failed(error_report(message)))
    }

    /// The runtime's Kyma makes no sense. Its user has to know, where they look.
    async fn unreadable(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        remote: &Value,
        message: String,
    ) -> Result<Outcome, Trouble> {
        let status = self.failed(kyma, message.clone());
        self.write_kyma_status(kyma, &status).await?;
        match stage(Stage::WriteRuntime, write_runtime_status(runtime, remote, &status)).await {
            Err(ObjectError::Held(held)) => return Err(Lost::from(held).into()),
            // It stands in KCP, and is read again when it changes.
            Err(error) => tracing::debug!(
                kyma = kyma.name_any(),
                error = error.message(),
                "the runtime's status stays as it is"
            ),
            Ok(()) => {}
        }
        let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
        let notice = Notice::warning(About::RuntimeKyma, "KymaNotReadable", message.clone());
        let _alone = self.tell(&kyma.name_any(), Some((runtime, uid)), &[notice]).await;
        Ok(Outcome::failed(error_report(message)))
    }

    /// The runtime answers wrongly or not at all: nothing is changed but what the status says.
    pub(crate) async fn runtime_failed(&self, kyma: &Kyma, error: &ObjectError) -> Result<Outcome, Lost> {
        self.runtime_failed_with(kyma, error, failed_status).await
    }

    /// The status of a Kyma whose reconcile could not go on.
    pub(crate) fn failed(&self, kyma: &Kyma, message: String) -> KymaStatus {
        let manifests = self.look().manifests_of(&kyma.name_any());
        failed_status(kyma, &manifests, message, self.now())
    }

    async fn runtime_failed_with(
        &self,
        kyma: &Kyma,
        error: &ObjectError,
        status: fn(&Kyma, &[Manifest], String, Timestamp) -> KymaStatus,
    ) -> Result<Outcome, Lost> {
        if let Some(held) = error.held() {
            return Err(held.into());
        }
        if error.discredits_client() {
            self.discredit(&kyma.name_any());
        }
        if error.is_not_found() {
            // The namespace that was made is gone again.
            self.prepared.forget(&kyma.name_any());
        }
        if error.is_unreachable() {
            self.observer.reachable(&kyma.name_any(), false);
        }
        let next = self.next_try_in(&kyma.name_any(), error.retry_after());
        let message = format!("{}; {next}", error.message());
        let manifests = self.look().manifests_of(&kyma.name_any());
        let status = status(kyma, &manifests, message.clone(), self.now());
        self.write_kyma_status(kyma, &status).await?;
        Ok(Outcome::retried(error_report(message), error.class(), error.retry_after()))
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
    use crate::index::STATUS_CHANGED;

    #[test]
    fn only_what_somebody_does_ends_a_kymas_turn() {
        let kcp = |change| Cause::Kcp { object: "Kyma/harbour".into(), change };
        let key = crate::key::WorkKey::Kyma { kyma: "harbour".into() };
        let ours = [
            Cause::Start,
            Cause::FallbackPoll,
            Cause::SafetyResync,
            Cause::retry(&key, "kcp"),
            Cause::Due { at: Timestamp::UNIX_EPOCH },
            kcp(STATUS_CHANGED),
        ];
        assert!(ours.iter().all(keeps_turns), "a poll, or how its modules are, is no reason to be early");
        let event =
            Cause::Event { epoch: "e".into(), seq: 1, watch: "kyma".into(), object: "Kyma a/b".into() };
        let somebodys = [event, kcp("changed"), kcp("module release changed")];
        assert!(!somebodys.iter().any(keeps_turns));
    }
}
