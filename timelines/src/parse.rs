//! Parses scenarios, line by line and word by word. An error names its line and what was expected.

use crate::{Action, Answer, Expected, Scenario, Step, Verb};
use core::fmt;
use core::str::SplitWhitespace;
use tidegate_core::{
    Algorithm, Align, Calendar, Cost, Headroom, Limit, Period, Refill, Retry, Span, Timestamp,
};

/// A syntax error in a file of scenarios.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what was expected instead.
    pub problem: String,
}

/// The scenarios of one file.
pub fn parse(text: &str) -> Result<Vec<Scenario>, ParseError> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for (number, text) in (1usize..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let at_line = |problem| ParseError { line: number, problem };
        if let Some(title) = text.strip_prefix("scenario ") {
            let title = title.trim().to_owned();
            scenarios.push(Scenario { title, line: number, steps: Vec::new() });
            continue;
        }
        let Some(scenario) = scenarios.last_mut() else {
            return Err(at_line("expected `scenario TITLE` before anything else".to_owned()));
        };
        let action = action(text).map_err(at_line)?;
        if scenario.steps.is_empty() && !matches!(action, Action::Limit(_)) {
            return Err(at_line("expected `limit …` as the first line of a scenario".to_owned()));
        }
        scenario.steps.push(Step { line: number, action });
    }
    match scenarios.iter().find(|scenario| scenario.steps.len() < 2) {
        Some(empty) => Err(ParseError {
            line: empty.line,
            problem: "a scenario needs a limit and at least one event".to_owned(),
        }),
        None => Ok(scenarios),
    }
}

fn action(text: &str) -> Result<Action, String> {
    let (text, answer) = match text.split_once("->") {
        Some((text, answer)) => (text, Some(self::answer(answer)?)),
        None => (text, None),
    };
    let mut words = text.split_whitespace();
    let action = match words.next() {
        Some("limit") => Action::Limit(limit(&mut words)?),
        Some("elastic") => match words.next() {
            Some("on") => Action::Elastic(true),
            Some("off") => Action::Elastic(false),
            other => return Err(expected("`elastic on` or `elastic off`", other)),
        },
        Some("at") => {
            let at = time(words.next())?;
            return Ok(Action::At(at, verb(&mut words, answer)?));
        }
        other => return Err(expected("`scenario`, `limit`, `elastic` or `at`", other)),
    };
    end(&mut words)?;
    if answer.is_some() { Err("only `at …` lines have an answer".to_owned()) } else { Ok(action) }
}

fn verb(words: &mut SplitWhitespace<'_>, answer: Option<Answer>) -> Result<Verb, String> {
    let required_answer = || answer.ok_or_else(|| "expected `-> ANSWER` at the end".to_owned());
    match words.next() {
        Some("take") => {
            let options = options(words)?;
            Ok(Verb::Take {
                cost: options.cost.unwrap_or(Cost::ONE),
                times: options.times,
                waiting: options.waiting,
                name: options.name,
                answer: required_answer()?,
            })
        }
        Some("peek") => {
            let options = options(words)?;
            match options {
                Options { cost: None, times: 1, name: None, waiting } => {
                    Ok(Verb::Peek { waiting, answer: required_answer()? })
                }
                Options { .. } => Err("a peek has no cost, no times and no name".to_owned()),
            }
        }
        Some("charge") => {
            let options = options(words)?;
            match options {
                Options { cost: Some(cost), times: 1, name, waiting: Span::ZERO } => {
                    Ok(Verb::Charge { cost, name, answer })
                }
                Options { .. } => Err("expected `charge N [as NAME]`".to_owned()),
            }
        }
        Some("give_back") => {
            let name = words.next().ok_or("expected the name of what is given back")?.to_owned();
            end(words)?;
            unanswered(answer, Verb::GiveBack(name))
        }
        Some("reset") => {
            end(words)?;
            unanswered(answer, Verb::Reset)
        }
        other => Err(expected("`take`, `peek`, `charge`, `give_back` or `reset`", other)),
    }
}

