//! Parses scenarios for policies, line by line and word by word. An error names its line and what was expected.

use super::{
    Action, Allowance, Answer, Ask, Fact, Outcome, PolicySource, Said, Scenario, Settled, Step, Who,
};
use crate::Expected;
use crate::parse::{ParseError, date, end, expected, number, span, time};
use core::str::SplitWhitespace;
use tidegate_core::{Cost, Retry, Span, Timestamp};

/// The lines of a file with their numbers.
type Lines<'t> = core::iter::Zip<core::ops::RangeFrom<usize>, core::str::Lines<'t>>;
type Words<'t> = SplitWhitespace<'t>;

/// The most repetitions of one line, so that a file cannot keep a machine busy for hours.
const MOST_TIMES: u32 = 1_000_000;

/// The lines before the first event, of the file or of one scenario.
#[derive(Clone, Default)]
struct Preamble {
    policy: Option<PolicySource>,
    start: Option<Timestamp>,
}

/// A scenario that is being read.
struct Draft {
    title: String,
    line: usize,
    preamble: Preamble,
    steps: Vec<Step>,
}

/// The scenarios of one file; at least one.
pub fn parse(text: &str) -> Result<Vec<Scenario>, ParseError> {
    let (mut of_file, mut drafts) = (Preamble::default(), Vec::<Draft>::new());
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        let text = without_remark(text);
        let (word, rest) = two(text);
        match (word, drafts.last_mut()) {
            ("", _) => {}
            ("scenario", _) => drafts.push(Draft::new(line, rest, &of_file)?),
            ("policy" | "start", None) => of_file.add(line, text, &mut lines)?,
            ("policy" | "start", Some(draft)) => draft.add(line, text, &of_file, &mut lines)?,
            (_, Some(draft)) => draft.add_step(line, text, &mut lines)?,
            (_, None) => {
                let all =
                    "expected `policy`, `start DATE` or `scenario TITLE` before anything else";
                return Err(at_line(line, all));
            }
        }
    }
    if drafts.is_empty() {
        return Err(at_line(1, "there is no scenario; begin one with `scenario TITLE`"));
    }
    drafts.into_iter().map(Draft::finish).collect()
}

// === impl Draft ===

impl Draft {
    fn new(line: usize, title: Option<&str>, of_file: &Preamble) -> Result<Self, ParseError> {
        let title = title.ok_or_else(|| at_line(line, expected("a title", None)))?.to_owned();
        Ok(Self { title, line, preamble: of_file.clone(), steps: Vec::new() })
    }

    /// Adds a line of the preamble, which takes precedence over the preamble of the file.
    fn add(
        &mut self,
        line: usize,
        text: &str,
        of_file: &Preamble,
        lines: &mut Lines<'_>,
    ) -> Result<(), ParseError> {
        if !self.steps.is_empty() {
            let problem = "a scenario has one policy and one start, before its first event; to change the policy, write `at TIME reload`";
            return Err(at_line(line, problem));
        }
        let policy = text.starts_with("policy");
        if policy && self.preamble.policy == of_file.policy {
            self.preamble.policy = None;
        } else if !policy && self.preamble.start == of_file.start {
            self.preamble.start = None;
        }
        self.preamble.add(line, text, lines)
    }

    fn add_step(
        &mut self,
        line: usize,
        text: &str,
        lines: &mut Lines<'_>,
    ) -> Result<(), ParseError> {
        if self.preamble.policy.is_none() {
            let problem = "expected `policy` as the first line of a scenario, or `policy FILE` before the first scenario";
            return Err(at_line(line, problem));
        }
        let (since, mut action) = action(text).map_err(|problem| at_line(line, problem))?;
        if let Action::Reload(PolicySource::Text { line: first, text }) = &mut action {
            (*first, *text) = (line.saturating_add(1), block(line, lines)?);
        }
        let start = self.preamble.start.unwrap_or(Timestamp::EPOCH);
        let past = Span::from_nanos(since.as_nanos());
        let at = start.after(past).ok_or_else(|| at_line(line, "it is past the end of time"))?;
        self.steps.push(Step { line, text: text.to_owned(), at, action });
        Ok(())
    }

