//! Linear hashing (Litwin, 1980): a hash table that grows by one bucket at a time.
//!
//! Bucket `n` is split off its *parent*, bucket `n − p`, where `p` is the largest power of two up to `n`. So the table is
//! never rehashed as a whole, and bucket `i` keeps its address for ever.
//!
//! ```text
//!   count = 6      0   1   2   3 │ 4   5            a hash that ends in 110 has no bucket 6 yet:
//!                  └───┼─────────┘   │              its states are in bucket 2, the parent of 6
//!                      └─────────────┘
//! ```

/// The number of buckets, with the mask that it needs: a batch computes the mask once.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableSize {
    count: usize,
    mask: usize,
}

impl TableSize {
    #[inline]
    pub(super) const fn of(count: usize) -> Self {
        Self { count, mask: count.next_power_of_two().saturating_sub(1) }
    }

    /// The bucket of a hash.
    #[inline]
    pub(super) const fn place(self, hash: usize) -> usize {
        let place = hash & self.mask;
        if place < self.count { place } else { place & (self.mask >> 1) }
    }
}

/// The bucket of a hash in a table of `count` buckets.
pub(super) const fn place(hash: usize, count: usize) -> usize {
    TableSize::of(count).place(hash)
}

/// The bucket from which bucket `child` is split off.
pub(super) fn parent(child: usize) -> usize {
    child.checked_ilog2().map_or(0, |power| child ^ (1 << power))
}

/// The buckets that are split off bucket `parent`, in ascending order.
pub(super) fn children(parent: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|power| 1usize << power);
    powers.filter(move |power| *power > parent).map(move |power| parent.saturating_add(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for child in 1..10_000 {
            assert!(children(parent(child)).any(|other| other == child), "{child}");
            assert!(children(child).take(4).all(|grandchild| parent(grandchild) == child));
        }
    }
}
