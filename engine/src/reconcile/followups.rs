//! Requests follow-up reconciles, unless they would change nothing.

use std::sync::Arc;

use serde_json::Value;

use super::catalog::condition_of;
use crate::{
    clusters::Clusters,
    config::EngineConfig,
    kcp::Kcp,
    key::{Queue, WorkKey},
    queue::{Class, Push},
    trigger::Trigger,
    trigger::Triggers,
};

pub(crate) struct FollowUps {
    kcp: Kcp,
    clusters: Arc<Clusters>,
    queue: Queue,
    keep_legacy_watcher: bool,
    enrols_agents: bool,
}

impl FollowUps {
    pub(crate) fn new(kcp: Kcp, clusters: Arc<Clusters>, queue: Queue, config: &EngineConfig) -> Self {
        Self {
            kcp,
            clusters,
            queue,
            keep_legacy_watcher: config.keep_watcher,
            enrols_agents: config.agents.is_some(),
        }
    }

    pub(crate) fn agent_config(&self, kyma: &str, causes: &[Trigger]) {
        // Locked until the push, so that a need noted later requests it again.
        let index = self.kcp.index();
        let wanted = index.agent_input(kyma).hash;
        if self.clusters.records.read(kyma, |record| record.agent_config) != Some(wanted) {
            self.push(WorkKey::AgentConfig { kyma: kyma.to_owned() }, Class::Rollout, causes.first());
        }
    }

    /// Requests a look for the agent's certificate signing request, unless the proven event path reports it.
    pub(crate) fn agent_certificate(&self, kyma: &str, cause: Option<&Trigger>) {
        let is_proven = self.kcp.index().kymas.event_path(kyma).is_some_and(|path| path.proven);
        if self.enrols_agents && !is_proven {
            self.push(WorkKey::AgentCertificate { kyma: kyma.to_owned() }, Class::Rollout, cause);
        }
    }

    /// Requests the catalog, unless it is up to date and the runtime's Kyma `remote` has its condition.
    pub(crate) fn catalog(&self, kyma: &str, remote: &Value, triggers: Triggers<'_>) {
        let now = self.kcp.now();
        let index = self.kcp.index();
        let mark = index.catalog_mark(kyma);
        let is_reported = condition_of(remote).is_some();
        let mut is_current = false;
        self.clusters.records.change_existing(kyma, |record| {
            let is_old = record.catalog.as_ref().is_some_and(|catalog| catalog.is_old(now));
            let asks_for_full_look = |cause: &Trigger| match cause {
                Trigger::FallbackPoll => is_old,
                cause => cause.is_full_look(),
            };
            if triggers.listed.iter().any(asks_for_full_look) {
                record.doubt_catalog(None);
            }
            if let Some(catalog) = &mut record.catalog {
                catalog.reported &= is_reported;
                is_current = catalog.is_current(mark);
            }
        });
        if !is_current || !is_reported {
            self.push(WorkKey::Catalog { kyma: kyma.to_owned() }, Class::Catalog, triggers.listed.first());
        }
    }

    /// Requests the removal of the Go manager's watcher once the event path is proven. A dry run always requests it, to show the
    /// deletions.
    pub(crate) fn legacy_watcher(&self, kyma: &str, cause: Option<&Trigger>) {
        let is_proven = self.kcp.index().kymas.event_path(kyma).is_some_and(|path| path.proven);
        let is_removed = self.clusters.records.read(kyma, |record| record.legacy_watcher_removed);
        if !self.keep_legacy_watcher && !is_removed && (is_proven || self.kcp.is_dry()) {
            self.push(WorkKey::LegacyWatcher { kyma: kyma.to_owned() }, Class::Rollout, cause);
        }
    }

    fn push(&self, key: WorkKey, class: Class, cause: Option<&Trigger>) {
        self.queue.push(key, Push { class, trigger: cause.cloned(), guards: Vec::new() });
    }
}
