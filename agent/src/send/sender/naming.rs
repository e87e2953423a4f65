//! Names are stored before their objects are reported, and removed later.

use super::{super::Transport, Sender};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidewatch_delivery::{names::Names, outbox::KeepNames};
use tokio::time::Instant;

/// Shortest time between urgent writes, to batch bursts.
const PACE: Duration = Duration::from_millis(250);
/// Delay from an acknowledged deletion to the name's removal. By then the watch has shown any object that the
/// manager found.
const LINGER: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_mins(1);
/// Each name slows writes, as all are written.
const PACE_PER_NAME: Duration = Duration::from_micros(25);
const SLOWEST: Duration = Duration::from_secs(2);
pub(super) type HeardAt = Box<dyn Fn(&str) -> Option<Instant> + Send>;

pub(super) struct Naming {
    keep: KeepNames,
    pub(super) heard_at: HeardAt,
    pub(super) watches: Option<BTreeSet<String>>,
    pub(super) kept: usize,
    /// Dropped names already in the metric.
    left_out: u64,
    given: u64,
    given_at: Instant,
    give_at: Option<Instant>,
    /// When withheld changes are sent anyway.
    waive_at: Option<Instant>,
    expire_at: Instant,
}

impl Naming {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            keep: KeepNames::OfOthers,
            heard_at: Box::new(|_| None),
            watches: None,
            kept: 0,
            left_out: 0,
            given: 0,
            given_at: now,
            give_at: None,
            waive_at: None,
            expire_at: now + LOOK,
        }
    }

    pub(super) fn of(self, keep: KeepNames) -> Self {
        Self { keep, ..self }
    }

    pub(super) fn wake(&self) -> Option<Instant> {
        let expire = (self.kept > 0).then_some(self.expire_at);
        [self.give_at, self.waive_at, expire].into_iter().flatten().min()
    }
}

impl<T: Transport> Sender<T> {
    /// Returns the kinds of the stored names.
    pub(super) fn keep_names(&mut self, names: Names) -> BTreeMap<String, (String, String)> {
        self.naming.kept = names.len();
        let kinds = names
            .kinds()
            .map(|(watch, version, kind)| (watch.to_owned(), (version.to_owned(), kind.to_owned())));
        let kinds = kinds.collect();
        self.outbox.keep_names(self.naming.keep, names.within(self.settings.max_names));
        self.drop_names();
        kinds
    }

    pub(super) fn drop_names(&mut self) {
        if let Some(watches) = &self.naming.watches {
            self.outbox.retain_names(|watch| watches.contains(watch));
        }
    }

    /// The revision is stored, or waiting is useless.
    pub(super) fn names_stored(&mut self, revision: u64) {
        self.outbox.names_stored(revision);
        // The rest arrived later.
        self.naming.waive_at = None;
    }

    /// Stores names: soon while changes wait, else later.
    pub(super) fn give_names(&mut self) {
        let Some(memory) = &self.memory else { return };
        let (now, naming) = (Instant::now(), &mut self.naming);
        if naming.expire_at <= now {
            naming.expire_at = now + LOOK;
            let (heard_at, start) = (&naming.heard_at, self.start);
            self.outbox
                .expire_names(|watch| Some(heard_at(watch)?.duration_since(start).saturating_sub(LINGER)));
        }
        let left_out = self.outbox.names().left_out();
        let before = std::mem::replace(&mut naming.left_out, left_out);
        self.metrics.names_not_kept.inc_by(left_out - before);
        // Once; the metric counts the rest.
        if before == 0 && left_out > 0 {
            tracing::warn!(
                kept = self.outbox.names().len(),
                "there are more objects that other managers hear of than maxKeptNames: those beyond are reported, but \
                 not if they are deleted while the agent is down; raise maxKeptNames or narrow the Watchers' labels"
            );
        }
        let names = u32::try_from(naming.kept).unwrap_or(u32::MAX);
        let pace = PACE + PACE_PER_NAME.saturating_mul(names).min(SLOWEST);
        let (revision, waiting) = (self.outbox.names().revision(), self.outbox.withheld() > 0);
        if revision != naming.given {
            let due = if waiting { naming.given_at + pace } else { now + self.settings.store };
            let due = naming.give_at.map_or(due, |earlier| earlier.min(due));
            naming.give_at = Some(due);
            if due <= now {
                memory.names.send_replace(Some(Arc::new(self.outbox.names_snapshot())));
                (naming.given, naming.given_at, naming.give_at) = (revision, now, None);
                naming.kept = self.outbox.names().len();
            }
        }
        naming.waive_at = waiting.then(|| naming.waive_at.unwrap_or(now + self.settings.withhold));
        if naming.waive_at.is_some_and(|at| at <= now) {
            tracing::warn!(
                changes = self.outbox.withheld(),
                "names are not stored in time; telling without them"
            );
            self.outbox.names_stored(revision);
            naming.waive_at = None;
        }
    }
}
