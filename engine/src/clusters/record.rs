//! What this process remembers of each runtime: one record per Kyma, dropped with the Kyma.
//!
//! Records save calls only. Losing one costs a few reads and writes that change nothing.

pub(crate) mod catalog;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_api::object::ObjectRef;
use tokio::time::Instant;

use self::catalog::CatalogRecord;
use super::{cache::SecretVersion, mapper::Mapper};

#[derive(Debug, Default)]
pub(crate) struct Records(Mutex<HashMap<String, Record>>);

#[derive(Debug, Default)]
pub(crate) struct Record {
    reached: Option<Reached>,
    /// Since when there is no kubeconfig Secret, while the Kyma or one of its Manifests is being deleted.
    pub(crate) no_secret_since: Option<Instant>,
    pub(crate) prepared: Prepared,
    /// The hash of the agent configuration that the runtime has ([`AgentInput::hash`](crate::index::AgentInput::hash)).
    pub(crate) agent_config: Option<u64>,
    /// When this process last changed the agent's installation.
    pub(crate) agent_installed: Option<Instant>,
    pub(crate) catalog: Option<CatalogRecord>,
    pub(crate) legacy_watcher_removed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prepared {
    /// The hash of the content that the runtime has; `None` if the runtime must be read.
    pub(crate) hash: Option<u64>,
    /// Whether this process has prepared the runtime before.
    pub(crate) before: bool,
    /// When the engine last replaced another CRD of the Kyma.
    pub(crate) mended: Option<Timestamp>,
    /// Whether the CRD notes that the runtime's Kyma was lost with the CRD before it.
    pub(crate) lost: bool,
}

#[derive(Debug)]
struct Reached {
    secret: SecretVersion,
    /// `None` after a call that discredits the client.
    mapper: Option<Arc<Mapper>>,
}

/// How a new client's cluster relates to the one that was reached before.
#[derive(Debug)]
pub(crate) enum Cluster {
    Known(Arc<Mapper>),
    /// It has the same Secret, but the last client was discredited: the prepared content may be gone.
    Doubted,
    New,
}

impl Records {
    pub(crate) fn read<T>(&self, kyma: &str, read: impl FnOnce(&Record) -> T) -> T {
        read(self.0.lock().get(kyma).unwrap_or(&Record::default()))
    }

    pub(crate) fn change<T>(&self, kyma: &str, change: impl FnOnce(&mut Record) -> T) -> T {
        change(self.0.lock().entry(kyma.to_owned()).or_default())
    }

    /// Changes the record of a runtime that has one.
    pub(crate) fn change_existing(&self, kyma: &str, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.0.lock().get_mut(kyma) {
            change(record);
        }
    }

    pub(crate) fn remove(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }

    /// Has all runtimes checked for legacy watchers again: another process may have worked in between.
    pub(crate) fn forget_legacy_watchers(&self) {
        self.0.lock().values_mut().for_each(|record| record.legacy_watcher_removed = false);
    }
}

impl Record {
    /// Compares the Secret of a new client with the one before, and forgets facts that may not hold for its cluster.
    pub(crate) fn reach(&mut self, secret: &SecretVersion) -> Cluster {
        let cluster = match &self.reached {
            Some(Reached { secret: before, mapper: Some(mapper) }) if before == secret => {
                return Cluster::Known(Arc::clone(mapper));
            }
            Some(Reached { secret: before, mapper: None }) if before == secret => Cluster::Doubted,
            _ => Cluster::New,
        };
        self.prepared.hash = None;
        self.agent_config = None;
        self.legacy_watcher_removed = false;
        if matches!(cluster, Cluster::New) {
            self.catalog = None;
        }
        cluster
    }

    pub(crate) fn reached(&mut self, secret: &SecretVersion, mapper: Arc<Mapper>) {
        self.reached = Some(Reached { secret: secret.clone(), mapper: Some(mapper) });
    }

    /// Notes that these objects of the catalog, or any, may have changed ([`CatalogRecord::doubt`]).
    pub(crate) fn doubt_catalog(&mut self, named: Option<BTreeSet<ObjectRef>>) {
        if let Some(catalog) = &mut self.catalog {
            catalog.doubt(named);
        }
    }

    pub(crate) fn doubt(&mut self) {
        if let Some(reached) = &mut self.reached {
            reached.mapper = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_secret_is_a_new_cluster() {
        let secret = |version: &str| SecretVersion { uid: "u".into(), resource_version: version.into() };
        let mut record = Record::default();
        assert!(matches!(record.reach(&secret("1")), Cluster::New));
        let mapper = Arc::new(Mapper::new());
        record.reached(&secret("1"), Arc::clone(&mapper));
        let Cluster::Known(reached) = record.reach(&secret("1")) else { panic!("it was reached") };
        assert!(Arc::ptr_eq(&reached, &mapper), "also after its idle client was dropped");
        assert!(matches!(record.reach(&secret("2")), Cluster::New));
    }

    #[test]
    fn a_new_cluster_clears_the_catalog_doubt_does_not() {
        let secret = |version: &str| SecretVersion { uid: "u".into(), resource_version: version.into() };
        let mut record = Record {
            prepared: Prepared { hash: Some(1), before: true, ..Prepared::default() },
            agent_config: Some(1),
            catalog: Some(CatalogRecord::default()),
            legacy_watcher_removed: true,
            ..Record::default()
        };
        record.reached(&secret("1"), Arc::new(Mapper::new()));
        record.doubt();
        assert!(matches!(record.reach(&secret("1")), Cluster::Doubted));
        assert!(record.prepared.hash.is_none() && record.agent_config.is_none() && record.catalog.is_some());
        assert!(!record.legacy_watcher_removed && record.prepared.before);
        assert!(matches!(record.reach(&secret("2")), Cluster::New));
        assert!(record.catalog.is_none());
    }
}
