//! A timer that is exact to microseconds. tokio's own goes by milliseconds, and an open loop that sends a millisecond late
//! would call it the server's latency.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// A timer of the kernel: a descriptor that can be read when it rings. To tokio that is a pipe.
pub(crate) struct Timer(Receiver);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until an instant; not at all when it has passed.
    pub(crate) async fn until(&mut self, instant: Instant) -> io::Result<()> {
        let wait = instant.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let it_value = Timespec::try_from(wait).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        // How often it rang, in eight bytes. A byte of room is left over, by which tokio sees that there is no more.
        self.0.read(&mut [0; 9]).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_rings_not_before_its_time_and_every_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut timer = Timer::new().unwrap();
            for micros in [50, 0, 1, 50] {
                let instant = Instant::now() + Duration::from_micros(micros);
                timer.until(instant).await.unwrap();
                assert!(Instant::now() >= instant);
            }
        });
    }
}
