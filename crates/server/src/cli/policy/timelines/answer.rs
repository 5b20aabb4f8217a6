//! Answers in the words of scenarios: what a limiter answered, and how it differs from what a scenario expects.

use tidegate::{LimitReport, Outcome, Span, Verdict};
use tidegate_timelines::Expected;
use tidegate_timelines::policy::{Answer, Fact, Said, fact_text, outcome_text, retry_text};

/// What a step was answered.
#[derive(Default)]
pub(super) struct SeenAnswer {
    /// In the words of scenarios; `None` for a step that has no answer.
    pub(super) words: Option<String>,
    /// What each limit had left.
    pub(super) limits: Vec<SeenLimit>,
}

/// One limit after a request.
pub(super) struct SeenLimit {
    /// `RULE/ID`.
    pub(super) name: String,
    pub(super) amount: u64,
    pub(super) remaining: u64,
    /// When everything is free again, if that is known.
    pub(super) reset: Option<Span>,
    /// Its own answer.
    pub(super) words: String,
}

/// The value found, and how it differs from the expected one.
pub(super) fn compared(found: String, expected: Option<String>) -> (SeenAnswer, Vec<String>) {
    let wrong = expected.filter(|expected| *expected != found);
    let differences =
        wrong.map(|expected| format!("{found}, not {expected}")).into_iter().collect();
    (SeenAnswer { words: Some(found), limits: vec![] }, differences)
}

// === impl SeenAnswer ===

impl SeenAnswer {
    pub(super) fn of(verdict: &Verdict) -> Self {
        let limits = verdict.limits().map(|limit| SeenLimit::of(&limit)).collect();
        Self { words: Some(words(verdict)), limits }
    }
}

impl SeenLimit {
    fn of(limit: &LimitReport<'_>) -> Self {
        let decision = limit.decision;
        let mut words = outcome_words(decision.outcome);
        if decision.over {
            words.push_str(", over");
        }
        Self {
            name: name(limit.rule, limit.id),
            amount: limit.limit.amount(),
            remaining: decision.remaining,
            reset: decision.reset,
            words,
        }
    }
}

fn name(rule: &str, id: &str) -> String {
    format!("{rule}/{id}")
}

/// The whole answer, as a scenario would state it.
fn words(verdict: &Verdict) -> String {
    let mut words = outcome_words(verdict.outcome);
    let marks = [
        (verdict.over, ", over"),
        (verdict.shadow_deny, ", shadow deny"),
        (is_low(verdict), ", low priority"),
    ];
    words.extend(marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| *mark));
    words.extend(flags(verdict).iter().map(|flag| format!(", flag {flag}")));
    if verdict.limits().next().is_none() {
        words.push_str(", no rules");
    }
    words
}

fn outcome_words(outcome: Outcome) -> String {
    match outcome {
        Outcome::Allow => outcome_text(Expected::Allow),
        Outcome::Delay(wait) => outcome_text(Expected::Delay(wait)),
        Outcome::Deny(retry) => {
            format!("{}, {}", outcome_text(Expected::Deny), retry_text(retry))
        }
    }
}

fn is_low(verdict: &Verdict) -> bool {
    verdict.class().name() == "low"
}

fn flags(verdict: &Verdict) -> Vec<&str> {
    let mut flags: Vec<&str> = verdict.flags().collect();
    flags.dedup(); // several rules may set the same flag
    flags
}

// === differences ===

/// How a verdict differs from the answer that a scenario expects.
pub(super) fn differences(answer: &Answer, verdict: &Verdict) -> Vec<String> {
    let mut all = Vec::new();
    if !fits(answer.outcome, verdict.outcome) {
        let found = outcome_words(verdict.outcome);
        all.push(format!("{found}, not {}", outcome_text(answer.outcome)));
    } else if let (Some(expected), Outcome::Deny(found)) = (answer.retry, verdict.outcome)
        && expected != found
    {
        all.push(format!("{}, not {}", retry_text(found), retry_text(expected)));
    }
    all.extend(marks(answer, verdict));
    all.extend(answer.said.iter().filter_map(|said| differs(said, verdict)));
    all
}

/// Marks and counts of the whole answer that differ.
fn marks(answer: &Answer, verdict: &Verdict) -> Vec<String> {
    let version = verdict.policy_version();
    let limits = verdict.limits().count();
    let expected_flags: Vec<&str> = answer.flags.iter().map(String::as_str).collect();
    let all = [
        mark("over", verdict.over, answer.over),
        mark("shadow deny", verdict.shadow_deny, answer.shadow_deny),
        mark("low priority", is_low(verdict), answer.low_priority),
        different("flags", &flags_text(&flags(verdict)), Some(&flags_text(&expected_flags))),
        different("version", &version, answer.version.as_ref()),
        different("limits", &limits, answer.limits.as_ref()),
    ];
    all.into_iter().flatten().collect()
}

fn mark(name: &str, found: bool, expected: bool) -> Option<String> {
    match (found, expected) {
        (true, false) => Some(format!("{name}, which the line does not mention")),
        (false, true) => Some(format!("not {name}")),
        (true, true) | (false, false) => None,
    }
}

fn flags_text(flags: &[&str]) -> String {
    if flags.is_empty() { "none".to_owned() } else { flags.join(" ") }
}

fn different<T: PartialEq + std::fmt::Display>(
    name: &str,
    found: &T,
    expected: Option<&T>,
) -> Option<String> {
    let expected = expected.filter(|expected| *expected != found)?;
    Some(format!("{name} {found}, not {expected}"))
}

fn fits(expected: Expected, found: Outcome) -> bool {
    match (expected, found) {
        (Expected::Allow, Outcome::Allow) | (Expected::Deny, Outcome::Deny(_)) => true,
        (Expected::Delay(expected), Outcome::Delay(found)) => expected == found,
        (Expected::Allow | Expected::Delay(_) | Expected::Deny, _) => false,
    }
}

/// How one limit differs from what the scenario says about it.
fn differs(said: &Said, verdict: &Verdict) -> Option<String> {
    let Said { rule, id, fact } = said;
    let name = name(rule, id);
    let Some(limit) = verdict.limits().find(|l| (l.rule, l.id) == (&**rule, &**id)) else {
        return Some(format!("{name} did not decide; {}", deciding(verdict)));
    };
    let decision = limit.decision;
    let (as_said, found) = match *fact {
        Fact::Outcome(expected) => {
            (fits(expected, decision.outcome), outcome_words(decision.outcome))
        }
        Fact::Over => (decision.over, "not over".to_owned()),
        Fact::Retry(retry) => {
            (decision.outcome == Outcome::Deny(retry), outcome_words(decision.outcome))
        }
        Fact::Remaining(remaining) => {
            (decision.remaining == remaining, fact_text(Fact::Remaining(decision.remaining)))
        }
        Fact::Reset(reset) => (decision.reset == Some(reset), reset_words(decision.reset)),
    };
    (!as_said).then(|| format!("{name} {found}, not {}", fact_text(*fact)))
}

fn reset_words(reset: Option<Span>) -> String {
    reset.map_or_else(|| "no reset".to_owned(), |reset| fact_text(Fact::Reset(reset)))
}

/// The limits that decided, for a line that names another one.
fn deciding(verdict: &Verdict) -> String {
    let names: Vec<_> = verdict.limits().map(|limit| name(limit.rule, limit.id)).collect();
    if names.is_empty() {
        "no limit did".to_owned()
    } else {
        format!("these did: {}", names.join(", "))
    }
}
