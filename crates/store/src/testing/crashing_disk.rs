//! A disk in memory that fails and crashes: it loses what was not synced, tears writes at any byte, keeps later writes and loses
//! earlier ones, and returns errors.
//!
//! | crash | what is left |
//! |---|---|
//! | of the process | everything that was written |
//! | of the power | what was synced; of the rest, any sectors; of changes in the folder since its last sync, any |

use super::random::Random;
use crate::durable::disk::{AppendedFile, Disk};
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::sync::Arc;

const SECTOR: usize = 512;

/// A folder that survives crashes of the process. Clones are the same folder.
#[derive(Clone, Debug)]
pub(crate) struct CrashingDisk(Arc<Mutex<DiskState>>);

#[derive(Debug)]
struct DiskState {
    random: Random,
    /// Files as a running process sees them.
    files: BTreeMap<String, FileState>,
    /// Files whose names were durable at the last sync of the folder, by name, with the key of their content.
    durable: BTreeMap<String, u64>,
    next_key: u64,
    /// Of how many calls one fails; 0 means none.
    fails_one_in: u64,
    /// Calls that failed.
    errors: u64,
}

/// The content of a file, which has a key that does not change when the file gets another name.
#[derive(Clone, Debug)]
struct FileState {
    key: u64,
    bytes: Arc<Mutex<Written>>,
}

#[derive(Clone, Debug, Default)]
struct Written {
    bytes: Vec<u8>,
    /// How many bytes were synced.
    synced: usize,
    /// Parts that a failed sync has dropped although a later sync reports success.
    dropped: Vec<(usize, usize)>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct CrashingFile {
    disk: CrashingDisk,
    bytes: Arc<Mutex<Written>>,
}

/// Errors that a disk returns.
const ERRORS: [rustix::io::Errno; 5] = [
    rustix::io::Errno::NOSPC,
    rustix::io::Errno::DQUOT,
    rustix::io::Errno::ROFS,
    rustix::io::Errno::IO,
    rustix::io::Errno::NOENT,
];

impl CrashingDisk {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            random,
            files: BTreeMap::new(),
            durable: BTreeMap::new(),
            next_key: 0,
            fails_one_in: 0,
            errors: 0,
        })))
    }

    /// From now on one of so many calls fails, chosen at random; 0 means none.
    pub(crate) fn fail_one_in(&self, calls: u64) {
        lock(&self.0).fails_one_in = calls;
    }

    /// How many calls have failed.
    pub(crate) fn errors(&self) -> u64 {
        lock(&self.0).errors
    }

    /// The power fails.
    pub(crate) fn lose_power(&self) {
        let mut state = lock(&self.0);
        let DiskState { random, files, durable, .. } = &mut *state;
        // Names: of what changed since the last sync of the folder, anything may be durable.
        let by_key: BTreeMap<u64, FileState> =
            files.values().map(|file| (file.key, file.clone())).collect();
        let mut left = BTreeMap::new();
        for (name, key) in durable.iter() {
            let is_there = files.get(name).is_some_and(|file| file.key == *key);
            if is_there || random.below(2) == 0 {
                left.insert(name.clone(), *key);
            }
        }
        for (name, file) in files.iter() {
            let was_there = durable.get(name) == Some(&file.key);
            if !was_there && random.below(2) == 0 {
                // It had one name or the other, and not both.
                left.retain(|_, key| *key != file.key);
                left.insert(name.clone(), file.key);
            }
        }
        let mut lost = BTreeMap::new();
        for (name, key) in &left {
            let bytes = by_key.get(key).map(|file| lock(&file.bytes).after_power_loss(random));
            let bytes = Arc::new(Mutex::new(bytes.unwrap_or_default()));
            lost.insert(name.clone(), FileState { key: *key, bytes });
        }
        *files = lost;
        *durable = left;
    }

    /// Whether this call fails.
    fn call(&self) -> io::Result<()> {
        let mut state = lock(&self.0);
        let one_in = state.fails_one_in;
        if one_in == 0 || state.random.below(one_in) != 0 {
            return Ok(());
        }
        state.errors += 1;
        let error = *state.random.choose(&ERRORS).unwrap();
        Err(error.into())
    }

    fn below(&self, most: usize) -> usize {
        let most = u64::try_from(most).unwrap();
        usize::try_from(lock(&self.0).random.below(most + 1)).unwrap()
    }
}

impl Written {
    /// What is left of a file: what was synced, and any sectors of the rest.
    fn after_power_loss(&self, random: &mut Random) -> Self {
        let mut bytes = self.bytes.clone();
        let more = u64::try_from(bytes.len() - self.synced).unwrap();
        bytes.truncate(self.synced + usize::try_from(random.below(more + 1)).unwrap());
        let mut at = self.synced;
        while at < bytes.len() {
            let end = ((at / SECTOR + 1) * SECTOR).min(bytes.len());
            if random.below(3) == 0 {
                bytes[at..end].fill(0);
            }
            at = end;
        }
        for (from, to) in &self.dropped {
            let to = (*to).min(bytes.len());
            if *from < to {
                bytes[*from..to].fill(0);
            }
        }
        Self { synced: bytes.len(), bytes, dropped: vec![] }
    }
}

impl Disk for CrashingDisk {
    type Appended = CrashingFile;
    type Read = Cursor<Vec<u8>>;

    fn names(&self) -> io::Result<Vec<String>> {
        self.call()?;
        Ok(lock(&self.0).files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<CrashingFile> {
        self.call()?;
        let mut state = lock(&self.0);
        assert!(!state.files.contains_key(name), "{name} exists");
        state.next_key += 1;
        let (key, bytes) = (state.next_key, Arc::default());
        state.files.insert(name.to_owned(), FileState { key, bytes: Arc::clone(&bytes) });
        Ok(CrashingFile { disk: self.clone(), bytes })
    }

    fn open(&self, name: &str) -> io::Result<(Cursor<Vec<u8>>, u64)> {
        self.call()?;
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let file = lock(&self.0).files.get(name).cloned().ok_or_else(missing)?;
        let bytes = lock(&file.bytes).bytes.clone();
        let length = u64::try_from(bytes.len()).unwrap();
        Ok((Cursor::new(bytes), length))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let file = lock(&self.0).files.get(name).cloned().ok_or_else(missing)?;
        // It does not fail here: what a sync drops in one process, the next one cannot know.
        let mut written = lock(&file.bytes);
        written.synced = written.bytes.len();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.call()?;
        let mut state = lock(&self.0);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let file = state.files.remove(from).ok_or_else(missing)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call()?;
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        lock(&self.0).files.remove(name).map(|_| ()).ok_or_else(missing)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.call()?;
        let mut state = lock(&self.0);
        state.durable = state.files.iter().map(|(name, file)| (name.clone(), file.key)).collect();
        Ok(())
    }
}

impl AppendedFile for CrashingFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let result = self.disk.call();
        let written = if result.is_ok() { bytes.len() } else { self.disk.below(bytes.len()) };
        lock(&self.bytes).bytes.extend_from_slice(&bytes[..written]);
        result
    }

    fn sync(&self) -> io::Result<()> {
        let result = self.disk.call();
        let mut written = lock(&self.bytes);
        let (from, to) = (written.synced, written.bytes.len());
        if result.is_err() && from < to {
            // The system drops what it could not write, and the next sync reports success.
            written.dropped.push((from, to));
        }
        written.synced = to;
        result
    }
}
