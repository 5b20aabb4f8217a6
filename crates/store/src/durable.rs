//! The durable store: the store in memory, and a log of its changes in a data directory.
//!
//! ```text
//!   takes ──► memory ──── dirty bits ───► writer thread ──► log        every 50 ms; after a crash of the process, what was
//!             decides,                        │                        admitted since is forgotten
//!             no lock,                        ├──► sync thread         every 250 ms; the same after a power failure
//!             no system call                  └──► snapshot            when the logs are long, while serving
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `disk` | the few things that are needed of a file system |
//! | `limit_bytes` | limits as bytes |
//! | `format` | the headers of files and frames, byte by byte |
//! | `frame` | records as bytes, and back |
//! | `segment` | reading a file of frames, and skipping what is damaged |
//! | `directory` | the files of a data directory |
//! | `recovery` | the newest snapshot and the logs, back into memory |
//! | `sync_work` | what the writer hands out to be synced |
//! | `writer` | changes to the log, and everything to a snapshot, step by step |
//! | `keeper` | the threads that make the writer's steps |
//! | `inspect` | looking into a directory that no server uses |
//!
//! **The promise.** After a crash, each state by itself is a value that it had between the last completed write (of the process: the
//! last completed sync, if the power failed) and the crash. States are not written at one instant. So of a plan of several limits,
//! one limit may remember the last request and another may not. A receipt that was settled is not settled again unless what it
//! gave back is forgotten, too.
//!
//! **The disk never delays a decision.** If it fails or stalls, decisions go on from memory, [`StoreHealth::complaint`] says what
//! would be lost, and when the disk works again, a snapshot of everything is written.

pub(crate) mod directory;
pub(crate) mod disk;
pub(crate) mod format;
mod frame;
mod inspect;
mod keeper;
mod limit_bytes;
mod recovery;
mod segment;
pub(crate) mod sync_work;
pub(crate) mod writer;

pub use directory::DataError;
pub use format::DataFileKind;
pub use inspect::{Compacted, DataContents, DataFile};
pub use recovery::{Damage, Recovered};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::memory::Memory;
use crate::reports::{DurableReport, Gauges};
use crate::secret::Secret;
use crate::store::{
    Answer, Charged, Settled, Settlement, SharedDocument, SingleAnswer, Store, StoreHealth,
};
use directory::Listing;
use disk::{Disk, Folder};
use frame::FRAME_BYTES;
use keeper::Keeper;
use recovery::Recovery;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate_core::{Decision, Limit, Plan, Span, StateId, Take};
use writer::LogWriter;

pub(crate) use writer::Identity;

/// How a durable store is set up.
#[derive(Clone, Debug)]
pub struct DurableSettings {
    /// The directory of its files. No other process may use it.
    pub folder: PathBuf,
    /// Bytes of memory, see [`Memory::with_budget`].
    pub budget: usize,
    /// How often changes are written.
    pub write_every: Span,
    /// How often what was written is synced.
    pub sync_every: Span,
    /// How many bytes are written in a second, at most. When more changes, they are written less often.
    pub bytes_per_second: u64,
}

impl DurableSettings {
    /// The usual settings for this directory.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// let settings = tidegate_store::DurableSettings::new("data/states");
    /// assert_eq!(settings.write_every, Span::from_millis(50));
    /// ```
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            budget: 256 << 20,
            write_every: Span::from_millis(50),
            sync_every: Span::from_millis(250),
            bytes_per_second: 64 << 20,
        }
    }
}

/// States in the memory of this process that survive its end, in a data directory.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
/// use tidegate_store::{Clock, Durable, DurableSettings, Secret};
/// # let folder = std::env::temp_dir().join(format!("tidegate-durable-{}", std::process::id()));
/// let limit = Limit::new(1, Span::from_secs(86_400), Algorithm::TOKEN_BUCKET)?;
/// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::ONE));
/// let secret = Secret::new([7; 32]);
/// let open = || Durable::open(&DurableSettings::new(&folder), &secret, Clock::system(), &mut |_, _| ());
/// let (store, _) = open()?;
/// assert!(store.memory().take_now(&plan).done.passes);
/// drop(store);
/// let (store, recovered) = open()?;
/// assert_eq!(recovered.states, 1);
/// assert!(!store.memory().take_now(&plan).done.passes); // it remembers
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Durable {
    memory: Arc<Memory>,
    keeper: Keeper,
}

