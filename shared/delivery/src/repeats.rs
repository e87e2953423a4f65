//! Messages that repeat: one line at the first, the tenth, the hundredth time, and their counts to be shown.

use jiff::Timestamp;

use crate::Tick;

/// A message that comes again later than this is a new one.
const FORGOTTEN: Tick = Tick::from_mins(15);

/// A message and how often it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The message.
    pub message: String,
    /// How often.
    pub count: u64,
    /// The first time.
    pub since: Timestamp,
    last: Tick,
}

/// The messages of late, up to a number of different ones.
#[derive(Clone, Debug)]
pub struct Repeats {
    most: usize,
    told: Vec<Repeated>,
}

impl Repeats {
    /// Counts at most so many messages. A further one takes the place of the one that was told longest ago.
    #[must_use]
    pub fn of(most: usize) -> Self {
        Self { most: most.max(1), told: Vec::new() }
    }

    /// Counts a message. Returns the count where it is worth a line in the log.
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
        // The one that was told last is the last to be forgotten.
        self.told.push(repeated);
        (10_u64.pow(count.ilog10()) == count).then_some(count)
    }

    /// What was told more than once.
    pub fn repeated(&self) -> impl Iterator<Item = &Repeated> {
        self.told.iter().filter(|repeated| repeated.count > 1)
    }

    /// The cause is gone: the next message is a new one.
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
