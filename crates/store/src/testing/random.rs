//! `SplitMix64`: a small generator whose whole state is one number, so that a seed says everything.

/// Pseudorandom numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    pub(crate) fn choose<'c, T>(&mut self, choices: &'c [T]) -> Option<&'c T> {
        let at = self.below(u64::try_from(choices.len()).unwrap());
        choices.get(usize::try_from(at).unwrap())
    }

    /// Another generator, whose numbers are independent of this one's.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
