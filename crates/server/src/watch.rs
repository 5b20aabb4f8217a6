//! Watches files.
//!
//! Looking at a file four times a second costs nothing that anybody could measure, and sees what the
//! kernel's notices miss: links that are swapped somewhere on the way (as mounted configuration is), network
//! file systems, files that did not exist yet.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOOKED_AT_EVERY: Duration = Duration::from_millis(250);

/// What changes when somebody writes a file or puts another in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Calls `read`, on a thread where it may take its time, whenever one of the files has changed, or which there are, for ever.
pub(crate) async fn on_change(
    name: &'static str,
    paths: impl Fn() -> Vec<PathBuf>,
    read: impl Fn() + Clone + Send + 'static,
) {
    // They were read when the server started, and may have changed since: the first look is at new files.
    let (mut known, mut last) = (None, None);
    let mut ticks = tokio::time::interval(LOOKED_AT_EVERY);
    loop {
        ticks.tick().await;
        let now: Option<Vec<Option<Stamp>>> =
            Some(paths().iter().map(|path| Stamp::of(path)).collect());
        // A file that is being written changes from look to look; it is read when it rests. One that is gone is read
        // too, so that its reader can say so.
        if now != known && now == last {
            known.clone_from(&now);
            if tokio::task::spawn_blocking(read.clone()).await.is_err() {
                tracing::error!("reading the {name} met a mistake of ours; it is not changed");
            }
        }
        last = now;
    }
}

impl Stamp {
    /// Links are followed: what counts is the file at the end.
    fn of(path: &Path) -> Option<Self> {
        let of = |meta: Metadata| Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        };
        std::fs::metadata(path).ok().map(of)
    }
}
