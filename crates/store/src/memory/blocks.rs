//! States that are larger than a word: chains of blocks of 96 bytes.
//!
//! ```text
//!   word of the slot     block 17                     block 4
//!   ┌──────┬──────┐     ┌──────┬───────────────┐     ┌──────┬───────────────┐
//!   │ 17   │ 122  │ ──► │ 4    │ 92 bytes      │ ──► │ none │ 30 bytes      │
//!   └──────┴──────┘     └──────┴───────────────┘     └──────┴───────────────┘
//!    first  length       next
//! ```
//!
//! All blocks have one size, so free memory is never fragmented, whatever sizes states have. A chain belongs to the slot that
//! names it, and is read and written under the lock of that slot's bucket.

use super::budget::Budget;
use super::region::{Region, Zeroed};
use crate::sync::{AtomicU64, Mutex, lock};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a state in one block.
const BYTES: usize = 92;
const WORDS: usize = 12;
/// Bytes of the budget that a block takes. A full hour of sub-windows fits into one, five hundred hits of a sliding log into
/// eleven.
const BLOCK_BYTES: usize = 96;

/// The lower half of the first word is the number of the next block. The upper half and the other words hold bytes.
#[repr(C, align(32))]
#[derive(Debug, Default)]
struct StateBlock([AtomicU64; WORDS]);

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: a block is twelve atomic integers: all zero is a value (no next block), shared by threads, no drop.
unsafe impl Zeroed for StateBlock {}

/// The blocks of states that are larger than a word.
#[derive(Debug)]
pub(super) struct Blocks {
    region: Region<StateBlock>,
    free: Mutex<FreeBlocks>,
}

/// Blocks that no state uses: a linked list, and those at the end that were never used.
#[derive(Debug, Default)]
struct FreeBlocks {
    /// The number of the first in the list, or 0. Block `i` has the number `i + 1`.
    first: u32,
    /// How many blocks were ever used; those after them were not.
    touched: usize,
}

/// The word of a slot whose state is in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    first: u32,
    bytes: u32,
}

type Numbers = SmallVec<[u32; 32]>;

impl Blocks {
    pub(super) fn new(budget: &Budget) -> Self {
        let region = Region::reserve(budget.most_of_one() / BLOCK_BYTES);
        Self { region, free: Mutex::new(FreeBlocks::default()) }
    }

    /// The bytes of a state.
    pub(super) fn read(&self, word: u64) -> Vec<u8> {
        let chain = Chain::of(word);
        let length = usize::try_from(chain.bytes).unwrap_or(0);
        let mut bytes = Vec::with_capacity(length.saturating_add(BYTES));
        for number in self.numbers(chain) {
            let Some(StateBlock(words)) = self.block(number) else { break };
            for (place, word) in words.iter().enumerate() {
                let word = word.load(Relaxed).to_le_bytes();
                let own = if place == 0 { word.get(4..) } else { Some(&word[..]) };
                bytes.extend_from_slice(own.unwrap_or_default());
            }
        }
        bytes.truncate(length);
        bytes
    }

