//! The one place that reads a clock.
//!
//! A limiter wants two things of time that no single clock has: it must not jump (a step of the wall
//! clock changes no decision), and its windows must begin when people say they do. So local time is the
//! time since boot, which nobody sets, plus an offset to the wall clock that is read again every second:
//!
//! ```text
//!   wall clock  ──╮ stepped by 40 ms          offset   ─────╮
//!                 ╰────────────────                          ╲  slewed: a tenth of a second
//!                                                             ╰────  per second, at most
//! ```
//!
//! A difference of up to a second is slewed, so that time neither stops nor runs back. A larger one
//! means that somebody set the clock: only calendar windows, which are about the wall clock, follow it.

use crate::sync::{self, AtomicU64, Mutex, MutexGuard, fence};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{Now, Span, Timestamp};

/// How often the wall clock is read.
const READ_EVERY: Span = Span::from_secs(1);
/// What is slewed; a larger difference is a clock that was set.
const MOST_SLEWED: i64 = 1_000_000_000;
/// Slewing changes the length of a second by a tenth at most.
const SLEW_PART: i64 = 10;

/// What a store asks for the time. Clones are the same clock.
///
/// ```
/// use tidegate_core::{Span, Timestamp};
/// use tidegate_store::Clock;
/// let clock = Clock::manual(Timestamp::EPOCH);
/// clock.set(Timestamp::from_nanos(5));
/// assert_eq!(clock.now().steady, Timestamp::from_nanos(5));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Arc<Kind>);

enum Kind {
    /// Read by many, written once a second.
    System(Shared),
    /// Relaxed: a test that sets it and a thread that reads it are ordered by the test itself.
    Manual(AtomicU64),
    /// Somebody else's.
    Borrowed(Box<dyn Fn() -> Now + Send + Sync>),
}

// === impl Clock ===

impl Clock {
    /// The clock of this machine.
    ///
    /// ```
    /// use tidegate_store::Clock;
    /// let clock = Clock::system();
    /// let (earlier, later) = (clock.now(), clock.now());
    /// assert!(earlier.steady <= later.steady);
    /// ```
    #[must_use]
    pub fn system() -> Self {
        Self(Arc::new(Kind::System(Shared::new(Slew::new(boot_nanos(), wall_nanos())))))
    }

    /// A clock that stands still until it is set.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// let clock = tidegate_store::Clock::manual(Timestamp::from_nanos(9));
    /// assert_eq!(clock.now().calendar, Timestamp::from_nanos(9));
    /// ```
    #[must_use]
    pub fn manual(now: Timestamp) -> Self {
        Self(Arc::new(Kind::Manual(AtomicU64::new(now.as_nanos()))))
    }

    /// Somebody else's clock, such as that of a simulation.
    ///
    /// ```
    /// use tidegate_core::{Now, Timestamp};
    /// let clock = tidegate_store::Clock::borrowed(|| Now::at(Timestamp::from_nanos(9)));
    /// assert_eq!(clock.now().steady, Timestamp::from_nanos(9));
    /// ```
    #[must_use]
    pub fn borrowed(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Arc::new(Kind::Borrowed(Box::new(now))))
    }

    /// Sets a manual clock, forward or back; the system's clock is not ours to set.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// let clock = tidegate_store::Clock::manual(Timestamp::from_nanos(9));
    /// clock.set(Timestamp::EPOCH);
    /// assert_eq!(clock.now().steady, Timestamp::EPOCH);
    /// ```
    pub fn set(&self, now: Timestamp) {
        if let Kind::Manual(nanos) = &*self.0 {
            nanos.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// What time it is.
    ///
    /// ```
    /// let now = tidegate_store::Clock::system().now();
    /// assert!(now.steady > tidegate_core::Timestamp::EPOCH);
    /// ```
    #[must_use]
    pub fn now(&self) -> Now {
        match &*self.0 {
            Kind::Borrowed(now) => now(),
            Kind::Manual(nanos) => Now::at(Timestamp::from_nanos(nanos.load(Ordering::Relaxed))),
            Kind::System(shared) => {
                let boot = boot_nanos();
                let slew = shared.get();
                if boot.saturating_sub(slew.read_at) < READ_EVERY.as_nanos() {
                    return slew.now(boot);
                }
                shared.renewed().unwrap_or(slew).now(boot_nanos())
            }
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System(_) => "System",
            Self::Manual(_) => "Manual",
            Self::Borrowed(_) => "Borrowed",
        })
    }
}

