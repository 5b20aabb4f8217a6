//! Verdict to header fields.

use crate::verdict::{LimitReport, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tidegate_core::{Algorithm, Need, Outcome, Period, Retry, Span, Timestamp};

/// Which header fields are written, and how.
///
/// ```
/// use tidegate::http::HeaderStyle;
/// let style = HeaderStyle::default();
/// assert!(style.fields && style.legacy.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy`.
    pub fields: bool,
    /// `X-RateLimit-*`, with the reset written so.
    pub legacy: Option<LegacyReset>,
    /// All limits, or only the tightest.
    pub reduced: Reduced,
}

/// How `X-RateLimit-Reset` is written: everybody does it differently.
///
/// ```
/// assert_ne!(tidegate::http::LegacyReset::Delta, tidegate::http::LegacyReset::Epoch);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now, as Envoy and Kong do.
    Delta,
    /// Seconds since 1970, as GitHub does.
    Epoch,
}

/// How many limits are told.
///
/// ```
/// assert_eq!(tidegate::http::Reduced::default(), tidegate::http::Reduced::No);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduced {
    /// All.
    #[default]
    No,
    /// The one with the least left.
    ToTightest,
}

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// An integer of a structured field has at most fifteen digits.
const MOST: u64 = 999_999_999_999_999;
const NANOS_PER_SEC: u128 = 1_000_000_000;

impl Default for HeaderStyle {
    fn default() -> Self {
        Self { fields: true, legacy: None, reduced: Reduced::No }
    }
}

impl HeaderStyle {
    /// Writes what a client may know of a verdict. What somebody else wrote into the list fields stays.
    ///
    /// ```
    /// use tidegate::http::HeaderStyle;
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [5/min] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let nobody = Attributes::new();
    /// let verdict = limiter.check_now(&Check::new(&nobody))?;
    /// let mut headers = http::HeaderMap::new();
    /// HeaderStyle::default().write(&verdict, &mut headers);
    /// assert_eq!(headers["ratelimit-policy"], "\"all\";q=5;w=60");
    /// assert_eq!(headers["ratelimit"], "\"all\";r=4;t=12");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, verdict: &Verdict, headers: &mut HeaderMap) {
        let only = match self.reduced {
            Reduced::No => None,
            Reduced::ToTightest => tightest(verdict).map(|(at, _)| at),
        };
        if self.fields {
            let [mut policies, mut states] = [(); 2].map(|()| String::with_capacity(64));
            let told = told(verdict).filter(|(at, _)| only.is_none_or(|only| only == *at));
            for (at, limit) in told {
                for field in [&mut policies, &mut states] {
                    field.push_str(if field.is_empty() { "\"" } else { ", \"" });
                    push_name(field, verdict, at, &limit);
                }
                push_policy(&mut policies, &limit);
                push_state(&mut states, &limit);
            }
            append(headers, POLICY, policies);
            append(headers, STATE, states);
        }
        let legacy = self.legacy.and_then(|reset| Some((reset, tightest(verdict)?.1)));
        if let Some((reset, limit)) = legacy {
            append(headers, LEGACY_LIMIT, clamp(limit.limit.amount()).to_string());
            append(headers, LEGACY_REMAINING, clamp(limit.decision.remaining).to_string());
            append(headers, LEGACY_RESET, legacy_reset(&limit, reset, verdict.decided_at));
        }
        if let Outcome::Deny(Retry::After(retry)) = verdict.outcome {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry)));
        }
    }
}

/// The limits that are told: those that can refuse, with their place among all.
fn told(verdict: &Verdict) -> impl Iterator<Item = (usize, LimitReport<'_>)> {
    let can_refuse =
        |limit: &LimitReport<'_>| limit.need == Need::Required && !limit.limit.is_unlimited();
    verdict.limits().enumerate().filter(move |(_, limit)| can_refuse(limit))
}

/// The name under which a client sees a limit: the rule's, and the limit's where a rule has several.
#[must_use]
pub fn policy_name(verdict: &Verdict, limit: &LimitReport<'_>) -> String {
    let mut name = String::new();
    let same = |other: &LimitReport<'_>| (other.rule, other.id) == (limit.rule, limit.id);
    let at = verdict.limits().position(|other| same(&other)).unwrap_or(0);
    push_name(&mut name, verdict, at, limit);
    name
}

