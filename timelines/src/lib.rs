//! Scenarios that every layer must agree on, as text that a support engineer can read.
//!
//! ```text
//! scenario three at the end of a minute and three at the start of the next
//! limit 3/min fixed_window
//! at 59.5s take 3  -> allow, remaining 0, reset 500ms
//! at 59.9s take    -> deny, retry 100ms, remaining 0
//! at 60s   take 3  -> allow, remaining 0
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `# …` | a comment, on its own line or at the end of a line |
//! | `scenario TITLE` | begins a scenario, with an empty state |
//! | `limit N/PERIOD ALGORITHM [OPTION …]` | the limit; another such line edits it |
//! | `limit unlimited` | no limit |
//! | `elastic on`, `elastic off` | whether the condition of an elastic limit holds (at first it does not) |
//! | `at TIME take [N] [times K] [waiting SPAN] [as NAME] -> ANSWER` | takes a cost of N (by default 1), K times; every take must give this answer |
//! | `at TIME peek [waiting SPAN] -> ANSWER` | asks for a cost of 0; takes nothing |
//! | `at TIME charge N [as NAME] [-> ANSWER]` | counts N unconditionally; the answer is that of a peek afterwards |
//! | `at TIME give_back NAME` | gives back what the line with that NAME took; a second time has no effect |
//! | `at TIME reset` | forgets everything |
//!
//! `PERIOD` is a span such as `s`, `30s`, `min`, `2day`, or `calendar` together with the option `boundaries`. A `TIME` is
//! measured from the epoch: `1.500s`, `1h+3min`, `2day`. Units are `ns us ms s min h day week`. Time may go backwards, as
//! clocks do. An `OPTION` is `align first`, `buckets N`, `burst N`, `refill interval`, `queue N`, `soft P%`, `elastic P%` or
//! `boundaries TIME,TIME,…`.
//!
//! An `ANSWER` is `allow`, `delay SPAN` or `deny`, then any of `over`, `retry SPAN`, `never`, `remaining N`, `reset SPAN`,
//! `no reset`, separated by commas. What the scenario does not mention is not checked, with one exception: if `over` is not
//! mentioned, the answer must not be over.
//!
//! Scenarios for whole policies are in another folder and have their own lines: see [`policy`].

mod parse;
mod play;
pub mod policy;

pub use parse::{ParseError, parse};
pub use play::{Call, Mismatch, calls, play};

use tidegate_core::{Cost, Decision, Limit, Outcome, Retry, Span, Timestamp};

/// The folder of the scenarios.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// A limit, and a sequence of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What the scenario shows.
    pub title: String,
    /// The line on which the scenario begins.
    pub line: usize,
    /// The events, in order.
    pub steps: Vec<Step>,
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line number.
    pub line: usize,
    /// What happens.
    pub action: Action,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The limit is set, or edited.
    Limit(Limit),
    /// The condition of an elastic limit begins or ceases to hold.
    Elastic(bool),
    /// A call at an instant.
    At(Timestamp, Verb),
}

/// A call to the layer under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take a cost if it passes.
    Take {
        /// How much.
        cost: Cost,
        /// How many times.
        times: u32,
        /// How long the caller can wait.
        waiting: Span,
        /// A name for giving it back.
        name: Option<String>,
        /// The expected answer, every time.
        answer: Answer,
    },
    /// Ask for a cost of 0.
    Peek {
        /// How long the caller can wait.
        waiting: Span,
        /// The expected answer.
        answer: Answer,
    },
    /// Count a cost whether or not it passes.
    Charge {
        /// How much.
        cost: Cost,
        /// A name for giving it back.
        name: Option<String>,
        /// The expected answer of a peek afterwards.
        answer: Option<Answer>,
    },
    /// Give back what was taken under a name.
    GiveBack(String),
    /// Forget everything.
    Reset,
}

/// The expected answer; `None` is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The expected outcome.
    pub outcome: Expected,
    /// Whether it passes only because of headroom.
    pub over: bool,
    /// When a refused cost would pass.
    pub retry: Option<Retry>,
    /// What remains.
    pub remaining: Option<u64>,
    /// The time until everything is free again; `Some(None)` is "never".
    pub reset: Option<Option<Span>>,
}

/// The outcome that an answer must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It passes now.
    Allow,
    /// It passes after this time.
    Delay(Span),
    /// It does not pass.
    Deny,
}

impl Answer {
    /// Compares a decision with this answer. The error says what differs.
    pub fn check(&self, decision: &Decision) -> Result<(), String> {
        let mut wrong = Vec::new();
        let outcome_fits = match (self.outcome, decision.outcome) {
            (Expected::Allow, Outcome::Allow) | (Expected::Deny, Outcome::Deny(_)) => true,
            (Expected::Delay(expected), Outcome::Delay(found)) => expected == found,
            (Expected::Allow | Expected::Delay(_) | Expected::Deny, _) => false,
        };
        if !outcome_fits {
            wrong.push(format!("{:?}, not {:?}", decision.outcome, self.outcome));
        }
        if let (Some(expected), Outcome::Deny(found)) = (self.retry, decision.outcome)
            && expected != found
        {
            wrong.push(format!("retry {found:?}, not {expected:?}"));
        }
        if self.over != decision.over {
            wrong.push(format!("over is {}", decision.over));
        }
        if let Some(expected) = self.remaining
            && expected != decision.remaining
        {
            wrong.push(format!("remaining {}, not {expected}", decision.remaining));
        }
        if let Some(expected) = self.reset
            && expected != decision.reset
        {
            wrong.push(format!("reset {:?}, not {expected:?}", decision.reset));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}
