//! Which server keeps which key: the one with the highest score (*rendezvous hashing*).
//!
//! ```text
//!   score(server, key) = mix(hash of "host:port" xor key)       the highest wins
//! ```
//!
//! Every node computes the same, whatever the order of its list. A server that is added takes its share of the keys from all others,
//! and nothing else moves; one that is removed leaves its keys to all others. A server that is down keeps its keys: its limits are
//! answered by the rule, because counts that move to another server would begin at zero.

use super::address::HostPort;
use tidegate_core::StateId;
use xxhash_rust::xxh3::xxh3_64;

/// The servers, as hashes of their names.
pub(super) struct Placement(Vec<u64>);

impl Placement {
    pub(super) fn new(servers: &[HostPort]) -> Self {
        Self(servers.iter().map(|server| xxh3_64(server.to_string().as_bytes())).collect())
    }

    /// The index of the server of a state.
    pub(super) fn server_of(&self, state: StateId) -> usize {
        let [low, high] = halves(state);
        let score = |server: &u64| mix(server ^ low) ^ mix(server.rotate_left(32) ^ high);
        let scores = self.0.iter().enumerate().map(|(index, server)| (score(server), index));
        scores.max().map_or(0, |(_, index)| index)
    }
}

/// A state's name in two halves.
fn halves(StateId(id): StateId) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, low @ ..] = id.to_be_bytes();
    [u64::from_be_bytes(low), u64::from_be_bytes([a, b, c, d, e, f, g, h])]
}

/// Spreads every bit of its input over all bits (the finalizer of `SplitMix64`).
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(names: &[&str]) -> Placement {
        let url = format!("memcached://{}", names.join(","));
        Placement::new(&super::super::address::parse(&url).unwrap())
    }

    fn states() -> impl Iterator<Item = StateId> {
        (0..30_000_u128).map(|n| StateId(n | n << 64))
    }

    #[test]
    fn every_server_gets_its_share_and_the_order_does_not_matter() {
        let (names, turned) = (["a", "b", "c"], ["c", "a", "b"]);
        let (one, other) = (placement(&names), placement(&turned));
        let mut keys = [0; 3];
        for state in states() {
            let server = one.server_of(state);
            assert_eq!(names[server], turned[other.server_of(state)]);
            keys[server] += 1;
        }
        assert!(keys.iter().all(|keys| (9_000..11_000).contains(keys)), "{keys:?}");
    }

    #[test]
    fn a_new_server_takes_its_share_and_nothing_else_moves() {
        let (names, more) = (["a", "b", "c"], ["a", "b", "c", "d"]);
        let (before, after) = (placement(&names), placement(&more));
        let mut moved = 0;
        for state in states() {
            let (old, new) = (names[before.server_of(state)], more[after.server_of(state)]);
            assert!(old == new || new == "d");
            moved += usize::from(old != new);
        }
        assert!((6_500..8_500).contains(&moved), "{moved}");
    }
}
