//! Time after a restart of the machine.
//!
//! A machine that has just been started may have a wrong wall clock until something sets it: 1970 when its battery is empty, or
//! 2099. By a clock that is too late, all windows would seem to have ended, and all counts would be forgotten. So a wall clock that
//! cannot be right is not followed at first:
//!
//! ```text
//!   the last time on disk          + 31 days
//!   ─────────┼─────────────────────────┼──────────► the wall clock
//!   too early│        plausible        │ too late
//! ```
//!
//! While it is too early or too late, time goes on from the last time on disk. That ends when the clock is set, or after ten minutes:
//! then it is followed in any case, because the machine may really have been off for so long.

use tidegate_core::{Now, Span};

/// A machine that was off for longer has a doubtful clock.
const MOST_OFF: Span = Span::from_secs(31 * 86_400);
/// After this long, the wall clock is followed in any case.
const PATIENCE: Span = Span::from_secs(600);

/// The machine was restarted, and its wall clock cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restart {
    /// The last time on disk.
    last: Now,
    /// The time since boot when this process went on from there, in nanoseconds.
    began: u64,
}

/// What is wrong with a wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockDoubt {
    TooEarly,
    TooLate,
}

impl Restart {
    pub(super) const fn new(last: Now, began: u64) -> Self {
        Self { last, began }
    }

    pub(super) const fn last(&self) -> Now {
        self.last
    }

    /// What is wrong with the wall clock at this time since boot; `None` if it is to be followed.
    pub(super) fn doubt(&self, boot: u64, wall: u64) -> Option<ClockDoubt> {
        let passed = boot.saturating_sub(self.began);
        let last = self.last.calendar.as_nanos();
        let latest = last.saturating_add(MOST_OFF.as_nanos()).saturating_add(passed);
        match wall {
            _ if passed >= PATIENCE.as_nanos() => None,
            _ if wall < last => Some(ClockDoubt::TooEarly),
            _ if wall > latest => Some(ClockDoubt::TooLate),
            _ => None,
        }
    }
}

impl ClockDoubt {
    /// What operators are told.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::TooEarly => {
                "the wall clock is earlier than the last time in the data directory: time goes on from there until the clock is set, for up to 10 minutes"
            }
            Self::TooLate => {
                "the wall clock is more than 31 days after the last time in the data directory: time goes on from there until the clock is set, for up to 10 minutes"
            }
        }
    }
}
