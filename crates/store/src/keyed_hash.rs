//! The keyed hash of values: 128 bits that look random to anyone without the key.
//!
//! It is a MAC made of AES rounds, like Pelican (Daemen and Rijmen, 2005): four rounds between blocks, ten after the last.
//!
//! ```text
//!   length ──⊕── 4 rounds ──⊕── 4 rounds ──⊕── … ──⊕── 10 rounds ──► 128 bits
//!            │              │              │       │
//!         whitening      block 0        block 1   last block
//! ```
//!
//! The last block is the last sixteen bytes, even if some of them were in the block before. For a shorter value it is made of
//! overlapping reads from both ends. Together with the length this is unambiguous, and no byte is copied.
//!
//! Processors have an instruction for an AES round, which makes this hash three times as fast as `SipHash` for a short key. It is
//! used directly here and not through the `aes` crate, which takes its blocks from memory: writing a key there and reading it
//! back takes longer than hashing it. On processors without the instruction, the crate computes the same.

/// Sixteen bytes, as two little-endian numbers.
type HashBlock = [u64; 2];

/// The keys of the hash. They are independent: unlike in AES, no round key is derived from another.
#[derive(Clone)]
pub(crate) struct KeyedHash {
    whitening: HashBlock,
    rounds: [HashBlock; 10],
    /// The state after the first four rounds, by length. They depend on nothing else, so no hash computes them.
    starts: Box<[HashBlock]>,
}

/// Rounds between two blocks.
const BETWEEN: usize = 4;
/// Lengths whose first rounds are computed in advance.
const STARTS: usize = 64;

impl KeyedHash {
    /// Calls `key` for sixteen random bytes for each of the eleven keys.
    pub(crate) fn new(mut key: impl FnMut() -> [u8; 16]) -> Self {
        let (whitening, starts) = (two_words(&key()), Box::default());
        let mut hash =
            Self { whitening, rounds: std::array::from_fn(|_| two_words(&key())), starts };
        hash.starts = (0..STARTS).map(|length| hash.start(length)).collect();
        hash
    }

    /// The state after the first four rounds.
    fn start(&self, length: usize) -> HashBlock {
        let length = u128::try_from(length).unwrap_or(u128::MAX);
        let keys = self.rounds.iter().take(BETWEEN);
        let state =
            keys.fold(wide(self.whitening) ^ length, |s, key| round_anywhere(s, wide(*key)));
        two_words(&state.to_le_bytes())
    }

    #[inline]
    pub(crate) fn hash(&self, value: &[u8]) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("aes") {
            #[expect(unsafe_code, reason = "instructions that not every processor has")]
            // SAFETY: the line above checked that this processor has them.
            return unsafe { self.hash_by_instructions(value) };
        }
        self.hash_anywhere(value)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "aes,sse2")]
    fn hash_by_instructions(&self, value: &[u8]) -> u128 {
        use std::arch::x86_64::{
            _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_unpackhi_epi64, _mm_xor_si128,
        };
        let hash = self.hash_with(
            value,
            |[low, high]| _mm_set_epi64x(high.cast_signed(), low.cast_signed()),
            |state, block| _mm_xor_si128(state, block),
            |state, key| _mm_aesenc_si128(state, key),
        );
        let [low, high] = [hash, _mm_unpackhi_epi64(hash, hash)]
            .map(|half| u128::from(_mm_cvtsi128_si64(half).cast_unsigned()));
        high << 64 | low
    }

    fn hash_anywhere(&self, value: &[u8]) -> u128 {
        self.hash_with(value, wide, |state, block| state ^ block, round_anywhere)
    }

    /// The hash, for any representation of a block. `round` is one AES round.
    #[inline(always)] // otherwise its closures could not use the instructions that its caller may use
    fn hash_with<S: Copy>(
        &self,
        value: &[u8],
        load: impl Fn(HashBlock) -> S,
        mix: impl Fn(S, S) -> S,
        round: impl Fn(S, S) -> S,
    ) -> S {
        let rounds = |state: S, most| {
            self.rounds.iter().take(most).fold(state, |s, key| round(s, load(*key)))
        };
        let first = match self.starts.get(value.len()) {
            Some(start) => load(*start),
            None => {
                let length = [u64::try_from(value.len()).unwrap_or(u64::MAX), 0];
                rounds(mix(load(self.whitening), load(length)), BETWEEN)
            }
        };
        let before_last = value.get(..value.len().saturating_sub(1)).unwrap_or_default();
        let (blocks, _) = before_last.as_chunks::<16>();
        let state = blocks
            .iter()
            .fold(first, |state, block| rounds(mix(state, load(two_words(block))), BETWEEN));
        rounds(mix(state, load(last_block(value))), self.rounds.len())
    }
}

