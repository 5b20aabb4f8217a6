//! The only module that reads a clock.
//!
//! A rate limiter needs two properties of time that no single clock has. Time must not jump, so that a step of the wall clock
//! changes no decision. And windows must begin when people say they do, by the wall clock. So our *steady* time is the time
//! since boot, which cannot be set, plus an offset to the wall clock. The offset is read again every second:
//!
//! ```text
//!   wall clock  ──╮ stepped by 40 ms          offset   ─────╮
//!                 ╰────────────────                          ╲  slewed: a tenth of a second
//!                                                             ╰────  per second, at most
//! ```
//!
//! A difference of up to a second is *slewed*, that is, corrected a little at a time, so that steady time neither stops nor runs
//! back. A larger difference means that an operator set the clock. Only calendar windows follow it, because they are defined
//! by the wall clock.
//!
//! After a restart of the machine, the wall clock may be wrong; see `restart`.

mod restart;

pub(crate) use restart::ClockDoubt;

use crate::sync::{self, AtomicU64, Mutex, MutexGuard, fence};
use restart::Restart;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{Now, Span, Timestamp};

/// How often the wall clock is read.
const READ_EVERY: Span = Span::from_secs(1);
/// The largest difference that is slewed, in nanoseconds; a larger one means that the clock was set.
const MOST_SLEWED: i64 = 1_000_000_000;
/// Slewing changes the length of a second by at most a tenth.
const SLEW_PART: i64 = 10;

/// The clock of a store. Clones are the same clock.
///
/// ```
/// use tidegate_core::{Span, Timestamp};
/// use tidegate_store::Clock;
/// let clock = Clock::manual(Timestamp::EPOCH);
/// clock.set(Timestamp::from_nanos(5));
/// assert_eq!(clock.now().steady, Timestamp::from_nanos(5));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Arc<ClockSource>);

