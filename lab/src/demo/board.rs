//! The counts of the demo: what was offered, and what became of it.
//!
//! ```text
//!   offered = passed + delayed + refused + failed + still waiting
//! ```

use super::client::Heard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Create,
    Delete,
    Visit,
    Pay,
    Analyze,
}

/// The plan of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Plan {
    Free,
    Pro,
    /// Not a user: counted by address.
    Visitor,
    /// A service of the company itself.
    Service,
}

/// Who sends requests, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) call: Call,
    pub(crate) plan: Plan,
    /// The name of a user, or the address of a visitor.
    pub(crate) name: &'static str,
}

/// The counts of some requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) offered: u64,
    /// Passed at once.
    pub(crate) passed: u64,
    /// Passed after a wait.
    pub(crate) delayed: u64,
    pub(crate) refused: u64,
}

/// The counts of each kind of request and plan.
pub(crate) type Tallies = BTreeMap<(Call, Plan), Counts>;

/// A request that was refused with 429, or with 503 because the servers had no seat for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) sender: Sender,
    pub(crate) retry_after: String,
    pub(crate) reason: String,
}

/// All counts since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    pub(crate) counts: Tallies,
    /// The last refusal of each kind of request.
    pub(crate) refusals: BTreeMap<Call, Refusal>,
    /// Requests without an answer so far.
    pub(crate) waiting: u64,
    pub(crate) longest_delay: Duration,
    /// Requests that neither passed nor were refused by a limit.
    pub(crate) failed: u64,
    pub(crate) last_failure: Option<String>,
}

/// Where all senders count.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Sums>);

/// The sums of the last seconds, to compute rates.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The oldest first.
    past: VecDeque<(Duration, Tallies)>,
}

/// What happened in the last seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent {
    pub(crate) counts: Tallies,
    pub(crate) span: Duration,
}

/// An answer that takes longer was delayed by a rule: the shards answer at once.
const DELAYED: Duration = Duration::from_millis(100);
/// How long a rate is averaged. Some users send several requests every five seconds.
const AVERAGED: Duration = Duration::from_secs(10);

// === impl Board ===

impl Board {
    pub(crate) fn sums(&self) -> Sums {
        self.lock().clone()
    }

    pub(crate) fn offered(&self, sender: Sender) {
        let mut sums = self.lock();
        sums.waiting = sums.waiting.saturating_add(1);
        sums.count(sender, |counts| &mut counts.offered);
    }

    /// Counts what became of a request after this time.
    pub(crate) fn ended(&self, sender: Sender, heard: Result<Heard, String>, after: Duration) {
        let mut sums = self.lock();
        sums.waiting = sums.waiting.saturating_sub(1);
        match heard {
            // 503: a limit did not refuse it, but the servers had no seat for it.
            Ok(heard) if [429, 503].contains(&heard.status) => {
                sums.count(sender, |counts| &mut counts.refused);
                sums.refusals.insert(sender.call, Refusal::new(sender, heard));
            }
            Ok(heard) if heard.status >= 500 => sums.fail(format!("status {}", heard.status)),
            Ok(_) if after >= DELAYED => {
                sums.count(sender, |counts| &mut counts.delayed);
                sums.longest_delay = sums.longest_delay.max(after);
            }
            Ok(_) => sums.count(sender, |counts| &mut counts.passed),
            Err(error) => sums.fail(error),
        }
    }

    /// Held for arithmetic only.
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Sums ===

impl Sums {
    fn count(&mut self, sender: Sender, which: impl FnOnce(&mut Counts) -> &mut u64) {
        let count = which(self.counts.entry((sender.call, sender.plan)).or_default());
        *count = count.saturating_add(1);
    }

    fn fail(&mut self, error: String) {
        self.failed = self.failed.saturating_add(1);
        self.last_failure = Some(error);
    }
}

// === impl Refusal ===

impl Refusal {
    /// Of `create-url allows 100 per hour; try again in 37 s.` the first half is the reason.
    fn new(sender: Sender, heard: Heard) -> Self {
        let detail = heard.detail.unwrap_or_default();
        let reason = detail.split(';').next().unwrap_or_default().to_owned();
        Self { sender, retry_after: heard.retry_after.unwrap_or_default(), reason }
    }
}

// === impl Counts ===

impl Counts {
    /// The sum of those that `is_wanted` names.
    pub(crate) fn of(counts: &Tallies, is_wanted: impl Fn(Call, Plan) -> bool) -> Self {
        let wanted = counts.iter().filter(|((call, plan), _)| is_wanted(*call, *plan));
        wanted.fold(Self::default(), |sum, (_, counts)| sum.zip(*counts, u64::saturating_add))
    }

    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            offered: with(self.offered, other.offered),
            passed: with(self.passed, other.passed),
            delayed: with(self.delayed, other.delayed),
            refused: with(self.refused, other.refused),
        }
    }
}

// === impl Window ===

impl Window {
    /// Adds the sums of now, and returns what happened since the oldest ones that are remembered.
    pub(crate) fn push(&mut self, now: Duration, sums: &Sums) -> Recent {
        self.past.push_back((now, sums.counts.clone()));
        while self.past.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= AVERAGED) {
            self.past.pop_front();
        }
        let Some((since, before)) = self.past.front() else { return Recent::default() };
        let span = now.saturating_sub(*since);
        let change = |(key, counts): (&(Call, Plan), &Counts)| {
            let before = before.get(key).copied().unwrap_or_default();
            (*key, counts.zip(before, u64::saturating_sub))
        };
        Recent { counts: sums.counts.iter().map(change).collect(), span }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Sender = Sender { call: Call::Create, plan: Plan::Free, name: "alice" };

    fn answer(status: u16) -> Result<Heard, String> {
        let detail = Some("create-url allows 100 per hour; try again in 37 s.".to_owned());
        Ok(Heard { status, retry_after: Some("37".to_owned()), detail })
    }

    #[test]
    fn every_request_ends_in_one_count() {
        let board = Board::default();
        let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(2));
        for (heard, after) in [
            (answer(201), fast),
            (answer(404), fast),
            (answer(204), slow),
            (answer(429), fast),
            (answer(502), fast),
            (Err("refused".to_owned()), fast),
        ] {
            board.offered(ALICE);
            board.ended(ALICE, heard, after);
        }
        board.offered(ALICE);
        let sums = board.sums();
        let counts = sums.counts[&(Call::Create, Plan::Free)];
        assert_eq!(counts, Counts { offered: 7, passed: 2, delayed: 1, refused: 1 });
        assert_eq!((sums.failed, sums.waiting, sums.longest_delay), (2, 1, slow));
        assert_eq!(sums.last_failure.as_deref(), Some("refused"));
        let refusal = &sums.refusals[&Call::Create];
        assert_eq!((refusal.retry_after.as_str(), refusal.sender), ("37", ALICE));
        assert_eq!(refusal.reason, "create-url allows 100 per hour");
    }

    #[test]
    fn the_window_moves() {
        let (board, mut window) = (Board::default(), Window::default());
        for second in 0..30 {
            board.offered(ALICE);
            let recent = window.push(Duration::from_secs(second), &board.sums());
            let expected = second.min(10);
            assert_eq!(recent.span, Duration::from_secs(expected));
            assert_eq!(Counts::of(&recent.counts, |_, _| true).offered, expected);
        }
        assert_eq!(
            Counts::of(&board.sums().counts, |call, _| call == Call::Visit),
            Counts::default()
        );
    }
}
