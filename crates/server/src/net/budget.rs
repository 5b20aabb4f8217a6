//! The connection budget: memory for requests and answers, shared by all connections with dynamic thresholds.
//!
//! ```text
//!   connection_budget = held + free          a connection may hold at most a quarter of what is free,
//!                                            a source at most half of what is free
//! ```
//!
//! The shares shrink as less is free. Network switches share their packet buffers in this way (dynamic thresholds, Choudhury
//! and Hahne, 1998). Of 64 MiB, a single connection gets at most 12.8 MiB, and a single source at most 21.3 MiB, however many
//! connections it has. The rest stays free for others. The connections that hold the most are refused first, without searching
//! for the largest.
//!
//! The first bytes of a connection do not count. A small request needs only these, so it is served however much others hold.

use crate::bounds;
use crate::timers;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The bytes that all connections may hold together.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    held: AtomicUsize,
}

/// The bytes that all connections of one source hold together.
pub(crate) type SourceBytes = Arc<AtomicUsize>;

/// The bytes that one connection holds.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    source: SourceBytes,
    /// Includes the first bytes, which do not count against the budget.
    held: Cell<usize>,
}

/// Bytes that are reserved for one purpose until it is dropped. A reservation without an account is not counted.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    account: Option<Rc<Account>>,
    bytes: Cell<usize>,
}

/// Bytes that are counted until this is dropped. It belongs to no account, so it can go wherever the bytes go, also into the
/// buffers of a library.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<Budget>,
    source: SourceBytes,
    bytes: usize,
}