    fn finish(self) -> Result<Scenario, ParseError> {
        let Self { title, line, preamble, steps } = self;
        match preamble.policy {
            Some(policy) if !steps.is_empty() => Ok(Scenario { title, line, policy, steps }),
            _ => Err(at_line(line, "a scenario needs a policy and at least one event")),
        }
    }
}

// === impl Preamble ===

impl Preamble {
    /// Adds `policy`, `policy FILE` or `start DATE`.
    fn add(&mut self, line: usize, text: &str, lines: &mut Lines<'_>) -> Result<(), ParseError> {
        let (word, rest) = two(text);
        let twice = || at_line(line, format!("`{word}` is given twice; give it once"));
        if word == "start" {
            let start = date(rest).map_err(|problem| at_line(line, problem))?;
            return self.start.replace(start).map_or(Ok(()), |_| Err(twice()));
        }
        let source = match rest {
            Some(path) => PolicySource::File { line, path: path.to_owned() },
            None => PolicySource::Text { line: line.saturating_add(1), text: block(line, lines)? },
        };
        self.policy.replace(source).map_or(Ok(()), |_| Err(twice()))
    }
}

/// The lines up to `end`, unchanged, because indentation matters in a policy.
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
        verb => {
            let change = operator_change(verb, &mut words)?;
            if answer.is_some() {
                return Err("this line has no answer; remove what follows `->`".to_owned());
            }
            change
        }
    };
    end(&mut words)?;
    Ok((at, action))
}

/// The attributes up to the first word that is not an attribute, and that word.
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
    let (mut times, mut name, mut then) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "times" => times = Some(self::times(words.next())?),
            "waiting" => ask.waiting = span(words.next())?,
            "as" => name = Some(words.next().ok_or("expected a name")?.to_owned()),
            "then" => then = Some(reported(words)?),
            cost => ask.cost = Cost::new(number(Some(cost))?),
        }
    }
    match (verb, times, &name, then) {
        (Some("peek"), None, None, None) => Ok(Action::Peek(ask)),
        (Some("peek"), ..) => Err("a peek has no times, no name and no `then`".to_owned()),
        (_, _, Some(_), Some(_)) => {
            Err("write `as NAME` and a line `report NAME …`, or `then OUTCOME`, not both"
                .to_owned())
        }
        (_, times, _, then) => Ok(Action::Take { ask, times: times.unwrap_or(1), name, then }),
    }
}

