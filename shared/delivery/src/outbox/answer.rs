//! Effects of answers on the dirty set.

use tidewatch_wire::{
    Route, Seq, limits,
    v3::{self, Change, Response},
};

use super::{Applied, Aside, Moved, Outbox, Released};
use crate::{Tick, digest::Digest};

impl Outbox {
    pub(super) fn resend(&mut self, seq: Seq) -> bool {
        let Some(entry) = self.entries.get_mut(seq) else { return false };
        entry.sent = None;
        self.unsent.insert(seq, self.place(seq));
        true
    }

    /// Applies an answer.
    pub fn answered(&mut self, response: &Response, now: Tick) -> Applied {
        if response.epoch != self.epoch {
            return Applied { ignored: true, ..Applied::default() };
        }
        let mut applied = Applied {
            retry_after: response.retry_after_ms.map(Tick::from_millis),
            older_after: response.older.map(|older| Tick::from_millis(older.after_ms)),
            new_session: self.session.is_some_and(|s| s != response.session),
            ..Applied::default()
        };
        let fruitless = self.fruitless.0;
        if self.session != Some(response.session) {
            (self.session, self.mark) = (Some(response.session), 0);
            self.fruitless = Aside(fruitless.saturating_add(1));
            self.revision.0.counted += 1;
            self.set_older_than(None);
        }
        if let Some(older) = response.older {
            self.set_older_than(Some(older.than));
        }
        self.mark = self.mark.max(response.mark);
        if let Some((_, digest)) = self.claim.take() {
            applied.confirmed = Some(!response.resync);
            if response.resync {
                self.resynced = Some(response.session);
            } else {
                self.digest = digest;
            }
        } else if response.resync && self.resynced != Some(response.session) {
            self.resynced = Some(response.session);
            applied.resync = true;
            self.digest = Digest::new();
            self.revision.0.counted += 1;
        }
        for ack in &response.acks {
            for (set, refused) in [(&ack.done, false), (&ack.refused, true)] {
                let hit: Vec<Seq> = set
                    .ranges()
                    .flat_map(|(s, e)| self.entries.range(Seq(s)..=Seq(e)))
                    .map(|(s, _)| s)
                    .collect();
                for seq in hit {
                    applied.released.extend(self.let_go(seq, &ack.route, refused, now));
                }
            }
        }
        if !applied.released.is_empty() {
            self.fruitless = Aside(0);
        }
        if applied.new_session {
            // Resending to a session that knows some is harmless.
            let sent: Vec<Seq> =
                self.entries.iter().filter(|(_, e)| e.sent.is_some()).map(|(s, _)| s).collect();
            // A restarted receiver gets them immediately. Sessions in a row without acknowledgement must not cause a
            // loop.
            if fruitless > 1 {
                for seq in &sent {
                    *self.asked.0.entry(*seq).or_default() += 1;
                }
                applied.asked_again = sent.len();
            }
            applied.to_resend = sent.into_iter().filter(|&s| self.resend(s)).count();
        } else {
            let unknown: Vec<Seq> = response
                .unknown
                .ranges()
                .flat_map(|(s, e)| self.entries.range(Seq(s)..=Seq(e)))
                .filter(|(_, e)| e.sent.is_some())
                .map(|(s, _)| s)
                .collect();
            for seq in &unknown {
                // Deferral of an older event is not a lack of capacity.
                if response.older.is_none() || !self.is_older(*seq) {
                    *self.asked.0.entry(*seq).or_default() += 1;
                    applied.asked_again += 1;
                }
            }
            applied.to_resend = unknown.into_iter().filter(|&s| self.resend(s)).count();
        }
        applied
    }

    fn let_go(&mut self, seq: Seq, route: &Route, refused: bool, now: Tick) -> Option<Released> {
        let entry = self.entries.get_mut(seq)?;
        entry.pending.retain(|r| r != route);
        entry.refused |= refused;
        if !entry.pending.is_empty() {
            return None;
        }
        let entry = self.drop_entry(seq)?;
        let key = entry.seen.key;
        let counts = &*key.watch != v3::CANARY;
        if entry.seen.change == Change::Gone {
            self.names.leave(&key, now);
        }
        if entry.seen.change == Change::Resync {
            self.digest.settle(&key.watch);
        } else if counts {
            let Moved { before, after } = entry.moved;
            self.digest.shift(&key.watch, &key.namespace, &key.name, before, after);
        }
        self.revision.0.counted += u64::from(counts);
        let since_observed = now.saturating_sub(entry.first_observed);
        if counts && self.reconciled_ms.0.len() < limits::RECONCILED {
            self.reconciled_ms.0.push(u32::try_from(since_observed.as_millis()).unwrap_or(u32::MAX));
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
