//! Scenarios for whole policies: requests, reports and operator changes, played through a limiter.
//!
//! ```text
//! scenario 500 per hour with 10 per minute: the minute binds first
//! policy
//!   version: 1
//!   rules:
//!     - { name: api, key: [user], limits: [10/min, 500/h] }
//! end
//! at 0s user=alice take 10 -> allow, api/min remaining 0, api/h remaining 490
//! at 0s user=alice take    -> deny, retry 6s, api/min deny, api/h remaining 490
//! ```
//!
//! `tidegate policy test` plays such files; `docs/testing-policies.md` explains them to users.
//!
//! | line | meaning |
//! |---|---|
//! | `# …` | a comment, on its own line or at the end of a line; inside a policy it belongs to the policy |
//! | `policy FILE` | a policy file, relative to the folder of this file |
//! | `policy`, then a policy, then `end` | the policy itself |
//! | `start DATE` | the instant from which times are measured; without it, 1970-01-01T00:00:00Z |
//! | `scenario TITLE` | begins a scenario, with an empty store |
//! | `at TIME [WHO] take [N] [times K] [waiting SPAN] [as NAME] [then OUTCOME] -> ANSWER` | takes a cost of N (by default 1), K times; every take must give this answer |
//! | `at TIME [WHO] peek [N] [waiting SPAN] -> ANSWER` | the answer that a take would get; takes nothing |
//! | `at TIME report NAME OUTCOME [-> SETTLED]` | reports the outcome of the take with that name |
//! | `at TIME reset RULE [WHO] [-> N]` | forgets what a rule counted; there must be N states |
//! | `at TIME signal NAME VALUE` | sets a signal, such as the load |
//! | `at TIME tier NAME=VALUE TIER` | assigns a customer to a tier; `none` removes the assignment |
//! | `at TIME override RULE WHO RATE[,RATE …]` | sets limits for some customers; `unlimited` sets none; `none` removes the override |
//! | `at TIME enable RULE on`, `at TIME shadow RULE on` | or `off`, or `file` for the value in the policy |
//! | `at TIME reload FILE`; or `at TIME reload`, then a policy, then `end` | replaces the policy |
//!
//! `policy` and `start` before the first scenario hold for all scenarios of the file that do not have their own.
//!
//! `WHO` is a list of attributes, such as `user=alice ip=203.0.113.7`. With `times`, `{n}` in a value is the number of the
//! repetition, from 1. Times and spans are written as in the other scenarios. A `DATE` is `2026-03-29`,
//! `2026-03-29T12:00:00Z` or `2026-03-29T12:00[Europe/Berlin]`. An `OUTCOME` is `success`, `failure`, `cancelled` or
//! `cost N`; with `then`, each take that passes is reported at once. `SETTLED` is `settled`, `already` or `late`.
//!
//! An `ANSWER` is `allow`, `delay SPAN` or `deny`, then any of `retry SPAN`, `never`, `over`, `shadow deny`,
//! `low priority`, `flag WORD`, `version N`, `limits N` (how many limits decided), `no rules` (no limit decided). The answer
//! of a single limit is written as `RULE/ID` and one of `allow`, `delay SPAN`, `deny`, `over`, `retry SPAN`, `never`,
//! `remaining N`, `reset SPAN`. What the scenario does not mention is not checked, with four exceptions: `over`,
//! `shadow deny`, `low priority` and flags of the whole answer must be absent if they are not mentioned.

mod parse;
mod write;

pub use parse::parse;
pub use write::{fact_text, outcome_text, retry_text, span_text};

use crate::Expected;
use tidegate_core::{Cost, Retry, Span, Timestamp};

/// The folder of these scenarios.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/policies");

/// A policy, and a sequence of events under it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What the scenario shows.
    pub title: String,
    /// The line on which the scenario begins.
    pub line: usize,
    /// The first policy.
    pub policy: PolicySource,
    /// The events, in order; never empty.
    pub steps: Vec<Step>,
}

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// A file.
    File {
        /// The line that names it.
        line: usize,
        /// Its path, relative to the folder of the scenarios.
        path: String,
    },
    /// The scenario itself.
    Text {
        /// The line on which it begins.
        line: usize,
        /// The policy, without `end`.
        text: String,
    },
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The line number.
    pub line: usize,
    /// The line, without a comment.
    pub text: String,
    /// When it happens.
    pub at: Timestamp,
    /// What happens.
    pub action: Action,
}

/// Attributes with their values.
pub type Who = Vec<(String, String)>;

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A request is decided and counted.
    Take {
        /// The request.
        ask: Ask,
        /// How many times it is sent.
        times: u32,
        /// A name for reporting its outcome later.
        name: Option<String>,
        /// The outcome that is reported at once for each that passes.
        then: Option<Outcome>,
    },
    /// A request is decided but not counted.
    Peek(Ask),
    /// The outcome of a request is reported.
    Report {
        /// The name of the take.
        name: String,
        /// Its outcome.
        outcome: Outcome,
        /// The expected answer.
        settled: Option<Settled>,
    },
    /// The counts of a rule are forgotten.
    Reset {
        /// The rule.
        rule: String,
        /// The customers; all if empty.
        who: Who,
        /// The expected number of states.
        states: Option<usize>,
    },
    /// A signal is set to a value.
    Signal(String, f64),
    /// A customer is assigned to a tier; `None` removes the assignment.
    Tier((String, String), Option<String>),
    /// Some customers of a rule get their own limits, or lose them.
    Override {
        /// The rule.
        rule: String,
        /// The customers.
        who: Who,
        /// Their limits; `None` removes the override.
        allowance: Option<Allowance>,
    },
    /// A rule is switched on or off; `None` restores the value in the policy.
    Enable(String, Option<bool>),
    /// Shadow mode of a rule is switched on or off; `None` restores the value in the policy.
    Shadow(String, Option<bool>),
    /// The policy is replaced by this one.
    Reload(PolicySource),
}

/// A request and its expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The attributes of the request.
    pub who: Who,
    /// The cost.
    pub cost: Cost,
    /// How long the caller can wait.
    pub waiting: Span,
    /// The expected answer.
    pub answer: Answer,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It was cancelled before it was served.
    Cancelled,
    /// It succeeded and cost this much.
    Cost(Cost),
}

/// The answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The report was accepted.
    Done,
    /// The take was already reported.
    Already,
    /// The report came too late.
    Late,
}

/// The limits of an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// No limit.
    Unlimited,
    /// Rates, as they are written in a policy.
    Rates(Vec<String>),
}

/// The expected answer to a request; `None` is not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The expected outcome.
    pub outcome: Expected,
    /// When a refused cost would pass.
    pub retry: Option<Retry>,
    /// Whether it passes only because of headroom.
    pub over: bool,
    /// Whether a shadow rule would have refused it.
    pub shadow_deny: bool,
    /// Whether it is marked as low priority.
    pub low_priority: bool,
    /// The flags it is marked with.
    pub flags: Vec<String>,
    /// The version of the policy that decided.
    pub version: Option<u64>,
    /// How many limits decided.
    pub limits: Option<usize>,
    /// The expected answers of single limits.
    pub said: Vec<Said>,
}

/// One expected fact about the answer of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The rule of the limit.
    pub rule: String,
    /// The name of the limit within the rule.
    pub id: String,
    /// The expected fact.
    pub fact: Fact,
}

/// A fact about the answer of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The outcome.
    Outcome(Expected),
    /// It passes only because of headroom.
    Over,
    /// It refuses, with this retry time.
    Retry(Retry),
    /// What remains.
    Remaining(u64),
    /// The time until everything is free again.
    Reset(Span),
}
