//! Files that hold secrets: read only if no other user of the machine could have read or written them.
//!
//! The rules are those that ssh has for private keys. The file belongs to the user that runs this process, or to root. If it
//! is ours, no other user may read or write it. If it is root's, as where an orchestrator mounts secrets, no other user may
//! write it.

use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What other users must not be able to do: read, write or enter; and only write.
const ANY: u32 = 0o077;
const WRITE: u32 = 0o022;

/// Reads a file that holds a secret, of at most so many bytes. A pipe or a device is an error: it could keep the caller
/// waiting, or never end.
///
/// ```
/// use std::os::unix::fs::PermissionsExt;
/// let path = std::env::temp_dir().join(format!("tidegate-private-{}", std::process::id()));
/// std::fs::write(&path, "s3cr3t")?;
/// std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
/// assert!(tidegate_store::read_private(&path, 100).is_err());
/// std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
/// assert_eq!(tidegate_store::read_private(&path, 100)?, b"s3cr3t");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_private(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe does not wait for its other end, and what was opened is looked at: nothing can take its place.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(at_once).open(path)?;
    check(&file.metadata()?)?;
    read(&file, most)
}

fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        return Err(wrong(format!("the file has more than {most} bytes")));
    }
    Ok(bytes)
}

fn check(file: &Metadata) -> io::Result<()> {
    if !file.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    let (us, owner) = (rustix::process::geteuid().as_raw(), file.uid());
    let mode = file.mode() & 0o777;
    if owner != us && owner != 0 {
        let text = format!(
            "it belongs to user {owner}; it must belong to user {us}, which runs tidegate, or to root"
        );
        return Err(denied(text));
    }
    let others = if owner == us { ANY } else { WRITE };
    if mode & others != 0 {
        let text = format!(
            "its mode is {mode:03o}, so other users can use the secret in it; run `chmod 600` on it"
        );
        return Err(denied(text));
    }
    Ok(())
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn denied(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
