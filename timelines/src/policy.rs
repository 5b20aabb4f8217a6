//! Scenarios for whole policies: requests, reports and an operator's hand, played through a limiter.
//!
//! ```text
//! scenario 500 an hour with 10 a minute: the minute binds first
//! policy
//!   version: 1
//!   rules:
//!     - { name: api, key: [user], limits: [10/min, 500/h] }
//! end
//! at 0s user=alice take 10 -> allow, api/min remaining 0, api/h remaining 490
//! at 0s user=alice take    -> deny, retry 6s, api/min deny, api/h remaining 490
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `# …` | a remark, here or at the end of a line; within a policy it is the policy's |
//! | `scenario TITLE` | begins a scenario; nothing is remembered of the one before |
//! | `policy`, then a policy, then `end` | what the limiter is made of |
//! | `at TIME [WHO] take [N] [times K] [waiting SPAN] [as NAME] -> ANSWER` | asks for a cost of N (1), K times, each answered so |
//! | `at TIME [WHO] peek [N] [waiting SPAN] -> ANSWER` | what a take would be answered; takes nothing |
//! | `at TIME report NAME success`, `failure`, `cancelled` or `cost N` `[-> SETTLED]` | what became of the take of that name |
//! | `at TIME reset RULE [WHO] [-> N]` | forgets what a rule counted; there were N states |
//! | `at TIME signal NAME VALUE` | how the world is |
//! | `at TIME tier NAME=VALUE TIER` | puts a customer on a tier; `none` takes it back |
//! | `at TIME override RULE WHO RATE[,RATE …]` | limits for some; or `unlimited`; `none` takes them back |
//! | `at TIME enable RULE on`, `at TIME shadow RULE on` | or `off`, or `file` for what the policy says |
//! | `at TIME reload`, then a policy, then `end` | another policy |
//!
//! `WHO` is attributes, `user=alice ip=203.0.113.7`. Times and spans are written as in the other scenarios.
//! `SETTLED` is `settled`, `already` or `late`.
//!
//! An `ANSWER` is `allow`, `delay SPAN` or `deny`, then any of `retry SPAN`, `never`, `over`, `shadow deny`,
//! `low priority`, `flag WORD`, `version N`, `limits N` (how many were asked), `no rules` (none was), and
//! of each limit, which is written `RULE/ID`: `allow`, `delay SPAN`, `deny`, `over`, `retry SPAN`, `never`,
//! `remaining N`, `reset SPAN`. What is not said is not checked, but for `over`, `shadow deny`,
//! `low priority` and flags of the whole answer: one that is not said must not be.

use crate::Expected;
use crate::parse::{ParseError, end, expected, number, span, time};
use core::str::SplitWhitespace;
use tidegate_core::{Cost, Retry, Span, Timestamp};

/// The folder of these scenarios.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/policies");

/// One story: a policy, and what happens under it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it shows.
    pub title: String,
    /// The line on which it begins.
    pub line: usize,
    /// The policy it begins with, as written.
    pub policy: String,
    /// What happens, in order; never empty.
    pub steps: Vec<Step>,
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its line.
    pub line: usize,
    /// When.
    pub at: Timestamp,
    /// What happens.
    pub action: Action,
}

/// Attributes, each with its value.
pub type Who = Vec<(String, String)>;

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A request is decided.
    Take {
        /// What is asked.
        ask: Ask,
        /// How often.
        times: u32,
        /// A name for reporting what became of it.
        name: Option<String>,
    },
    /// A request is looked at.
    Peek(Ask),
    /// Somebody says what became of a request.
    Report {
        /// Of which.
        name: String,
        /// What.
        outcome: Outcome,
        /// What must be answered.
        settled: Option<Settled>,
    },
    /// What a rule counted is forgotten.
    Reset {
        /// Of which rule.
        rule: String,
        /// Of whom.
        who: Who,
        /// How many states there must have been.
        states: Option<usize>,
    },
    /// A signal has a value.
    Signal(String, f64),
    /// A customer is put on a tier, or taken off it.
    Tier((String, String), Option<String>),
    /// Some customers of a rule get limits of their own, or lose them.
    Override {
        /// Of which rule.
        rule: String,
        /// Who.
        who: Who,
        /// How much; `None` takes it back.
        allowance: Option<Allowance>,
    },
    /// A rule is switched on or off; `None` is what the policy says.
    Enable(String, Option<bool>),
    /// A rule only pretends, or bites; `None` is what the policy says.
    Shadow(String, Option<bool>),
    /// Another policy, as written.
    Reload(String),
}

