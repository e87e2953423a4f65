//! Fair shares of a common capacity. Pure.
//!
//! A runtime may hold the free capacity divided by [`PARTS`], so some always stays free. Over its share, a runtime
//! accepts nothing and drops events on retries ([`Room::is_over`]). [`FLOOR`] events are always accepted.

/// A share is the free capacity divided by this.
const PARTS: usize = 24;
/// Most events of one runtime.
const MAX_PER_RUNTIME: usize = 20_000;
/// Events always accepted, fewer with small capacity.
const FLOOR: usize = 16;
/// Extra canaries. The next comes after a minute, when the last is not awaited.
pub(crate) const CANARIES: usize = 4;

/// A capacity in events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity(pub(crate) usize);

impl Capacity {
    fn floor(self) -> usize {
        (self.0 / (PARTS + 1)).clamp(1, FLOOR)
    }

    /// Further events for a runtime that holds `own` of `all`.
    pub(crate) fn left(self, all: usize, own: usize) -> usize {
        // After n more: own + n <= (capacity - all - n) / PARTS.
        let free = self.0.saturating_sub(all).saturating_sub(own.saturating_mul(PARTS));
        let share = (free / (PARTS + 1)).min(MAX_PER_RUNTIME.saturating_sub(own));
        share.max(self.floor().saturating_sub(own))
    }

    /// Whether a runtime exceeds its share, which shrinks with others' events.
    pub(crate) fn is_over(self, all: usize, own: usize) -> bool {
        let share = (self.0.saturating_sub(all) / PARTS).min(MAX_PER_RUNTIME);
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
    fn a_single_runtime_gets_a_twenty_fifth() {
        assert_eq!(Capacity(500_000).left(0, 0), 20_000);
        assert_eq!(Capacity(usize::MAX).left(0, 0), 20_000);
        assert_eq!(Capacity(250).left(0, 0), 10);
        assert!(!Capacity(500_000).is_over(20_000, 20_000));
        assert_eq!(Capacity(1).left(0, 0), 1);
        assert_eq!(Capacity(1).left(1, 1), 0);
    }

    #[test]
    fn capacity_remains_with_any_number_of_runtimes() {
        for fillers in [25, 100, 1_000] {
            let (capacity, mut all) = (Capacity(500_000), 0);
            for _ in 0..fillers {
                all += capacity.left(all, 0);
            }
            assert!(capacity.left(all, 0) >= FLOOR, "{fillers} hold {all}");
            assert!(all <= 500_000 + fillers * FLOOR);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Receive(usize, usize),
        Finish(usize, usize),
        Retry(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_usize..40, 1_usize..1_000).prop_map(|(runtime, n)| Step::Receive(runtime, n)),
            1 => (0_usize..40, 1_usize..1_000).prop_map(|(runtime, n)| Step::Finish(runtime, n)),
            1 => (0_usize..40).prop_map(Step::Retry),
        ]
    }

    proptest! {
        #[test]
        fn no_runtime_is_excluded_and_none_takes_all(
            size in 1_usize..5_000, steps in prop::collection::vec(step(), 1..300)
        ) {
            let (capacity, mut held) = (Capacity(size), [0_usize; 40]);
            for step in steps {
                let all: usize = held.iter().sum();
                match step {
                    Step::Receive(runtime, n) => {
                        let left = capacity.left(all, held[runtime]);
                        prop_assert!(held[runtime] >= capacity.floor() || left > 0, "{runtime} holds {} of {all}", held[runtime]);
                        held[runtime] += n.min(left);
                        prop_assert!(held[runtime] <= (size / 25).max(capacity.floor()), "{runtime} holds {}", held[runtime]);
                    }
                    Step::Finish(runtime, n) => held[runtime] = held[runtime].saturating_sub(n),
                    Step::Retry(runtime) => {
                        while capacity.is_over(held.iter().sum(), held[runtime]) {
                            held[runtime] -= 1;
                        }
                    }
                }
                prop_assert!(held.iter().sum::<usize>() <= size + held.len() * capacity.floor());
            }
            // Retries even out the shares.
            for _ in 0..3 {
                for runtime in 0..held.len() {
                    while capacity.is_over(held.iter().sum(), held[runtime]) {
                        held[runtime] -= 1;
                    }
                }
            }
            let all: usize = held.iter().sum();
            let max = held.into_iter().max().unwrap_or_default();
            prop_assert!(max <= 2 * capacity.left(all, 0) + capacity.floor() + 1, "one holds {max} of {all}");
        }
    }
}