/// A connection that waits for memory polls the budget this often, and this many times. Freed memory does not wake waiting
/// connections: with hundreds of them, all would be woken each time.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(20);
const POLLS: u32 = 50;

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, held: AtomicUsize::new(0) })
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn free(&self) -> usize {
        self.bytes.saturating_sub(self.held())
    }

    /// Counts `more` bytes for a connection that would then hold `then`. If that exceeds its share, it returns false and counts
    /// nothing.
    fn take(&self, more: usize, then: usize, source: &AtomicUsize) -> bool {
        // Relaxed: these are only counters, and no other memory depends on them.
        let taken = self.held.try_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let of_source = source.load(Ordering::Relaxed).saturating_add(more);
            let held = held.saturating_add(more);
            let fits = share(self.bytes.saturating_sub(held)).covers(then, of_source);
            fits.then_some(held)
        });
        if taken.is_ok() {
            source.fetch_add(more, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

/// The most that a connection and a source may hold.
struct Share {
    connection: usize,
    source: usize,
}

/// The shares while `free` bytes of the budget are left.
const fn share(free: usize) -> Share {
    Share { connection: free / 4, source: free / 2 }
}

impl Share {
    const fn covers(&self, connection: usize, source: usize) -> bool {
        connection <= self.connection && source <= self.source
    }
}

impl Account {
    pub(crate) fn new(budget: Arc<Budget>, source: SourceBytes) -> Rc<Self> {
        Rc::new(Self { budget, source, held: Cell::new(0) })
    }

    /// An account in the same budget that shares no source with other connections: for a peer that forwards the requests of
    /// many clients.
    pub(crate) fn of_its_own(&self) -> Rc<Self> {
        Self::new(Arc::clone(&self.budget), SourceBytes::default())
    }

    /// A reservation of 0 bytes, to be resized.
    pub(crate) fn reserve(self: &Rc<Self>) -> Reservation {
        Reservation { account: Some(Rc::clone(self)), bytes: Cell::new(0) }
    }

    /// Counts bytes apart from those of the connection, if the budget allows it.
    pub(crate) fn hold(&self, bytes: usize) -> Option<HeldBytes> {
        let taken = self.budget.take(bytes, bytes, &self.source);
        let (budget, source) = (&self.budget, &self.source);
        taken.then(|| HeldBytes { budget: Arc::clone(budget), source: Arc::clone(source), bytes })
    }

    /// Counts bytes for something that lasts long and needs more memory before it ends, if that leaves a quarter of the budget free
    /// and half of what its source may hold. Otherwise all of them could wait for memory that none of them gives back.
    pub(crate) fn hold_for_long(&self, bytes: usize) -> Option<HeldBytes> {
        let free = self.budget.free().saturating_sub(bytes);
        let of_source = self.source.load(Ordering::Relaxed).saturating_add(bytes);
        let ample = free > self.budget.bytes() / 4 && of_source <= free / 4;
        ample.then(|| self.hold(bytes)).flatten()
    }

    /// How many more bytes it may hold at this moment.
    pub(crate) fn room(&self) -> usize {
        let (free, held) = (self.budget.free(), self.held.get());
        let of_source = self.source.load(Ordering::Relaxed);
        // Taking bytes leaves less free, which makes the shares smaller. So of what is free, a connection can take a fifth
        // and not a quarter, and a source a third and not half.
        let of_connection = free.saturating_sub(counted(held).saturating_mul(4)) / 5;
        let of_source = free.saturating_sub(of_source.saturating_mul(2)) / 3;
        of_connection.min(of_source).saturating_add(bounds::UNCOUNTED.saturating_sub(held))
    }

    /// Whether it holds more than it would be granted now: other connections need the memory.
    pub(crate) fn is_over(&self) -> bool {
        let counted = counted(self.held.get());
        let of_source = self.source.load(Ordering::Relaxed);
        counted > 0 && !share(self.budget.free()).covers(counted, of_source)
    }

    /// Whether it holds more than the first bytes, which do not count.
    pub(crate) fn counts(&self) -> bool {
        counted(self.held.get()) > 0
    }

    fn grow(&self, more: usize) -> bool {
        let held = self.held.get();
        let then = held.saturating_add(more);
        let counted_more = counted(then).saturating_sub(counted(held));
        if counted_more > 0 && !self.budget.take(counted_more, counted(then), &self.source) {
            return false;
        }
        self.held.set(then);
        true
    }

    fn grow_anyway(&self, more: usize) {
        let held = self.held.get();
        let then = held.saturating_add(more);
        let more = counted(then).saturating_sub(counted(held));
        if more > 0 {
            self.budget.held.fetch_add(more, Ordering::Relaxed);
            self.source.fetch_add(more, Ordering::Relaxed);
        }
        self.held.set(then);
    }

    fn shrink(&self, less: usize) {
        let held = self.held.get();
        let then = held.saturating_sub(less);
        let less = counted(held).saturating_sub(counted(then));
        if less > 0 {
            self.budget.held.fetch_sub(less, Ordering::Relaxed);
            self.source.fetch_sub(less, Ordering::Relaxed);
        }
        self.held.set(then);
    }
}

/// The part of a connection's bytes that counts against the budget.
const fn counted(held: usize) -> usize {
    held.saturating_sub(bounds::UNCOUNTED)
}

// === impl Reservation ===

impl Reservation {
    /// Changes the reservation to `bytes`. If the budget does not allow that, it returns false and changes nothing.
    pub(crate) fn resize(&self, bytes: usize) -> bool {
        let Some(account) = &self.account else { return true };
        match bytes.checked_sub(self.bytes.get()) {
            Some(more) if !account.grow(more) => return false,
            Some(_) => {}
            None => account.shrink(self.bytes.get().saturating_sub(bytes)),
        }
        self.bytes.set(bytes);
        true
    }

    /// Changes the reservation to `bytes` for memory that is already in use and cannot be refused any more.
    pub(crate) fn resize_anyway(&self, bytes: usize) {
        let Some(account) = &self.account else { return };
        match bytes.checked_sub(self.bytes.get()) {
            Some(more) => account.grow_anyway(more),
            None => account.shrink(self.bytes.get().saturating_sub(bytes)),
        }
        self.bytes.set(bytes);
    }

    /// Reserves `more` bytes. If the budget does not allow that, it returns false and changes nothing.
    pub(crate) fn grow(&self, more: usize) -> bool {
        self.resize(self.bytes().saturating_add(more))
    }

    /// Like [`resize`](Self::resize), but waits up to one second for other connections to free memory.
    pub(crate) async fn resize_soon(&self, bytes: usize) -> bool {
        // Boxed, because waiting is rare and would otherwise enlarge the future of every connection.
        self.resize(bytes) || Box::pin(self.wait_for(bytes)).await
    }

    async fn wait_for(&self, bytes: usize) -> bool {
        for _ in 0..POLLS {
            timers::sleep(POLL_EVERY).await;
            if self.resize(bytes) {
                return true;
            }
        }
        false
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.source.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    /// `each` connections from each source, which take as much as they get in steps of 4 KiB.
    fn greedy(budget: &Arc<Budget>, sources: &[SourceBytes], each: usize) -> Vec<Reservation> {
        let reservations: Vec<Reservation> = sources
            .iter()
            .flat_map(|source| (0..each).map(|_| Account::new(Arc::clone(budget), source.clone())))
            .map(|account| account.reserve())
            .collect();
        // Round robin, until no connection gets any more.
        while reservations
            .iter()
            .filter(|reserved| reserved.resize(reserved.bytes() + 4096))
            .count()
            > 0
        {}
        reservations
    }

    fn sources(count: usize) -> Vec<SourceBytes> {
        (0..count).map(|_| SourceBytes::default()).collect()
    }

    #[test]
    fn no_connection_or_source_gets_all_and_something_is_always_free() {
        let uncounted = bounds::UNCOUNTED;
        // Sources, connections of each, the most bytes that a connection gets, the bytes that all get together.
        for (count, each, connection, all) in [
            (1, 1, 64 * MIB / 5, 64 * MIB / 5),
            (1, 1_000, 64 * MIB / 5, 64 * MIB / 3),
            (10, 1, 64 * MIB / 5, 64 * MIB / 14 * 10),
            (1_000, 1, 64 * MIB / 5, 64 * MIB / 1_004 * 1_000),
        ] {
            let budget = Budget::new(64 * MIB);
            let reservations = greedy(&budget, &sources(count), each);
            let most = reservations.iter().map(Reservation::bytes).max().unwrap();
            assert!(most <= connection + uncounted, "{count} {each}: {most}");
            let held = budget.held();
            assert!(
                held <= all + MIB / 100 && held >= all * 9 / 10,
                "{count} {each}: {held} of {all}"
            );
            drop(reservations);
            assert_eq!(budget.held(), 0);
        }
    }

    /// `room` is exactly what can be reserved.
    #[test]
    fn room_is_what_can_be_reserved() {
        let budget = Budget::new(64 * MIB);
        let source = SourceBytes::default();
        let other = Account::new(Arc::clone(&budget), Arc::clone(&source)).reserve();
        for held in [0, MIB, 12 * MIB] {
            assert!(other.resize(held));
            let account = Account::new(Arc::clone(&budget), Arc::clone(&source));
            let (first, second) = (account.reserve(), account.reserve());
            assert!(first.resize(4096));
            let room = account.room();
            assert!(second.resize(room) && !second.resize(room + 5), "{held} {room}");
        }
    }

    #[test]
    fn a_small_request_is_served_however_much_others_hold() {
        let budget = Budget::new(MIB);
        let other = Account::new(Arc::clone(&budget), SourceBytes::default()).reserve();
        other.resize_anyway(2 * MIB);
        let account = Account::new(Arc::clone(&budget), SourceBytes::default());
        let (request, answer) = (account.reserve(), account.reserve());
        assert_eq!(account.room(), bounds::UNCOUNTED);
        assert!(request.resize(bounds::UNCOUNTED / 2) && answer.resize(bounds::UNCOUNTED / 2));
        assert!(!answer.resize(bounds::UNCOUNTED / 2 + 1) && !account.is_over());
        drop(other);
        assert!(answer.resize(bounds::UNCOUNTED / 2 + 1));
    }

    /// What a source holds on one connection counts for its other connections, and is given back in whatever order.
    #[test]
    fn a_source_has_one_share() {
        let budget = Budget::new(64 * MIB);
        let source = SourceBytes::default();
        let account = || Account::new(Arc::clone(&budget), Arc::clone(&source));
        let mut reservations: Vec<Reservation> = (0..2).map(|_| account().reserve()).collect();
        assert!(reservations.iter().all(|reserved| reserved.resize(10 * MIB)));
        let third = account().reserve();
        assert!(!third.resize(10 * MIB));
        let other = Account::new(Arc::clone(&budget), SourceBytes::default()).reserve();
        assert!(other.resize(8 * MIB));
        drop(reservations.pop());
        assert!(third.resize(8 * MIB));
        drop((third, other, reservations));
        assert_eq!((budget.held(), source.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_connection_that_holds_more_than_it_would_get_now_is_over() {
        let budget = Budget::new(64 * MIB);
        let first = Account::new(Arc::clone(&budget), SourceBytes::default());
        let large = first.reserve();
        assert!(large.resize(12 * MIB) && !first.is_over());
        let others = greedy(&budget, &sources(20), 1);
        assert!(first.is_over());
        drop(others);
        assert!(!first.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_connection_gets_what_others_free() {
        let budget = Budget::new(64 * MIB);
        let source = SourceBytes::default();
        let first = Account::new(Arc::clone(&budget), Arc::clone(&source)).reserve();
        assert!(first.resize(12 * MIB));
        let second = Account::new(Arc::clone(&budget), Arc::clone(&source)).reserve();
        assert!(!second.resize_soon(12 * MIB).await);
        let leaves = async {
            timers::sleep(POLL_EVERY * 3).await;
            drop(first);
        };
        let (got, ()) = tokio::join!(second.resize_soon(12 * MIB), leaves);
        assert!(got);
    }

    /// However many long ones there are, of one source or of many, each of them can still get a piece.
    #[test]
    fn what_lasts_long_leaves_room_to_end() {
        for sources in [1, 3, 100] {
            let budget = Budget::new(64 * MIB);
            let accounts: Vec<_> = (0..sources)
                .map(|_| Account::new(Arc::clone(&budget), SourceBytes::default()))
                .collect();
            let mut held = Vec::new();
            while let more @ 1.. = {
                let before = held.len();
                held.extend(accounts.iter().filter_map(|account| account.hold_for_long(12 * 1024)));
                held.len() - before
            } {
                assert!(more <= sources);
            }
            assert!(held.len() > 1_000, "{sources}: {}", held.len());
            assert!(accounts.iter().all(|account| account.hold(64 * 1024).is_some()), "{sources}");
        }
    }

    /// Held bytes count for their source and are free again when they are dropped.
    #[test]
    fn held_bytes_are_counted_until_they_are_dropped() {
        let budget = Budget::new(64 * MIB);
        let source = SourceBytes::default();
        let account = Account::new(Arc::clone(&budget), Arc::clone(&source));
        let held: Vec<HeldBytes> = std::iter::from_fn(|| account.hold(MIB)).collect();
        assert_eq!((held.len(), budget.held()), (21, 21 * MIB));
        assert!(Account::new(Arc::clone(&budget), SourceBytes::default()).hold(MIB).is_some());
        drop(held);
        assert_eq!((budget.held(), source.load(Ordering::Relaxed)), (0, 0));
    }
}