/// A request, and what must be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who asks, and for what.
    pub who: Who,
    /// How much.
    pub cost: Cost,
    /// How long the caller can wait.
    pub waiting: Span,
    /// What must be answered.
    pub answer: Answer,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It never happened.
    Cancelled,
    /// It turned out to cost this much.
    Cost(Cost),
}

/// What a report is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It counts.
    Done,
    /// There was one before.
    Already,
    /// It comes too late.
    Late,
}

/// Limits given by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// None at all.
    Unlimited,
    /// Rates, as a policy writes them.
    Rates(Vec<String>),
}

/// What must be answered to a request; what is `None` is not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The kind of outcome.
    pub outcome: Expected,
    /// When a refused cost would pass.
    pub retry: Option<Retry>,
    /// Whether it passes only thanks to headroom.
    pub over: bool,
    /// Whether a rule in shadow would have refused it.
    pub shadow_deny: bool,
    /// Whether others should be served first.
    pub low_priority: bool,
    /// The words it is marked with.
    pub flags: Vec<String>,
    /// The version it is decided by.
    pub version: Option<u64>,
    /// How many limits are asked.
    pub limits: Option<usize>,
    /// What single limits say.
    pub said: Vec<Said>,
}

/// One thing that one limit must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The rule of the limit.
    pub rule: String,
    /// Its name within the rule.
    pub id: String,
    /// What it must say.
    pub fact: Fact,
}

/// What a limit can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The kind of its outcome.
    Outcome(Expected),
    /// It passes by headroom.
    Over,
    /// It refuses, and says when it would not.
    Retry(Retry),
    /// What remains.
    Remaining(u64),
    /// When all is free again.
    Reset(Span),
}

/// The lines of a file, each with its number.
type Lines<'t> = core::iter::Zip<core::ops::RangeFrom<usize>, core::str::Lines<'t>>;
type Words<'t> = SplitWhitespace<'t>;

/// The scenarios of one file.
pub fn parse(text: &str) -> Result<Vec<Scenario>, ParseError> {
    let mut scenarios = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        let text = without_remark(text);
        if text.is_empty() {
            continue;
        }
        if let Some(title) = text.strip_prefix("scenario ") {
            let (title, policy) = (title.trim().to_owned(), String::new());
            scenarios.push(Scenario { title, line, policy, steps: Vec::new() });
            continue;
        }
        let Some(scenario) = scenarios.last_mut() else {
            return Err(at_line(line, "expected `scenario TITLE` before anything else"));
        };
        happens(scenario, line, text, &mut lines)?;
    }
    match scenarios.iter().find(|scenario| scenario.steps.is_empty()) {
        Some(empty) => {
            Err(at_line(empty.line, "a scenario needs a policy and something that happens"))
        }
        None => Ok(scenarios),
    }
}

/// One line of a scenario, with the policy that follows it if one does.
fn happens(
    scenario: &mut Scenario,
    line: usize,
    text: &str,
    lines: &mut Lines<'_>,
) -> Result<(), ParseError> {
    match (text, scenario.policy.is_empty()) {
        ("policy", true) => scenario.policy = block(line, lines)?,
        ("policy", false) => {
            return Err(at_line(line, "a scenario has one policy; write `at TIME reload`"));
        }
        (_, true) => {
            return Err(at_line(line, "expected `policy` as the first line of a scenario"));
        }
        (_, false) => {
            let (at, mut action) = action(text).map_err(|problem| at_line(line, problem))?;
            if let Action::Reload(policy) = &mut action {
                *policy = block(line, lines)?;
            }
            scenario.steps.push(Step { line, at, action });
        }
    }
    Ok(())
}

/// The lines up to `end`, as they are: a policy's indentation has a meaning.
fn block(line: usize, lines: &mut Lines<'_>) -> Result<String, ParseError> {
    let mut policy = String::new();
    for (_, text) in lines {
        if text.trim() == "end" {
            return Ok(policy);
        }
        policy.push_str(text);
        policy.push('\n');
    }
    Err(at_line(line, "expected `end` after this policy, found the end of the file"))
}

