//! Files that hold secrets. They are read only if no other user of the machine could have read or changed them.
//!
//! The rules are those of ssh for private keys:
//!
//! - The file must belong to the user that runs this process, or to root.
//! - If it belongs to this user, no other user may read or write it.
//! - If it belongs to root, as when an orchestrator mounts secrets, no other user may write it.

use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Mode bits that other users must not have on a file of this user: read, write and execute.
const ANY: u32 = 0o077;
/// Mode bits that other users must not have on a file of root: write.
const WRITE: u32 = 0o022;

/// Reads a file that holds a secret, of at most `most` bytes. A pipe or a device is an error: reading it could block, or never
/// end.
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
    // With this flag, opening a pipe does not wait for its other end. The checks look at the open file, not at the path, so the
    // file cannot be exchanged between the check and the read.
    let non_blocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(non_blocking).open(path)?;
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