fn unanswered(answer: Option<Answer>, verb: Verb) -> Result<Verb, String> {
    if answer.is_some() { Err("this line has no answer".to_owned()) } else { Ok(verb) }
}

/// The words that may follow a verb.
struct Options {
    cost: Option<Cost>,
    times: u32,
    waiting: Span,
    name: Option<String>,
}

fn options(words: &mut SplitWhitespace<'_>) -> Result<Options, String> {
    let mut options = Options { cost: None, times: 1, waiting: Span::ZERO, name: None };
    while let Some(word) = words.next() {
        match word {
            "times" => options.times = number(words.next())?,
            "waiting" => options.waiting = span(words.next())?,
            "as" => options.name = Some(words.next().ok_or("expected a name")?.to_owned()),
            cost => options.cost = Some(Cost::new(number(Some(cost))?)),
        }
    }
    Ok(options)
}

fn limit(words: &mut SplitWhitespace<'_>) -> Result<Limit, String> {
    let rate = words.next().ok_or("expected a rate such as 15/s")?;
    if rate == "unlimited" {
        end(words)?;
        return Ok(Limit::unlimited());
    }
    let (amount, period) =
        rate.split_once('/').ok_or_else(|| expected("a rate such as 15/s", Some(rate)))?;
    let amount: u64 = number(Some(amount))?;
    let mut algorithm = algorithm(words.next())?;
    let mut boundaries = None;
    let mut headroom = Headroom::None;
    while let Some(word) = words.next() {
        match (word, &mut algorithm) {
            ("align", Algorithm::FixedWindow { align }) => match words.next() {
                Some("first") => *align = Align::First,
                other => return Err(expected("`align first`", other)),
            },
            ("buckets", Algorithm::SlidingBuckets { buckets }) => *buckets = number(words.next())?,
            ("burst", Algorithm::TokenBucket { burst, .. }) => *burst = Some(number(words.next())?),
            ("refill", Algorithm::TokenBucket { refill, .. }) => match words.next() {
                Some("interval") => *refill = Refill::Interval,
                other => return Err(expected("`refill interval`", other)),
            },
            ("queue", Algorithm::LeakyBucket { queue }) => *queue = Some(number(words.next())?),
            ("soft", _) => headroom = Headroom::Soft(percent(words.next())?),
            ("elastic", _) => headroom = Headroom::Elastic(percent(words.next())?),
            ("boundaries", _) => boundaries = Some(calendar(words.next())?),
            (other, _) => {
                return Err(format!("`{other}` is not an option of {}", algorithm.name()));
            }
        }
    }
    let period: Period = match (period, boundaries) {
        ("calendar", Some(calendar)) => calendar.into(),
        ("calendar", None) => return Err("expected `boundaries TIME,TIME,…`".to_owned()),
        (period, None) => span(Some(period))?.into(),
        (_, Some(_)) => return Err("`boundaries` needs a rate of N/calendar".to_owned()),
    };
    let limit = Limit::new(amount, period, algorithm).map_err(|error| error.to_string())?;
    limit.with_headroom(headroom).map_err(|error| error.to_string())
}

fn algorithm(name: Option<&str>) -> Result<Algorithm, String> {
    let names = || Algorithm::ALL.map(|algorithm| algorithm.name()).join(", ");
    let found = Algorithm::ALL.into_iter().find(|algorithm| Some(algorithm.name()) == name);
    found.ok_or_else(|| expected(&format!("one of {}", names()), name))
}

fn calendar(list: Option<&str>) -> Result<Calendar, String> {
    let list = list.ok_or("expected boundaries such as 0s,1day,2day")?;
    let boundaries: Result<Vec<Timestamp>, String> =
        list.split(',').map(|at| time(Some(at))).collect();
    Calendar::new(boundaries?).map_err(|error| error.to_string())
}