/// What all readers of a system clock share: read without writing anything, so that readers do not slow each other.
///
/// It is a latch, a seqlock with two copies, as Linux has for its own time. The version says which copy counts. A renewal
/// writes the other copy and then raises the version; so readers never wait for the thread that renews, also when that
/// thread is interrupted halfway. A reader reads again only when a whole renewal has ended meanwhile.
///
/// ```text
///   version 6   copy 0 counts      copy 1 is written      version 7   copy 1 counts
/// ```
struct Shared {
    version: AtomicU64,
    copies: [[AtomicU64; 4]; 2],
    /// Held by the one reader that renews it.
    renewing: Mutex<()>,
}

impl Shared {
    fn new(slew: Slew) -> Self {
        let copies = [slew.words(), slew.words()].map(|words| words.map(AtomicU64::new));
        Self { version: AtomicU64::new(0), copies, renewing: Mutex::new(()) }
    }

    fn get(&self) -> Slew {
        loop {
            // Acquire: the words that this version published are seen.
            let version = self.version.load(Ordering::Acquire);
            let words = self.copy(version).each_ref().map(|word| word.load(Ordering::Relaxed));
            // If one of them belongs to the version after next, which is written to the same copy, this fence
            // synchronises with the one in `write`, and the next version at least is seen below.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Slew::of(words);
            }
        }
    }

    /// One of the readers renews it; the others go on with what there is. Both clocks are read together, while
    /// nobody else renews: what lies between the readings would look like a step.
    fn renewed(&self) -> Option<Slew> {
        let renewing = sync::try_lock(&self.renewing)?;
        let slew = self.get();
        let (boot, wall) = (boot_nanos(), wall_nanos());
        if boot.saturating_sub(slew.read_at) < READ_EVERY.as_nanos() {
            return Some(slew);
        }
        let slew = slew.renewed(boot, wall);
        let next = self.write(slew, &renewing);
        self.publish(next, &renewing);
        Some(slew)
    }

    /// Writes the copy that does not count; answers the version in which it will.
    fn write(&self, slew: Slew, _renewing: &MutexGuard<'_, ()>) -> u64 {
        let next = self.version.load(Ordering::Relaxed).wrapping_add(1);
        // The version that counts was stored before the words are.
        fence(Ordering::Release);
        for (to, word) in self.copy(next).iter().zip(slew.words()) {
            to.store(word, Ordering::Relaxed);
        }
        next
    }

    fn publish(&self, next: u64, _renewing: &MutexGuard<'_, ()>) {
        // Release: readers of this version see the words.
        self.version.store(next, Ordering::Release);
    }

    const fn copy(&self, version: u64) -> &[AtomicU64; 4] {
        let [even, odd] = &self.copies;
        if version & 1 == 0 { even } else { odd }
    }
}

/// The offset from boot time to local time, and where it is going. Pure: readings are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slew {
    /// Boot time of the last reading.
    read_at: u64,
    /// The offset at the last reading.
    offset: i64,
    /// Where it is slewed to.
    target: i64,
    /// The offset of the wall clock at the last reading.
    wall: i64,
}

impl Slew {
    fn new(boot: u64, wall: u64) -> Self {
        let offset = difference(wall, boot);
        Self { read_at: boot, offset, target: offset, wall: offset }
    }

    const fn words(&self) -> [u64; 4] {
        let Self { read_at, offset, target, wall } = *self;
        [read_at, offset.cast_unsigned(), target.cast_unsigned(), wall.cast_unsigned()]
    }

    const fn of([read_at, offset, target, wall]: [u64; 4]) -> Self {
        let [offset, target, wall] =
            [offset.cast_signed(), target.cast_signed(), wall.cast_signed()];
        Self { read_at, offset, target, wall }
    }

    fn renewed(self, boot: u64, wall: u64) -> Self {
        let offset = self.offset_at(boot);
        let wall = difference(wall, boot);
        let stepped = wall.abs_diff(offset) > MOST_SLEWED.unsigned_abs();
        Self { read_at: boot, offset, target: if stepped { offset } else { wall }, wall }
    }

    fn offset_at(&self, boot: u64) -> i64 {
        let passed = difference(boot, self.read_at).max(0);
        let most = passed / SLEW_PART;
        let left = self.target.saturating_sub(self.offset);
        self.offset.saturating_add(left.clamp(most.saturating_neg(), most))
    }

    fn now(&self, boot: u64) -> Now {
        let with = |offset: i64| Timestamp::from_nanos(boot.saturating_add_signed(offset));
        Now { steady: with(self.offset_at(boot)), calendar: with(self.wall) }
    }
}

