//! Installs the agent in a runtime, and removes it with the Kyma.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{
    Kyma,
    names::{AGENT_NAME, conditions, field_managers},
    object::ObjectRef,
};
use tidewatch_deployer::drift::{self, Ignored};
use tidewatch_planner::{agent_install, agent_rollout::Permit};

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
    /// Applies the agent's objects that differ; an upgrade of its Deployment waits for its turn. Returns whether an agent is installed
    /// from here and its CA is known.
    pub(super) async fn install(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        runtime_id: &str,
    ) -> Result<bool, ObjectError> {
        let Some(AgentInstall { settings, authority, .. }) = &self.config.agents else { return Ok(false) };
        let Some(issuer) = authority.issuer() else { return Ok(false) };
        let objects = agent_install::objects(settings, runtime_id, &issuer.bundle);
        for wanted in objects.map_err(ObjectError::Malformed)? {
            let Some(id) = ObjectRef::of(&wanted) else {
                return Err(ObjectError::Malformed("an object".into()));
            };
            let present = objects::get(runtime, &id).await?;
            let is_upgrade = id.gvk.kind == "Deployment"
                && present.as_ref().is_some_and(|present| {
                    agent_install::installation_of(present) != agent_install::installation_of(&wanted)
                });
            let is_up_to_date = present.is_some_and(|present| {
                drift::difference(&present, &wanted, field_managers::AGENT, &Ignored::default()).is_none()
            });
            let stays = is_up_to_date || is_upgrade && self.waits(kyma);
            if !stays {
                objects::apply(runtime, &wanted, field_managers::AGENT).await?;
            }
        }
        Ok(true)
    }

    /// Whether an upgrade waits.
    fn waits(&self, kyma: &Kyma) -> bool {
        let name = kyma.name_any();
        if kyma.pauses_agent_upgrade() {
            return true;
        }
        let (is_proven, fleet) = {
            let state = self.kcp.index();
            let reported = state.kymas.event_path(&name).map(|path| path.proven);
            // An upgrade starts with a new receiver, which knows no event path yet.
            (reported.unwrap_or_else(|| was_proven(kyma)), state.kymas.len())
        };
        self.upgrades.permit(&name, is_proven, fleet) == Permit::Later
    }

    /// The installed objects, in deletion order; empty if agents are installed by others.
    pub(super) fn objects(&self) -> Vec<ObjectRef> {
        let Some(AgentInstall { settings, .. }) = &self.config.agents else { return Vec::new() };
        let objects = agent_install::objects(settings, "", "").unwrap_or_default();
        objects.iter().rev().filter_map(ObjectRef::of).collect()
    }

    /// Name of the agent's service account.
    pub(super) fn service_account(&self) -> &str {
        self.config.agents.as_ref().map_or(AGENT_NAME, |agents| &agents.settings.name)
    }
}

/// Whether the last receiver with a report has proven the Kyma's event path.
fn was_proven(kyma: &Kyma) -> bool {
    let mut all = kyma.status.iter().flat_map(|status| &status.conditions);
    all.any(|condition| condition.type_ == conditions::RUNTIME_EVENTS && condition.status == "True")
}
