//! Reproducible random numbers.

/// An xorshift generator.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| _ = dice.next());
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, many: u64) -> u64 {
        (self.next() >> 11) % many
    }

    /// Returns true once in `many`.
    pub(crate) fn one_of(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = self.below(all.len() as u64);
        &all[usize::try_from(index).unwrap_or_default()]
    }

    pub(crate) fn text(&mut self) -> &'static str {
        self.pick::<&str>(&["1", "2", "x"])
    }
}
