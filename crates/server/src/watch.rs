//! Watches files by polling their metadata four times a second.
//!
//! The cost is too small to measure, and polling notices changes that inotify misses: symbolic links that are replaced
//! somewhere on the path (as mounted configuration is), network file systems, files that did not exist yet.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const POLL_EVERY: Duration = Duration::from_millis(250);

/// The metadata that changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Calls `read` whenever one of the files or the list of files has changed; never returns. `read` may block, so it runs on a
/// blocking thread.
pub(crate) async fn on_change(
    name: &'static str,
    paths: impl Fn() -> Vec<PathBuf>,
    read: impl Fn() + Clone + Send + 'static,
) {
    // The files may have changed since they were read at the start. So `read` is called once after the first polls.
    let (mut known, mut last) = (None, None);
    let mut ticks = tokio::time::interval(POLL_EVERY);
    loop {
        ticks.tick().await;
        let now: Option<Vec<Option<Stamp>>> =
            Some(paths().iter().map(|path| Stamp::of(path)).collect());
        // A file that is being written changes from poll to poll, so it is read when two polls agree. `read` is also called
        // for a file that was removed, so that it can report that.
        if now != known && now == last {
            known.clone_from(&now);
            if tokio::task::spawn_blocking(read.clone()).await.is_err() {
                tracing::error!(
                    "a bug in tidegate: reading the {name} panicked; it is not changed"
                );
            }
        }
        last = now;
    }
}

impl Stamp {
    /// The stamp of the file that the path leads to; symbolic links are followed.
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
