//! Data directories with arbitrary bytes: a store that opens one must not panic, and it must keep limiting.

use super::crashing_disk::CrashingDisk;
use super::random::Random;
use crate::clock::Clock;
use crate::durable::disk::{AppendedFile, Disk};
use crate::durable::format::{self, DataFileKind, FileHeader, FrameHeader, FrameTime};
use crate::durable::{Identity, Opening, directory};
use tidegate_core::{Algorithm, Cost, Limit, Now, Span, StateId, Take, Timestamp};

const IDENTITY: Identity = Identity { verifier: 7, boot: 1 };
const BUDGET: usize = 64 << 10;
const TAKES: u64 = 20;

/// Where in a log the arbitrary bytes are.
#[derive(Clone, Copy)]
enum StrangePlace {
    /// After its header, instead of frames.
    AfterHeader,
    /// In a frame with a valid checksum.
    FrameBody,
}

fn strange_log(contents: &[u8], place: StrangePlace) -> Vec<u8> {
    let Identity { verifier, boot } = IDENTITY;
    let (kind, number, id) = (DataFileKind::Log, 1, 5);
    let time = FrameTime { now: Now::at(Timestamp::EPOCH), since_boot: Timestamp::EPOCH };
    let mut log = FileHeader { kind, number, id, verifier, boot, after: 0, time }.bytes();
    match place {
        StrangePlace::AfterHeader => {}
        StrangePlace::FrameBody => {
            let length = u32::try_from(contents.len()).unwrap();
            let checksum = format::checksum(contents, id);
            let (is_last, sequence, synced, buckets) = (false, 1, 0, 1 << 40);
            let frame = FrameHeader { length, is_last, sequence, synced, time, buckets, checksum };
            log.extend(frame.bytes(id));
        }
    }
    log.extend_from_slice(contents);
    log
}

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
    let place = if first % 2 == 1 { StrangePlace::FrameBody } else { StrangePlace::AfterHeader };
    let name = directory::name(DataFileKind::Log, 1);
    disk.create(&name).unwrap().append(&strange_log(rest, place)).unwrap();
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
