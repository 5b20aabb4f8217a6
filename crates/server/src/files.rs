//! Reading and writing files safely: no blocking on pipes, atomic replacement, private folders, one server per folder.

use rustix::fs::{Access, OFlags};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The mode bits that let other users write.
const WRITE: u32 = 0o022;

/// Reads a regular file of at most `most` bytes. Reading a pipe or a device could block, or never end.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Checked before it is opened, because opening a device can have side effects.
    is_regular(&fs::metadata(path)?)?;
    let file = open_regular(OpenOptions::new().read(true), path)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        let text = format!("the file has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(bytes)
}

/// Opens a regular file without blocking. The opened file is checked again, because a pipe may have replaced it meanwhile.
pub(crate) fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(nonblocking).open(path)?;
    is_regular(&file.metadata()?)?;
    Ok(file)
}

fn is_regular(file: &Metadata) -> io::Result<()> {
    let other = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    if file.is_file() { Ok(()) } else { Err(other()) }
}

/// Replaces a file atomically (write a new file, then rename it): a reader sees the old or the new file, even after a crash.
/// Only its owner may read it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = folder.join(name);
    // A file of this name was left by a crash, or put there by an attacker who wants to read the new contents. It is removed
    // and never written to.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The rename is durable when the folder is synced.
    File::open(folder)?.sync_all()
}

/// Creates a folder that only its owner may enter. A folder that exists must belong to this user or root, and other users must
/// not be able to write to it: they could replace any file in it.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    check_private(path)
}

/// Whether [`private_folder`] would accept or could create a folder, and whether files can be created in it. Changes nothing.
pub(crate) fn check_private_folder(path: &Path) -> io::Result<()> {
    if path.exists() {
        check_private(path)?;
        return may_create_in(path);
    }
    let existing = path.ancestors().skip(1).find(|above| above.exists());
    may_create_in(existing.unwrap_or(Path::new(".")))
}

/// Whether a file could be opened to write at its end, and created if it does not exist. Changes nothing.
pub(crate) fn may_append(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(rustix::fs::access(path, Access::WRITE_OK)?);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    may_create_in(folder.unwrap_or(Path::new(".")))
}

/// Whether this process may create files in a folder.
fn may_create_in(folder: &Path) -> io::Result<()> {
    let shown = folder.display();
    if !folder.is_dir() {
        let text = format!("`{shown}` is not a directory");
        return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
    }
    let allowed = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
    allowed.map_err(|error| {
        let text = format!("files cannot be created in `{shown}`: {}", io::Error::from(error));
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    })
}

fn check_private(path: &Path) -> io::Result<()> {
    let folder = fs::metadata(path)?;
    let (us, owner) = (rustix::process::geteuid().as_raw(), folder.uid());
    let denied = |text: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    if owner != us && owner != 0 {
        return denied(format!(
            "it belongs to user {owner}; it must belong to user {us}, which runs tidegate, or to root"
        ));
    }
    let mode = folder.mode() & 0o777;
    if mode & WRITE != 0 {
        return denied(format!(
            "its mode is {mode:03o}, so other users can replace the files in it; run `chmod 700` on it"
        ));
    }
    Ok(())
}

/// The lock on a folder that no other server may use. The kernel releases it when the process ends, in whatever way.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

/// Locks a folder. The error names the process that has locked it.
pub(crate) fn lock_folder(folder: &Path) -> io::Result<FolderLock> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = open_regular(&mut options, &folder.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(locked(&file)),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(FolderLock { _file: file })
}

/// Whether another server has locked a folder; the error names it. The lock is only held for the moment of the question, and
/// shared, so several processes may ask at once. A folder that does not exist is not locked.
pub(crate) fn check_unlocked(folder: &Path) -> io::Result<()> {
    let file = match open_regular(OpenOptions::new().read(true), &folder.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(locked(&file)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn locked(file: &File) -> io::Error {
    let mut process = String::new();
    // The other server may not have written its process number yet.
    let holder = match file.take(20).read_to_string(&mut process) {
        Ok(1..) => format!("the tidegate server with process number {}", process.trim()),
        Ok(0) | Err(_) => "another tidegate server".to_owned(),
    };
    let text = format!("{holder} uses it; give every server a data directory of its own");
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}