enum ClockSource {
    /// Read by many threads, written once a second.
    System(SlewLatch),
    /// Relaxed: the test orders the thread that sets it and the threads that read it.
    Manual(AtomicU64),
    /// A closure of the caller.
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
        Self(Arc::new(ClockSource::System(SlewLatch::new(Slew::new(boot_nanos(), wall_nanos())))))
    }

    /// A clock that stands still until it is [set](Self::set).
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// let clock = tidegate_store::Clock::manual(Timestamp::from_nanos(9));
    /// assert_eq!(clock.now().calendar, Timestamp::from_nanos(9));
    /// ```
    #[must_use]
    pub fn manual(now: Timestamp) -> Self {
        Self(Arc::new(ClockSource::Manual(AtomicU64::new(now.as_nanos()))))
    }

    /// A clock that calls a closure, for example the clock of a simulation.
    ///
    /// ```
    /// use tidegate_core::{Now, Timestamp};
    /// let clock = tidegate_store::Clock::borrowed(|| Now::at(Timestamp::from_nanos(9)));
    /// assert_eq!(clock.now().steady, Timestamp::from_nanos(9));
    /// ```
    #[must_use]
    pub fn borrowed(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Arc::new(ClockSource::Borrowed(Box::new(now))))
    }

    /// Sets a manual clock, forward or back. Does nothing to other clocks.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// let clock = tidegate_store::Clock::manual(Timestamp::from_nanos(9));
    /// clock.set(Timestamp::EPOCH);
    /// assert_eq!(clock.now().steady, Timestamp::EPOCH);
    /// ```
    pub fn set(&self, now: Timestamp) {
        if let ClockSource::Manual(nanos) = &*self.0 {
            nanos.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// The time now.
    ///
    /// ```
    /// let now = tidegate_store::Clock::system().now();
    /// assert!(now.steady > tidegate_core::Timestamp::EPOCH);
    /// ```
    #[must_use]
    pub fn now(&self) -> Now {
        match &*self.0 {
            ClockSource::Borrowed(now) => now(),
            ClockSource::Manual(nanos) => {
                Now::at(Timestamp::from_nanos(nanos.load(Ordering::Relaxed)))
            }
            ClockSource::System(shared) => {
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

impl Clock {
    /// The time since boot: it cannot be set, and unlike steady time it is never slewed. So the distance between two readings is
    /// right, but a reading by itself says nothing. A manual or borrowed clock returns its steady time.
    ///
    /// ```
    /// let clock = tidegate_store::Clock::system();
    /// let (earlier, later) = (clock.since_boot(), clock.since_boot());
    /// assert!(earlier <= later);
    /// ```
    #[must_use]
    pub fn since_boot(&self) -> Timestamp {
        match &*self.0 {
            ClockSource::System(_) => Timestamp::from_nanos(boot_nanos()),
            ClockSource::Manual(_) | ClockSource::Borrowed(_) => self.now().steady,
        }
    }
}

impl Clock {
    /// Goes on where a clock of an earlier process was: `last` and `since_boot` are its last readings. On the same run of the
    /// machine steady time goes on by the time since boot. Otherwise it keeps its distance from the wall clock, if that can be
    /// right. It never goes back. A manual or borrowed clock is not changed.
    pub(crate) fn resume(&self, last: Now, since_boot: Timestamp, same_boot: bool) {
        if let ClockSource::System(shared) = &*self.0 {
            let mut renewing = sync::lock(&shared.renewing);
            let (boot, wall) = (boot_nanos(), wall_nanos());
            let slew = if same_boot {
                *renewing = None;
                Slew::continued(boot, wall, last, since_boot)
            } else {
                Slew::restarted(boot, wall, last, &mut renewing)
            };
            let next = shared.write(slew, &renewing);
            shared.publish(next, &renewing);
        }
    }

    /// Why the wall clock is not followed, if it is not.
    pub(crate) fn doubt(&self) -> Option<ClockDoubt> {
        let ClockSource::System(shared) = &*self.0 else { return None };
        let restart = *sync::lock(&shared.renewing);
        restart?.doubt(boot_nanos(), wall_nanos())
    }
}

impl fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System(_) => "System",
            Self::Manual(_) => "Manual",
            Self::Borrowed(_) => "Borrowed",
        })
    }
}

/// The slew that all readers of a system clock share. Readers write nothing, so they do not slow each other.
///
/// It is a seqlock with two copies, which Linux calls a latch and uses for its own time. The lowest bit of the version says which
/// copy is valid. A renewal writes the other copy and then raises the version. So readers never wait for the thread that renews,
/// even when the system puts that thread aside halfway. A reader tries again only if a whole renewal has ended during its
/// read.
///
/// ```text
///   version 6   copy 0 is valid      copy 1 is written      version 7   copy 1 is valid
/// ```
struct SlewLatch {
    version: AtomicU64,
    copies: [[AtomicU64; 4]; 2],
    /// Held by the one reader that renews the slew. While the wall clock cannot be right, it says since when.
    renewing: Mutex<Option<Restart>>,
}

impl SlewLatch {
    fn new(slew: Slew) -> Self {
        let copies = [slew.words(), slew.words()].map(|words| words.map(AtomicU64::new));
        Self { version: AtomicU64::new(0), copies, renewing: Mutex::new(None) }
    }

    fn get(&self) -> Slew {
        loop {
            // Acquire: this thread sees the words that were written before this version was published.
            let version = self.version.load(Ordering::Acquire);
            let words = self.copy(version).each_ref().map(|word| word.load(Ordering::Relaxed));
            // A word may belong to the version after next, which is written to the same copy. Then this fence synchronises
            // with the one in `write`, and the load below sees at least the next version.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Slew::of(words);
            }
        }
    }

    /// Renews the slew, unless another thread is doing that; then this thread goes on with the old one. Both clocks are read
    /// together under the lock: a delay between the two readings would look like a step of the wall clock.
    fn renewed(&self) -> Option<Slew> {
        let mut renewing = sync::try_lock(&self.renewing)?;
        let slew = self.get();
        let (boot, wall) = (boot_nanos(), wall_nanos());
        if boot.saturating_sub(slew.read_at) < READ_EVERY.as_nanos() {
            return Some(slew);
        }
        let slew = slew.renewed_after(boot, wall, &mut renewing);
        let next = self.write(slew, &renewing);
        self.publish(next, &renewing);
        Some(slew)
    }

    /// Writes the copy that is not valid; returns the version in which it will be.
    fn write(&self, slew: Slew, _renewing: &MutexGuard<'_, Option<Restart>>) -> u64 {
        let next = self.version.load(Ordering::Relaxed).wrapping_add(1);
        // Release: the present version was stored before these words are.
        fence(Ordering::Release);
        for (to, word) in self.copy(next).iter().zip(slew.words()) {
            to.store(word, Ordering::Relaxed);
        }
        next
    }

    fn publish(&self, next: u64, _renewing: &MutexGuard<'_, Option<Restart>>) {
        // Release: readers of this version see the words.
        self.version.store(next, Ordering::Release);
    }

    const fn copy(&self, version: u64) -> &[AtomicU64; 4] {
        let [even, odd] = &self.copies;
        if version & 1 == 0 { even } else { odd }
    }
}