fn wide([low, high]: HashBlock) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// An AES round on any processor.
fn round_anywhere(state: u128, key: u128) -> u128 {
    let mut state = state.to_le_bytes().into();
    aes::hazmat::cipher_round(&mut state, &key.to_le_bytes().into());
    u128::from_le_bytes(state.into())
}

fn two_words(bytes: &[u8; 16]) -> HashBlock {
    let word = |half: Option<&[u8; 8]>| half.map_or(0, |half| u64::from_le_bytes(*half));
    [word(bytes.first_chunk()), word(bytes.last_chunk())]
}

/// The last sixteen bytes. Of a shorter value: reads from both ends, which are unambiguous for a given length.
#[inline(always)] // as above
fn last_block(value: &[u8]) -> HashBlock {
    if let Some(last) = value.last_chunk::<16>() {
        two_words(last)
    } else if let (Some(first), Some(last)) = (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        [u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()]
    } else {
        [value.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn keyed(seed: u64) -> KeyedHash {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (u128::from(state) << 64 | u128::from(state ^ state >> 29)).to_le_bytes()
        };
        KeyedHash::new(&mut next)
    }

    /// The hash must be the same on every processor, or nodes would not share states.
    #[test]
    fn processors_with_and_without_the_instruction_agree() {
        let hash = keyed(7);
        let bytes: Vec<u8> = (0u8..=255).collect();
        for length in 0..bytes.len() {
            let value = &bytes[..length];
            assert_eq!(hash.hash(value), hash.hash_anywhere(value), "{length} bytes");
        }
    }

    /// The `aes` crate tests the round itself. This test checks that the rounds are combined as in the picture above.
    #[test]
    fn the_rounds_are_combined_as_in_the_picture() {
        let hash = keyed(1);
        let word = |[low, high]: HashBlock| u128::from(high) << 64 | u128::from(low);
        let rounds = |state: u128, most: usize| {
            hash.rounds[..most].iter().fold(state, |state, key| {
                let mut block = state.to_le_bytes().into();
                aes::hazmat::cipher_round(&mut block, &word(*key).to_le_bytes().into());
                u128::from_le_bytes(block.into())
            })
        };
        let value = b"abcdefghijklmnopqrstuvwxyz";
        let block = |from: usize| u128::from_le_bytes(value[from..from + 16].try_into().unwrap());
        let state = rounds(word(hash.whitening) ^ 26, 4);
        let state = rounds(state ^ block(0), 4);
        assert_eq!(hash.hash(value), rounds(state ^ block(10), 10));
        let short = rounds(word(hash.whitening) ^ 3, 4);
        assert_eq!(hash.hash(b"abc"), rounds(short ^ 0x0061_6263, 10));
    }

    #[test]
    fn similar_values_have_different_hashes() {
        let hash = keyed(3);
        let mut values: Vec<Vec<u8>> = (0..70).map(|length| vec![0; length]).collect();
        for length in 1..70 {
            for at in 0..length {
                let mut value = vec![0; length];
                value[at] = 1;
                values.push(value);
            }
        }
        let hashes: HashSet<u128> = values.iter().map(|value| hash.hash(value)).collect();
        assert_eq!(hashes.len(), values.len());
    }

    proptest! {
        #[test]
        fn every_bit_counts(seed: u64, value in prop::collection::vec(any::<u8>(), 1..80), at: usize, bit in 0u32..8) {
            let mut other = value.clone();
            let at = at % value.len();
            other[at] ^= 1 << bit;
            let hash = keyed(seed);
            let differing = (hash.hash(&value) ^ hash.hash(&other)).count_ones();
            // On average 64 of 128 bits differ; fewer than 24 by chance once in 10^13.
            prop_assert!((24..=104).contains(&differing), "{differing} bits");
            prop_assert_ne!(hash.hash(&value), keyed(seed ^ 1).hash(&value));
        }
    }
}