fn answer(text: &str) -> Result<Answer, String> {
    let mut parts = text.split(',').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let outcome = match first.split_once(' ') {
        Some(("delay", wait)) => Expected::Delay(span(Some(wait.trim()))?),
        None if first == "allow" => Expected::Allow,
        None if first == "deny" => Expected::Deny,
        _ => return Err(expected("`allow`, `delay SPAN` or `deny`", Some(first))),
    };
    let mut answer = Answer { outcome, over: false, retry: None, remaining: None, reset: None };
    for part in parts {
        match part.split_once(' ').map_or((part, None), |(word, rest)| (word, Some(rest.trim()))) {
            ("over", None) => answer.over = true,
            ("never", None) if outcome == Expected::Deny => answer.retry = Some(Retry::Never),
            ("retry", wait) if outcome == Expected::Deny => {
                answer.retry = Some(Retry::After(span(wait)?));
            }
            ("remaining", count) => answer.remaining = Some(number(count)?),
            ("reset", wait) => answer.reset = Some(Some(span(wait)?)),
            ("no", Some("reset")) => answer.reset = Some(None),
            _ => {
                let all = "`over`, `remaining N`, `reset SPAN`, `no reset`, and for a deny `retry SPAN` or `never`";
                return Err(expected(all, Some(part)));
            }
        }
    }
    Ok(answer)
}

// === words ===

pub(crate) fn end(words: &mut SplitWhitespace<'_>) -> Result<(), String> {
    words.next().map_or(Ok(()), |word| Err(format!("did not expect `{word}` here")))
}

pub(crate) fn number<N: core::str::FromStr>(word: Option<&str>) -> Result<N, String> {
    let parsed = word.and_then(|word| word.replace('_', "").parse().ok());
    parsed.ok_or_else(|| expected("a whole number", word))
}

fn percent(word: Option<&str>) -> Result<u16, String> {
    let digits = word.and_then(|word| word.strip_suffix('%'));
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| expected("a percentage such as 10%", word))
}

pub(crate) fn time(word: Option<&str>) -> Result<Timestamp, String> {
    let mut time = Timestamp::EPOCH;
    for part in word.unwrap_or_default().split('+') {
        let span =
            span(Some(part)).map_err(|_| expected("a time such as 1.5s or 1day+2h", word))?;
        time = time.after(span).ok_or_else(|| format!("`{part}` is past the end of time"))?;
    }
    Ok(time)
}

/// A date such as `2026-03-29`, `2026-03-29T12:00:00Z` or `2026-03-29T12:00[Europe/Berlin]`, from 1970 on.
pub(crate) fn date(word: Option<&str>) -> Result<Timestamp, String> {
    let parsed = word.and_then(|word| {
        let zoned = |text: &str| text.parse::<jiff::Zoned>().map(|zoned| zoned.timestamp());
        let time = word.parse::<jiff::Timestamp>().or_else(|_| zoned(word));
        let time = time.or_else(|_| zoned(&format!("{word}[UTC]"))).ok()?;
        u64::try_from(time.as_nanosecond()).ok().map(Timestamp::from_nanos)
    });
    let all = "a date such as 2026-03-29, 2026-03-29T12:00:00Z or 2026-03-29T12:00[Europe/Berlin]";
    parsed.ok_or_else(|| expected(all, word))
}

/// A span such as `1.5s`, `500ms` or `min`. It must be a whole number of nanoseconds.
pub(crate) fn span(word: Option<&str>) -> Result<Span, String> {
    let parsed = word.and_then(|word| {
        let unit_at = word.find(|c: char| c.is_ascii_alphabetic())?;
        let (count, unit) = word.split_at(unit_at);
        let unit = unit_nanos(unit)?;
        if count.is_empty() {
            return Some(Span::from_nanos(unit));
        }
        let (whole, fraction) = count.split_once('.').unwrap_or((count, ""));
        let whole: u64 = whole.replace('_', "").parse().ok()?;
        let nanos = whole.checked_mul(unit)?.checked_add(fraction_of(unit, fraction)?)?;
        Some(Span::from_nanos(nanos))
    });
    parsed.ok_or_else(|| expected("a span such as 1.5s, 500ms or 2min", word))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    Some(match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "min" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        "day" => 86_400 * SECOND,
        "week" => 604_800 * SECOND,
        _ => return None,
    })
}

