//! Reports changes, at first only differences from the digest.

use super::{
    super::{
        index::ObjectKey,
        message::{Baseline, Message},
        resolve::Resolved,
    },
    Watcher,
    event::{ObservedObject, StopReason},
};
use std::sync::Arc;
use tidewatch_delivery::{
    digest::{self, ALL, Section, bucket},
    outbox::{KeepNames, Key, Moved, Observation, Present},
};
use tidewatch_wire::{Route, v3::Change};

impl Watcher {
    pub(super) async fn changed(
        &mut self,
        object: ObservedObject,
        change: Change,
        moved: Moved,
        resolved: &Resolved,
    ) -> Result<(), StopReason> {
        let ObservedObject { key, uid, resource_version, .. } = object;
        if self.comparison.round == 0 {
            // The first list is compared later, without a trace of changes since. Mark their buckets.
            if self.comparison.listed {
                self.comparison.early |= 1 << bucket(&key.namespace, &key.name);
            }
            return Ok(());
        }
        let gvk = &resolved.resource;
        let observation = self.observation(key, change, &gvk.version, &gvk.kind);
        self.report(Observation { uid, resource_version, ..observation }, moved).await
    }

    /// Reports missing objects, and a resync for changes between lists.
    pub(super) async fn end_list(&mut self, version: &str, kind: &str) -> Result<(), StopReason> {
        let again = std::mem::replace(&mut self.comparison.listed, true);
        let gone = self.index.end_list();
        if self.comparison.round == 0 {
            if again {
                self.comparison.early = ALL;
            }
            return Ok(());
        }
        for (key, before) in gone {
            let observation = self.observation(key, Change::Gone, version, kind);
            self.report(observation, Moved { before, after: 0 }).await?;
        }
        if again {
            let unnamed = self.unnamed(version, kind);
            // Not counted: a resync is no observed change.
            self.send(Message::Changed(unnamed, Moved::default())).await?;
            self.send_listed(version, kind).await?;
        }
        Ok(())
    }

    pub(super) async fn all_gone(&mut self, version: &str, kind: &str) -> Result<(), StopReason> {
        if self.index.is_empty() {
            return Ok(());
        }
        self.index.begin_list();
        self.end_list(version, kind).await?;
        self.shared.conditions.set_objects(&self.spec.name, 0);
        Ok(())
    }

    /// The kind is not served: reports that objects of an earlier run are gone.
    pub(super) async fn never_served(&mut self) -> Result<(), StopReason> {
        self.comparison.appears = !self.comparison.listed;
        let stored = {
            let baseline = self.shared.baseline.borrow();
            let section = baseline.digest.get(&self.spec.name);
            let in_digest = section.map(|Section { version, kind, .. }| (version.clone(), kind.clone()));
            in_digest.or_else(|| baseline.kinds.get(&self.spec.name).cloned())
        };
        let Some((version, kind)) = stored.filter(|_| self.index.is_empty()) else { return Ok(()) };
        self.comparison.listed = true;
        self.compare_if_due(&version, &kind).await
    }

    pub(super) async fn compare_if_due(&mut self, version: &str, kind: &str) -> Result<(), StopReason> {
        let Baseline { round, digest: known, kinds: _ } = self.shared.baseline.borrow().clone();
        if !self.comparison.listed || round <= self.comparison.round {
            return Ok(());
        }
        let (watch, configuration) = (self.spec.name.clone(), self.spec.selection());
        let sums = self.index.sums();
        let differs = digest::compare(known.get(&watch), configuration, &sums);
        let stale = differs | self.comparison.early;
        // Buckets with certain changes; a full report proves none.
        let lively =
            [differs, self.comparison.early].into_iter().filter(|mask| *mask != ALL).fold(0, |a, b| a | b);
        let appears = std::mem::take(&mut self.comparison.appears);
        let unnamed = (stale != 0).then(|| self.unnamed(version, kind));
        let section = Section { stale, sums, ..Section::unknown(configuration, version, kind) };
        let (buckets, objects) = (stale.count_ones(), self.index.count_in(stale));
        tracing::info!(watch, buckets, objects, "compared with the digest");
        self.shared.metrics.compared(&watch, unnamed.is_some());
        (self.comparison.round, self.comparison.early) = (round, 0);
        self.send(Message::Compared { watch, section, unnamed }).await?;
        self.send_listed(version, kind).await?;
        for part in self.index.parts(stale) {
            for (key, after) in self.index.in_buckets(part) {
                let listed = !appears && lively >> bucket(&key.namespace, &key.name) & 1 == 0;
                let observation = self.observation(key, Change::Changed, version, kind);
                self.report(Observation { listed, ..observation }, Moved { before: 0, after }).await?;
            }
        }
        Ok(())
    }

    /// Kept names missing in the list are reported as gone.
    async fn send_listed(&mut self, version: &str, kind: &str) -> Result<(), StopReason> {
        let kept = match self.shared.keep_names {
            KeepNames::OfAll => true,
            KeepNames::OfOthers => self.spec.route != Route::engine().as_str(),
        };
        if !kept {
            return Ok(());
        }
        let objects = self.index.keys().map(|key| self.key(key.clone())).collect();
        let no_object = ObjectKey { namespace: Arc::default(), name: Arc::default() };
        let gone = self.observation(no_object, Change::Gone, version, kind);
        self.send(Message::Listed(self.spec.name.clone(), Present { objects, gone })).await
    }

    pub(super) fn key(&self, key: ObjectKey) -> Key {
        let ObjectKey { namespace, name } = key;
        Key { watch: Arc::clone(&self.labels.name), namespace, name }
    }

    fn unnamed(&mut self, version: &str, kind: &str) -> Observation {
        let no_object = ObjectKey { namespace: Arc::default(), name: Arc::default() };
        self.observation(no_object, Change::Resync, version, kind)
    }

    fn observation(&mut self, key: ObjectKey, change: Change, version: &str, kind: &str) -> Observation {
        if *self.labels.version != *version || *self.labels.kind != *kind {
            (self.labels.version, self.labels.kind) = (version.into(), kind.into());
        }
        Observation {
            key: self.key(key),
            group: Arc::clone(&self.labels.group),
            version: Arc::clone(&self.labels.version),
            kind: Arc::clone(&self.labels.kind),
            uid: String::new(),
            resource_version: String::new(),
            change,
            listed: false,
            at: (self.shared.clock)(),
        }
    }

    async fn report(&self, observation: Observation, moved: Moved) -> Result<(), StopReason> {
        self.shared.metrics.observed(&self.spec.name);
        self.send(Message::Changed(observation, moved)).await
    }

    pub(super) async fn send(&self, message: Message) -> Result<(), StopReason> {
        self.shared.changes.send(message).await.map_err(|_| StopReason::Closed)
    }
}