fn at_line(line: usize, problem: impl Into<String>) -> ParseError {
    ParseError { line, problem: problem.into() }
}

fn without_remark(text: &str) -> &str {
    text.split('#').next().unwrap_or_default().trim()
}

fn action(text: &str) -> Result<(Timestamp, Action), String> {
    let (text, answer) = match text.split_once("->") {
        Some((text, answer)) => (text, Some(answer.trim())),
        None => (text, None),
    };
    let mut words = text.split_whitespace();
    match words.next() {
        Some("at") => {}
        other => return Err(expected("`scenario` or `at TIME`", other)),
    }
    let at = time(words.next())?;
    let (who, verb) = who(&mut words)?;
    let action = match verb {
        Some("take" | "peek") => request(who, verb, &mut words, answer)?,
        _ if !who.is_empty() => return Err(expected("`take` or `peek` after attributes", verb)),
        Some("report") => report(&mut words, answer)?,
        Some("reset") => reset(&mut words, answer)?,
        _ if answer.is_some() => return Err("this line has no answer".to_owned()),
        verb => by_hand(verb, &mut words)?,
    };
    end(&mut words)?;
    Ok((at, action))
}

/// The attributes up to the next word that is none, and that word.
fn who<'t>(words: &mut Words<'t>) -> Result<(Who, Option<&'t str>), String> {
    let mut who = Who::new();
    for word in words {
        match word.split_once('=') {
            Some(("", _)) => return Err(expected("NAME=VALUE", Some(word))),
            Some((name, value)) => who.push((name.to_owned(), value.to_owned())),
            None => return Ok((who, Some(word))),
        }
    }
    Ok((who, None))
}

// === requests ===

fn request(
    who: Who,
    verb: Option<&str>,
    words: &mut Words<'_>,
    answer: Option<&str>,
) -> Result<Action, String> {
    let answer = self::answer(answer.ok_or("expected `-> ANSWER` at the end")?)?;
    let mut ask = Ask { who, cost: Cost::ONE, waiting: Span::ZERO, answer };
    let (mut times, mut name) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "times" => times = Some(number(words.next())?),
            "waiting" => ask.waiting = span(words.next())?,
            "as" => name = Some(words.next().ok_or("expected a name")?.to_owned()),
            cost => ask.cost = Cost::new(number(Some(cost))?),
        }
    }
    match (verb, times, name) {
        (Some("peek"), None, None) => Ok(Action::Peek(ask)),
        (Some("peek"), _, _) => Err("a peek has no times and no name".to_owned()),
        (_, times, name) => Ok(Action::Take { ask, times: times.unwrap_or(1), name }),
    }
}

fn answer(text: &str) -> Result<Answer, String> {
    let mut parts = text.split(',').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let outcome =
        outcome(first).ok_or_else(|| expected("`allow`, `delay SPAN` or `deny`", Some(first)))?;
    let mut answer = Answer {
        outcome,
        retry: None,
        over: false,
        shadow_deny: false,
        low_priority: false,
        flags: Vec::new(),
        version: None,
        limits: None,
        said: Vec::new(),
    };
    parts.try_for_each(|part| part_of(&mut answer, part))?;
    Ok(answer)
}

fn part_of(answer: &mut Answer, part: &str) -> Result<(), String> {
    let (word, rest) = two(part);
    match (word, rest) {
        (limit, Some(fact)) if limit.contains('/') => answer.said.push(said(limit, fact)?),
        ("over", None) => answer.over = true,
        ("shadow", Some("deny")) => answer.shadow_deny = true,
        ("low", Some("priority")) => answer.low_priority = true,
        ("flag", Some(flag)) => answer.flags.push(flag.to_owned()),
        ("version", version) => answer.version = Some(number(version)?),
        ("limits", count) => answer.limits = Some(number(count)?),
        ("no", Some("rules")) => answer.limits = Some(0),
        ("retry" | "never", _) if answer.outcome == Expected::Deny => {
            answer.retry = Some(retry(part)?);
        }
        _ => {
            let all = "`over`, `shadow deny`, `low priority`, `flag WORD`, `version N`, `limits N`, `no rules`, `RULE/ID FACT`, and for a deny `retry SPAN` or `never`";
            return Err(expected(all, Some(part)));
        }
    }
    Ok(())
}

