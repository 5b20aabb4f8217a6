//! Exact scaling of 64-bit numbers by a fraction, by multiplication with a precomputed reciprocal.
//!
//! `⌊x · num / den⌋` converts nanoseconds to ticks (`num` ticks in `den` nanoseconds) and to window numbers
//! (`num` windows in `den` nanoseconds). A 128-bit division costs more than the rest of a decision together, so
//! the reciprocal is computed once, when the limit is built:
//!
//! ```text
//!   reciprocal = ⌊num · 2⁶⁴ / den⌋          rounded down, so the guess is never too high
//!   guess      = ⌊x · reciprocal / 2⁶⁴⌋     low by one at most, because x < 2⁶⁴
//!   rest       = x · num − guess · den       if rest ≥ den, the guess was low by one
//! ```
//!
//! The last step corrects the guess, so the result is exact for every `x`.

/// The fraction `num / den` with `1 ≤ num ≤ den < 2⁶³`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ratio {
    num: u64,
    den: u64,
    /// `⌊num · 2⁶⁴ / den⌋`. When `num == den` it does not fit 64 bits and is not used.
    reciprocal: u64,
    /// `⌊2⁶⁴ / num⌋`, or `2⁶⁴ − 1` for `num = 1`.
    inverse: u64,
}

impl Ratio {
    /// `None` unless `1 ≤ num ≤ den < 2⁶³`.
    pub(crate) fn new(num: u64, den: u64) -> Option<Self> {
        if num == 0 || num > den || den > u64::MAX / 2 {
            return None;
        }
        let reciprocal = (u128::from(num) << 64).checked_div(u128::from(den))?;
        let inverse = (1u128 << 64).checked_div(u128::from(num))?;
        let [reciprocal, inverse] =
            [reciprocal, inverse].map(|one| u64::try_from(one).unwrap_or(u64::MAX));
        Some(Self { num, den, reciprocal, inverse })
    }

    pub(crate) const fn num(&self) -> u64 {
        self.num
    }

    pub(crate) const fn den(&self) -> u64 {
        self.den
    }

    /// `⌈x · num / den⌉`.
    pub(crate) fn ceil(&self, x: u64) -> u64 {
        let floor = self.floor(x);
        let exact = floor.wrapping_mul(self.den) == x.wrapping_mul(self.num);
        if exact { floor } else { floor.saturating_add(1) }
    }

    /// `⌊x · num / den⌋`.
    pub(crate) fn floor(&self, x: u64) -> u64 {
        self.floor_and_rest(x).0
    }

    /// `⌊x · num / den⌋` and the remainder of that division, which is less than `den`.
    #[inline]
    pub(crate) fn floor_and_rest(&self, x: u64) -> (u64, u64) {
        if self.num == self.den {
            return (x, 0);
        }
        let guess = high(u128::from(x).wrapping_mul(u128::from(self.reciprocal)));
        // The true rest is below 2·den < 2⁶⁴, so its low 64 bits are all of it.
        let rest = x.wrapping_mul(self.num).wrapping_sub(guess.wrapping_mul(self.den));
        if rest >= self.den {
            (guess.wrapping_add(1), rest.wrapping_sub(self.den))
        } else {
            (guess, rest)
        }
    }

    /// `⌈x / num⌉`, with the same two steps: a division of 64 bits takes up to 90 cycles, this takes ten.
    #[inline]
    pub(crate) fn div_ceil_num(&self, x: u64) -> u64 {
        let guess = high(u128::from(x).wrapping_mul(u128::from(self.inverse)));
        // The guess is low by one at most, so the true rest is below 2·num < 2⁶⁴.
        let rest = x.wrapping_sub(guess.wrapping_mul(self.num));
        let up = u64::from(rest > 0).wrapping_add(u64::from(rest > self.num));
        guess.wrapping_add(up)
    }

    /// The smallest `x` with `floor(x) ≥ y`, that is `⌈y · den / num⌉`; `None` if it exceeds 64 bits.
    pub(crate) fn first(&self, y: u64) -> Option<u64> {
        if self.num == 1 {
            return y.checked_mul(self.den);
        }
        let scaled = u128::from(y).wrapping_mul(u128::from(self.den));
        u64::try_from(scaled.div_ceil(u128::from(self.num))).ok()
    }
}

/// The upper half of a 128-bit product.
#[expect(clippy::as_conversions, reason = "a shift by 64 leaves 64 bits")]
const fn high(product: u128) -> u64 {
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::Ratio;
    use proptest::prelude::*;

    fn fraction() -> impl Strategy<Value = (u64, u64)> {
        (0u32..63, any::<u64>(), any::<u64>()).prop_map(|(shift, a, b)| {
            let den = (a >> (shift + 1)).max(1);
            (b % den + 1, den)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50_000))]

        #[test]
        fn floor_and_ceil_match_the_128_bit_division((num, den) in fraction(), x in any::<u64>(), near_end in 0u64..3) {
            let ratio = Ratio::new(num, den).unwrap();
            for x in [x, x % den, u64::MAX - near_end] {
                let expected = u128::from(x) * u128::from(num) / u128::from(den);
                prop_assert_eq!(u128::from(ratio.floor(x)), expected);
                let up = (u128::from(x) * u128::from(num)).div_ceil(u128::from(den));
                prop_assert_eq!(u128::from(ratio.ceil(x)), up);
            }
        }

        #[test]
        fn a_division_by_the_numerator_is_rounded_up((num, den) in fraction(), x in any::<u64>(), times in any::<u64>(), near in 0u64..3) {
            let ratio = Ratio::new(num, den).unwrap();
            let multiple = times / num * num;
            for x in [x, x % num, near, u64::MAX - near, multiple, multiple.saturating_add(1), multiple.saturating_sub(1)] {
                prop_assert_eq!(ratio.div_ceil_num(x), x.div_ceil(num), "{} / {}", x, num);
            }
        }

        #[test]
        fn first_is_the_smallest_number_that_reaches_the_floor((num, den) in fraction(), y in any::<u64>(), small in 0u64..1_000) {
            let ratio = Ratio::new(num, den).unwrap();
            for y in [y, small] {
                if let Some(x) = ratio.first(y) {
                    prop_assert!(ratio.floor(x) >= y);
                    prop_assert!(x == 0 || ratio.floor(x - 1) < y);
                } else {
                    prop_assert!(ratio.floor(u64::MAX) < y);
                }
            }
        }
    }

    #[test]
    fn fractions_outside_the_range_are_refused() {
        for (num, den) in [(0, 1), (2, 1), (1, 0), (1, u64::MAX)] {
            assert_eq!(Ratio::new(num, den), None);
        }
    }
}
