//! Content of a request, within the limits of the contract or a proxy.

use tidewatch_wire::{
    Seq, SeqSet, limits,
    v3::{self, Event, Request},
};

use super::{
    InFlight, Observation, Outbox,
    unsent::{FRESH, May},
};
use crate::Tick;

const RANGE_BYTES: usize = 44;
/// Fewest ranges in a request.
const LEAST_RANGES: usize = 16;

/// Request limits, below the contract's for a proxy.
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
    /// Grows slowly, because each probe costs a failure.
    fn grow(&mut self, events: usize) {
        if events >= self.events {
            self.events = (events + 1).min(limits::V3_EVENTS);
        }
        self.ranges = (self.ranges + 1).min(limits::SEQ_RANGES);
    }

    fn halve(&mut self, events: usize, ranges: usize) {
        if events > 0 {
            self.events = (events / 2).max(1);
        }
        self.ranges = (self.ranges.min(ranges) / 2).max(LEAST_RANGES);
    }
}

impl Outbox {
    /// Next request with events, if any. [`Outbox::failed`] returns them.
    ///
    /// Order: canary, fresh changes, changes asked for again, then reported and older events. Oldest first.
    pub fn next_batch(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        self.next_batch_of(May::ALL, now)
    }

    /// Like [`Outbox::next_batch`], for fresh changes and those that `may` permits.
    pub fn next_batch_of(&mut self, may: May, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.choose(may);
        self.batch(seqs, now)
    }

    /// The fresh canary alone: a sign of life while the receiver accepts no batch.
    pub fn next_canary(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.new_canary().into_iter().collect();
        self.batch(seqs, now)
    }

    /// Whether [`Outbox::next_canary`] has a request.
    pub fn has_new_canary(&self) -> bool {
        self.new_canary().is_some()
    }

    fn new_canary(&self) -> Option<Seq> {
        self.by_key.canaries().find(|seq| self.unsent.contains(*seq, FRESH))
    }

    /// Most urgent first.
    fn choose(&self, may: May) -> Vec<Seq> {
        let most = self.size.0.events;
        let mut chosen = self.unsent.first(may, most);
        // Behind thousands of changes it would prove the path too late.
        if let Some(canary) = self.new_canary() {
            chosen.retain(|seq| *seq != canary);
            chosen.truncate(most.saturating_sub(1));
            chosen.insert(0, canary);
        }
        chosen
    }

    /// As many of `chosen` as fit.
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
            // One always fits: the longest takes a quarter of the body besides ranges and health.
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
            // Further ranges wait for a later request.
            if request.awaiting.range_count() < self.size.0.ranges {
                request.awaiting.insert(*seq);
            }
        }
        // It replaces a heartbeat.
        if events.iter().all(|event| event.watch == v3::CANARY) {
            request.health.clone_from(&self.health);
            request.digest = self.stored.filter(|_| self.declares());
        }
        Some((Request { events, ..request }, InFlight(seqs)))
    }

    /// A request for acknowledgements, if any is awaited.
    pub fn poll(&mut self) -> Option<Request<'static>> {
        if !self.entries.values().any(|e| e.sent.is_some()) {
            return None;
        }
        Some(Request { health: self.health.clone(), ..self.request(Vec::new(), true) })
    }

    /// A sign of life with health and declared digest.
    pub fn heartbeat(&mut self) -> Request<'static> {
        let digest = self.stored.filter(|_| self.declares());
        Request { health: self.health.clone(), digest, ..self.request(Vec::new(), false) }
    }

    fn request(&mut self, events: Vec<Event<'static>>, poll: bool) -> Request<'static> {
        let mut awaiting = SeqSet::new();
        for (seq, _) in self.entries.iter().filter(|(_, e)| e.sent.is_some()) {
            // The receiver rejects more ranges; they wait for a later request.
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

    /// Returns a failed request's events.
    pub fn failed(&mut self, in_flight: &InFlight) {
        for seq in &in_flight.0 {
            self.resend(*seq);
        }
    }

    /// Returns the events of a request too large for the receiver or a proxy; later requests are smaller. `ranges` were
    /// awaited.
    pub fn too_large(&mut self, in_flight: &InFlight, ranges: usize) {
        self.size.0.halve(in_flight.len(), ranges);
        if let [alone] = in_flight.0[..]
            // If an answer has returned it already, its place in `unsent` must not change.
            && self.entries.get(alone).is_some_and(|entry| entry.sent.is_some())
        {
            // It cannot shrink; a later place at least delays no others.
            *self.asked.0.entry(alone).or_default() += 1;
        }
        self.failed(in_flight);
    }

    /// Records a request of acceptable size.
    pub fn passed(&mut self, in_flight: &InFlight) {
        self.size.0.grow(in_flight.len());
    }
}

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