/// `a − b`; both are nanoseconds of one's lifetime and fit 63 bits.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a).saturating_sub(i128::from(b))).unwrap_or(i64::MAX)
}

fn boot_nanos() -> u64 {
    nanos(ClockId::Boottime)
}

fn wall_nanos() -> u64 {
    nanos(ClockId::Realtime)
}

#[expect(clippy::disallowed_methods, reason = "this is the module that reads the clock")]
fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(loom)]
pub(crate) mod models {
    use super::{Shared, Slew};
    use crate::memory::models::check;
    use crate::sync::lock;
    use loom::sync::Arc;
    use loom::thread;

    /// Whoever reads the clock while another thread renews it gets the old value or the new one, whole; and at once, also
    /// when that thread is interrupted at the worst moment.
    pub fn a_clock_is_read_while_another_thread_renews_it() {
        let value = |n: i64| Slew { read_at: 0, offset: n, target: n, wall: n };
        check(move || {
            let shared = Arc::new(Shared::new(value(0)));
            let renewer = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let renewing = lock(&shared.renewing);
                    for n in 1..=3 {
                        let next = shared.write(value(n), &renewing);
                        shared.publish(next, &renewing);
                    }
                }
            });
            let read = shared.get();
            assert_eq!(read, value(read.offset), "parts of two readings");
            renewer.join().expect("it does not panic");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const WALL: u64 = 1_800_000_000 * SECOND;

    /// Plays a minute in which the wall clock is as told; answers the local time of each millisecond.
    fn minute(wall_at: impl Fn(u64) -> u64) -> Vec<(u64, Now)> {
        let mut slew = Slew::new(0, wall_at(0));
        (0..60_000)
            .map(|millis| {
                let boot = millis * 1_000_000;
                if boot >= slew.read_at + SECOND {
                    slew = slew.renewed(boot, wall_at(boot));
                }
                (boot, slew.now(boot))
            })
            .collect()
    }

    #[test]
    fn a_small_difference_is_slewed_and_time_never_stops() {
        for step in [-900_000_000i64, -40_000_000, 40_000_000, 900_000_000] {
            let times = minute(|boot| {
                if boot < 5 * SECOND {
                    WALL + boot
                } else {
                    (WALL + boot).saturating_add_signed(step)
                }
            });
            for pair in times.windows(2) {
                let passed = pair[1].1.steady.since(pair[0].1.steady).as_nanos();
                assert!((900_000..=1_100_000).contains(&passed), "{passed}");
            }
            let (boot, last) = times[59_999];
            assert_eq!(last.steady.as_nanos(), (WALL + boot).saturating_add_signed(step));
        }
    }

    #[test]
    fn a_clock_that_was_set_moves_calendars_only() {
        for hours in [-1i64, 1] {
            let step = hours * 3_600 * 1_000_000_000;
            let times = minute(|boot| {
                if boot < 5 * SECOND {
                    WALL + boot
                } else {
                    (WALL + boot).saturating_add_signed(step)
                }
            });
            for (boot, now) in &times {
                assert_eq!(now.steady.as_nanos(), WALL + boot);
            }
            let (boot, last) = times[59_999];
            assert_eq!(last.calendar.as_nanos(), (WALL + boot).saturating_add_signed(step));
        }
    }

    /// The system may put a thread aside while it renews the clock. Readers waited for it then, and spun.
    #[test]
    fn readers_do_not_wait_for_a_renewal_that_is_interrupted() {
        let values = [1, 2, 3].map(|n| Slew { read_at: 0, offset: n, target: n, wall: n });
        let [first, second, third] = values;
        let shared = Shared::new(first);
        for (before, after) in [(first, second), (second, third), (third, first)] {
            let renewing = sync::lock(&shared.renewing);
            let next = shared.write(after, &renewing);
            assert_eq!(shared.get(), before);
            assert!(shared.renewed().is_none(), "others go on with what there is");
            shared.publish(next, &renewing);
            assert_eq!(shared.get(), after);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_wall_clock_does_time_goes_on(steps in prop::collection::vec(-5_000_000_000i64..5_000_000_000, 1..20)) {
            let mut slew = Slew::new(0, WALL);
            let mut last = slew.now(0).steady;
            for (second, step) in (1u64..).zip(steps) {
                let boot = second * SECOND;
                prop_assert!(slew.now(boot).steady > last);
                slew = slew.renewed(boot, (WALL + boot).saturating_add_signed(step));
                prop_assert!(slew.now(boot).steady > last);
                last = slew.now(boot).steady;
            }
        }
    }
}
