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
//! | `# …` | a remark, here or at the end of a line |
//! | `scenario TITLE` | begins a scenario; nothing is remembered of the one before |
//! | `limit N/PERIOD ALGORITHM [OPTION …]` | the limit; a second such line edits it |
//! | `limit unlimited` | no limit |
//! | `elastic on`, `elastic off` | whether the condition of an elastic limit holds (off at first) |
//! | `at TIME take [N] [times K] [waiting SPAN] [as NAME] -> ANSWER` | takes a cost of N (1), K times, each answered so |
//! | `at TIME peek [waiting SPAN] -> ANSWER` | asks, takes nothing |
//! | `at TIME charge N [as NAME] [-> ANSWER]` | counts N whatever the answer, which is then a peek's |
//! | `at TIME give_back NAME` | gives back what the line named NAME took, once: a second time nothing happens |
//! | `at TIME reset` | forgets everything |
//!
//! `PERIOD` is a span such as `s`, `30s`, `min`, `2day`, or `calendar` with the option `boundaries`. A
//! `TIME` is since the epoch: `1.500s`, `1h+3min`, `2day`. Units are `ns us ms s min h day week`; time may
//! go backwards, as clocks do. An `OPTION` is `align first`, `buckets N`, `burst N`, `refill interval`,
//! `queue N`, `soft P%`, `elastic P%` or `boundaries TIME,TIME,…`.
//!
//! An `ANSWER` is `allow`, `delay SPAN` or `deny`, then any of `over`, `retry SPAN`, `never`,
//! `remaining N`, `reset SPAN`, `no reset`, separated by commas. What is not said is not checked, but for
//! `over`: an answer that is not said to be over must not be.
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

/// One story: a limit and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it shows.
    pub title: String,
    /// The line on which it begins.
    pub line: usize,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its line.
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
    /// Something is asked at an instant.
    At(Timestamp, Verb),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take a cost if it passes.
    Take {
        /// How much.
        cost: Cost,
        /// How often.
        times: u32,
        /// How long the caller can wait.
        waiting: Span,
        /// A name for giving it back.
        name: Option<String>,
        /// What must be answered every time.
        answer: Answer,
    },
    /// Ask how things stand.
    Peek {
        /// How long the caller can wait.
        waiting: Span,
        /// What must be answered.
        answer: Answer,
    },
    /// Count a cost whether or not it passes.
    Charge {
        /// How much.
        cost: Cost,
        /// A name for giving it back.
        name: Option<String>,
        /// What a peek must answer then.
        answer: Option<Answer>,
    },
    /// Give back what was taken under a name.
    GiveBack(String),
    /// Forget everything.
    Reset,
}

/// What must be answered; what is `None` is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The kind of outcome.
    pub outcome: Expected,
    /// Whether it passes only thanks to headroom.
    pub over: bool,
    /// When a refused cost would pass.
    pub retry: Option<Retry>,
    /// What remains.
    pub remaining: Option<u64>,
    /// When all is free again; `Some(None)` is "never".
    pub reset: Option<Option<Span>>,
}

/// The kind of outcome that an answer must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It passes now.
    Allow,
    /// It passes after this long.
    Delay(Span),
    /// It does not pass.
    Deny,
}

impl Answer {
    /// Whether a decision is as expected; otherwise what differs.
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