fn said(limit: &str, fact: &str) -> Result<Said, String> {
    let (rule, id) = limit.split_once('/').ok_or_else(|| expected("RULE/ID", Some(limit)))?;
    let fact = match two(fact) {
        ("over", None) => Fact::Over,
        ("remaining", count) => Fact::Remaining(number(count)?),
        ("reset", wait) => Fact::Reset(span(wait)?),
        ("retry" | "never", _) => Fact::Retry(retry(fact)?),
        _ => {
            let all = "`allow`, `delay SPAN`, `deny`, `over`, `retry SPAN`, `never`, `remaining N` or `reset SPAN`";
            Fact::Outcome(outcome(fact).ok_or_else(|| expected(all, Some(fact)))?)
        }
    };
    Ok(Said { rule: rule.to_owned(), id: id.to_owned(), fact })
}

fn outcome(text: &str) -> Option<Expected> {
    match two(text) {
        ("allow", None) => Some(Expected::Allow),
        ("deny", None) => Some(Expected::Deny),
        ("delay", Some(wait)) => span(Some(wait)).ok().map(Expected::Delay),
        _ => None,
    }
}

fn retry(text: &str) -> Result<Retry, String> {
    match two(text) {
        ("never", None) => Ok(Retry::Never),
        (_, wait) => span(wait).map(Retry::After),
    }
}

/// The first word, and the rest if there is one.
fn two(text: &str) -> (&str, Option<&str>) {
    text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest.trim())))
}

// === what happens after an answer ===

fn report(words: &mut Words<'_>, answer: Option<&str>) -> Result<Action, String> {
    let name = words.next().ok_or("expected the name of a take")?.to_owned();
    let outcome = match words.next() {
        Some("success") => Outcome::Success,
        Some("failure") => Outcome::Failure,
        Some("cancelled") => Outcome::Cancelled,
        Some("cost") => Outcome::Cost(Cost::new(number(words.next())?)),
        other => return Err(expected("`success`, `failure`, `cancelled` or `cost N`", other)),
    };
    let settled = match answer {
        None => None,
        Some("settled") => Some(Settled::Done),
        Some("already") => Some(Settled::Already),
        Some("late") => Some(Settled::Late),
        other => return Err(expected("`settled`, `already` or `late`", other)),
    };
    Ok(Action::Report { name, outcome, settled })
}

fn reset(words: &mut Words<'_>, answer: Option<&str>) -> Result<Action, String> {
    let rule = rule(words)?;
    let (who, rest) = who(words)?;
    if let Some(word) = rest {
        return Err(expected("NAME=VALUE", Some(word)));
    }
    let states = answer.map(|count| number(Some(count))).transpose()?;
    Ok(Action::Reset { rule, who, states })
}

// === what operators do ===

fn by_hand(verb: Option<&str>, words: &mut Words<'_>) -> Result<Action, String> {
    match verb {
        Some("signal") => {
            let name = words.next().ok_or("expected the name of a signal")?.to_owned();
            let value = words.next();
            let parsed = value.and_then(|value| value.parse().ok());
            Ok(Action::Signal(name, parsed.ok_or_else(|| expected("a value such as 0.7", value))?))
        }
        Some("tier") => tier(words),
        Some("override") => {
            let rule = rule(words)?;
            let (who, allowance) = who(words)?;
            Ok(Action::Override { rule, who, allowance: self::allowance(allowance)? })
        }
        Some("enable") => Ok(Action::Enable(rule(words)?, switch(words.next())?)),
        Some("shadow") => Ok(Action::Shadow(rule(words)?, switch(words.next())?)),
        Some("reload") => Ok(Action::Reload(String::new())),
        other => {
            let all = "attributes, `take`, `peek`, `report`, `reset`, `signal`, `tier`, `override`, `enable`, `shadow` or `reload`";
            Err(expected(all, other))
        }
    }
}

fn tier(words: &mut Words<'_>) -> Result<Action, String> {
    let (who, tier) = who(words)?;
    let mut who = who.into_iter();
    match (who.next(), who.next(), tier) {
        (Some(customer), None, Some("none")) => Ok(Action::Tier(customer, None)),
        (Some(customer), None, Some(tier)) => Ok(Action::Tier(customer, Some(tier.to_owned()))),
        (_, _, tier) => Err(expected("one NAME=VALUE, then a tier or `none`", tier)),
    }
}

