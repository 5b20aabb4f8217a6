//! The 64 bits by which the table knows a state.

use super::bucket::FIRST_PAGE_TAG;
use super::linear_hashing::TableSize;
use tidegate_core::StateId;

/// 64 bits of a state's name. Never 0, and always below [`FIRST_PAGE_TAG`].
///
/// The name is a hash under the deployment's secret, so an attacker cannot choose the bits. By accident, the odds that two
/// of a million states share a tag are 1 in 37 million: n²/2 pairs, 2⁶⁴ tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    #[inline]
    pub(super) fn of(id: StateId) -> Self {
        let tag = u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0);
        // One comparison for both ends: 0 wraps to the largest number.
        let is_usual = tag.wrapping_sub(1) < FIRST_PAGE_TAG - 1;
        if is_usual { Self(tag) } else { Self::of_unusual(tag) }
    }

    #[cold]
    const fn of_unusual(tag: u64) -> Self {
        if tag == 0 { Self(FIRST_PAGE_TAG.saturating_sub(1)) } else { Self(tag ^ (1 << 63)) }
    }

    /// The two buckets that may hold the state. Real tags are hashes already; they are mixed once more because tests use small
    /// numbers.
    pub(super) fn candidates(self, size: TableSize) -> [usize; 2] {
        [self.home(size), self.second(size)]
    }

    /// The first of them.
    #[inline]
    pub(super) fn home(self, size: TableSize) -> usize {
        size.place(usize::try_from(self.mixed() & 0xffff_ffff).unwrap_or(0))
    }

    /// The other one.
    #[inline]
    pub(super) fn second(self, size: TableSize) -> usize {
        let hash = self.mixed().wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        size.place(usize::try_from(hash).unwrap_or(0))
    }

    #[inline]
    const fn mixed(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    }
}
