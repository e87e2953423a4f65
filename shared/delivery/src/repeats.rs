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
    most: usize,
    told: Vec<Repeated>,
}

impl Repeats {
    /// Limits the messages to `most`; a further one evicts the least recent.
    #[must_use]
    pub fn of(most: usize) -> Self {
        Self { most: most.max(1), told: Vec::new() }
    }

    /// Counts a message. Returns the count if it should be logged.
    pub fn told(&mut self, message: &str, now: Timestamp, tick: Tick) -> Option<u64> {
        self.told.retain(|repeated| tick.saturating_sub(repeated.last) < FORGOTTEN);
        let Some(at) = self.told.iter().position(|repeated| repeated.message == message) else {
            if self.told.len() == self.most {
                self.told.remove(0);
            }
            self.told.push(Repeated { message: message.to_owned(), count: 1, since: now, last: tick });
            return Some(1);
        };
        let mut repeated = self.told.remove(at);
        (repeated.count, repeated.last) = (repeated.count.saturating_add(1), tick);
        let count = repeated.count;
        // Most recent last.
        self.told.push(repeated);
        (10_u64.pow(count.ilog10()) == count).then_some(count)
    }

    /// Messages with a count above one.
    pub fn repeated(&self) -> impl Iterator<Item = &Repeated> {
        self.told.iter().filter(|repeated| repeated.count > 1)
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.told.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn a_repeated_message_is_logged_at_powers_of_ten_and_counted() {
        let mut repeats = Repeats::of(3);
        let logged: Vec<u64> = (0..1_500).filter_map(|_| repeats.told("no", NOW, Tick::ZERO)).collect();
        assert_eq!(logged, [1, 10, 100, 1_000]);
        let counts: Vec<_> = repeats.repeated().map(|r| (r.message.as_str(), r.count)).collect();
        assert_eq!(counts, [("no", 1_500)]);
        assert_eq!(
            repeats.told("no", NOW, FORGOTTEN),
            Some(1),
            "after a quarter of an hour it is news again"
        );
    }

    #[test]
    fn messages_without_end_take_no_memory_without_end() {
        let mut repeats = Repeats::of(3);
        for n in 0..1_000 {
            repeats.told(&n.to_string(), NOW, Tick::ZERO);
            repeats.told("often", NOW, Tick::ZERO);
        }
        assert_eq!(repeats.told.len(), 3);
        assert_eq!(repeats.repeated().map(|r| r.count).collect::<Vec<_>>(), [1_000]);
        repeats.clear();
        assert_eq!(repeats.repeated().count(), 0);
    }
}
