//! A timer with microsecond precision. The timeout of `epoll_wait` has milliseconds, and an open loop that
//! sends a millisecond late would count it as the server's latency.

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A timer of the kernel (timerfd): a file descriptor that becomes readable when the timer expires.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the timer to expire once at an instant, or immediately if that has passed. An earlier setting is
    /// replaced.
    pub(crate) fn set(&self, instant: Instant) -> io::Result<()> {
        // A wait of zero would disarm the timer.
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
    fn it_expires_every_time_and_never_early() {
        let timer = Timer::new().unwrap();
        for micros in [50, 0, 1, 50] {
            let instant = Instant::now() + Duration::from_micros(micros);
            timer.set(instant).unwrap();
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], None).unwrap();
            assert!(Instant::now() >= instant);
        }
    }
}
