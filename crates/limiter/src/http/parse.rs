//! Reads what a server says about its limits, in any of the forms that are in use.
//!
//! | generation | looks like |
//! |---|---|
//! | draft 8 to 11 | `RateLimit: "burst";r=57;t=4` |
//! | draft 7 | `RateLimit: limit=100, remaining=57, reset=4` |
//! | draft 6 | `RateLimit-Remaining: 57`, `RateLimit-Reset: 4` |
//! | others | `X-RateLimit-Remaining: 57`, `X-RateLimit-Reset:` seconds, an epoch, a date |
//!
//! `Retry-After` takes precedence over all of them. A field that cannot be parsed is ignored. All fields of a response from a
//! cache (`Age` above 0) are ignored, because they describe an earlier time.

use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};
use tidegate_core::{Span, Timestamp};

/// What a response says about the limits of its server.
///
/// ```
/// use tidegate::http::Heard;
/// use tidegate::{Span, Timestamp};
/// let mut headers = http::HeaderMap::new();
/// headers.insert("ratelimit", "\"burst\";r=57;t=4".parse().unwrap());
/// let heard = Heard::of(http::StatusCode::OK, &headers, Timestamp::EPOCH);
/// assert_eq!(heard.budgets[0].remaining, 57);
/// assert_eq!(heard.budgets[0].within, Some(Span::from_secs(4)));
/// assert_eq!(heard.wait(), Span::ZERO);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Whether the server denied the request (status 429 or 503).
    pub refused: bool,
    /// How long to wait before asking again, from `Retry-After`.
    pub retry_after: Option<Span>,
    /// What remains of each limit.
    pub budgets: Vec<Budget>,
}

/// What remains of one limit: at most `remaining` requests `within` the given time.
///
/// ```
/// use tidegate::http::{Budget, Heard};
/// use tidegate::{Span, Timestamp};
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-ratelimit-remaining", "3".parse().unwrap());
/// headers.insert("x-ratelimit-reset", "60".parse().unwrap());
/// let heard = Heard::of(http::StatusCode::OK, &headers, Timestamp::EPOCH);
/// let budget = Budget { name: String::new(), remaining: 3, within: Some(Span::from_secs(60)) };
/// assert_eq!(heard.budgets, [budget]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The name of the limit; empty if the server does not name it.
    pub name: String,
    /// How many requests remain…
    pub remaining: u64,
    /// …within this time; `None` if the server does not say.
    pub within: Option<Span>,
}

/// The most limits to read; more than any server has.
const MOST_BUDGETS: usize = 32;
/// Numbers from here on are seconds since 1970, smaller ones are seconds from now. A countdown of a billion seconds (32 years)
/// does not occur.
const EPOCH_FROM: u64 = 1_000_000_000;