    /// Writes the bytes of a state, over the old ones if there are any. Returns the word that names them. `None` when there are
    /// not enough blocks; then nothing changed.
    pub(super) fn write(&self, old: Option<u64>, bytes: &[u8], budget: &Budget) -> Option<u64> {
        let mut numbers = old.map_or_else(Numbers::new, |word| self.numbers(Chain::of(word)));
        let needed = bytes.len().div_ceil(BYTES).max(1);
        if needed > numbers.len() {
            numbers.extend(self.take(needed.saturating_sub(numbers.len()), budget)?);
        } else {
            self.give_back(numbers.drain(needed..));
        }
        let mut rest = bytes.chunks(BYTES);
        for (place, number) in numbers.iter().enumerate() {
            let next = numbers.get(place.saturating_add(1)).copied().unwrap_or(0);
            let Some(StateBlock(words)) = self.block(*number) else { continue };
            let mut block = [0; BLOCK_BYTES];
            let content = next
                .to_le_bytes()
                .into_iter()
                .chain(rest.next().unwrap_or_default().iter().copied());
            for (to, byte) in block.iter_mut().zip(content) {
                *to = byte;
            }
            for (word, eight) in words.iter().zip(block.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*eight), Relaxed);
            }
        }
        let chain = Chain { first: *numbers.first()?, bytes: u32::try_from(bytes.len()).ok()? };
        Some(chain.word())
    }

    /// Frees the bytes of a state.
    pub(super) fn free(&self, word: u64) {
        self.give_back(self.numbers(Chain::of(word)).into_iter());
    }

    /// Whether there seem to be blocks for this many bytes. Another thread may take them first.
    pub(super) fn has(&self, bytes: usize, budget: &Budget) -> bool {
        let needed = bytes.div_ceil(BYTES).saturating_mul(BLOCK_BYTES);
        lock(&self.free).first != 0 || budget.has_for_blocks(needed)
    }

    /// How many blocks are in use, or were.
    #[cfg(test)]
    fn touched(&self) -> usize {
        lock(&self.free).touched
    }

    /// Takes `count` free blocks, or none.
    fn take(&self, count: usize, budget: &Budget) -> Option<Numbers> {
        let mut free = lock(&self.free);
        let mut numbers = Numbers::new();
        while numbers.len() < count {
            let number = if free.first != 0 {
                let number = free.first;
                free.first = self.next(number);
                number
            } else if free.touched < self.region.len() && budget.grow_blocks(BLOCK_BYTES) {
                free.touched = free.touched.saturating_add(1);
                u32::try_from(free.touched).unwrap_or(0)
            } else {
                drop(free);
                self.give_back(numbers.into_iter());
                return None;
            };
            numbers.push(number);
        }
        Some(numbers)
    }

    fn give_back(&self, numbers: impl ExactSizeIterator<Item = u32>) {
        if numbers.len() == 0 {
            return;
        }
        let mut free = lock(&self.free);
        for number in numbers {
            if let Some(StateBlock([next, ..])) = self.block(number) {
                next.store(u64::from(free.first), Relaxed);
                free.first = number;
            }
        }
    }

    /// The blocks of a chain, in order.
    fn numbers(&self, chain: Chain) -> Numbers {
        let length = usize::try_from(chain.bytes).unwrap_or(0).div_ceil(BYTES).max(1);
        let mut next = chain.first;
        let follow = || {
            let number = next;
            next = self.next(number);
            (number != 0).then_some(number)
        };
        std::iter::from_fn(follow).take(length).collect()
    }

    fn next(&self, number: u32) -> u32 {
        let next = self.block(number).map_or(0, |StateBlock([next, ..])| next.load(Relaxed));
        u32::try_from(next & u64::from(u32::MAX)).unwrap_or(0)
    }

    fn block(&self, number: u32) -> Option<&StateBlock> {
        self.region.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

impl Chain {
    fn of(word: u64) -> Self {
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        Self { first: half(word), bytes: half(word >> 32) }
    }

    fn word(self) -> u64 {
        u64::from(self.first) | (u64::from(self.bytes) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_whatever_their_length_and_blocks_are_used_again() {
        let budget = Budget::new(1 << 20);
        let blocks = Blocks::new(&budget);
        let bytes = |length: usize| (0..=250u8).cycle().take(length).collect::<Vec<_>>();
        let mut word = None;
        for length in [1, 91, 92, 93, 184, 185, 3_000, 92, 1, 600, 0] {
            let written = blocks.write(word, &bytes(length), &budget).unwrap();
            assert_eq!(blocks.read(written), bytes(length), "{length} bytes");
            word = Some(written);
        }
        assert_eq!(blocks.touched(), 33);
        let other = blocks.write(None, &bytes(2_900), &budget).unwrap();
        assert_eq!(blocks.touched(), 33);
        blocks.free(other);
        blocks.free(word.unwrap());
    }

    #[test]
    fn a_state_for_which_there_are_no_blocks_changes_nothing() {
        let budget = Budget::new(8 * 1_024);
        let blocks = Blocks::new(&budget);
        let first = blocks.write(None, &[7; 100], &budget).unwrap();
        assert_eq!(blocks.write(Some(first), &[8; 100_000], &budget), None);
        assert_eq!(blocks.write(None, &[8; 100_000], &budget), None);
        assert_eq!(blocks.read(first), vec![7; 100]);
        // The blocks of the failed attempts are free again.
        assert!(blocks.write(None, &[9; 5_000], &budget).is_some());
    }
}