impl Durable {
    /// Opens a data directory: reads it into memory, and begins a new log. `progress` is called with how many bytes were read, of
    /// how many.
    pub fn open(
        settings: &DurableSettings,
        secret: &Secret,
        clock: Clock,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered), DataError> {
        let folder = settings.folder.display().to_string();
        let disk = Folder::open(&settings.folder).map_err(DataError::io(&folder))?;
        let warning = disk.warning();
        let identity = Identity { verifier: secret.verifier(), boot: boot_id() };
        let opening =
            Opening { budget: settings.budget, identity, clock, frame_bytes: FRAME_BYTES };
        let (writer, recovered) = opening.open(disk, progress)?;
        let memory = writer.memory();
        let keeper = Keeper::start(writer, settings).map_err(DataError::io(&folder))?;
        Ok((Self { memory, keeper }, Recovered { warning, ..recovered }))
    }

    /// The states.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// How a data directory is opened.
pub(crate) struct Opening {
    pub(crate) budget: usize,
    pub(crate) identity: Identity,
    pub(crate) clock: Clock,
    /// A frame is closed when it has this many bytes.
    pub(crate) frame_bytes: usize,
}

impl Opening {
    /// Reads a data directory into memory, and begins a new log.
    pub(crate) fn open<D: Disk>(
        self,
        disk: D,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(LogWriter<D>, Recovered), DataError> {
        let Self { budget, identity, clock, frame_bytes } = self;
        let listing = Listing::read(&disk, Some(identity.verifier))?;
        for name in &listing.unfinished {
            disk.remove(name).map_err(DataError::io(name))?;
        }
        // Before anything is restored: by a clock that is wrong, states would seem to have expired.
        if let Some(newest) = listing.files.last() {
            let time = newest.header.time;
            clock.resume(time.now, time.since_boot, newest.header.boot == identity.boot);
        }
        let memory = Arc::new(Memory::kept_on_disk(clock, budget));
        let (recovered, end) = Recovery::run(&disk, &listing, &memory, progress)?;
        if let Some((time, boot)) = end.last {
            memory.clock().resume(time.now, time.since_boot, boot == identity.boot);
        }
        memory.forget_changes();
        // An earlier process may have written what it did not sync. The new log comes after that.
        for log in listing.logs() {
            disk.sync(&log.name).map_err(DataError::io(&log.name))?;
        }
        let mut writer = LogWriter::new(disk, memory, identity, &end, frame_bytes);
        writer.begin_first().map_err(DataError::io("the data directory"))?;
        Ok((writer, recovered))
    }
}

/// Which run of the machine this is; 0 when the system does not say.
fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
}

/// Every call is that of the store in memory.
impl Store for Durable {
    const IN_PROCESS: bool = true;

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        Store::take(&*self.memory, plans).await
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        self.memory.take_one(plan).await
    }

    async fn take_each(&self, takes: &[Take<'_>]) -> Vec<Result<SingleAnswer, StoreError>> {
        self.memory.take_each(takes).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        self.memory.charge(takes).await
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.memory.give_back(settlement).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        self.memory.peek(plan).await
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.memory.reset(states).await
    }

    /// Writes and syncs what changed, before the process ends.
    async fn release(&self) {
        self.keeper.stop();
    }

    fn admit_limit(&self, limit: &Limit) -> Result<(), StoreError> {
        self.memory.admit_limit(limit)
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        self.memory.supports(limit)
    }
}

impl StoreHealth for Durable {
    const WATCHED: bool = true;

    fn shortage(&self) -> Option<&'static str> {
        self.memory.shortage()
    }

    fn complaint(&self) -> Option<String> {
        let doubt = || self.memory.clock().doubt().map(|doubt| doubt.text().to_owned());
        self.keeper.report().problem.or_else(doubt)
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(Memory::gauges(&self.memory))
    }

    fn durability(&self) -> Option<DurableReport> {
        Some(self.keeper.report())
    }
}

/// It has one node, so it has no document to share.
impl SharedDocument for Durable {}
