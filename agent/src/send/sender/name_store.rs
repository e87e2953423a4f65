//! Names are stored before their objects are reported, and removed later.

use super::settings::Settings;
use crate::{digest::Memory, metrics::Metrics};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidewatch_delivery::{
    names::Names,
    outbox::{KeepNames, Outbox},
};
use tokio::time::Instant;

/// Shortest time between urgent writes, to batch bursts.
const PACE: Duration = Duration::from_millis(250);
/// Delay from an acknowledged deletion to the name's removal. By then the watch has shown any object that the
/// manager found.
const LINGER: Duration = Duration::from_secs(30);
const EXPIRY_INTERVAL: Duration = Duration::from_mins(1);
/// Each name slows writes, as all are written.
const PACE_PER_NAME: Duration = Duration::from_micros(25);
const SLOWEST: Duration = Duration::from_secs(2);

/// Returns the time of a watch's latest data.
pub(super) type LastData = Box<dyn Fn(&str) -> Option<Instant> + Send>;

pub(super) struct NameStore {
    keep: KeepNames,
    last_data: LastData,
    /// All watches, once known.
    watches: Option<BTreeSet<String>>,
    kept: usize,
    /// Names beyond the limit that the metric already counts.
    left_out: u64,
    submitted: u64,
    submitted_at: Instant,
    submit_at: Option<Instant>,
    /// When withheld changes are sent anyway.
    waive_at: Option<Instant>,
    expire_at: Instant,
}

impl NameStore {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            keep: KeepNames::OfOthers,
            last_data: Box::new(|_| None),
            watches: None,
            kept: 0,
            left_out: 0,
            submitted: 0,
            submitted_at: now,
            submit_at: None,
            waive_at: None,
            expire_at: now + EXPIRY_INTERVAL,
        }
    }

    pub(super) fn set_keep(&mut self, keep: KeepNames) {
        self.keep = keep;
    }

    pub(super) fn set_last_data(&mut self, last_data: LastData) {
        self.last_data = last_data;
    }

    /// Number of names at the last submission.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn wake(&self) -> Option<Instant> {
        let expire = (self.kept > 0).then_some(self.expire_at);
        [self.submit_at, self.waive_at, expire].into_iter().flatten().min()
    }

    /// Passes an earlier run's names to `outbox`. Returns their versions and kinds by watch.
    pub(super) fn load(
        &mut self,
        names: Names,
        outbox: &mut Outbox,
        max_names: usize,
    ) -> BTreeMap<String, (String, String)> {
        self.kept = names.len();
        let kinds = names
            .kinds()
            .map(|(watch, version, kind)| (watch.to_owned(), (version.to_owned(), kind.to_owned())));
        let kinds = kinds.collect();
        outbox.keep_names(self.keep, names.within(max_names));
        self.drop_unwatched(outbox);
        kinds
    }

    /// Sets all watches; names of others are dropped.
    pub(super) fn set_watches(&mut self, watches: BTreeSet<String>, outbox: &mut Outbox) {
        self.watches = Some(watches);
        self.drop_unwatched(outbox);
    }

    fn drop_unwatched(&self, outbox: &mut Outbox) {
        if let Some(watches) = &self.watches {
            outbox.names_mut().retain(|watch| watches.contains(watch));
        }
    }

    /// Records that the revision is stored, or that waiting is useless.
    pub(super) fn stored(&mut self, revision: u64, outbox: &mut Outbox) {
        outbox.names_stored(revision);
        // The rest arrived later.
        self.waive_at = None;
    }

    /// Submits names to the storage: soon while changes wait, else later. `start` is the outbox's tick 0.
    pub(super) fn submit_if_due(
        &mut self,
        memory: &Memory,
        outbox: &mut Outbox,
        settings: &Settings,
        start: Instant,
        metrics: &Metrics,
    ) {
        let now = Instant::now();
        self.expire(outbox, start, now);
        self.count_left_out(outbox, metrics);
        let (revision, waiting) = (outbox.names().revision(), outbox.dirty().withheld() > 0);
        if revision != self.submitted {
            let due = if waiting { self.submitted_at + self.pace() } else { now + settings.store };
            let due = self.submit_at.map_or(due, |earlier| earlier.min(due));
            self.submit_at = Some(due);
            if due <= now {
                memory.names.send_replace(Some(Arc::new(outbox.names().snapshot())));
                (self.submitted, self.submitted_at, self.submit_at) = (revision, now, None);
                self.kept = outbox.names().len();
            }
        }
        self.waive_at = waiting.then(|| self.waive_at.unwrap_or(now + settings.withhold));
        if self.waive_at.is_some_and(|at| at <= now) {
            tracing::warn!(
                changes = outbox.dirty().withheld(),
                "names are not stored in time; reporting changes without them"
            );
            self.stored(revision, outbox);
        }
    }

    fn expire(&mut self, outbox: &mut Outbox, start: Instant, now: Instant) {
        if self.expire_at > now {
            return;
        }
        self.expire_at = now + EXPIRY_INTERVAL;
        let last_data = &self.last_data;
        outbox
            .names_mut()
            .expire(|watch| Some(last_data(watch)?.duration_since(start).saturating_sub(LINGER)));
    }

    /// Warns once; the metric counts the rest.
    fn count_left_out(&mut self, outbox: &Outbox, metrics: &Metrics) {
        let left_out = outbox.names().left_out();
        let before = std::mem::replace(&mut self.left_out, left_out);
        metrics.names_not_kept.inc_by(left_out - before);
        if before == 0 && left_out > 0 {
            tracing::warn!(
                kept = outbox.names().len(),
                "other managers watch more objects than maxKeptNames: their changes are reported, but not their \
                 deletion while the agent is down; raise maxKeptNames or narrow the Watchers' labels"
            );
        }
    }

    fn pace(&self) -> Duration {
        let names = u32::try_from(self.kept).unwrap_or(u32::MAX);
        PACE + PACE_PER_NAME.saturating_mul(names).min(SLOWEST)
    }
}
