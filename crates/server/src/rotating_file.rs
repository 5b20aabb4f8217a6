//! A file of bounded size and age: when it is half full or half as old as allowed, it is renamed and a new one begins.
//!
//! ```text
//!   decisions.jsonl    the new half         ┐ together at most 64 MiB,
//!   decisions.jsonl.1  the half before it   ┘ and nothing older than 24 h
//! ```
//!
//! Only its owner may read it.

use crate::files;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tidegate::{Clock, Span, Timestamp};

/// Bounds of a file and the half before it, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileBounds {
    pub(crate) bytes: u64,
    pub(crate) age: Span,
}

/// An open file with its bounds.
pub(crate) struct RotatingFile {
    path: PathBuf,
    bounds: FileBounds,
    clock: Clock,
    file: File,
    bytes: u64,
    /// When this half began.
    since: Timestamp,
}

impl RotatingFile {
    /// Opens a file, or goes on with it. The age of a file that existed counts from now on.
    pub(crate) fn open(path: &Path, bounds: FileBounds, clock: &Clock) -> io::Result<Self> {
        let file = open_private(path)?;
        let bytes = file.metadata()?.len();
        let since = clock.now().steady;
        Ok(Self { path: path.to_owned(), bounds, clock: clock.clone(), file, bytes, since })
    }

    /// Appends whole lines. If they do not fit, a new half begins first.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let count = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        let is_full = self.bytes.saturating_add(count) > self.bounds.bytes / 2;
        if self.bytes > 0 && (is_full || self.is_old()) {
            self.rotate()?;
        }
        self.file.write_all(lines)?;
        self.bytes = self.bytes.saturating_add(count);
        Ok(())
    }

    /// Begins a new half if the old one is too old, also when nothing is written.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        if self.is_old() { self.rotate() } else { Ok(()) }
    }

    fn is_old(&self) -> bool {
        self.clock.now().steady.since(self.since).as_nanos() > self.bounds.age.as_nanos() / 2
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        std::fs::rename(&self.path, before)?;
        self.file = open_private(&self.path)?;
        self.bytes = 0;
        self.since = self.clock.now().steady;
        Ok(())
    }
}

/// Opens a file that only its owner may read, also if it existed with other permissions.
fn open_private(path: &Path) -> io::Result<File> {
    let file = files::open_regular(OpenOptions::new().append(true).create(true).mode(0o600), path)?;
    file.set_permissions(PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A file in a folder of its own, and the clock.
    fn rotating(name: &str, bytes: u64) -> (RotatingFile, PathBuf, Clock) {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let clock = Clock::manual(Timestamp::EPOCH);
        let bounds = FileBounds { bytes, age: Span::from_secs(100) };
        let path = folder.join("log");
        (RotatingFile::open(&path, bounds, &clock).unwrap(), path, clock)
    }

    fn halves(path: &Path) -> [String; 2] {
        [path.to_owned(), path.with_extension("1")]
            .map(|path| fs::read_to_string(path).unwrap_or_default())
    }

    fn remove(path: &Path) {
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn two_halves_never_have_more_than_the_bound() {
        let (mut file, path, _) = rotating("rotating-size", 20);
        for line in ["one\n", "two\n", "three\n", "four\n", "five\n"] {
            file.write(line.as_bytes()).unwrap();
            let all: usize = halves(&path).iter().map(String::len).sum();
            assert!(all <= 20, "{all}");
        }
        assert_eq!(halves(&path), ["four\nfive\n", "three\n"].map(str::to_owned));
        remove(&path);
    }

    #[test]
    fn old_lines_are_rotated_away() {
        let (mut file, path, clock) = rotating("rotating-age", 1_000);
        file.write(b"one\n").unwrap();
        clock.set(Timestamp::from_nanos(51_000_000_000));
        file.write(b"two\n").unwrap();
        assert_eq!(halves(&path), ["two\n", "one\n"].map(str::to_owned));
        clock.set(Timestamp::from_nanos(102_000_000_000));
        file.look().unwrap();
        assert_eq!(halves(&path), ["", "two\n"].map(str::to_owned));
        remove(&path);
    }

    #[test]
    fn only_the_owner_may_read_it() {
        let (_file, path, _) = rotating("rotating-mode", 1_000);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        remove(&path);
    }
}
