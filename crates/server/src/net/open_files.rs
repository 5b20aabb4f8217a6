//! Quotas of open files: how many connections may be open, and how many each listener is guaranteed.
//!
//! ```text
//!   limit of open files (ulimit -n)
//!   ├─ reserved: files, worker threads, connections to the store
//!   ├─ guaranteed: a part for each listener, which no other listener can use up
//!   └─ shared: first come, first served
//! ```
//!
//! Every connection is an open file, and one of the reverse proxy is two: another one goes to an upstream server. Without quotas, idle connections on one listener would use up the limit, and no other
//! listener could accept a connection, not even the operators'. Example: of 200 files, 44 are reserved with two workers; each
//! of four listeners has 19 guaranteed, and 80 are shared.

use super::caps::Caps;
use crate::bounds;
use crate::health::Health;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How the open files are divided among the listeners.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileQuotas {
    /// For each listener, in order.
    guaranteed: Vec<PlannedConnections>,
    shared: usize,
    /// The limit at which every listener could reach its cap.
    wanted: usize,
}

/// Connections of a listener, and what each costs in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedConnections {
    count: usize,
    files_each: usize,
}

/// The files that all listeners share.
struct SharedFiles {
    free: AtomicUsize,
    /// Whether `/ready` reports that they are used up.
    reported: AtomicBool,
    health: Arc<Health>,
}

/// The files that one listener may use for connections.
pub(crate) struct FileQuota {
    /// The number of connections that have their files for certain.
    pub(super) guaranteed: usize,
    /// The files of a connection.
    each: usize,
    shared: Arc<SharedFiles>,
}

/// Raises the limit of open files to `most`, or as far as the system allows, and returns the new limit.
pub(crate) fn raise_limit(most: Option<u64>) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = match (most, maximum) {
        (Some(most), Some(maximum)) => Some(most.min(maximum)),
        (most, maximum) => most.or(maximum),
    };
    // If it cannot be changed, the old limit is divided.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if let Some(most) = most.filter(|most| *most > limit) {
        tracing::warn!("max_open_files is {most}, but the system allows {limit}");
    }
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The files that are reserved for everything except connections of clients.
pub(crate) fn reserved(workers: usize, shared_store: bool) -> usize {
    let runtimes = workers.saturating_add(2).saturating_mul(bounds::FILES_PER_WORKER);
    let store = if shared_store { bounds::FILES_OF_STORE } else { 0 };
    bounds::FILES.saturating_add(runtimes).saturating_add(store)
}

/// All files of these connections.
fn files_of(connections: impl IntoIterator<Item = PlannedConnections>) -> usize {
    let files = connections.into_iter().map(|one| one.count.saturating_mul(one.files_each));
    files.fold(0, usize::saturating_add)
}

impl FileQuotas {
    /// Guarantees half of the files to the listeners, in equal parts of which none is larger than its listener's cap. The rest
    /// is shared.
    pub(crate) fn new(limit: usize, reserved: usize, caps: &[Caps]) -> Self {
        let room = limit.saturating_sub(reserved);
        let parts = caps.len().saturating_mul(2).max(1);
        let part = room.checked_div(parts).unwrap_or(0).max(1);
        let planned = |caps: &Caps, count: usize| PlannedConnections {
            count: caps.all.min(count),
            files_each: caps.files_each,
        };
        let of_part =
            |caps: &Caps| planned(caps, part.checked_div(caps.files_each).unwrap_or(part).max(1));
        let guaranteed: Vec<_> = caps.iter().map(of_part).collect();
        let shared = room.saturating_sub(files_of(guaranteed.iter().copied()));
        let all = caps.iter().map(|caps| planned(caps, usize::MAX));
        let wanted = files_of(all).saturating_add(reserved);
        Self { guaranteed, shared, wanted }
    }

    /// Logs a warning if the limit is too low for the caps of the listeners.
    pub(crate) fn warn(&self, limit: usize) {
        if self.wanted > limit {
            let connections = files_of(self.guaranteed.iter().copied()).saturating_add(self.shared);
            tracing::warn!(
                "the listeners may have more connections than files may be open: {limit} open files leave room for {connections} connections, of which each of the reverse proxy counts twice. \
                 Raise the limit to {} (`ulimit -n`, or LimitNOFILE= in systemd), or lower the caps (--http-max-connections and others)",
                self.wanted
            );
        }
    }

