//! Fair shares of a common capacity. Pure.
//!
//! A runtime may hold the free capacity divided by [`PARTS`], so some always stays free. Over its share, a runtime
//! accepts nothing and drops events on retries ([`Room::is_over`]). [`FLOOR`] events are always accepted.

/// A share is the free capacity divided by this.
const PARTS: usize = 24;
/// Most events of one runtime.
const MOST: usize = 20_000;
/// Events always accepted, fewer with small capacity.
const FLOOR: usize = 16;
/// Extra canaries. The next comes after a minute, when the last is not awaited.
pub(crate) const CANARIES: usize = 4;

/// A capacity in events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room(pub(crate) usize);

impl Room {
    fn floor(self) -> usize {
        (self.0 / (PARTS + 1)).clamp(1, FLOOR)
    }

    /// Further events for a runtime that holds `own` of `all`.
    pub(crate) fn left(self, all: usize, own: usize) -> usize {
        // After n more: own + n <= (room - all - n) / PARTS.
        let free = self.0.saturating_sub(all).saturating_sub(own.saturating_mul(PARTS));
        let share = (free / (PARTS + 1)).min(MOST.saturating_sub(own));
        share.max(self.floor().saturating_sub(own))
    }

    /// Whether a runtime exceeds its share, which shrinks with others' events.
    pub(crate) fn is_over(self, all: usize, own: usize) -> bool {
        let share = (self.0.saturating_sub(all) / PARTS).min(MOST);
        own > share.max(self.floor())
    }

    /// Load, 1 at the limit.
    pub(crate) fn load(self, all: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of events is far below 2^52")]
        let load = all as f64 / self.0.max(1) as f64;
        load
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn alone_a_runtime_gets_a_twenty_fifth() {
        assert_eq!(Room(500_000).left(0, 0), 20_000);
        assert_eq!(Room(usize::MAX).left(0, 0), 20_000);
        assert_eq!(Room(250).left(0, 0), 10);
        assert!(!Room(500_000).is_over(20_000, 20_000));
        assert_eq!(Room(1).left(0, 0), 1);
        assert_eq!(Room(1).left(1, 1), 0);
    }

    #[test]
    fn however_many_fill_it_there_is_room_for_one_more() {
        for fillers in [25, 100, 1_000] {
            let (room, mut all) = (Room(500_000), 0);
            for _ in 0..fillers {
                all += room.left(all, 0);
            }
            assert!(room.left(all, 0) >= FLOOR, "{fillers} hold {all}");
            assert!(all <= 500_000 + fillers * FLOOR);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Tell(usize, usize),
        Finish(usize, usize),
        Retry(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_usize..40, 1_usize..1_000).prop_map(|(who, n)| Step::Tell(who, n)),
            1 => (0_usize..40, 1_usize..1_000).prop_map(|(who, n)| Step::Finish(who, n)),
            1 => (0_usize..40).prop_map(Step::Retry),
        ]
    }

    proptest! {
        #[test]
        fn nobody_is_kept_out_and_nobody_has_all(
            size in 1_usize..5_000, steps in prop::collection::vec(step(), 1..300)
        ) {
            let (room, mut held) = (Room(size), [0_usize; 40]);
            for step in steps {
                let all: usize = held.iter().sum();
                match step {
                    Step::Tell(who, n) => {
                        let left = room.left(all, held[who]);
                        prop_assert!(held[who] >= room.floor() || left > 0, "{who} holds {} of {all}", held[who]);
                        held[who] += n.min(left);
                        prop_assert!(held[who] <= (size / 25).max(room.floor()), "{who} holds {}", held[who]);
                    }
                    Step::Finish(who, n) => held[who] = held[who].saturating_sub(n),
                    Step::Retry(who) => {
                        while room.is_over(held.iter().sum(), held[who]) {
                            held[who] -= 1;
                        }
                    }
                }
                prop_assert!(held.iter().sum::<usize>() <= size + held.len() * room.floor());
            }
            // Retries even out the shares.
            for _ in 0..3 {
                for who in 0..held.len() {
                    while room.is_over(held.iter().sum(), held[who]) {
                        held[who] -= 1;
                    }
                }
            }
            let all: usize = held.iter().sum();
            let most = held.into_iter().max().unwrap_or_default();
            prop_assert!(most <= 2 * room.left(all, 0) + room.floor() + 1, "one holds {most} of {all}");
        }
    }
}
