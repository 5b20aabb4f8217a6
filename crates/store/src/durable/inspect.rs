//! Looking into a data directory that no server uses: what is in it, is it intact, and making it small.

use super::directory::{DataError, ListedFile, Listing};
use super::disk::Folder;
use super::format::DataFileKind;
use super::frame::{self, Content, FRAME_BYTES, WORD_BYTES};
use super::recovery::{Recovered, Recovery};
use super::segment::NextFrame;
use super::{DurableSettings, Identity, Opening, boot_id, limit_bytes};
use crate::clock::Clock;
use crate::memory::Memory;
use crate::secret::Secret;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tidegate_core::{Limit, Timestamp};

/// What a data directory has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataContents {
    /// Its logs and snapshots, in the order in which they were begun.
    pub files: Vec<DataFile>,
    /// Snapshots that are not complete. The next start removes them.
    pub unfinished: Vec<String>,
    /// Files whose beginning is damaged.
    pub unreadable: Vec<String>,
    /// How many records of states there are for each limit, in all files together.
    pub limits: Vec<(Limit, u64)>,
}

/// A file of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Its name.
    pub name: String,
    /// Whether it is a log or a snapshot.
    pub kind: DataFileKind,
    /// How long it is.
    pub bytes: u64,
    /// When it was begun, by the wall clock.
    pub created: Timestamp,
    /// When its last frame was written, by the wall clock.
    pub written: Option<Timestamp>,
    /// Its intact frames.
    pub frames: u64,
    /// Records of states.
    pub states: u64,
    /// Settled receipts.
    pub receipts: u64,
    /// The snapshot is complete; or the server that wrote the log stopped as it should.
    pub is_ended: bool,
    /// Bytes that are in no intact frame. At the end of the last log, that is normal after a crash.
    pub damaged_bytes: u64,
}

/// What a compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// What was read.
    pub recovered: Recovered,
    /// The bytes of all files before and after.
    pub bytes: [u64; 2],
}

