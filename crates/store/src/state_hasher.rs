//! The hasher of maps whose keys are names of states.

use std::hash::Hasher;

/// A hasher for names of states, which are keyed hashes already: it passes on some of their bits, not those that chose the
/// shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = u64::try_from((id >> 32) & u128::from(u64::MAX)).unwrap_or(0);
    }
}
