//! Files, read and written with care.

use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What other users must not be able to do in a folder of ours.
const WRITE: u32 = 0o022;

/// Reads a regular file, at most this many bytes of it. A pipe or a device could keep us waiting, or never
/// end.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Looked at before it is opened, because opening a device can do something.
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

/// Opens a regular file without waiting: a pipe may have taken its place, so what was opened is looked at.
pub(crate) fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(at_once).open(path)?;
    is_regular(&file.metadata()?)?;
    Ok(file)
}

fn is_regular(file: &Metadata) -> io::Result<()> {
    let no_file = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    if file.is_file() { Ok(()) } else { Err(no_file()) }
}

/// Replaces a file whole: whoever reads it, and whatever breaks meanwhile, finds the old or the new one.
/// Only its owner may read it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = folder.join(name);
    // A file of this name was left by a crash, or put there by somebody who wants to read what we write: it is never
    // written to.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name itself is kept by the folder.
    File::open(folder)?.sync_all()
}

/// Makes a folder that only its owner may enter. One that is there already must be ours, or root's, and closed to the
/// writing of others: they could replace any file in it.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
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

/// A folder that no other server uses while this lives. The lock is the kernel's, so it ends with the process however that
/// ends.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

/// Locks a folder, or says which process has locked it.
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

fn locked(file: &File) -> io::Error {
    let mut process = String::new();
    // It may be about to write its number.
    let holder = match file.take(20).read_to_string(&mut process) {
        Ok(1..) => format!("the tidegate server with process number {}", process.trim()),
        Ok(0) | Err(_) => "another tidegate server".to_owned(),
    };
    let text = format!("{holder} uses it; give every server a data directory of its own");
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}
