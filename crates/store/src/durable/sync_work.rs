//! What the writer hands out to be synced, so that it need not wait.

use super::directory::{self, Listing};
use super::disk::{AppendedFile, Disk};
use super::format::DataFileKind;
use std::io;
use std::sync::Arc;

/// What to sync. This may take long; the writer can go on meanwhile.
pub(crate) enum SyncWork<D: Disk> {
    /// The log as it is now.
    Log(SyncPoint<D>),
    /// A snapshot, which then takes the place of older files.
    Snapshot(SnapshotPoint<D>),
}

/// A log to sync, and those before it.
pub(crate) struct SyncPoint<D: Disk> {
    pub(super) disk: Arc<D>,
    /// From the oldest to the newest. A frame must not be on disk for certain while one before it is not.
    pub(super) files: Vec<Arc<D::Appended>>,
    pub(super) sync_folder: bool,
    /// The name and the number of the newest log.
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) sequence: u64,
}

/// A snapshot to sync.
pub(crate) struct SnapshotPoint<D: Disk> {
    pub(super) disk: Arc<D>,
    pub(super) file: Arc<D::Appended>,
    /// The first log that is needed besides. Its header says that frames of older logs do not count.
    pub(super) log: Arc<D::Appended>,
    pub(super) number: u64,
    pub(super) first_log: u64,
}

impl<D: Disk> SyncWork<D> {
    pub(crate) fn run(&self) -> io::Result<()> {
        match self {
            Self::Log(point) => point.sync(),
            Self::Snapshot(point) => point.complete(),
        }
    }
}

impl<D: Disk> SyncPoint<D> {
    pub(super) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync())?;
        // An operator may have removed the log. The open file can still be written and synced then, but no start would find it. So
        // look whether its name is still in the folder.
        self.disk.open(&self.name)?;
        if self.sync_folder { self.disk.sync_folder() } else { Ok(()) }
    }
}

impl<D: Disk> SnapshotPoint<D> {
    /// Makes a snapshot durable, and removes the files that it replaces.
    fn complete(&self) -> io::Result<()> {
        self.log.sync()?;
        self.file.sync()?;
        let name = directory::name(DataFileKind::Snapshot, self.number);
        self.disk.rename(&directory::unfinished(self.number), &name)?;
        self.disk.sync_folder()?;
        // If they cannot be listed or removed, they are at the next snapshot.
        if let Ok(listing) = Listing::read(&*self.disk, None) {
            let old = listing.files.iter().filter(|file| match file.header.kind {
                DataFileKind::Log => file.header.number < self.first_log,
                DataFileKind::Snapshot => file.header.number < self.number,
            });
            let damaged = listing.damaged.iter();
            let damaged = damaged.filter(|name| directory::is_before(name, self.first_log));
            let old = old.map(|file| &file.name).chain(damaged);
            old.for_each(|name| _ = self.disk.remove(name));
        }
        Ok(())
    }
}
