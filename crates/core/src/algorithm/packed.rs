//! A window's number and its count, packed into one word.
//!
//! ```text
//!   63                      bits        bits−1                  0
//!   ├── number, modulo 2⁶⁴⁻ᵇⁱᵗˢ ──┼──────────── count ────────────┤
//! ```
//!
//! The count gets as many bits as the limit can ever count to, and the number gets the rest. If the rest is too small for
//! all window numbers, numbers repeat, and the one nearest to now is meant. With 10¹⁰ hits per second, ten times the
//! fastest rate, they repeat after 34 years; with ordinary limits never. A state that old has long been dropped.

/// How the 64 bits are divided between number and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Packed {
    count_bits: u32,
}

impl Packed {
    /// A layout for counts up to `most`; `None` if that leaves too few bits for the number.
    pub(crate) fn new(most: u64) -> Option<Self> {
        let count_bits = 64u32.saturating_sub(most.leading_zeros());
        (1..=60).contains(&count_bits).then_some(Self { count_bits })
    }

    /// Whether a count fits.
    pub(crate) fn fits(&self, count: u64) -> bool {
        count <= self.count_mask()
    }

    /// The word for this window and count.
    ///
    /// A limit never writes a count above its `most`; see `Limit::charge`.
    pub(crate) fn pack(&self, number: u64, count: u64) -> u64 {
        debug_assert!(count >> self.count_bits == 0, "the count exceeds what the limit can reach");
        (number << self.count_bits) | (count & self.count_mask())
    }

    /// The count of a word; 0 for the empty word.
    pub(crate) fn count(&self, word: u64) -> u64 {
        word & self.count_mask()
    }

    /// The number of a word: of all numbers that it can stand for, the one nearest to `near`.
    pub(crate) fn number(&self, word: u64, near: u64) -> Option<u64> {
        // Shifted to the top of the word, the difference of two short numbers has its sign bit where i64 has it.
        let ahead = (word & !self.count_mask()).wrapping_sub(near << self.count_bits);
        near.checked_add_signed(ahead.cast_signed() >> self.count_bits)
    }

    fn count_mask(&self) -> u64 {
        u64::MAX >> 64u32.saturating_sub(self.count_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::Packed;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50_000))]

        #[test]
        fn unpacking_returns_what_was_packed(
            most in 1u64..1 << 40,
            count in any::<u64>(),
            number in 0u64..1 << 50,
            ahead in -100i64..100,
        ) {
            let packed = Packed::new(most).unwrap();
            let count = count % (most + 1);
            let near = number.saturating_add_signed(ahead);
            let word = packed.pack(number, count);
            prop_assert_eq!(packed.count(word), count);
            prop_assert_eq!(packed.number(word, near), Some(number));
        }
    }

    #[test]
    fn the_widest_count_leaves_room_for_a_number() {
        // 10⁹ a second for 400 days, ten times over: the largest count of any limit.
        let packed = Packed::new(10 * 400 * 86_400 * 1_000_000_000).unwrap();
        assert_eq!(packed.number(packed.pack(17, 3), 20), Some(17));
        assert_eq!(Packed::new(u64::MAX), None);
        assert_eq!(Packed::new(0), None);
    }

    #[test]
    fn a_number_before_the_first_window_is_none() {
        let packed = Packed::new(10).unwrap();
        let word = packed.pack(u64::MAX, 1); // the number nearest to 0 is -1
        assert_eq!(packed.number(word, 0), None);
    }
}
