//! Bytes that are held for clients: one budget for all connections, and shares that nobody can use up.
//!
//! ```text
//!   connection_budget ── held ── free        a connection may hold a quarter of what is free,
//!                                            a source half of it
//! ```
//!
//! The shares move with what is free, as buffers of switches are shared out (dynamic thresholds, Choudhury and Hahne, 1998). Of
//! 64 MiB, one connection alone gets 12.8 MiB, and one source 21.3 MiB, however many connections it has; the rest stays free for
//! others. Whoever holds much is refused first, and nothing has to be searched for.
//!
//! The first bytes of a connection do not count. A small request needs no others, so it is served whatever others hold.

use crate::bounds;
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

/// The bytes that the connections of one source hold together.
pub(crate) type OfSource = Arc<AtomicUsize>;

/// What one connection holds.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    source: OfSource,
    /// Those that do not count included.
    held: Cell<usize>,
}

/// Bytes that are held for one purpose, until it is dropped. One that belongs to no account counts nothing.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    account: Option<Rc<Account>>,
    bytes: Cell<usize>,
}

/// How often somebody who waits for room looks whether there is some, and how many times. Whoever frees room wakes nobody: of
/// hundreds that wait, each would be woken each time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

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

    /// Counts more bytes for a connection that would hold `then`. False, and nothing is counted, when that is too much.
    fn take(&self, more: usize, then: usize, source: &AtomicUsize) -> bool {
        // Numbers that nothing else depends on: no order is needed.
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

/// How much may be held while so much is left free.
struct Share {
    connection: usize,
    source: usize,
}

const fn share(free: usize) -> Share {
    Share { connection: free / 4, source: free / 2 }
}

impl Share {
    const fn covers(&self, connection: usize, source: usize) -> bool {
        connection <= self.connection && source <= self.source
    }
}

impl Account {
    pub(crate) fn new(budget: Arc<Budget>, source: OfSource) -> Rc<Self> {
        Rc::new(Self { budget, source, held: Cell::new(0) })
    }

    /// Room for nothing yet.
    pub(crate) fn hold(self: &Rc<Self>) -> Hold {
        Hold { account: Some(Rc::clone(self)), bytes: Cell::new(0) }
    }

    /// How many more bytes it may hold at this moment.
    pub(crate) fn room(&self) -> usize {
        let (free, held) = (self.budget.free(), self.held.get());
        let of_source = self.source.load(Ordering::Relaxed);
        // What it takes is free no more, which makes the shares smaller.
        let of_connection = free.saturating_sub(counted(held).saturating_mul(4)) / 5;
        let of_source = free.saturating_sub(of_source.saturating_mul(2)) / 3;
        of_connection.min(of_source).saturating_add(bounds::UNCOUNTED.saturating_sub(held))
    }

    /// Whether others need what it holds: it has more than it would be given now.
    pub(crate) fn is_over(&self) -> bool {
        let counted = counted(self.held.get());
        let of_source = self.source.load(Ordering::Relaxed);
        counted > 0 && !share(self.budget.free()).covers(counted, of_source)
    }

    /// Whether any of what it holds counts.
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

/// What counts of the bytes that a connection holds.
const fn counted(held: usize) -> usize {
    held.saturating_sub(bounds::UNCOUNTED)
}

// === impl Hold ===

impl Hold {
    /// Holds so many bytes from now on. False, and all stays as it was, when there is no room for them.
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

    /// The same for bytes that are there already, and cannot be refused any more.
    pub(crate) fn resize_anyway(&self, bytes: usize) {
        let Some(account) = &self.account else { return };
        match bytes.checked_sub(self.bytes.get()) {
            Some(more) => account.grow_anyway(more),
            None => account.shrink(self.bytes.get().saturating_sub(bytes)),
        }
        self.bytes.set(bytes);
    }

    /// The same for so many bytes more.
    pub(crate) fn grow(&self, more: usize) -> bool {
        self.resize(self.bytes().saturating_add(more))
    }

    /// Waits a second for others to leave room.
    pub(crate) async fn resize_soon(&self, bytes: usize) -> bool {
        // Apart, because it is seldom, and takes room in every connection.
        self.resize(bytes) || Box::pin(self.wait_for(bytes)).await
    }

    async fn wait_for(&self, bytes: usize) -> bool {
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK_EVERY).await;
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

impl Drop for Hold {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    /// So many connections, each of the source of this number, which take as much as they get in pieces of 4 KiB.
    fn greedy(budget: &Arc<Budget>, sources: &[OfSource], each: usize) -> Vec<Hold> {
        let holds: Vec<Hold> = sources
            .iter()
            .flat_map(|source| (0..each).map(|_| Account::new(Arc::clone(budget), source.clone())))
            .map(|account| account.hold())
            .collect();
        // In turn, until nobody gets any more.
        while holds.iter().filter(|hold| hold.resize(hold.bytes() + 4096)).count() > 0 {}
        holds
    }

    fn sources(count: usize) -> Vec<OfSource> {
        (0..count).map(|_| OfSource::default()).collect()
    }

    #[test]
    fn nobody_gets_all_and_something_is_always_free() {
        let uncounted = bounds::UNCOUNTED;
        // Sources, connections of each; the bytes that each connection gets at most, and that all get together.
        for (count, each, connection, all) in [
            (1, 1, 64 * MIB / 5, 64 * MIB / 5),
            (1, 1_000, 64 * MIB / 5, 64 * MIB / 3),
            (10, 1, 64 * MIB / 5, 64 * MIB / 14 * 10),
            (1_000, 1, 64 * MIB / 5, 64 * MIB / 1_004 * 1_000),
        ] {
            let budget = Budget::new(64 * MIB);
            let holds = greedy(&budget, &sources(count), each);
            let most = holds.iter().map(Hold::bytes).max().unwrap();
            assert!(most <= connection + uncounted, "{count} {each}: {most}");
            let held = budget.held();
            assert!(
                held <= all + MIB / 100 && held >= all * 9 / 10,
                "{count} {each}: {held} of {all}"
            );
            drop(holds);
            assert_eq!(budget.held(), 0);
        }
    }

    /// What it is said there is room for, there is room for, and for no more.
    #[test]
    fn room_is_what_can_be_taken() {
        let budget = Budget::new(64 * MIB);
        let source = OfSource::default();
        let other = Account::new(Arc::clone(&budget), Arc::clone(&source)).hold();
        for held in [0, MIB, 12 * MIB] {
            assert!(other.resize(held));
            let account = Account::new(Arc::clone(&budget), Arc::clone(&source));
            let (first, second) = (account.hold(), account.hold());
            assert!(first.resize(4096));
            let room = account.room();
            assert!(second.resize(room) && !second.resize(room + 5), "{held} {room}");
        }
    }

    #[test]
    fn a_small_request_is_served_whatever_others_hold() {
        let budget = Budget::new(MIB);
        let other = Account::new(Arc::clone(&budget), OfSource::default()).hold();
        other.resize_anyway(2 * MIB);
        let account = Account::new(Arc::clone(&budget), OfSource::default());
        let (request, answer) = (account.hold(), account.hold());
        assert_eq!(account.room(), bounds::UNCOUNTED);
        assert!(request.resize(bounds::UNCOUNTED / 2) && answer.resize(bounds::UNCOUNTED / 2));
        assert!(!answer.resize(bounds::UNCOUNTED / 2 + 1) && !account.is_over());
        drop(other);
        assert!(answer.resize(bounds::UNCOUNTED / 2 + 1));
    }

    /// What a source holds on one connection counts for its others, and comes back in whatever order it is dropped.
    #[test]
    fn a_source_has_one_share() {
        let budget = Budget::new(64 * MIB);
        let source = OfSource::default();
        let account = || Account::new(Arc::clone(&budget), Arc::clone(&source));
        let mut holds: Vec<Hold> = (0..2).map(|_| account().hold()).collect();
        assert!(holds.iter().all(|hold| hold.resize(10 * MIB)));
        let third = account().hold();
        assert!(!third.resize(10 * MIB));
        let stranger = Account::new(Arc::clone(&budget), OfSource::default()).hold();
        assert!(stranger.resize(8 * MIB));
        drop(holds.pop());
        assert!(third.resize(8 * MIB));
        drop((third, stranger, holds));
        assert_eq!((budget.held(), source.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn who_holds_more_than_would_be_given_now_is_over() {
        let budget = Budget::new(64 * MIB);
        let first = Account::new(Arc::clone(&budget), OfSource::default());
        let large = first.hold();
        assert!(large.resize(12 * MIB) && !first.is_over());
        let others = greedy(&budget, &sources(20), 1);
        assert!(first.is_over());
        drop(others);
        assert!(!first.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gets_what_others_leave() {
        let budget = Budget::new(64 * MIB);
        let source = OfSource::default();
        let first = Account::new(Arc::clone(&budget), Arc::clone(&source)).hold();
        assert!(first.resize(12 * MIB));
        let second = Account::new(Arc::clone(&budget), Arc::clone(&source)).hold();
        assert!(!second.resize_soon(12 * MIB).await);
        let leaves = async {
            tokio::time::sleep(LOOK_EVERY * 3).await;
            drop(first);
        };
        let (got, ()) = tokio::join!(second.resize_soon(12 * MIB), leaves);
        assert!(got);
    }
}
