//! Effects of answers on the dirty set.

use tidewatch_wire::{
    Route, Seq, SeqSet, limits,
    v3::{Change, Response},
};

use super::{
    Outbox,
    dirty::Dirty,
    reconciled::ClaimAnswer,
    types::{Applied, Moved, Released},
};
use crate::Tick;

impl Outbox {
    /// Applies an answer.
    pub fn answered(&mut self, response: &Response, now: Tick) -> Applied {
        if response.epoch != self.epoch {
            return Applied { ignored: true, ..Applied::default() };
        }
        let new_session = self.session.id.is_some_and(|session| session != response.session);
        let fruitless = self.session.fruitless();
        if self.session.enter(response.session) {
            self.reconciled.changed();
            self.dirty.set_older_than(None);
        }
        if let Some(older) = response.older {
            self.dirty.set_older_than(Some(older.than));
        }
        self.session.raise_mark(response.mark);
        let ClaimAnswer { confirmed, resync } = self.reconciled.answered(response, &mut self.session);
        let released = self.apply_acks(response, now);
        if !released.is_empty() {
            self.session.acknowledged();
        }
        let (asked_again, to_resend) = if new_session {
            // A restarted receiver gets them immediately. Sessions in a row without acknowledgement must not cause a
            // loop.
            resend_all(&mut self.dirty, fruitless > 1)
        } else {
            resend_unknown(&mut self.dirty, &response.unknown, response.older.is_some())
        };
        Applied {
            released,
            to_resend,
            asked_again,
            new_session,
            ignored: false,
            retry_after: response.retry_after_ms.map(Tick::from_millis),
            older_after: response.older.map(|older| Tick::from_millis(older.after_ms)),
            confirmed,
            resync,
        }
    }

    fn apply_acks(&mut self, response: &Response, now: Tick) -> Vec<Released> {
        let mut released = Vec::new();
        for ack in &response.acks {
            for (set, refused) in [(&ack.done, false), (&ack.refused, true)] {
                for seq in self.dirty.within(set) {
                    released.extend(self.acknowledge(seq, &ack.route, refused, now));
                }
            }
        }
        released
    }

    /// Records a route's acknowledgement. Returns the key if it was the last one.
    fn acknowledge(&mut self, seq: Seq, route: &Route, refused: bool, now: Tick) -> Option<Released> {
        let entry = self.dirty.get_mut(seq)?;
        entry.pending.retain(|r| r != route);
        entry.refused |= refused;
        if !entry.pending.is_empty() {
            return None;
        }
        let entry = self.dirty.remove(seq)?;
        let counts = !entry.is_canary();
        let key = entry.seen.key;
        if entry.seen.change == Change::Gone {
            self.names.deletion_acknowledged(&key, now);
        }
        if entry.seen.change == Change::Resync {
            self.reconciled.digest.settle(&key.watch);
        } else if counts {
            let Moved { before, after } = entry.moved;
            self.reconciled.digest.shift(&key.watch, &key.namespace, &key.name, before, after);
        }
        let since_observed = now.saturating_sub(entry.first_observed);
        if counts {
            self.reconciled.changed();
            if self.reconciled_ms.0.len() < limits::RECONCILED {
                self.reconciled_ms.0.push(u32::try_from(since_observed.as_millis()).unwrap_or(u32::MAX));
            }
        }
        Some(Released {
            key,
            seq,
            since_observed,
            since_sent: entry.sent.map_or(Tick::ZERO, |sent| now.saturating_sub(sent)),
            refused: entry.refused,
        })
    }
}

/// Resends everything sent: to a session that knows some, it is harmless. Returns how many are counted as asked for
/// again, and how many are resent.
fn resend_all(dirty: &mut Dirty, counts: bool) -> (usize, usize) {
    let sent: Vec<Seq> = dirty.sent().collect();
    if counts {
        for seq in &sent {
            dirty.count_asked(*seq);
        }
    }
    let asked_again = if counts { sent.len() } else { 0 };
    (asked_again, sent.into_iter().filter(|seq| dirty.resend(*seq)).count())
}

/// Resends unknown numbers. Returns like [`resend_all`]. Deferral of an older event is not a lack of capacity.
fn resend_unknown(dirty: &mut Dirty, unknown: &SeqSet, defers_older: bool) -> (usize, usize) {
    let mut unknown = dirty.within(unknown);
    unknown.retain(|seq| dirty.get(*seq).is_some_and(|entry| entry.sent.is_some()));
    let mut asked_again = 0;
    for seq in &unknown {
        if !defers_older || !dirty.is_older(*seq) {
            dirty.count_asked(*seq);
            asked_again += 1;
        }
    }
    (asked_again, unknown.into_iter().filter(|seq| dirty.resend(*seq)).count())
}