/// The offset from boot time to steady time, and its target. Pure: clock readings are arguments. All fields are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slew {
    /// The boot time of the last reading.
    read_at: u64,
    /// The offset at the last reading.
    offset: i64,
    /// The offset to which it is slewed.
    target: i64,
    /// The offset of the wall clock at the last reading.
    wall: i64,
}

impl Slew {
    fn new(boot: u64, wall: u64) -> Self {
        let offset = difference(wall, boot);
        Self { read_at: boot, offset, target: offset, wall: offset }
    }

    /// The slew of a process that goes on where another one was, on the same run of the machine.
    fn continued(boot: u64, wall: u64, last: Now, since_boot: Timestamp) -> Self {
        let steady = last.steady.as_nanos();
        let offset = difference(steady, since_boot.as_nanos()).max(difference(steady, boot));
        Self { read_at: boot, offset, target: offset, wall: difference(wall, boot) }
    }

    /// The slew of a process that goes on where another one was, before the machine was restarted.
    fn restarted(boot: u64, wall: u64, last: Now, restart: &mut Option<Restart>) -> Self {
        let offset = difference(last.steady.as_nanos(), boot);
        let from_last = difference(last.calendar.as_nanos(), boot);
        *restart = Some(Restart::new(last, boot));
        let slew = Self { read_at: boot, offset, target: offset, wall: from_last };
        slew.renewed_after(boot, wall, restart)
    }

