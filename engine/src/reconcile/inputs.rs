//! What the engine is asked for and told from outside, besides what KCP's watches tell.

use crate::{
    Engine,
    gate::Mode,
    index::PathReport,
    key::{Cause, WorkKey},
    queue::{Class, Push},
};

impl Engine {
    /// Asks for a reconcile, for whoever is neither an agent nor KCP.
    pub fn ask(&self, key: WorkKey, class: Class, cause: Option<Cause>) {
        self.0.queue.push(key, Push { class, cause, guards: Vec::new() });
    }

    /// Says what the way of a runtime's events is worth, and asks for the reconcile that tells it.
    pub fn tell_path(&self, kyma: &str, report: PathReport) {
        self.0.change().tell_path(kyma, report);
        let push = Push { class: Class::Resync, cause: None, guards: Vec::new() };
        self.0.queue.push(WorkKey::EventPath { kyma: kyma.to_owned() }, push);
    }

    /// Looks at an agent's configuration and role in its runtime again, and writes what differs. For whoever hears
    /// that the agent works by another configuration than [`KcpState::agent_configuration`](crate::index::KcpState::agent_configuration) says.
    pub fn configure_agent(&self, kyma: &str, cause: Option<Cause>) {
        self.0.agents.forget(kyma);
        let push = Push { class: Class::Rollout, cause, guards: Vec::new() };
        self.0.queue.push(WorkKey::AgentConfig { kyma: kyma.to_owned() }, push);
    }

    /// Looks at the whole catalog in a runtime again, and writes what differs. For whoever hears that somebody has changed it there.
    pub fn check_catalog(&self, kyma: &str, cause: Option<Cause>) {
        self.0.catalogs.doubt(kyma, None);
        let push = Push { class: Class::Catalog, cause, guards: Vec::new() };
        self.0.queue.push(WorkKey::Catalog { kyma: kyma.to_owned() }, push);
    }

    /// What the engine may write. [`Mode::Live`] until it is changed.
    pub fn mode(&self) -> Mode {
        self.0.gate.mode()
    }

    /// Changes what the engine may write. A call that is on its way to an API server meanwhile still gets there, within
    /// [`EngineConfig::call_deadline`](crate::EngineConfig::call_deadline). Work that was held is asked for again; its guards have stayed with it.
    pub fn set_mode(&self, mode: Mode) {
        tracing::info!(
            from = self.mode().label(),
            to = mode.label(),
            "what the engine may write has changed"
        );
        let label = mode.label();
        let held = self.0.gate.set(mode);
        // Another process may have worked meanwhile, and have been told what would be news to this one.
        self.0.passes.forget();
        self.0.seen.forget();
        self.0.exchanged.forget_all();
        // Each Kyma is to say so, and to say no more so when it is over: then these are among what was held.
        let kymas = if label == Mode::Paused.label() { self.0.look().kymas() } else { Vec::new() };
        let kymas = kymas.into_iter().map(|kyma| WorkKey::Kyma { kyma });
        for key in held.into_iter().chain(kymas) {
            let cause = Some(Cause::Mode { mode: label });
            self.0.queue.push(key, Push { class: Class::Resync, cause, guards: Vec::new() });
        }
    }
}
