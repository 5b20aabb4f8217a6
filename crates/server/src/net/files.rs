//! Open files: how many connections there is room for, and what each listener can count on.
//!
//! ```text
//!   limit of open files (ulimit -n)
//!   ├─ kept: files, worker threads, connections to the store
//!   ├─ guaranteed: a part for each listener, which no other listener can use up
//!   └─ shared: whichever listener comes first
//! ```
//!
//! Every connection is an open file. Without this division, idle connections on one listener would use up the limit, and the
//! system would accept no connection on any other, the operators' included. Example: of 200 files, 44 are kept with two
//! workers; each of four listeners has 19 guaranteed, and 80 are shared.

use super::caps::Caps;
use crate::bounds;
use crate::health::Health;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How the files that connections may use are divided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// For each listener, in order.
    guaranteed: Vec<usize>,
    shared: usize,
    /// What the caps of all listeners would need.
    wanted: usize,
}

/// The files that all listeners share.
struct SharedFiles {
    free: AtomicUsize,
    /// Whether `/ready` says that they are used up.
    told: AtomicBool,
    health: Arc<Health>,
}

/// What one listener may use.
pub(crate) struct Files {
    pub(super) guaranteed: usize,
    shared: Arc<SharedFiles>,
}

/// Raises the limit of open files to `most`, or as far as the system allows, and answers what it is then.
pub(crate) fn raise_limit(most: Option<u64>) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = match (most, maximum) {
        (Some(most), Some(maximum)) => Some(most.min(maximum)),
        (most, maximum) => most.or(maximum),
    };
    // Where it cannot be changed, it stays as it is, and is divided as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if let Some(most) = most.filter(|most| *most > limit) {
        tracing::warn!("max_open_files is {most}, but the system allows {limit}");
    }
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The files that are kept for everything but connections of clients.
pub(crate) fn kept(workers: usize, shared_store: bool) -> usize {
    let runtimes = workers.saturating_add(2).saturating_mul(bounds::FILES_PER_WORKER);
    let store = if shared_store { bounds::FILES_OF_STORE } else { 0 };
    bounds::FILES.saturating_add(runtimes).saturating_add(store)
}

impl Division {
    /// Half of the files for the listeners, in equal parts of which none is larger than its listener's cap; the rest is
    /// shared.
    pub(crate) fn new(limit: usize, kept: usize, caps: &[Caps]) -> Self {
        let room = limit.saturating_sub(kept);
        let parts = caps.len().saturating_mul(2).max(1);
        let part = room.checked_div(parts).unwrap_or(0).max(1);
        let guaranteed: Vec<usize> = caps.iter().map(|caps| caps.all.min(part)).collect();
        let sum =
            |numbers: &mut dyn Iterator<Item = usize>| numbers.fold(0_usize, usize::saturating_add);
        let shared = room.saturating_sub(sum(&mut guaranteed.iter().copied()));
        let wanted = sum(&mut caps.iter().map(|caps| caps.all)).saturating_add(kept);
        Self { guaranteed, shared, wanted }
    }

    /// Says so if the caps are promises that the limit cannot keep.
    pub(crate) fn warn(&self, limit: usize) {
        if self.wanted > limit {
            let connections =
                self.guaranteed.iter().copied().fold(self.shared, usize::saturating_add);
            tracing::warn!(
                "the listeners may have more connections than files may be open: {limit} open files leave room for {connections} connections. \
                 Raise the limit to {} (`ulimit -n`, or LimitNOFILE= in systemd), or lower the caps (--http-max-connections and others)",
                self.wanted
            );
        }
    }

    /// What each listener may use.
    pub(crate) fn files(&self, health: &Arc<Health>) -> Vec<Files> {
        let shared = Arc::new(SharedFiles {
            free: AtomicUsize::new(self.shared),
            told: AtomicBool::new(false),
            health: Arc::clone(health),
        });
        let files =
            |guaranteed: &usize| Files { guaranteed: *guaranteed, shared: Arc::clone(&shared) };
        self.guaranteed.iter().map(files).collect()
    }
}

impl Files {
    /// Takes one of the shared files; `false` when none is left, which `/ready` then says.
    pub(super) fn take(&self) -> bool {
        let SharedFiles { free, told, .. } = &*self.shared;
        let less = |free: usize| free.checked_sub(1);
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if taken {
            self.tell(false);
        } else if !told.load(Ordering::Relaxed) {
            self.tell(true);
        }
        taken
    }

    /// Gives it back.
    pub(super) fn give_back(&self) {
        self.shared.free.fetch_add(1, Ordering::Relaxed);
        self.tell(false);
    }

    fn tell(&self, used_up: bool) {
        let SharedFiles { told, health, .. } = &*self.shared;
        // Nearly always it has been told before, and nothing is locked.
        if told.load(Ordering::Relaxed) != used_up
            && told.swap(used_up, Ordering::Relaxed) != used_up
        {
            let why = "connections are refused: no more files may be open (raise `ulimit -n`)";
            health.complain("open files", used_up.then(|| why.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(all: usize) -> Caps {
        Caps { all, per_source: all }
    }

    #[test]
    fn files_are_divided_so_that_every_listener_has_some() {
        let usual = [caps(10_000), caps(10_000), caps(10_000), caps(200)];
        let divided = |limit| Division::new(limit, 44, &usual);
        assert_eq!(divided(200), Division { guaranteed: vec![19; 4], shared: 80, wanted: 30_244 });
        let enough = divided(1 << 20);
        assert_eq!(enough.guaranteed, [10_000, 10_000, 10_000, 200]);
        assert!(enough.shared > 1_000_000);
        // A listener alone may have all but what is guaranteed to the others.
        let some = divided(20_000);
        assert_eq!(some.guaranteed, [2_494, 2_494, 2_494, 200]);
        assert_eq!(some.shared, 20_000 - 44 - 3 * 2_494 - 200);
        // Too few for anything: one each, and the system may have the last word.
        assert_eq!(divided(10).guaranteed, [1; 4]);
        assert_eq!(Division::new(200, 44, &[]).shared, 156);
        assert_eq!(divided(usize::MAX).guaranteed, [10_000, 10_000, 10_000, 200]);
    }

    #[test]
    fn ready_says_when_the_shared_files_are_used_up() {
        let health = Arc::new(Health::default());
        let files = Division::new(2, 0, &[]).files(&health);
        assert!(files.is_empty());
        let division = Division { guaranteed: vec![0, 0], shared: 1, wanted: 0 };
        let files = division.files(&health);
        assert!(files[0].take() && !health.is_degraded());
        assert!(!files[1].take() && health.is_degraded());
        files[0].give_back();
        assert!(!health.is_degraded() && files[1].take());
    }
}
