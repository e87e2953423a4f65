//! Requirements of mandatory modules. No Kyma's status lists these modules, so an Event on the Kyma in KCP reports a long wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use tidewatch_api::{GroupVersionKind, Module, State};
use tidewatch_planner::{
    mandatory::MandatoryModule,
    notice::{About, Notice},
    requirements::{WaitReport, defined_groups, kinds, required, unmet},
    versions::ResolvedModule,
};

use crate::{
    clusters::objects,
    error::Error,
    index::Awaits,
    outcome::{Outcome, found_report},
    reconcile::{
        kyma::needs::{gvk_of, served},
        mandatory::MandatoryReconciler,
    },
    trigger::{Trigger, Triggers, is_of_definition},
};

#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Missing requirements per module; none if its version is installed.
    waits: BTreeMap<String, WaitReport>,
    pub(super) look_at: Option<Timestamp>,
    unknown: Option<String>,
}

impl Needs {
    pub(super) fn hold(&self, module: &str) -> bool {
        self.waits.contains_key(module)
    }

    pub(super) fn notices(&self) -> impl Iterator<Item = Notice> {
        let late = self.waits.iter().filter(|(_, waits)| waits.state == State::Warning);
        late.map(|(module, waits)| {
            Notice::warning(
                About::Kyma,
                "MandatoryModuleWaits",
                format!("mandatory module '{module}' {}", waits.message),
            )
        })
    }

    pub(super) fn finish(&self) -> Outcome {
        if self.waits.is_empty() {
            return Outcome::done();
        }
        let says = self.waits.iter().map(|(module, waits)| format!("'{module}' {}", waits.message));
        let message = says.collect::<Vec<_>>().join("; ");
        if let Some(why) = &self.unknown {
            return Outcome::recheck_rarely(format!(
                "{message}; which kinds are served cannot be found out: {why}"
            ));
        }
        if self.waits.values().any(|waits| waits.state == State::Warning) {
            return Outcome::failed(found_report(State::Warning, message));
        }
        Outcome::waiting(message)
    }
}

impl MandatoryReconciler {
    /// Determines missing requirements. Afterwards, their changes trigger the plan.
    pub(super) async fn needs(
        &self,
        kyma: &str,
        offers: &[Arc<MandatoryModule>],
        triggers: Triggers<'_>,
    ) -> Result<Needs, Error> {
        let choices: Vec<ResolvedModule> = offers.iter().filter_map(|offer| choice(offer)).collect();
        let (kinds, modules) = (kinds(&choices), required(&choices));
        let awaits = Awaits { groups: defined_groups(&kinds), modules };
        let before = self.kcp.index().kymas.waits(kyma).mandatory.clone();
        let asks = !kinds.is_empty() || !awaits.modules.is_empty();
        let more = !awaits.groups.is_subset(&before.groups);
        if awaits != before {
            // Before the discovery: earlier changes have no event.
            let other = awaits.groups != before.groups;
            if let Some(waits) = self.kcp.index_mut().kymas.waits_mut(kyma) {
                waits.mandatory = awaits;
            }
            if other {
                self.followups.agent_config(kyma, &[]);
            }
        }
        if !asks {
            self.waiting.forget(kyma);
            return Ok(Needs::default());
        }
        let now = self.kcp.now();
        let told = !kinds.is_empty() && triggers.may_include(is_of_definition);
        let doubtful =
            self.waiting.is_doubtful(kyma, told, now) || triggers.may_include(Trigger::is_full_look) || more;
        let mut broken = BTreeSet::new();
        let (served, unknown) = self.served(kyma, &kinds, doubtful, &mut broken).await?;
        let manifests = self.kcp.index().manifests.list(kyma);
        let unmet = unmet(&choices, &manifests, &served);
        let waits = self.waiting.waits(kyma, unmet, self.config.dependency_patience, |_| None, now);
        let later = self.waiting.broken(kyma, !broken.is_empty(), now);
        let due = waits.values().filter_map(|waits| waits.recheck_at);
        let look_at = due.chain(self.waiting.again(kyma)).chain(later).min();
        Ok(Needs { waits, look_at, unknown })
    }

    /// Returns the served kinds, and the error if the runtime is unavailable. Modules without requirements continue.
    async fn served(
        &self,
        kyma: &str,
        kinds: &BTreeSet<GroupVersionKind>,
        doubtful: bool,
        broken: &mut BTreeSet<String>,
    ) -> Result<(BTreeSet<GroupVersionKind>, Option<String>), Error> {
        if kinds.is_empty() {
            return Ok((BTreeSet::new(), None));
        }
        let runtime = match self.clusters.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) => return Ok((BTreeSet::new(), Some(why.message()))),
        };
        if doubtful {
            for kind in kinds {
                objects::forget(&runtime, &gvk_of(kind));
            }
        }
        match served(&runtime, kinds, broken).await {
            Ok(served) => Ok((served, None)),
            Err(error) => match error.held() {
                Some(held) => Err(held.into()),
                None => Ok((BTreeSet::new(), Some(error.message()))),
            },
        }
    }
}

fn choice(offer: &MandatoryModule) -> Option<ResolvedModule> {
    let chosen = offer.outcome.as_ref().ok().filter(|_| !offer.deleting)?;
    Some(ResolvedModule {
        entry: Module { name: offer.module.clone(), ..Module::default() },
        channel: String::new(),
        release: offer.release.clone(),
        outcome: Ok(chosen.clone()),
    })
}
