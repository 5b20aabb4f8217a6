//! Calendar limits while the wall clock is wrong for a moment.
//!
//! What went wrong: NTP or an operator sets the wall clock 40 days ahead, and corrects it two seconds later. All other limits
//! use the steady clock, which does not follow such a step; but calendar limits need the wall clock. While the clock was
//! ahead, their tables of window boundaries were laid out for that time and began after the real time. So everything before
//! them was one window that ended in 39 days: a new client got its 3 requests of the day, and was then told to try again in
//! 924 hours.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test fails loudly")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tidegate::{
    Attributes, Check, Clock, Limiter, Memory, Outcome, Policy, Receipt, Report, Retry, Secret,
    Settled, Span, Store, Timestamp,
};
use tidegate_core::Now;
use tidegate_store::Plain;

/// 2027-01-15 08:00 UTC, a Friday.
const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;
/// The amount of every limit in these tests.
const AMOUNT: u64 = 3;

/// A wall clock that can be wrong, and a steady clock that is always right.
#[derive(Clone)]
struct Clocks {
    seconds: Arc<AtomicU64>,
    wrong_by: Arc<AtomicI64>,
}

impl Clocks {
    fn new() -> (Self, Clock) {
        let clocks = Self { seconds: Arc::new(NOW.into()), wrong_by: Arc::default() };
        let read = clocks.clone();
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let clock = Clock::borrowed(move || {
            let seconds = read.seconds.load(Ordering::Relaxed);
            let wall = seconds.saturating_add_signed(read.wrong_by.load(Ordering::Relaxed));
            Now { steady: at(seconds), calendar: at(wall) }
        });
        (clocks, clock)
    }

    fn pass(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    fn is_wrong_by(&self, seconds: i64) {
        self.wrong_by.store(seconds, Ordering::Relaxed);
    }
}

fn policy(limit: &str) -> Policy {
    let rule = format!("{{ name: quota, key: [user], limits: [{limit}] }}");
    Policy::parse(format!("{{ version: 1, rules: [{rule}] }}")).unwrap()
}

fn in_memory(limit: &str) -> (Limiter, Clocks) {
    let (clocks, clock) = Clocks::new();
    let memory = Memory::new(clock.clone());
    (Limiter::new(policy(limit), memory, Secret::new([7; 32]), clock).unwrap(), clocks)
}

fn in_plain(limit: &str) -> (Limiter<Plain>, Clocks) {
    let (clocks, clock) = Clocks::new();
    let plain = Plain::new(clock.clone());
    (Limiter::new(policy(limit), plain, Secret::new([7; 32]), clock).unwrap(), clocks)
}

fn user(name: &str) -> Attributes<'static> {
    Attributes::new().with("user", name.to_owned()).unwrap()
}

/// How many requests of a client pass, and the retry time of the first that is denied.
async fn used_up<S: Store>(limiter: &Limiter<S>, name: &str) -> (u64, Span) {
    for passed in 0..=AMOUNT {
        let user = user(name);
        let verdict = limiter.check(&Check::new(&user)).await.unwrap();
        match verdict.outcome {
            Outcome::Deny(Retry::After(wait)) => return (passed, wait),
            Outcome::Deny(Retry::Never) => return (passed, Span::from_nanos(u64::MAX)),
            Outcome::Allow | Outcome::Delay(_) => {}
        }
    }
    (AMOUNT + 1, Span::ZERO)
}

/// A limit, the longest length of its period in seconds, and how much of the period remains at `NOW`.
const PERIODS: [(&str, u64, u64); 4] = [
    ("3/calendar-day", DAY, 16 * 3_600),
    ("3/calendar-day@Europe/Berlin", DAY, 15 * 3_600),
    ("3/calendar-week", 7 * DAY, 2 * DAY + 16 * 3_600),
    ("3/calendar-month@America/New_York", 31 * DAY, 16 * DAY + 21 * 3_600),
];

