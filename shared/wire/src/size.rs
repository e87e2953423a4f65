//! Upper bounds of body lengths, known before serialization. Senders use them to stay within [`limits::V3_BODY_BYTES`].
//!
//! [`limits::V3_BODY_BYTES`]: crate::limits::V3_BODY_BYTES

use crate::{
    SeqSet,
    v3::{Event, Health, Request},
};

/// Bytes of an event without its strings.
const EVENT: usize = 256;
/// Bytes of a request without its lists.
const REQUEST: usize = 448;
/// A range of one-digit numbers and a comma.
const RANGE: usize = 6;
/// A string's quotes and a comma.
const QUOTES: usize = 3;
/// A `u32` and a comma.
const FIGURE: usize = 11;

impl Event<'_> {
    /// Most bytes in a body, with a comma.
    #[must_use]
    pub fn json_bound(&self) -> usize {
        let Event { seq: _, watch, group, version, kind, namespace, name, uid, resource_version, .. } = self;
        let strings = [watch, group, version, kind, namespace, name, uid, resource_version];
        EVENT + strings.iter().map(|text| escaped(text)).sum::<usize>()
    }
}

impl Request<'_> {
    /// Most bytes of the body.
    #[must_use]
    pub fn json_bound(&self) -> usize {
        let health = self.health.as_ref().map_or(0, Health::json_bound);
        let figures = self.reconciled_ms.len() * FIGURE;
        let events: usize = self.events.iter().map(Event::json_bound).sum();
        REQUEST + health + figures + events + self.awaiting.json_bound()
    }
}

impl Health {
    /// Most bytes in a body, without field names.
    #[must_use]
    pub fn json_bound(&self) -> usize {
        let strings = self.blind.iter().chain([&self.configuration, &self.trust, &self.installation]);
        strings.map(|text| escaped(text) + QUOTES).sum()
    }
}

impl SeqSet {
    /// Most bytes in a body.
    #[must_use]
    pub fn json_bound(&self) -> usize {
        self.ranges().map(|(start, end)| RANGE + digits(start) + digits(end)).sum()
    }
}

/// Digits beyond the first.
fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(0, |log| log as usize)
}

/// Bytes between the quotes.
fn escaped(text: &str) -> usize {
    let more = |byte: u8| match byte {
        // \u00XX, the longest escape.
        0..0x20 => 5,
        b'"' | b'\\' => 1,
        _ => 0,
    };
    text.len() + text.bytes().map(more).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use crate::{
        Epoch, Seq, SeqSet, SessionId, limits,
        v3::{Change, Event, Health, Request, Resume},
    };

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![".{0,40}", "[\\x00-\\x1f\"\\\\]{0,40}", "[a-z]{0,40}"]
    }

    fn event() -> impl Strategy<Value = Event<'static>> {
        (prop::collection::vec(text(), 8), any::<u64>(), 0_i64..=253_402_207_200, any::<bool>()).prop_map(
            |(texts, seq, second, listed)| {
                let mut texts = texts.into_iter().map(Into::into);
                let mut next = || texts.next().unwrap_or_default();
                Event {
                    seq: Seq(seq),
                    watch: next(),
                    group: next(),
                    version: next(),
                    kind: next(),
                    namespace: next(),
                    name: next(),
                    uid: next(),
                    resource_version: next(),
                    change: Change::Changed,
                    listed,
                    observed_at: Timestamp::new(second, 999_999_999).unwrap_or(Timestamp::MAX),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn no_body_is_longer_than_its_bound(
            events in prop::collection::vec(event(), 0..4),
            awaiting in prop::collection::vec(any::<u64>(), 0..40),
            small in prop::collection::vec(0_u64..200, 0..40),
            reconciled_ms in prop::collection::vec(any::<u32>(), 0..9),
            (configuration, trust, installation, blind) in (text(), text(), text(), prop::collection::vec(text(), 0..4)),
        ) {
            let epoch = Epoch::from_bits(u128::MAX);
            let session = SessionId::from_bits(u128::MAX);
            let request = Request {
                session: Some(session),
                mark: u64::MAX,
                resume: Some(Resume { session, epoch, serial: u64::MAX }),
                digest: Some(u64::MAX),
                health: Some(Health { configuration, blind, trust, installation }),
                awaiting: awaiting.into_iter().chain(small).map(Seq).collect::<SeqSet>(),
                events,
                reconciled_ms,
                poll: true,
                ..Request::new(epoch)
            };
            let (body, bound) = (serde_json::to_vec(&request).unwrap().len(), request.json_bound());
            prop_assert!(body <= bound, "{body} bytes, bound {bound}");
            let slack = 300 + 60 * request.events.len() + 3 * request.health.map_or(0, |h| h.json_bound())
                + 5 * request.events.iter().map(Event::json_bound).sum::<usize>();
            prop_assert!(bound <= body + slack, "{body} bytes, bound {bound}");
        }
    }

    #[test]
    fn the_bound_of_a_usual_event_is_tight() {
        let text = |length: usize| "x".repeat(length).into();
        let event = Event {
            seq: Seq(1_000_000),
            watch: text(30),
            group: text(30),
            version: text(7),
            kind: text(20),
            namespace: text(30),
            name: text(60),
            uid: text(36),
            resource_version: text(9),
            change: Change::Resync,
            listed: false,
            observed_at: Timestamp::UNIX_EPOCH,
        };
        let (body, bound) = (serde_json::to_vec(&event).unwrap().len(), event.json_bound());
        assert!(bound <= body + 100, "{body} bytes, bound {bound}");
        assert!(bound * limits::V3_EVENTS < limits::V3_BODY_BYTES / 2, "a full batch of usual events fits");
    }
}
