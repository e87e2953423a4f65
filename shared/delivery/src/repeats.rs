//! Repeated messages: counted, and logged at powers of ten.

use jiff::Timestamp;

use crate::Tick;

/// Later repetitions count as new.
const FORGOTTEN: Tick = Tick::from_mins(15);

/// A message and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// Text.
    pub message: String,
    /// Count.
    pub count: u64,
    /// First time.
    pub since: Timestamp,
    last: Tick,
}

/// Recent messages, up to a limit.
#[derive(Clone, Debug)]
pub struct Repeats {
    max: usize,
    /// Most recent last.
    messages: Vec<Repeated>,
}

impl Repeats {
    /// Limits the messages to `max`; a further one evicts the least recent.
    #[must_use]
    pub fn of(max: usize) -> Self {
        Self { max: max.max(1), messages: Vec::new() }
    }

    /// Counts a message. Returns the count if it should be logged.
    pub fn record(&mut self, message: &str, now: Timestamp, tick: Tick) -> Option<u64> {
        self.messages.retain(|repeated| tick.saturating_sub(repeated.last) < FORGOTTEN);
        let Some(at) = self.messages.iter().position(|repeated| repeated.message == message) else {
            if self.messages.len() == self.max {
                self.messages.remove(0);
            }
            self.messages.push(Repeated { message: message.to_owned(), count: 1, since: now, last: tick });
            return Some(1);
        };
        let mut repeated = self.messages.remove(at);
        (repeated.count, repeated.last) = (repeated.count.saturating_add(1), tick);
        let count = repeated.count;
        self.messages.push(repeated);
        (10_u64.pow(count.ilog10()) == count).then_some(count)
    }

    /// Messages with a count above one.
    pub fn repeated(&self) -> impl Iterator<Item = &Repeated> {
        self.messages.iter().filter(|repeated| repeated.count > 1)
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.messages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn a_repeated_message_is_logged_at_powers_of_ten() {
        let mut repeats = Repeats::of(3);
        let logged: Vec<u64> = (0..1_500).filter_map(|_| repeats.record("no", NOW, Tick::ZERO)).collect();
        assert_eq!(logged, [1, 10, 100, 1_000]);
        let counts: Vec<_> = repeats.repeated().map(|r| (r.message.as_str(), r.count)).collect();
        assert_eq!(counts, [("no", 1_500)]);
        assert_eq!(
            repeats.record("no", NOW, FORGOTTEN),
            Some(1),
            "after a quarter of an hour it is news again"
        );
    }

    #[test]
    fn endless_messages_take_bounded_memory() {
        let mut repeats = Repeats::of(3);
        for n in 0..1_000 {
            repeats.record(&n.to_string(), NOW, Tick::ZERO);
            repeats.record("often", NOW, Tick::ZERO);
        }
        assert_eq!(repeats.messages.len(), 3);
        assert_eq!(repeats.repeated().map(|r| r.count).collect::<Vec<_>>(), [1_000]);
        repeats.clear();
        assert_eq!(repeats.repeated().count(), 0);
    }
}
