//! Installs the agent in a runtime, and removes it with the Kyma.

use std::sync::Arc;

use serde_json::Value;
use tidewatch_api::{
    names::{AGENT_NAME, field_managers},
    object::ObjectRef,
};
use tidewatch_deployer::drift::{self, Ignored};
use tidewatch_planner::agent_install;

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    config::{AgentInstall, EngineConfig},
};

pub(crate) struct AgentInstaller {
    pub(crate) config: Arc<EngineConfig>,
}

impl AgentInstaller {
    /// Applies the agent's objects that differ. Returns whether an agent is installed from here and its CA is known.
    pub(super) async fn install(&self, runtime: &Gated, runtime_id: &str) -> Result<bool, ObjectError> {
        let Some(AgentInstall { settings, authority, .. }) = &self.config.agents else { return Ok(false) };
        let Some(issuer) = authority.issuer() else { return Ok(false) };
        let objects = agent_install::objects(settings, runtime_id, &issuer.bundle);
        for object in objects.map_err(ObjectError::Malformed)? {
            apply_if_different(runtime, &object).await?;
        }
        Ok(true)
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

async fn apply_if_different(runtime: &Gated, wanted: &Value) -> Result<(), ObjectError> {
    let Some(id) = ObjectRef::of(wanted) else { return Err(ObjectError::Malformed("an object".into())) };
    let present = objects::get(runtime, &id).await?;
    let is_up_to_date = present.is_some_and(|present| {
        drift::difference(&present, wanted, field_managers::AGENT, &Ignored::default()).is_none()
    });
    if !is_up_to_date {
        objects::apply(runtime, wanted, field_managers::AGENT).await?;
    }
    Ok(())
}
