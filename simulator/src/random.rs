//! `SplitMix64`: a small generator whose whole state is one number, so that a seed says everything.

/// Random numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` up to and including `high`.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// `true` with a probability of `per_mille` thousandths.
    pub(crate) fn happens(&mut self, per_mille: u64) -> bool {
        self.next() % 1_000 < per_mille
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let last = u64::try_from(choices.len() - 1).unwrap();
        choices[usize::try_from(self.within(0, last)).unwrap()]
    }
}