    /// The next slew. After a restart, time goes on as it was until the wall clock can be right. Then steady time has the same
    /// distance from it as before the restart, unless it would go back.
    fn renewed_after(self, boot: u64, wall: u64, restart: &mut Option<Restart>) -> Self {
        let Some(since) = *restart else { return self.renewed(boot, wall) };
        if since.doubt(boot, wall).is_some() {
            return Self { read_at: boot, ..self };
        }
        *restart = None;
        let Now { steady, calendar } = since.last();
        let wall = difference(wall, boot);
        let before = difference(steady.as_nanos(), calendar.as_nanos());
        let offset = wall.saturating_add(before).max(self.offset);
        Self { read_at: boot, offset, target: offset, wall }
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
        if self.offset == self.target {
            return self.offset; // the usual case
        }
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

/// `a − b`; both are nanoseconds within a few centuries and fit 63 bits.
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
    use super::{Slew, SlewLatch};
    use crate::sync::{check_model, lock};
    use loom::sync::Arc;
    use loom::thread;

    /// A thread that reads the clock while another thread renews it gets the old value or the new one, never a mixture. It does
    /// not wait, even when the other thread is interrupted at the worst moment.
    pub fn a_clock_is_read_while_another_thread_renews_it() {
        let value = |n: i64| Slew { read_at: 0, offset: n, target: n, wall: n };
        check_model(move || {
            let shared = Arc::new(SlewLatch::new(value(0)));
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
            assert_eq!(read, value(read.offset), "a mixture of two readings");
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

    /// Plays a minute in which the wall clock shows `wall_at(boot)`. Returns boot time and local time for each millisecond.
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

    /// The system may put a thread aside while it renews the clock. Readers used to spin until it came back.
    #[test]
    fn readers_do_not_wait_for_a_renewal_that_is_interrupted() {
        let values = [1, 2, 3].map(|n| Slew { read_at: 0, offset: n, target: n, wall: n });
        let [first, second, third] = values;
        let shared = SlewLatch::new(first);
        for (before, after) in [(first, second), (second, third), (third, first)] {
            let renewing = sync::lock(&shared.renewing);
            let next = shared.write(after, &renewing);
            assert_eq!(shared.get(), before);
            assert!(shared.renewed().is_none(), "another thread does not wait for the renewal");
            shared.publish(next, &renewing);
            assert_eq!(shared.get(), after);
        }
    }

    /// The last time on disk: steady time was five minutes ahead of the wall clock.
    const LAST: Now = Now {
        steady: Timestamp::from_nanos(WALL + 300 * SECOND),
        calendar: Timestamp::from_nanos(WALL),
    };
    const DAY: u64 = 86_400 * SECOND;

    #[test]
    fn after_a_restart_steady_time_keeps_its_distance_from_a_plausible_clock() {
        let mut restart = None;
        let slew = Slew::restarted(7 * SECOND, WALL + DAY, LAST, &mut restart);
        let now = slew.now(8 * SECOND);
        assert_eq!(now.calendar.as_nanos(), WALL + DAY + SECOND);
        assert_eq!(now.steady.as_nanos(), WALL + DAY + 301 * SECOND);
        assert_eq!(restart, None);
    }

    #[test]
    fn a_clock_that_cannot_be_right_is_followed_when_it_is_set() {
        for (wrong, doubt) in [(0, ClockDoubt::TooEarly), (2 * WALL, ClockDoubt::TooLate)] {
            let mut restart = None;
            let mut slew = Slew::restarted(7 * SECOND, wrong, LAST, &mut restart);
            for second in 8..100 {
                let boot = second * SECOND;
                slew = slew.renewed_after(boot, wrong + boot, &mut restart);
                let passed = boot - 7 * SECOND;
                assert_eq!(slew.now(boot).calendar.as_nanos(), WALL + passed);
                assert_eq!(slew.now(boot).steady.as_nanos(), WALL + passed + 300 * SECOND);
                let said = restart.and_then(|restart| restart.doubt(boot, wrong + boot));
                assert_eq!(said, Some(doubt));
            }
            let boot = 101 * SECOND;
            slew = slew.renewed_after(boot, WALL + DAY, &mut restart);
            assert_eq!(restart, None);
            assert_eq!(slew.now(boot).calendar.as_nanos(), WALL + DAY);
            assert_eq!(slew.now(boot).steady.as_nanos(), WALL + DAY + 300 * SECOND);
        }
    }

    #[test]
    fn after_ten_minutes_any_clock_is_followed_and_steady_time_does_not_go_back() {
        for (wall, steady) in
            [(0, WALL + 900 * SECOND), (WALL + 900 * DAY, WALL + 900 * DAY + 300 * SECOND)]
        {
            let mut restart = None;
            let slew = Slew::restarted(0, wall, LAST, &mut restart);
            let just_before = slew.renewed_after(599 * SECOND, wall, &mut restart);
            assert!(restart.is_some());
            let boot = 600 * SECOND;
            let slew = just_before.renewed_after(boot, wall, &mut restart);
            assert_eq!(restart, None);
            assert_eq!(slew.now(boot).calendar.as_nanos(), wall);
            assert_eq!(slew.now(boot).steady.as_nanos(), steady);
        }
    }

    #[test]
    fn on_the_same_run_of_the_machine_time_goes_on_by_the_time_since_boot() {
        let since_boot = Timestamp::from_nanos(50 * SECOND);
        let slew = Slew::continued(60 * SECOND, 5, LAST, since_boot); // the wall clock was set to 1970
        assert_eq!(slew.now(60 * SECOND).steady.as_nanos(), WALL + 310 * SECOND);
        assert_eq!(slew.now(60 * SECOND).calendar.as_nanos(), 5);
    }

    proptest! {
        #[test]
        fn steady_time_goes_on_whatever_the_wall_clock_does(steps in prop::collection::vec(-5_000_000_000i64..5_000_000_000, 1..20)) {
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