/// Limits of one rule stand together, so a rule with several is known by its neighbours.
fn push_name(text: &mut String, verdict: &Verdict, at: usize, limit: &LimitReport<'_>) {
    let rule =
        |at: Option<usize>| at.and_then(|at| verdict.entries.get(at)).map(|entry| entry.rule);
    let mine = rule(Some(at));
    text.push_str(limit.rule);
    if rule(at.checked_sub(1)) == mine || rule(at.checked_add(1)) == mine {
        text.push('/');
        text.push_str(limit.id);
    }
}

/// The limit that leaves least; of several, the one that refuses longest.
fn tightest(verdict: &Verdict) -> Option<(usize, LimitReport<'_>)> {
    told(verdict).min_by_key(|(_, limit)| {
        (limit.decision.passes(), limit.decision.remaining, std::cmp::Reverse(effective(limit)))
    })
}

/// `"burst";q=100;w=10`, behind the name: the promise.
fn push_policy(text: &mut String, limit: &LimitReport<'_>) {
    let amount = limit.limit.amount();
    match limit.limit.period() {
        Period::Every(span) => {
            let (quota, window) = whole_seconds(amount, *span);
            push_number(text, "\";q=", quota);
            push_number(text, ";w=", window);
        }
        // Days and months have no one length.
        Period::Calendar(_) => push_number(text, "\";q=", amount),
    }
}

/// `"burst";r=57;t=4`, behind the name: within the next t seconds no more than r.
fn push_state(text: &mut String, limit: &LimitReport<'_>) {
    push_number(text, "\";r=", limit.decision.remaining);
    if let Some(span) = effective(limit) {
        push_number(text, ";t=", seconds(span));
    }
}

fn push_number(text: &mut String, before: &str, number: u64) {
    text.push_str(before);
    text.push_str(itoa::Buffer::new().format(clamp(number)));
}

/// A rate per whole seconds: a window of 500 ms is told as one second of twice as much.
fn whole_seconds(amount: u64, period: Span) -> (u64, u64) {
    let nanos = u128::from(period.as_nanos()).max(1);
    let window = nanos.div_ceil(NANOS_PER_SEC).max(1);
    let quota = u128::from(amount)
        .saturating_mul(window.saturating_mul(NANOS_PER_SEC))
        .checked_div(nanos)
        .unwrap_or(0);
    (u64::try_from(quota).unwrap_or(u64::MAX), u64::try_from(window).unwrap_or(u64::MAX))
}

/// How long `remaining` holds: until the retry for who is refused, until the next token for buckets, until
/// the reset for windows.
fn effective(limit: &LimitReport<'_>) -> Option<Span> {
    match (limit.decision.outcome, limit.limit.algorithm(), limit.limit.period()) {
        (Outcome::Deny(Retry::After(retry)), _, _) => Some(retry),
        (Outcome::Deny(Retry::Never), _, _) => None,
        (
            _,
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. },
            Period::Every(period),
        ) => {
            let token = period.as_nanos().div_ceil(limit.limit.amount().max(1));
            limit.decision.reset.map(|reset| reset.min(Span::from_nanos(token)))
        }
        (_, _, _) => limit.decision.reset,
    }
}

fn legacy_reset(limit: &LimitReport<'_>, style: LegacyReset, now: Timestamp) -> String {
    let reset = match limit.decision.outcome {
        Outcome::Deny(Retry::After(retry)) => retry,
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => {
            limit.decision.reset.unwrap_or(Span::ZERO)
        }
    };
    match style {
        LegacyReset::Delta => clamp(reset.as_secs_ceil()).to_string(),
        LegacyReset::Epoch => {
            let then = now.as_nanos().saturating_add(reset.as_nanos());
            clamp(then.div_ceil(1_000_000_000)).to_string()
        }
    }
}

/// Whole seconds, rounded up, at least one.
fn seconds(span: Span) -> u64 {
    span.as_secs_ceil().clamp(1, MOST)
}

fn clamp(number: u64) -> u64 {
    number.min(MOST)
}

/// Adds to what is there. Names were checked when the policy was read; were one not fit for a header, it
/// would be left out rather than break the answer.
fn append(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
        headers.append(name, value);
    }
}
