//! Content of a request, within the limits of the contract or a proxy.

use tidewatch_wire::{
    Seq, SeqSet, limits,
    v3::{self, Event, Request},
};

use super::{
    Outbox,
    types::{InFlight, Observation},
    unsent::May,
};
use crate::Tick;

/// Longest range in a request's JSON.
const RANGE_BYTES: usize = 44;
impl Outbox {
    /// Next request with events, if any. [`Outbox::failed`] returns them.
    ///
    /// Order: canary, fresh changes, changes asked for again, then reported and older events. Oldest first.
    pub fn next_batch(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        self.next_batch_of(May::ALL, now)
    }

    /// Like [`Outbox::next_batch`], for fresh changes and those that `may` permits.
    pub fn next_batch_of(&mut self, may: May, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.dirty.choose(may, self.size.0.events);
        self.batch(seqs, now)
    }

    /// The fresh canary alone: a sign of life while the receiver accepts no batch.
    pub fn next_canary(&mut self, now: Tick) -> Option<(Request<'static>, InFlight)> {
        let seqs = self.dirty.new_canary().into_iter().collect();
        self.batch(seqs, now)
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
            let Some(entry) = self.dirty.get_mut(seq) else { continue };
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
            self.dirty.take_unsent(*seq);
            // Further ranges wait for a later request.
            if request.awaiting.range_count() < self.size.0.ranges {
                request.awaiting.insert(*seq);
            }
        }
        // It replaces a heartbeat.
        if events.iter().all(|event| event.watch == v3::CANARY) {
            request.health.clone_from(&self.health);
            request.digest = self.reconciled.stored.filter(|_| self.declares());
        }
        Some((Request { events, ..request }, InFlight(seqs)))
    }

    /// A request for acknowledgements, if any is awaited.
    pub fn poll(&mut self) -> Option<Request<'static>> {
        self.dirty.sent().next()?;
        Some(Request { health: self.health.clone(), ..self.request(Vec::new(), true) })
    }

    /// A sign of life with health and declared digest.
    pub fn heartbeat(&mut self) -> Request<'static> {
        let digest = self.reconciled.stored.filter(|_| self.declares());
        Request { health: self.health.clone(), digest, ..self.request(Vec::new(), false) }
    }

    fn request(&mut self, events: Vec<Event<'static>>, poll: bool) -> Request<'static> {
        let mut awaiting = SeqSet::new();
        for seq in self.dirty.sent() {
            // The receiver rejects more ranges; they wait for a later request.
            if awaiting.range_count() >= self.size.0.ranges {
                break;
            }
            awaiting.insert(seq);
        }
        Request {
            session: self.session.id,
            mark: self.session.mark,
            resume: self.reconciled.claim(),
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
            self.dirty.resend(*seq);
        }
    }

    /// Returns the events of a request too large for the receiver or a proxy; later requests are smaller. `ranges` were
    /// awaited.
    pub fn too_large(&mut self, in_flight: &InFlight, ranges: usize) {
        self.size.0.halve(in_flight.len(), ranges);
        if let [alone] = in_flight.0[..]
            // If an answer has returned it already, its priority in `unsent` must not change.
            && self.dirty.get(alone).is_some_and(|entry| entry.sent.is_some())
        {
            // It cannot shrink; a lower priority at least delays no others.
            self.dirty.count_asked(alone);
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
