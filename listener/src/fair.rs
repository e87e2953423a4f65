//! How many events each of many runtimes may hold, in a room that all of them share. Pure.
//!
//! What is free is divided anew at each look: a runtime may hold as much as a part of it ([`PARTS`]). Alone it gets a
//! twenty-fifth of the room; the more runtimes hold much, the less each of them may, and something always stays free for
//! those that hold little. A runtime that holds more than it may by now takes no more, and gives way as its work is
//! tried again ([`Room::is_over`]). The first few events of a runtime ([`FLOOR`]) have their place in any case.

/// A runtime may hold one of so many parts of what is free, as much as is free to it beside what it holds.
const PARTS: usize = 24;
/// Most events of one runtime, in the largest room.
const MOST: usize = 20_000;
/// Events of one runtime that have a place however full the room is; fewer in a small room.
const FLOOR: usize = 16;
/// Places of a runtime for canaries, beside all others: the next comes after a minute, and by then its agent does not ask
/// about this one any more.
pub(crate) const CANARIES: usize = 4;

/// A room for so many events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room(pub(crate) usize);

impl Room {
    fn floor(self) -> usize {
        (self.0 / (PARTS + 1)).clamp(1, FLOOR)
    }

    /// How many more events a runtime may hold, which holds `own` of the `all` that are held.
    pub(crate) fn left(self, all: usize, own: usize) -> usize {
        // After n more it must hold at most a part of what is free then: own + n <= (room - all - n) / PARTS.
        let free = self.0.saturating_sub(all).saturating_sub(own.saturating_mul(PARTS));
        let share = (free / (PARTS + 1)).min(MOST.saturating_sub(own));
        share.max(self.floor().saturating_sub(own))
    }

    /// Whether a runtime holds more than it may by now, because others have come since.
    pub(crate) fn is_over(self, all: usize, own: usize) -> bool {
        let share = (self.0.saturating_sub(all) / PARTS).min(MOST);
        own > share.max(self.floor())
    }

    /// How full it is: 1 at the limit.
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

    /// What runtimes do.
    #[derive(Clone, Debug)]
    enum Step {
        /// One has so many events.
        Tell(usize, usize),
        /// So many of one are finished.
        Finish(usize, usize),
        /// The work of one is tried again.
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
            // With nothing finished, but everything tried again a few times, whoever holds most holds little more than
            // another may.
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