/// Plays the story above, and checks what must hold afterwards. A client that was counted while the clock was wrong waits until
/// the end of the current period and no longer. A new client has its full amount. And from the next period on, everything is
/// as if the clock had never been wrong.
async fn is_exact_again_within_a_period<S: Store>(
    limiter: &Limiter<S>,
    clocks: &Clocks,
    (period, longest, left): (&str, u64, u64),
    wrong_by: i64,
) {
    let left = Span::from_secs(left);
    let case = format!("{period}, wrong by {wrong_by} s");
    assert_eq!(used_up(limiter, "early").await, (AMOUNT, left), "{case}");

    clocks.is_wrong_by(wrong_by);
    for name in ["early", "meanwhile"] {
        let (passed, wait) = used_up(limiter, name).await;
        assert!(passed <= AMOUNT && wait <= Span::from_secs(longest), "{case}: {passed}, {wait:?}");
    }
    clocks.pass(2);
    clocks.is_wrong_by(0);

    let left = Span::from_secs(left.as_nanos() / 1_000_000_000 - 2);
    for (name, passed) in [("late", AMOUNT), ("early", 0), ("meanwhile", 0)] {
        // If the clock was behind, the windows it opened are over now, so clients counted in them start again.
        let passed = if wrong_by < 0 { AMOUNT } else { passed };
        assert_eq!(used_up(limiter, name).await, (passed, left), "{case}: {name}");
    }
    clocks.pass(left.as_nanos() / 1_000_000_000);
    for _ in 0..2 {
        let mut next = None;
        for name in ["late", "early", "meanwhile", "new"] {
            let (passed, wait) = used_up(limiter, name).await;
            assert_eq!(passed, AMOUNT, "{case}: {name}");
            assert!(wait <= Span::from_secs(longest), "{case}: {name} waits {wait:?}");
            assert_eq!(*next.get_or_insert(wait), wait, "{case}: {name}");
        }
        clocks.pass(next.unwrap().as_nanos() / 1_000_000_000);
    }
}

const STEPS: [i64; 6] =
    [40 * 86_400, 2 * 86_400, 400 * 86_400, 3_000 * 86_400, -40 * 86_400, -15_000 * 86_400];

#[tokio::test]
async fn a_short_wrong_clock_is_over_within_a_period() {
    for period in PERIODS {
        for wrong_by in STEPS {
            let (limiter, clocks) = in_memory(period.0);
            is_exact_again_within_a_period(&limiter, &clocks, period, wrong_by).await;
            let (limiter, clocks) = in_plain(period.0);
            is_exact_again_within_a_period(&limiter, &clocks, period, wrong_by).await;
        }
    }
}

/// An override may be set while the clock is wrong, and its limit may be the only one with a calendar.
#[tokio::test]
async fn overrides_with_calendars_recover_as_well() {
    let (limiter, clocks) = in_memory("1000/s");
    clocks.is_wrong_by(40 * 86_400);
    let limit = tidegate::RuleLimit::from_rate("3/calendar-day").unwrap();
    let allowance = tidegate::Allowance::Limits(vec![limit]);
    limiter.set_override("quota", &[("user", "alice")], allowance).unwrap();
    clocks.pass(2);
    clocks.is_wrong_by(0);
    let day = Span::from_secs(DAY);
    assert_eq!(used_up(&limiter, "alice").await, (AMOUNT, Span::from_secs(16 * 3_600 - 2)));
    clocks.pass(16 * 3_600 - 2);
    // And for longer than the table of boundaries reaches.
    for _ in 0..3 * 366 {
        assert_eq!(used_up(&limiter, "alice").await, (AMOUNT, day));
        clocks.pass(DAY);
    }
}

/// A receipt from the wrong time names a window in the future. Settling it must not move the count of that window to where no
/// table of boundaries finds it, because then it would be lost.
#[tokio::test]
async fn receipts_from_the_wrong_time_give_back_what_was_taken() {
    let (limiter, clocks) = in_memory("3/calendar-day");
    let alice = user("alice");
    clocks.is_wrong_by(40 * 86_400);
    let mut receipts: Vec<Receipt> = Vec::new();
    for _ in 0..AMOUNT {
        let verdict = limiter.check_now(&Check::new(&alice).with_receipt()).unwrap();
        receipts.extend(verdict.receipt().cloned());
    }
    clocks.is_wrong_by(0);
    // A receipt that was written as text has only its own window. A receipt in memory has the whole table of the wrong time.
    let sealed = limiter.opened(&limiter.sealed(&receipts[0])).unwrap();
    for receipt in [&sealed, &receipts[1]] {
        assert_eq!(limiter.report_now(receipt, Report::Cancelled).unwrap(), Settled::Done);
    }
    assert_eq!(used_up(&limiter, "alice").await, (2, Span::from_secs(16 * 3_600)));
    // The count was moved to today, so nothing remains to be given back for the wrong day.
    limiter.report_now(&receipts[2], Report::Cancelled).unwrap();
    assert_eq!(used_up(&limiter, "alice").await, (0, Span::from_secs(16 * 3_600)));
}
