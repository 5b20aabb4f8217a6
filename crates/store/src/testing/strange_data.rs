//! Data directories with arbitrary bytes: a store that opens one must not panic, and it must keep limiting.

use super::crashing_disk::CrashingDisk;
use super::random::Random;
use crate::clock::Clock;
use crate::durable::disk::{AppendedFile, Disk};
use crate::durable::{Identity, Opening, strange_log};
use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, Timestamp};

const IDENTITY: Identity = Identity { verifier: 7, boot: 1 };
const BUDGET: usize = 64 << 10;
const TAKES: u64 = 20;

/// Opens a data directory with one log, whose header is valid and whose rest is these bytes; or, if the first byte is odd, one frame
/// with a valid checksum and these bytes as its body. Then it takes, writes what changed, and opens the directory again.
///
/// # Panics
///
/// If a limit lets more pass than it should, or the directory cannot be opened.
///
/// ```
/// tidegate_store::testing::open_strange_data(b"\x01nonsense");
/// ```
pub fn open_strange_data(bytes: &[u8]) {
    let disk = CrashingDisk::new(Random::new(1));
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (name, log) = strange_log(IDENTITY, rest, first % 2 == 1);
    disk.create(&name).unwrap().append(&log).unwrap();
    let clock = Clock::manual(Timestamp::from_nanos(1_800_000_000_000_000_000));
    for _ in 0..2 {
        let opening =
            Opening { budget: BUDGET, identity: IDENTITY, clock: clock.clone(), frame_bytes: 700 };
        let opened = opening.open(disk.clone(), &mut |_, _| ());
        let (mut writer, _) = opened.unwrap_or_else(|error| panic!("{error}"));
        let id = rest.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag));
        for algorithm in
            [Algorithm::TOKEN_BUCKET, Algorithm::SlidingLog, Algorithm::SlidingWeighted]
        {
            let limit = Limit::new(5, Span::from_secs(60), algorithm).unwrap();
            let take = Take::new(StateId(u128::from(id)), &limit, Cost::ONE);
            let memory = writer.memory();
            let passed =
                (0..TAKES).filter(|_| memory.take_one_now(&take).decision.passes()).count();
            assert!(passed <= 5, "{passed} of 5 passed");
        }
        writer.close().unwrap();
    }
}
