//! A timer that is exact to microseconds. The time that `epoll` itself waits for goes by milliseconds, and an open loop that sends
//! a millisecond late would call it the server's latency.

#![expect(
    clippy::disallowed_methods,
    reason = "a generator reads the clock: that is what it is for"
)]

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A timer of the kernel: a descriptor that can be read when it has rung.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Rings once at an instant, or at once when it has passed, and not at what was set before.
    pub(crate) fn ring_at(&self, instant: Instant) -> io::Result<()> {
        // Nothing at all would mean never.
        let wait = instant.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(wait).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        Ok(timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once).map(drop)?)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn it_rings_not_before_its_time_and_every_time() {
        let timer = Timer::new().unwrap();
        for micros in [50, 0, 1, 50] {
            let instant = Instant::now() + Duration::from_micros(micros);
            timer.ring_at(instant).unwrap();
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], None).unwrap();
            assert!(Instant::now() >= instant);
        }
    }
}