/// The digits after the decimal point, in nanoseconds; `None` unless that is a whole number.
fn fraction_of(unit: u64, digits: &str) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    let scale = 10u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let scaled = digits.parse::<u64>().ok().map(u128::from)?.checked_mul(u128::from(unit))?;
    let whole = scaled.checked_rem(scale)? == 0;
    whole.then_some(u64::try_from(scaled.checked_div(scale)?).ok()?)
}

pub(crate) fn expected(what: &str, found: Option<&str>) -> String {
    match found {
        Some(found) => format!("expected {what}, found `{found}`"),
        None => format!("expected {what}, found the end of the line"),
    }
}

// === impl ParseError ===

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl core::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a scenario with a limit and this one line, and returns the error.
    fn problem(line: &str) -> String {
        let error = parse(&format!("scenario s\nlimit 2/s fixed_window\n{line}")).unwrap_err();
        assert_eq!(error.line, 3, "{error}");
        error.problem
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (line, expected) in [
            ("at 1x take -> allow", "a time such as 1.5s or 1day+2h, found `1x`"),
            ("at 0.1ns take -> allow", "a time such as"),
            ("at 1s tak -> allow", "`take`, `peek`, `charge`, `give_back` or `reset`, found `tak`"),
            ("at 1s take", "`-> ANSWER`"),
            ("at 1s take -> alow", "`allow`, `delay SPAN` or `deny`, found `alow`"),
            ("at 1s take -> allow, retry 1s", "for a deny `retry SPAN`"),
            ("at 1s take -> deny, remaining", "a whole number, found the end of the line"),
            ("at 1s take x -> allow", "a whole number, found `x`"),
            ("at 1s reset now", "did not expect `now` here"),
            ("at 600year take -> allow", "a time such as"),
            ("at 500_000day take -> allow", "a time such as"),
            ("at 1s give_back", "the name of what is given back"),
            ("at 1s charge -> allow", "`charge N [as NAME]`"),
            ("limit 2/s fixed_windw", "one of fixed_window, sliding_log"),
            ("limit 2/s fixed_window burst 3", "`burst` is not an option of fixed_window"),
            ("limit 2/calendar fixed_window", "`boundaries TIME,TIME,…`"),
            ("limit 2/0s fixed_window", "the period is shorter than 1 ms"),
            ("limit 2/s fixed_window soft 10", "a percentage such as 10%"),
            ("elastic maybe", "`elastic on` or `elastic off`"),
            ("elastic on -> allow", "only `at …` lines have an answer"),
            ("take 1", "`scenario`, `limit`, `elastic` or `at`, found `take`"),
        ] {
            let found = problem(line);
            assert!(found.contains(expected), "{line}: {found}");
        }
    }

    #[test]
    fn a_scenario_needs_a_title_a_limit_and_an_event() {
        assert_eq!(parse("limit 1/s sliding_log").unwrap_err().line, 1);
        assert_eq!(parse("scenario s\nat 1s take -> allow").unwrap_err().line, 2);
        assert_eq!(parse("# first\nscenario s\nlimit 1/s sliding_log").unwrap_err().line, 2);
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(time(Some("1.000000001s")), Ok(Timestamp::from_nanos(1_000_000_001)));
        assert_eq!(time(Some("1h+0.5min")), Ok(Timestamp::from_nanos(3_630_000_000_000)));
        assert_eq!(span(Some("min")), Ok(Span::from_secs(60)));
        assert!(span(Some("1.5ns")).is_err());
        assert!(span(Some("-1s")).is_err());
    }
}
