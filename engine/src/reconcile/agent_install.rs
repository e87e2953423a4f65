//! Installs the agent in a runtime, and removes it with the Kyma.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use tidewatch_api::{
    Kyma,
    names::{AGENT_NAME, conditions, field_managers},
    object::ObjectRef,
};
use tidewatch_deployer::drift::{self, Ignored};
use tidewatch_planner::{
    agent_install,
    agent_rollout::{Permit, has_failed},
};

use crate::{
    agent_upgrades::AgentUpgrades,
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    config::{AgentInstall, EngineConfig},
    kcp::Kcp,
};

pub(crate) struct AgentInstaller {
    pub(crate) kcp: Kcp,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) upgrades: AgentUpgrades,
}

impl AgentInstaller {
    /// Applies the agent's objects that differ. Before the turn of an upgrade, applies only the CAs. Returns whether an object has changed.
    pub(super) async fn install(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        runtime_id: &str,
    ) -> Result<bool, ObjectError> {
        let Some(AgentInstall { settings, authority, .. }) = &self.config.agents else { return Ok(false) };
        let Some(issuer) = authority.issuer() else { return Ok(false) };
        let objects = agent_install::objects(settings, runtime_id, &issuer.bundle);
        let mut pairs = Vec::new();
        for wanted in objects.map_err(ObjectError::Malformed)? {
            let Some(id) = ObjectRef::of(&wanted) else {
                return Err(ObjectError::Malformed("an object".into()));
            };
            let present = objects::get(runtime, &id).await?;
            pairs.push((wanted, present));
        }
        match agent_install::is_upgrade(&pairs) {
            true if self.waits(kyma) => agent_install::only_cas(&mut pairs),
            true => {}
            false => self.note_failure(kyma, &pairs),
        }
        for former in agent_install::renamed(&pairs) {
            if let Some(present) = objects::find(runtime, &former).await? {
                objects::delete(runtime, &former, &present.uid).await?;
            }
        }
        pairs.retain(|(wanted, present)| {
            present.as_ref().is_none_or(|present| {
                drift::difference(present, wanted, field_managers::AGENT, &Ignored::default()).is_some()
            })
        });
        for (wanted, _) in &pairs {
            objects::apply(runtime, wanted, field_managers::AGENT).await?;
        }
        Ok(!pairs.is_empty())
    }

    /// Notes an agent that has not come back from its upgrade, also if another process has made it.
    fn note_failure(&self, kyma: &Kyma, objects: &[agent_install::Pair]) {
        let name = kyma.name_any();
        let reported = self.kcp.index().kymas.event_path(&name).is_some_and(|path| path.proven);
        let since = condition(kyma).filter(|condition| condition.status != "True" && !reported);
        if let (Some(upgraded), Some(since)) = (agent_install::upgraded_at(objects), since)
            && has_failed(upgraded, since.last_transition_time.0)
        {
            self.upgrades.failed(&name);
        }
    }

    /// Whether an upgrade waits.
    fn waits(&self, kyma: &Kyma) -> bool {
        let name = kyma.name_any();
        if kyma.pauses_agent_upgrade() {
            return true;
        }
        let (is_proven, fleet) = {
            let state = self.kcp.index();
            (is_proven(kyma, state.kymas.event_path(&name).map(|path| path.proven)), state.kymas.len())
        };
        self.upgrades.permit(&name, is_proven, fleet) == Permit::Later
    }

    /// Name of the agent's service account, also if others install agents.
    pub(super) fn service_account(&self) -> &str {
        self.config.agents.as_ref().map_or(AGENT_NAME, |agents| &agents.settings.name)
    }

    /// The installed objects in deletion order, and then those that the agent has created, because it has no rights any more; empty if
    /// agents are installed by others.
    pub(super) fn objects(&self) -> Vec<ObjectRef> {
        let Some(AgentInstall { settings, .. }) = &self.config.agents else { return Vec::new() };
        let installed = agent_install::objects(settings, "", "").unwrap_or_default();
        installed.iter().rev().filter_map(ObjectRef::of).chain(agent_install::created_by_agent()).collect()
    }
}

/// Whether the event path is proven. `reported`: by this process. One that has just started knows no event path yet; then the condition counts.
pub(super) fn is_proven(kyma: &Kyma, reported: Option<bool>) -> bool {
    reported.unwrap_or_else(|| condition(kyma).is_some_and(|condition| condition.status == "True"))
}

/// The last report of the Kyma's event path.
fn condition(kyma: &Kyma) -> Option<&Condition> {
    let mut all = kyma.status.iter().flat_map(|status| &status.conditions);
    all.find(|condition| condition.type_ == conditions::RUNTIME_EVENTS)
}
