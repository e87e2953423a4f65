//! What goes into one request: as much as the contract allows in number and in bytes, or as the way to the receiver has
//! let pass.

use tidewatch_wire::{
    Seq, SeqSet, limits,
    v3::{self, Event, Request},
};

use super::{
    InFlight, Observation, Outbox,
    unsent::{FRESH, May},
};
use crate::Tick;

/// The longest range.
const RANGE_BYTES: usize = 44;
/// A request names at least so many ranges, however little passes.
const LEAST_RANGES: usize = 16;

/// How large requests may be. Smaller than the contract allows when a proxy on the way allows less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    events: usize,
    ranges: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { events: limits::V3_EVENTS, ranges: limits::SEQ_RANGES }
    }
}

impl Size {
    /// A request with so many events passed. Grows slowly, since to find out costs a failure.
    fn grow(&mut self, events: usize) {
        if events >= self.events {
            self.events = (events + 1).min(limits::V3_EVENTS);
        }
        self.ranges = (self.ranges + 1).min(limits::SEQ_RANGES);
    }

    /// One did not.
    fn halve(&mut self, events: usize, ranges: usize) {
        if events > 0 {
            self.events = (events / 2).max(1);
        }
        self.ranges = (self.ranges.min(ranges) / 2).max(LEAST_RANGES);
    }
}

impl Outbox {
    /// The next request with events, if anything is unsent: the canary, then what was just changed, then what of that the receiver
    /// has asked for again, then what a full report reports and what is older than the session; of equals the oldest. What it
    /// carries counts as sent until [`Outbox::failed`] takes it back.
    pub fn next_batch(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        self.next_batch_of(May::ALL, now)
    }

    /// The same of what was just changed, and of what else it may be.
    pub fn next_batch_of(&mut self, may: May, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.choose(may);
        self.batch(seqs, now)
    }

    /// The canary alone, if it is unsent and was not asked for again: a sign of life, for when the receiver wants no batch.
    pub fn next_canary(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.new_canary().into_iter().collect();
        self.batch(seqs, now)
    }

    /// Whether [`Outbox::next_canary`] has something to send.
    pub fn has_new_canary(&self) -> bool {
        self.new_canary().is_some()
    }

    fn new_canary(&self) -> Option<Seq> {
        self.by_key.canaries().find(|seq| self.unsent.contains(*seq, FRESH))
    }

    /// Numbers to send, the most urgent first: at most a batch.
    fn choose(&self, may: May) -> Vec<Seq> {
        let most = self.size.0.events;
        let mut chosen = self.unsent.first(may, most);
        // Behind thousands of changes it would come too late to say that the way is good.
        if let Some(canary) = self.new_canary() {
            chosen.retain(|seq| *seq != canary);
            chosen.truncate(most.saturating_sub(1));
            chosen.insert(0, canary);
        }
        chosen
    }

    /// A request with those of `chosen` for which it has room.
    fn batch(&mut self, chosen: Vec<Seq>, now: Tick) -> Option<(Request<'static>, InFlight)> {
        if self.is_claiming() || chosen.is_empty() {
            return None;
        }
        let mut request = self.request(Vec::new(), false);
        let mut left = limits::V3_BODY_BYTES.saturating_sub(request.json_bound());
        let mut events = Vec::with_capacity(chosen.len());
        for seq in chosen {
            let Some(entry) = self.entries.get_mut(seq) else { continue };
            let event = event(seq, &entry.seen);
            let bytes = event.json_bound() + RANGE_BYTES;
            // One always has room: the longest takes a fourth of what ranges and health leave of a body.
            if bytes > left && !events.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            entry.sent = Some(now);
            events.push(event);
        }
        events.sort_unstable_by_key(|event| event.seq);
        let seqs: Vec<Seq> = events.iter().map(|event| event.seq).collect();
        for seq in &seqs {
            self.take_unsent(*seq);
            // The first of a set of more ranges than the contract allows are named; the rest waits its turn.
            if request.awaiting.range_count() < self.size.0.ranges {
                request.awaiting.insert(*seq);
            }
        }
        // The canary is a sign of life, so it takes with it what the heartbeat would say.
        if events.iter().all(|event| event.watch == v3::CANARY) {
            request.health.clone_from(&self.health);
            request.digest = self.stored.filter(|_| self.declares());
        }
        Some((Request { events, ..request }, InFlight(seqs)))
    }

    /// A request that waits for acknowledgements, if any number is awaited.
    pub fn poll(&mut self) -> Option<Request<'static>> {
        if !self.entries.values().any(|e| e.sent.is_some()) {
            return None;
        }
        Some(Request { health: self.health.clone(), ..self.request(Vec::new(), true) })
    }

    /// A request that says only that the agent lives, and what it claims.
    pub fn heartbeat(&mut self) -> Request<'static> {
        let digest = self.stored.filter(|_| self.declares());
        Request { health: self.health.clone(), digest, ..self.request(Vec::new(), false) }
    }

    fn request(&mut self, events: Vec<Event<'static>>, poll: bool) -> Request<'static> {
        let mut awaiting = SeqSet::new();
        for (seq, _) in self.entries.iter().filter(|(_, e)| e.sent.is_some()) {
            // A set of more ranges than the contract allows would be refused; the rest waits its turn.
            if awaiting.range_count() >= self.size.0.ranges {
                break;
            }
            awaiting.insert(seq);
        }
        Request {
            session: self.session,
            mark: self.mark,
            resume: self.claim.as_ref().map(|(claim, _)| *claim),
            reconciled_ms: std::mem::take(&mut self.reconciled_ms.0),
            events,
            awaiting,
            poll,
            ..Request::new(self.epoch)
        }
    }

    /// A request did not get an answer: its events have to be sent again.
    pub fn failed(&mut self, in_flight: &InFlight) {
        for seq in &in_flight.0 {
            self.resend(*seq);
        }
    }

    /// A request was too large for the receiver, or for a proxy before it: its events have to be sent again, in smaller
    /// ones. `ranges` is how many it awaited.
    pub fn too_large(&mut self, in_flight: &InFlight, ranges: usize) {
        self.size.0.halve(in_flight.len(), ranges);
        if let [alone] = in_flight.0[..]
            // Taken back already, by an answer that came first, it is none that was asked for.
            && self.entries.get(alone).is_some_and(|entry| entry.sent.is_some())
        {
            // It cannot be made smaller; at least it delays nothing else.
            *self.asked.0.entry(alone).or_default() += 1;
        }
        self.failed(in_flight);
    }

    /// A request was not too large.
    pub fn passed(&mut self, in_flight: &InFlight) {
        self.size.0.grow(in_flight.len());
    }
}

/// An observation as it is sent.
fn event(seq: Seq, seen: &Observation) -> Event<'static> {
    let text = |text: &str| text.to_owned().into();
    Event {
        seq,
        watch: text(&seen.key.watch),
        group: text(&seen.group),
        version: text(&seen.version),
        kind: text(&seen.kind),
        namespace: text(&seen.key.namespace),
        name: text(&seen.key.name),
        uid: text(&seen.uid),
        resource_version: text(&seen.resource_version),
        change: seen.change,
        listed: seen.listed,
        observed_at: seen.at,
    }
}
