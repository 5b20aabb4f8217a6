//! The few things that the log needs of a file system, so that tests can put a crashing one in its place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Kinds of file systems, as `statfs(2)` lists them.
const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;
const OVERLAYFS: u32 = 0x794c_7630;
const NFS: u32 = 0x6969;

/// A folder of files that are written once, from beginning to end.
pub(crate) trait Disk: Send + Sync + 'static {
    /// A file that is being written.
    type Appended: AppendedFile;
    /// A file that is read from its beginning.
    type Read: Read;

    /// The names of all regular files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Creates a file that does not exist.
    fn create(&self, name: &str) -> io::Result<Self::Appended>;

    /// Opens a file for reading; also returns its length.
    fn open(&self, name: &str) -> io::Result<(Self::Read, u64)>;

    /// Makes the content of a file durable that an earlier process wrote.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, which no file has.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes created, renamed and removed files durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// A file that is being written.
pub(crate) trait AppendedFile: Send + Sync + 'static {
    /// Appends bytes. After an error, some of them may have been written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable that was appended before. After an error, nothing is known about it, and another attempt may
    /// report success falsely.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of a real file system.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Opens a folder, or creates one that only its owner may enter.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Opens a folder that exists.
    pub(crate) fn existing(path: &Path) -> io::Result<Self> {
        fs::read_dir(path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Why files in this folder may not be there after a restart, if the kind of its file system says so.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let kind = rustix::fs::statfs(&self.path).ok()?.f_type;
        match u32::try_from(kind).unwrap_or(0) {
            TMPFS | RAMFS => Some("it is in memory (tmpfs): a restart of the machine empties it"),
            OVERLAYFS => Some(
                "it is a layer of a container (overlayfs): it ends with the container; mount a volume there",
            ),
            NFS => {
                Some("it is on a network file system (NFS): its pauses will delay what is written")
            }
            _ => None,
        }
    }
}

impl Disk for Folder {
    type Appended = File;
    type Read = File;

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().append(true).create_new(true).mode(0o600).open(self.path.join(name))
    }

    fn open(&self, name: &str) -> io::Result<(File, u64)> {
        let file = File::open(self.path.join(name))?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        File::open(self.path.join(name))?.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl AppendedFile for File {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self;
        file.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
