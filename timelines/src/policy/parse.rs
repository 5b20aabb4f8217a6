//! Parses scenarios for policies, line by line and word by word. An error names its line and what was expected.

use super::{Action, Allowance, Answer, Ask, Fact, Outcome, Said, Scenario, Settled, Step, Who};
use crate::Expected;
use crate::parse::{ParseError, end, expected, number, span, time};
use core::str::SplitWhitespace;
use tidegate_core::{Cost, Retry, Span, Timestamp};

/// The lines of a file with their numbers.
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
        parse_line(scenario, line, text, &mut lines)?;
    }
    match scenarios.iter().find(|scenario| scenario.steps.is_empty()) {
        Some(empty) => Err(at_line(empty.line, "a scenario needs a policy and at least one event")),
        None => Ok(scenarios),
    }
}

/// Parses one line of a scenario, and the policy that follows it if there is one.
fn parse_line(
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
        _ if answer.is_some() => return Err("this line has no answer".to_owned()),
        verb => operator_change(verb, &mut words)?,
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

// === reports and resets ===

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

    /// Parses a scenario with a policy and this one line.
    fn with(line: &str) -> Result<Vec<Scenario>, ParseError> {
        parse(&format!("scenario s\npolicy\n  version: 1 # one\nend\n{line}"))
    }

    fn problem(line: &str) -> String {
        let error = with(line).unwrap_err();
        assert_eq!(error.line, 5, "{error}");
        error.problem
    }

    #[test]
    fn the_text_of_a_policy_is_kept_unchanged() {
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
    fn a_scenario_needs_a_title_a_policy_and_an_event() {
        assert_eq!(parse("policy\nend").unwrap_err().line, 1);
        assert_eq!(parse("scenario s\nat 1s take -> allow").unwrap_err().line, 2);
        assert_eq!(parse("scenario s\npolicy\nversion: 1\n").unwrap_err().line, 2);
        assert_eq!(parse("# first\nscenario s\npolicy\nversion: 1\nend").unwrap_err().line, 2);
    }
}