    /// The quota of each listener.
    pub(crate) fn files(&self, health: &Arc<Health>) -> Vec<FileQuota> {
        let shared = Arc::new(SharedFiles {
            free: AtomicUsize::new(self.shared),
            reported: AtomicBool::new(false),
            health: Arc::clone(health),
        });
        let files = |planned: &PlannedConnections| FileQuota {
            guaranteed: planned.count,
            each: planned.files_each,
            shared: Arc::clone(&shared),
        };
        self.guaranteed.iter().map(files).collect()
    }
}

impl FileQuota {
    /// Takes the files of a connection from the shared ones. False when none are left, which `/ready` then reports.
    pub(super) fn take(&self) -> bool {
        let SharedFiles { free, reported, .. } = &*self.shared;
        let less = |free: usize| free.checked_sub(self.each);
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if taken {
            self.report(false);
        } else if !reported.load(Ordering::Relaxed) {
            self.report(true);
        }
        taken
    }

    /// Gives the files of a connection back.
    pub(super) fn give_back(&self) {
        self.shared.free.fetch_add(self.each, Ordering::Relaxed);
        self.report(false);
    }

    fn report(&self, used_up: bool) {
        let SharedFiles { reported, health, .. } = &*self.shared;
        // Nearly always nothing has changed, and no lock is taken.
        if reported.load(Ordering::Relaxed) != used_up
            && reported.swap(used_up, Ordering::Relaxed) != used_up
        {
            let why = "connections are refused: no more files may be open (raise `ulimit -n`)";
            health.set_problem("open files", used_up.then(|| why.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(all: usize) -> Caps {
        Caps { all, per_source: all, files_each: 1 }
    }

    fn planned(count: usize, files_each: usize) -> PlannedConnections {
        PlannedConnections { count, files_each }
    }

    fn connections(quotas: &FileQuotas) -> Vec<usize> {
        quotas.guaranteed.iter().map(|planned| planned.count).collect()
    }

    #[test]
    fn files_are_divided_so_that_every_listener_has_some() {
        let usual = [caps(10_000), caps(10_000), caps(10_000), caps(200)];
        let divided = |limit| FileQuotas::new(limit, 44, &usual);
        assert_eq!(
            divided(200),
            FileQuotas { guaranteed: vec![planned(19, 1); 4], shared: 80, wanted: 30_244 }
        );
        let enough = divided(1 << 20);
        assert_eq!(connections(&enough), [10_000, 10_000, 10_000, 200]);
        assert!(enough.shared > 1_000_000);
        // One listener may use everything except what is guaranteed to the others.
        let some = divided(20_000);
        assert_eq!(connections(&some), [2_494, 2_494, 2_494, 200]);
        assert_eq!(some.shared, 20_000 - 44 - 3 * 2_494 - 200);
        // Too few files for every listener: one is guaranteed to each, and `accept` may still fail.
        assert_eq!(connections(&divided(10)), [1; 4]);
        assert_eq!(FileQuotas::new(200, 44, &[]).shared, 156);
        assert_eq!(connections(&divided(usize::MAX)), [10_000, 10_000, 10_000, 200]);
    }

    /// The story: with 1,024 files, 16 of 55 polite requests got 502, because the sockets to the upstream servers were not planned.
    #[test]
    fn a_connection_of_the_proxy_has_a_file_for_its_upstream_server() {
        let proxy = Caps { files_each: 2, ..caps(10_000) };
        let quotas = FileQuotas::new(200, 44, &[caps(10_000), proxy]);
        assert_eq!(quotas.guaranteed, [planned(39, 1), planned(19, 2)]);
        assert_eq!((quotas.shared, quotas.wanted), (156 - 39 - 38, 30_044));
        let files = quotas.files(&Arc::default());
        // Each takes two of the 79 shared files.
        assert_eq!((0..80).take_while(|_| files[1].take()).count(), 39);
        assert!(files[0].take() && !files[0].take());
        files[1].give_back();
        assert!(files[1].take());
    }

    #[test]
    fn ready_says_when_the_shared_files_are_used_up() {
        let health = Arc::new(Health::default());
        let files = FileQuotas::new(2, 0, &[]).files(&health);
        assert!(files.is_empty());
        let quotas = FileQuotas { guaranteed: vec![planned(0, 1); 2], shared: 1, wanted: 0 };
        let files = quotas.files(&health);
        assert!(files[0].take() && !health.is_degraded());
        assert!(!files[1].take() && health.is_degraded());
        files[0].give_back();
        assert!(!health.is_degraded() && files[1].take());
    }
}