impl DataContents {
    /// Reads all files of a data directory, and changes nothing. `progress` is called with how many bytes were read, of how many.
    ///
    /// ```
    /// use tidegate_store::DataContents;
    /// let folder = std::env::temp_dir();
    /// let contents = DataContents::read(&folder, &mut |_, _| ())?;
    /// assert!(contents.files.is_empty()); // it has no files of a data directory
    /// # Ok::<(), tidegate_store::DataError>(())
    /// ```
    pub fn read(folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, DataError> {
        let disk =
            Folder::existing(folder).map_err(DataError::io(&folder.display().to_string()))?;
        let listing = Listing::read(&disk, None)?;
        let total = listing.files.iter().map(|file| file.bytes).sum();
        let (mut contents, mut read) = (Self::default(), 0u64);
        let mut limits = BTreeMap::new();
        for file in &listing.files {
            contents.files.push(read_file(&disk, file, &mut limits)?);
            read = read.saturating_add(file.bytes);
            progress(read, total);
        }
        let known = limits.into_iter();
        let known = known.filter_map(|(bytes, count)| Some((limit_bytes::read(&bytes)?, count)));
        contents.limits = known.collect();
        contents.limits.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        (contents.unfinished, contents.unreadable) = (listing.unfinished, listing.damaged);
        Ok(contents)
    }
}

/// Reads a file, and counts the records of each limit.
fn read_file(
    disk: &Folder,
    file: &ListedFile,
    limits: &mut BTreeMap<Vec<u8>, u64>,
) -> Result<DataFile, DataError> {
    let mut found = DataFile {
        name: file.name.clone(),
        kind: file.header.kind,
        bytes: file.bytes,
        created: file.header.time.now.calendar,
        written: None,
        frames: 0,
        states: 0,
        receipts: 0,
        is_ended: false,
        damaged_bytes: 0,
    };
    let mut frames = file.open(disk)?;
    loop {
        match frames.next().map_err(DataError::io(&file.name))? {
            NextFrame::Frame(header, body) => {
                found.frames = found.frames.saturating_add(1);
                found.written = Some(header.time.now.calendar);
                found.is_ended = header.is_last;
                count_frame(body, &mut found, limits);
            }
            NextFrame::Damaged { bytes, .. } => {
                found.damaged_bytes = found.damaged_bytes.saturating_add(bytes);
            }
            NextFrame::End => return Ok(found),
        }
    }
}

fn count_frame(body: &[u8], found: &mut DataFile, limits: &mut BTreeMap<Vec<u8>, u64>) {
    let mut numbers: HashMap<u16, Vec<u8>> = HashMap::new();
    let mut count = |states: &mut u64, numbers: &HashMap<u16, Vec<u8>>, number: u16| {
        *states = states.saturating_add(1);
        if let Some(bytes) = numbers.get(&number) {
            match limits.get_mut(bytes) {
                Some(count) => *count = count.saturating_add(1),
                None => _ = limits.insert(bytes.clone(), 1),
            }
        }
    };
    let read = frame::read(body, |content| match content {
        Content::Limit { number, bytes, .. } => _ = numbers.insert(number, bytes.to_vec()),
        Content::Words(bytes) => {
            let (words, _) = bytes.as_chunks::<WORD_BYTES>();
            words.iter().for_each(|word| count(&mut found.states, &numbers, frame::word(word).1));
        }
        Content::State { number, .. } => count(&mut found.states, &numbers, number),
        Content::Receipt(_) => found.receipts = found.receipts.saturating_add(1),
        Content::Pages { .. } | Content::Geometry(_) | Content::Line(_) | Content::Gone { .. } => {}
    });
    if read.is_none() {
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        found.damaged_bytes = found.damaged_bytes.saturating_add(length);
    }
}

impl DurableSettings {
    /// Reads the data directory as a start would, and changes nothing. With a secret, it is an error if another one was used.
    ///
    /// ```
    /// # use tidegate_store::{Clock, Durable, DurableSettings, Secret};
    /// # let folder = std::env::temp_dir().join(format!("tidegate-verify-{}", std::process::id()));
    /// let settings = DurableSettings::new(&folder);
    /// let secret = Secret::new([7; 32]);
    /// drop(Durable::open(&settings, &secret, Clock::system(), &mut |_, _| ())?);
    /// let found = settings.verify(Some(&secret), &mut |_, _| ())?;
    /// assert!(found.damage.is_empty());
    /// assert!(settings.verify(Some(&Secret::new([8; 32])), &mut |_, _| ()).is_err());
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify(
        &self,
        secret: Option<&Secret>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Recovered, DataError> {
        let folder = self.folder.display().to_string();
        let disk = Folder::existing(&self.folder).map_err(DataError::io(&folder))?;
        let listing = Listing::read(&disk, secret.map(Secret::verifier))?;
        let last =
            listing.files.last().map_or(Timestamp::EPOCH, |file| file.header.time.now.steady);
        let memory = Memory::kept_on_disk(Clock::manual(last), self.budget);
        Recovery::run(&disk, &listing, &memory, progress).map(|(recovered, _)| recovered)
    }

    /// Replaces all files by one snapshot and an empty log. What is damaged is dropped, so [`Self::verify`] it first.
    ///
    /// ```
    /// # use tidegate_store::{Clock, Durable, DurableSettings, Secret};
    /// # let folder = std::env::temp_dir().join(format!("tidegate-compact-{}", std::process::id()));
    /// let settings = DurableSettings::new(&folder);
    /// let secret = Secret::new([7; 32]);
    /// drop(Durable::open(&settings, &secret, Clock::system(), &mut |_, _| ())?);
    /// let compacted = settings.compact(&secret, Clock::system(), &mut |_, _| ())?;
    /// assert_eq!(compacted.recovered.states, 0);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(
        &self,
        secret: &Secret,
        clock: Clock,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Compacted, DataError> {
        let folder = self.folder.display().to_string();
        let disk = || Folder::existing(&self.folder).map_err(DataError::io(&folder));
        let bytes = || -> Result<u64, DataError> {
            Ok(Listing::read(&disk()?, None)?.files.iter().map(|file| file.bytes).sum())
        };
        let before = bytes()?;
        let identity = Identity { verifier: secret.verifier(), boot: boot_id() };
        let opening = Opening { budget: self.budget, identity, clock, frame_bytes: FRAME_BYTES };
        let (mut writer, recovered) = opening.open(disk()?, progress)?;
        writer.begin_snapshot().map_err(DataError::io(&folder))?;
        while writer.is_writing_snapshot() {
            writer.continue_snapshot().map_err(DataError::io(&folder))?;
        }
        if let Some(snapshot) = writer.sync_work() {
            let result = snapshot.run();
            writer.synced(&snapshot, &result);
            result.map_err(DataError::io(&folder))?;
        }
        writer.close().map_err(DataError::io(&folder))?;
        Ok(Compacted { recovered, bytes: [before, bytes()?] })
    }
}
