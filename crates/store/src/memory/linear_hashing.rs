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

/// The bucket of a hash in a table of `count` buckets.
pub(super) fn place(hash: usize, count: usize) -> usize {
    let mask = count.next_power_of_two().saturating_sub(1);
    let place = hash & mask;
    if place < count { place } else { place & (mask >> 1) }
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
