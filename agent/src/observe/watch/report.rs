//! Reports changes, at first only differences from the digest.

use super::{
    super::{
        index::ObjectKey,
        resolve::Resolved,
        told::{Baseline, Told},
    },
    Left, Seen, Watcher,
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
        seen: Seen,
        change: Change,
        moved: Moved,
        resolved: &Resolved,
    ) -> Result<(), Left> {
        let Seen { key, uid, resource_version, .. } = seen;
        if self.round == 0 {
            // The first list is compared later, without a trace of changes since. Mark their buckets.
            if self.listed {
                self.early |= 1 << bucket(&key.namespace, &key.name);
            }
            return Ok(());
        }
        let gvk = &resolved.resource;
        let observation = self.observation(key, change, &gvk.version, &gvk.kind);
        self.report(Observation { uid, resource_version, ..observation }, moved).await
    }

    /// Reports missing objects, and a resync for changes between lists.
    pub(super) async fn end_list(&mut self, version: &str, kind: &str) -> Result<(), Left> {
        let again = std::mem::replace(&mut self.listed, true);
        let gone = self.index.end_list();
        if self.round == 0 {
            if again {
                self.early = ALL;
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
            self.tell(Told::Changed(unnamed, Moved::default())).await?;
            self.tell_listed(version, kind).await?;
        }
        Ok(())
    }

    pub(super) async fn all_gone(&mut self, version: &str, kind: &str) -> Result<(), Left> {
        if self.index.is_empty() {
            return Ok(());
        }
        self.index.begin_list();
        self.end_list(version, kind).await?;
        self.shared.conditions.set_objects(&self.spec.name, 0);
        Ok(())
    }

    /// The kind is not served: reports that objects of an earlier run are gone.
    pub(super) async fn never_served(&mut self) -> Result<(), Left> {
        self.appears = !self.listed;
        let stored = {
            let baseline = self.shared.baseline.borrow();
            let section = baseline.digest.get(&self.spec.name);
            let of_digest = section.map(|Section { version, kind, .. }| (version.clone(), kind.clone()));
            of_digest.or_else(|| baseline.kinds.get(&self.spec.name).cloned())
        };
        let Some((version, kind)) = stored.filter(|_| self.index.is_empty()) else { return Ok(()) };
        self.listed = true;
        self.compare_if_due(&version, &kind).await
    }

    pub(super) async fn compare_if_due(&mut self, version: &str, kind: &str) -> Result<(), Left> {
        let Baseline { round, digest: known, kinds: _ } = self.shared.baseline.borrow().clone();
        if !self.listed || round <= self.round {
            return Ok(());
        }
        let (watch, configuration) = (self.spec.name.clone(), self.spec.selection());
        let sums = self.index.sums();
        let differs = digest::compare(known.get(&watch), configuration, &sums);
        let stale = differs | self.early;
        // Buckets with certain changes; a full report proves none.
        let lively = [differs, self.early].into_iter().filter(|mask| *mask != ALL).fold(0, |a, b| a | b);
        let appears = std::mem::take(&mut self.appears);
        let unnamed = (stale != 0).then(|| self.unnamed(version, kind));
        let section = Section { stale, sums, ..Section::unknown(configuration, version, kind) };
        let (buckets, objects) = (stale.count_ones(), self.index.count_in(stale));
        tracing::info!(watch, buckets, objects, "compared with the digest");
        self.shared.metrics.compared(&watch, unnamed.is_some());
        (self.round, self.early) = (round, 0);
        self.tell(Told::Compared { watch, section, unnamed }).await?;
        self.tell_listed(version, kind).await?;
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
    async fn tell_listed(&mut self, version: &str, kind: &str) -> Result<(), Left> {
        let kept = match self.shared.keep_names {
            KeepNames::OfAll => true,
            KeepNames::OfOthers => self.spec.route != Route::engine().as_str(),
        };
        if !kept {
            return Ok(());
        }
        let objects = self.index.keys().map(|key| self.key(key.clone())).collect();
        let nothing = ObjectKey { namespace: Arc::default(), name: Arc::default() };
        let gone = self.observation(nothing, Change::Gone, version, kind);
        self.tell(Told::Listed(self.spec.name.clone(), Present { objects, gone })).await
    }

    pub(super) fn key(&self, ObjectKey { namespace, name }: ObjectKey) -> Key {
        Key { watch: Arc::clone(&self.name), namespace, name }
    }

    fn unnamed(&mut self, version: &str, kind: &str) -> Observation {
        let nothing = ObjectKey { namespace: Arc::default(), name: Arc::default() };
        self.observation(nothing, Change::Resync, version, kind)
    }

    fn observation(&mut self, key: ObjectKey, change: Change, version: &str, kind: &str) -> Observation {
        if *self.version != *version || *self.kind != *kind {
            (self.version, self.kind) = (version.into(), kind.into());
        }
        Observation {
            key: self.key(key),
            group: Arc::clone(&self.group),
            version: Arc::clone(&self.version),
            kind: Arc::clone(&self.kind),
            uid: String::new(),
            resource_version: String::new(),
            change,
            listed: false,
            at: (self.shared.clock)(),
        }
    }

    async fn report(&self, observation: Observation, moved: Moved) -> Result<(), Left> {
        self.shared.metrics.observed(&self.spec.name);
        self.tell(Told::Changed(observation, moved)).await
    }

    pub(super) async fn tell(&self, told: Told) -> Result<(), Left> {
        self.shared.changes.send(told).await.map_err(|_| Left::Closed)
    }
}