fn rule(words: &mut Words<'_>) -> Result<String, String> {
    words.next().map(str::to_owned).ok_or_else(|| expected("the name of a rule", None))
}

fn switch(word: Option<&str>) -> Result<Option<bool>, String> {
    match word {
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some("file") => Ok(None),
        other => Err(expected("`on`, `off` or `file`", other)),
    }
}

fn allowance(word: Option<&str>) -> Result<Option<Allowance>, String> {
    match word {
        Some("none") => Ok(None),
        Some("unlimited") => Ok(Some(Allowance::Unlimited)),
        Some(rates) => Ok(Some(Allowance::Rates(rates.split(',').map(str::to_owned).collect()))),
        None => Err(expected("RATE[,RATE …], `unlimited` or `none`", None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scenario whose line after the policy is `line`.
    fn with(line: &str) -> Result<Vec<Scenario>, ParseError> {
        parse(&format!("scenario s\npolicy\n  version: 1 # one\nend\n{line}"))
    }

    fn problem(line: &str) -> String {
        let error = with(line).unwrap_err();
        assert_eq!(error.line, 5, "{error}");
        error.problem
    }

    #[test]
    fn a_policy_stays_as_it_is_written() {
        let scenarios = with("at 1s reload\n  version: 2\nend # of it\nend\n").unwrap();
        let [Scenario { policy, steps, .. }] = &scenarios[..] else { panic!("{scenarios:?}") };
        assert_eq!(policy, "  version: 1 # one\n");
        let expected = Action::Reload("  version: 2\nend # of it\n".to_owned());
        assert_eq!(
            steps[0],
            Step { line: 5, at: Timestamp::from_nanos(1_000_000_000), action: expected }
        );
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (line, expected) in [
            ("at 1x take -> allow", "a time such as 1.5s or 1day+2h, found `1x`"),
            ("at 1s tak -> allow", "this line has no answer"),
            ("at 1s tak", "attributes, `take`, `peek`, `report`, `reset`, `signal`"),
            ("at 1s user=alice signal load 1", "`take` or `peek` after attributes, found `signal`"),
            ("at 1s =alice take -> allow", "NAME=VALUE, found `=alice`"),
            ("at 1s take", "`-> ANSWER`"),
            ("at 1s take x -> allow", "a whole number, found `x`"),
            ("at 1s take -> alow", "`allow`, `delay SPAN` or `deny`, found `alow`"),
            ("at 1s take -> allow, retry 1s", "for a deny `retry SPAN` or `never`"),
            ("at 1s take -> deny, a/s left 3", "`remaining N` or `reset SPAN`, found `left 3`"),
            ("at 1s peek times 2 -> allow", "a peek has no times and no name"),
            ("at 1s report login maybe", "`success`, `failure`, `cancelled` or `cost N`"),
            ("at 1s report login success -> no", "`settled`, `already` or `late`, found `no`"),
            ("at 1s reset api alice", "NAME=VALUE, found `alice`"),
            ("at 1s reset api user=alice -> two", "a whole number, found `two`"),
            ("at 1s signal load", "a value such as 0.7, found the end of the line"),
            ("at 1s tier pro", "one NAME=VALUE, then a tier or `none`, found `pro`"),
            ("at 1s override api user=alice", "`unlimited` or `none`"),
            ("at 1s shadow api yes", "`on`, `off` or `file`, found `yes`"),
            ("at 1s shadow api on now", "did not expect `now` here"),
            ("at 1s reload", "expected `end` after this policy"),
            ("take 1", "`scenario` or `at TIME`, found `take`"),
            ("policy", "a scenario has one policy; write `at TIME reload`"),
        ] {
            let found = problem(line);
            assert!(found.contains(expected), "{line}: {found}");
        }
    }

    #[test]
    fn a_scenario_needs_a_title_a_policy_and_something_that_happens() {
        assert_eq!(parse("policy\nend").unwrap_err().line, 1);
        assert_eq!(parse("scenario s\nat 1s take -> allow").unwrap_err().line, 2);
        assert_eq!(parse("scenario s\npolicy\nversion: 1\n").unwrap_err().line, 2);
        assert_eq!(parse("# first\nscenario s\npolicy\nversion: 1\nend").unwrap_err().line, 2);
    }
}