impl Heard {
    /// Reads a response that arrived at the time `now`.
    #[must_use]
    pub fn of(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Self {
        let refused =
            status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE;
        if number(headers, "age").is_some_and(|age| age > 0) {
            return Self { refused, ..Self::default() };
        }
        let millis = number(headers, "retry-after-ms").map(Span::from_millis);
        let retry_after =
            text(headers, "retry-after").and_then(|text| moment(text, now)).or(millis);
        Self { refused, retry_after, budgets: budgets(headers, now) }
    }

    /// How long to wait before the next request: `Retry-After`, or else until every exhausted limit recovers.
    #[must_use]
    pub fn wait(&self) -> Span {
        let empty = self.budgets.iter().filter(|budget| budget.remaining == 0);
        let until_some = || empty.filter_map(|budget| budget.within).max();
        self.retry_after.or_else(until_some).unwrap_or(Span::ZERO)
    }
}

fn budgets(headers: &HeaderMap, now: Timestamp) -> Vec<Budget> {
    let fields = joined(headers, "ratelimit");
    let mut found = fields.as_deref().and_then(list).unwrap_or_default();
    if found.is_empty() {
        found.extend(fields.as_deref().and_then(dictionary));
    }
    for prefix in ["ratelimit", "x-ratelimit", "x-rate-limit"] {
        if found.is_empty() {
            found.extend(plain(headers, prefix, now));
        }
    }
    found.truncate(MOST_BUDGETS);
    found
}

/// Draft 8 to 11: a list of names with parameters.
fn list(text: &str) -> Option<Vec<Budget>> {
    let list = Parser::new(text).parse::<List>().ok()?;
    let budgets = list.iter().filter_map(|entry| {
        let ListEntry::Item(item) = entry else { return None };
        let text = item.bare_item.as_string().map(ToString::to_string);
        let name = text.or_else(|| item.bare_item.as_token().map(ToString::to_string))?;
        let whole = |name: &str| item.params.get(name).and_then(whole);
        Some(Budget { name, remaining: whole("r")?, within: whole("t").map(Span::from_secs) })
    });
    Some(budgets.collect())
}

/// Draft 7: one dictionary.
fn dictionary(text: &str) -> Option<Budget> {
    let dictionary = Parser::new(text).parse::<Dictionary>().ok()?;
    let get = |name: &str| match dictionary.get(name)? {
        ListEntry::Item(item) => whole(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let within = get("reset").map(Span::from_secs);
    Some(Budget { name: String::new(), remaining: get("remaining")?, within })
}

/// Draft 6 and the `X-RateLimit-*` family: a field for each number.
fn plain(headers: &HeaderMap, prefix: &str, now: Timestamp) -> Option<Budget> {
    let remaining = number(headers, &format!("{prefix}-remaining"))?;
    let after =
        || text(headers, &format!("{prefix}-reset-after")).and_then(|text| moment(text, now));
    let reset = text(headers, &format!("{prefix}-reset")).and_then(|text| moment(text, now));
    Some(Budget { name: String::new(), remaining, within: after().or(reset) })
}

fn whole(item: &BareItem) -> Option<u64> {
    item.as_integer().and_then(|number| u64::try_from(i64::from(number)).ok())
}

/// The time from now until a moment, which is written as seconds, seconds with a fraction, seconds since 1970, or a date.
fn moment(text: &str, now: Timestamp) -> Option<Span> {
    let from_now = |nanos: u64| Span::from_nanos(nanos.saturating_sub(now.as_nanos()));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if let Ok(seconds) = whole.parse::<u64>() {
        let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
        // A fraction counts as a whole second: rounded up.
        let seconds = seconds.saturating_add(u64::from(fraction.bytes().any(|byte| byte != b'0')));
        let then = seconds.saturating_mul(1_000_000_000);
        let span = if seconds >= EPOCH_FROM { from_now(then) } else { Span::from_secs(seconds) };
        return digits.then_some(span);
    }
    let date = text.parse::<jiff::Timestamp>().ok();
    let http_date = || jiff::fmt::rfc2822::parse(text).ok().map(|date| date.timestamp());
    let then = date.or_else(http_date)?.as_nanosecond();
    Some(from_now(u64::try_from(then.max(0)).ok()?))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// All lines of a field, joined: a list may be split over several lines.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<&str> =
        headers.get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15T08:00:00Z
    const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

    fn heard(status: u16, lines: &[(&'static str, &str)]) -> Heard {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        Heard::of(StatusCode::from_u16(status).unwrap(), &headers, NOW)
    }

    #[test]
    fn every_form_is_read() {
        for (lines, remaining, seconds) in [
            (vec![("ratelimit", "\"a\";r=0;t=7")], 0, Some(7)),
            (vec![("ratelimit", "\"a\";r=0;t=7;pk=:Zm9v:;acme-x=1")], 0, Some(7)),
            (vec![("ratelimit", "default;r=50;t=30")], 50, Some(30)),
            (vec![("ratelimit", "limit=100, remaining=57, reset=4")], 57, Some(4)),
            (vec![("ratelimit-remaining", "3"), ("ratelimit-reset", "60")], 3, Some(60)),
            (
                vec![("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1800000060")],
                3,
                Some(60),
            ),
            (
                vec![("x-rate-limit-remaining", "3"), ("x-rate-limit-reset", "1800000060")],
                3,
                Some(60),
            ),
            (
                vec![("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "2027-01-15T08:01:00Z")],
                3,
                Some(60),
            ),
            (
                vec![
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "Fri, 15 Jan 2027 08:01:00 GMT"),
                ],
                3,
                Some(60),
            ),
            (vec![("x-ratelimit-remaining", "3"), ("x-ratelimit-reset-after", "1.25")], 3, Some(2)),
            (vec![("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1700000000")], 3, Some(0)),
            (vec![("x-ratelimit-remaining", "3")], 3, None),
        ] {
            let heard = heard(200, &lines);
            let budget = heard.budgets.first().unwrap();
            assert_eq!(
                (budget.remaining, budget.within),
                (remaining, seconds.map(Span::from_secs)),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn retry_after_takes_precedence_and_garbage_is_ignored() {
        let both = heard(429, &[("retry-after", "3"), ("ratelimit", "\"a\";r=0;t=1")]);
        assert_eq!(both.wait(), Span::from_secs(3));
        let date = heard(503, &[("retry-after", "Fri, 15 Jan 2027 08:00:09 GMT")]);
        assert!(date.refused && date.wait() == Span::from_secs(9));
        assert_eq!(heard(429, &[("retry-after-ms", "1500")]).wait(), Span::from_millis(1_500));
        let two = heard(200, &[("ratelimit", "\"a\";r=0;t=1"), ("ratelimit", "\"b\";r=0;t=5")]);
        assert_eq!(two.wait(), Span::from_secs(5));
        for lines in [
            [("retry-after", "soon"), ("ratelimit", "burst=")],
            [("retry-after", "-1"), ("ratelimit", "\"a\";r=-1;t=1")],
            [("retry-after", "1.x"), ("ratelimit", "\"a\";t=1")],
            [("age", "7"), ("ratelimit", "\"a\";r=0;t=1")],
        ] {
            assert_eq!(heard(200, &lines), Heard::default(), "{lines:?}");
        }
    }
}
