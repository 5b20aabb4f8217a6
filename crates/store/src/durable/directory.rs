//! The files of a data directory, and their names.
//!
//! ```text
//!   log-0000000003            what changed; ten digits are the number of the file
//!   snapshot-0000000004       everything, as of the frames that it comes after
//!   snapshot-0000000006.new   a snapshot that is not complete; removed at the next start
//! ```

use super::disk::Disk;
use super::format::{DataFileKind, FileHeader, HeaderError};
use super::segment::{FrameFile, Unreadable};
use std::io;

/// The end of the name of a snapshot that is not complete.
const UNFINISHED: &str = ".new";

/// The name of a file.
pub(crate) fn name(kind: DataFileKind, number: u64) -> String {
    match kind {
        DataFileKind::Log => format!("log-{number:010}"),
        DataFileKind::Snapshot => format!("snapshot-{number:010}"),
    }
}

/// The name of a snapshot until it is complete.
pub(crate) fn unfinished(number: u64) -> String {
    format!("{}{UNFINISHED}", name(DataFileKind::Snapshot, number))
}

/// The files of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Logs and snapshots with a valid header, in the order of their numbers.
    pub(crate) files: Vec<ListedFile>,
    /// Files whose header is damaged.
    pub(crate) damaged: Vec<String>,
    /// Snapshots that are not complete.
    pub(crate) unfinished: Vec<String>,
    /// The largest number of any file.
    pub(crate) last_number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedFile {
    pub(crate) name: String,
    pub(crate) header: FileHeader,
    pub(crate) bytes: u64,
}

impl ListedFile {
    /// Opens it to read its frames.
    pub(crate) fn open<D: Disk>(&self, disk: &D) -> Result<FrameFile<D::Read>, DataError> {
        FrameFile::open(disk, &self.name).map_err(|error| {
            DataError::io(&self.name)(match error {
                Unreadable::Io(error) => error,
                Unreadable::Header(_) => io::Error::other("it changed while it was read"),
            })
        })
    }
}

/// Why a data directory cannot be used. Its files are untouched.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or the directory cannot be read or written.
    #[error("{name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// What went wrong.
        error: io::Error,
    },
    /// The states were named under another secret.
    #[error(
        "{name} was written under another secret: start with the secret file of this data directory, or with an empty directory"
    )]
    OtherSecret {
        /// The file.
        name: String,
    },
    /// A newer version of tidegate wrote it.
    #[error(
        "{name} has version {version} of the format, and this tidegate reads versions up to {}: start the newer tidegate, or use another directory",
        super::format::VERSION
    )]
    Newer {
        /// The file.
        name: String,
        /// The version of its format.
        version: u16,
    },
}

impl DataError {
    pub(crate) fn io(name: &str) -> impl FnOnce(io::Error) -> Self {
        let name = name.to_owned();
        move |error| Self::Io { name, error }
    }
}

impl Listing {
    /// Lists the files. It is an error if one of them was written under another secret (if that is to be checked) or by a newer
    /// version.
    pub(crate) fn read<D: Disk>(disk: &D, verifier: Option<u128>) -> Result<Self, DataError> {
        let mut listing = Self::default();
        for name in disk.names().map_err(DataError::io("the data directory"))? {
            let Some((number, is_finished)) = number_of(&name) else { continue };
            listing.last_number = listing.last_number.max(number);
            if !is_finished {
                listing.unfinished.push(name);
                continue;
            }
            let bytes = disk.open(&name).map_err(DataError::io(&name))?.1;
            match FrameFile::open(disk, &name) {
                Ok(FrameFile { header, .. }) => {
                    if verifier.is_some_and(|verifier| verifier != header.verifier) {
                        return Err(DataError::OtherSecret { name });
                    }
                    listing.files.push(ListedFile { name, header, bytes });
                }
                Err(Unreadable::Io(error)) => return Err(DataError::Io { name, error }),
                Err(Unreadable::Header(HeaderError::Newer(version))) => {
                    return Err(DataError::Newer { name, version });
                }
                Err(Unreadable::Header(HeaderError::Damaged)) => listing.damaged.push(name),
            }
        }
        listing.files.sort_unstable_by_key(|file| file.header.number);
        Ok(listing)
    }

    /// The newest snapshot.
    pub(crate) fn snapshot(&self) -> Option<&ListedFile> {
        self.files.iter().rfind(|file| file.header.kind == DataFileKind::Snapshot)
    }

    /// The logs, from the oldest to the newest.
    pub(crate) fn logs(&self) -> impl DoubleEndedIterator<Item = &ListedFile> {
        self.files.iter().filter(|file| file.header.kind == DataFileKind::Log)
    }
}

/// Whether a file was begun before the one with this number.
pub(crate) fn is_before(name: &str, number: u64) -> bool {
    number_of(name).is_some_and(|(of, _)| of < number)
}

/// The number in the name of a file, and whether the file is finished. `None` for files of others.
fn number_of(name: &str) -> Option<(u64, bool)> {
    let (finished, is_finished) =
        name.strip_suffix(UNFINISHED).map_or((name, true), |name| (name, false));
    let digits = finished.strip_prefix("log-").or_else(|| finished.strip_prefix("snapshot-"))?;
    let number = digits.parse().ok().filter(|_| digits.len() == 10)?;
    Some((number, is_finished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_other_files_are_left_alone() {
        assert_eq!(number_of(&name(DataFileKind::Log, 3)), Some((3, true)));
        assert_eq!(number_of(&name(DataFileKind::Snapshot, 12)), Some((12, true)));
        assert_eq!(number_of(&unfinished(12)), Some((12, false)));
        for other in ["log", "log-3", "log-00000000xy", "snapshot-", "notes.txt", "log-0000000003~"]
        {
            assert_eq!(number_of(other), None, "{other}");
        }
    }
}
