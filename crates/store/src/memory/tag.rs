//! The 64 bits by which the table knows a state.

use super::bucket::FIRST_PAGE_TAG;
use super::linear_hashing::place;
use tidegate_core::StateId;

/// 64 bits of a state's name. Never 0, and always below [`FIRST_PAGE_TAG`].
///
/// The name is a hash under the deployment's secret, so an attacker cannot choose the bits. By accident, the odds that two
/// of a million states share a tag are 1 in 37 million: n²/2 pairs, 2⁶⁴ tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    pub(super) fn of(id: StateId) -> Self {
        match u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0) {
            0 => Self(FIRST_PAGE_TAG.saturating_sub(1)),
            page @ FIRST_PAGE_TAG.. => Self(page ^ (1 << 63)),
            tag => Self(tag),
        }
    }

    /// Two hashes. Real tags are hashes already; they are mixed once more because tests use small numbers.
    pub(super) fn hashes(self) -> [usize; 2] {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ (mixed >> 32);
        [mixed & 0xffff_ffff, mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32]
            .map(|half| usize::try_from(half).unwrap_or(0))
    }

    /// The two buckets that may hold the state, in a table of `count` buckets.
    pub(super) fn candidates(self, count: usize) -> [usize; 2] {
        self.hashes().map(|hash| place(hash, count))
    }
}