fn times(word: Option<&str>) -> Result<u32, String> {
    let times = number(word)?;
    let wrong = || expected(&format!("a number from 1 to {MOST_TIMES}"), word);
    if (1..=MOST_TIMES).contains(&times) { Ok(times) } else { Err(wrong()) }
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

// === reports and resets ===

fn report(words: &mut Words<'_>, answer: Option<&str>) -> Result<Action, String> {
    let name = words.next().ok_or("expected the name of a take")?.to_owned();
    let outcome = reported(words)?;
    let settled = match answer {
        None => None,
        Some("settled") => Some(Settled::Done),
        Some("already") => Some(Settled::Already),
        Some("late") => Some(Settled::Late),
        other => return Err(expected("`settled`, `already` or `late`", other)),
    };
    Ok(Action::Report { name, outcome, settled })
}

fn reported(words: &mut Words<'_>) -> Result<Outcome, String> {
    match words.next() {
        Some("success") => Ok(Outcome::Success),
        Some("failure") => Ok(Outcome::Failure),
        Some("cancelled") => Ok(Outcome::Cancelled),
        Some("cost") => Ok(Outcome::Cost(Cost::new(number(words.next())?))),
        other => Err(expected("`success`, `failure`, `cancelled` or `cost N`", other)),
    }
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

// === operator changes ===

fn operator_change(verb: Option<&str>, words: &mut Words<'_>) -> Result<Action, String> {
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
        Some("reload") => Ok(Action::Reload(match words.next() {
            Some(path) => PolicySource::File { line: 0, path: path.to_owned() },
            None => PolicySource::Text { line: 0, text: String::new() },
        })),
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

    /// Parses a scenario with a policy and this one line.
    fn with(line: &str) -> Result<Vec<Scenario>, ParseError> {
        parse(&format!("scenario s\npolicy\n  version: 1 # one\nend\n{line}"))
    }

    fn problem(line: &str) -> String {
        let error = with(line).unwrap_err();
        assert_eq!(error.line, line.lines().count().saturating_add(4), "{error}");
        error.problem
    }

    #[test]
    fn the_text_of_a_policy_is_kept_unchanged() {
        let scenarios = with("at 1s reload\n  version: 2\nend # of it\nend\n").unwrap();
        let [Scenario { policy, steps, .. }] = &scenarios[..] else { panic!("{scenarios:?}") };
        let text = |line, text: &str| PolicySource::Text { line, text: text.to_owned() };
        assert_eq!(*policy, text(3, "  version: 1 # one\n"));
        let expected = Action::Reload(text(6, "  version: 2\nend # of it\n"));
        let at = Timestamp::from_nanos(1_000_000_000);
        assert_eq!(
            steps[0],
            Step { line: 5, text: "at 1s reload".to_owned(), at, action: expected }
        );
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (line, expected) in [
            ("at 1x take -> allow", "a time such as 1.5s or 1day+2h, found `1x`"),
            ("at 1s tak -> allow", "`override`, `enable`, `shadow` or `reload`, found `tak`"),
            ("at 1s enable api on -> allow", "this line has no answer; remove what follows `->`"),
            ("at 1s take times 0 -> allow", "a number from 1 to 1000000, found `0`"),
            ("at 1s take times 1_000_001 -> allow", "a number from 1 to 1000000"),
            ("at 1s take then maybe -> allow", "`success`, `failure`, `cancelled` or `cost N`"),
            ("at 1s take as a then success -> allow", "or `then OUTCOME`, not both"),
            ("at 1s tak", "attributes, `take`, `peek`, `report`, `reset`, `signal`"),
            ("at 1s user=alice signal load 1", "`take` or `peek` after attributes, found `signal`"),
            ("at 1s =alice take -> allow", "NAME=VALUE, found `=alice`"),
            ("at 1s take", "`-> ANSWER`"),
            ("at 1s take x -> allow", "a whole number, found `x`"),
            ("at 1s take -> alow", "`allow`, `delay SPAN` or `deny`, found `alow`"),
            ("at 1s take -> allow, retry 1s", "for a deny `retry SPAN` or `never`"),
            ("at 1s take -> deny, a/s left 3", "`remaining N` or `reset SPAN`, found `left 3`"),
            ("at 1s peek times 2 -> allow", "a peek has no times, no name and no `then`"),
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
            ("policy other.yaml", "`policy` is given twice; give it once"),
            (
                "at 0s take -> allow\npolicy",
                "before its first event; to change the policy, write `at TIME reload`",
            ),
            (
                "start tomorrow",
                "a date such as 2026-03-29, 2026-03-29T12:00:00Z or 2026-03-29T12:00[Europe/Berlin], found `tomorrow`",
            ),
            ("scenario", "expected a title, found the end of the line"),
        ] {
            let found = problem(line);
            assert!(found.contains(expected), "{line}: {found}");
        }
    }

    #[test]
    fn the_preamble_of_a_file_holds_for_scenarios_without_their_own() {
        let text = "policy a.yaml\nstart 2026-03-29T01:00[Europe/Berlin]\nscenario one\nat 1s take -> allow
scenario two\npolicy b.yaml\nstart 1970-01-02\nat 1s reload c.yaml";
        let scenarios = parse(text).unwrap();
        let shown = |scenario: &Scenario| {
            let at = scenario.steps[0].at.as_nanos() / 1_000_000_000;
            (scenario.policy.clone(), at)
        };
        let file = |line, path: &str| PolicySource::File { line, path: path.to_owned() };
        assert_eq!(shown(&scenarios[0]), (file(1, "a.yaml"), 1_774_742_401));
        assert_eq!(shown(&scenarios[1]), (file(6, "b.yaml"), 86_401));
        assert_eq!(scenarios[1].steps[0].action, Action::Reload(file(0, "c.yaml")));
    }

    #[test]
    fn a_scenario_needs_a_title_a_policy_and_an_event() {
        assert_eq!(parse("").unwrap_err().line, 1);
        assert_eq!(parse("policy\nend").unwrap_err().line, 1);
        assert_eq!(parse("scenario s\nat 1s take -> allow").unwrap_err().line, 2);
        assert_eq!(parse("scenario s\npolicy\nversion: 1\n").unwrap_err().line, 2);
        assert_eq!(parse("# first\nscenario s\npolicy\nversion: 1\nend").unwrap_err().line, 2);
    }
}
