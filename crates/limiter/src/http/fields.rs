//! Verdict to header fields.

use crate::verdict::{LimitReport, OF_CALLER, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::borrow::Cow;
use std::cell::RefCell;
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

thread_local! {
    /// Where fields are put together, so that no memory is asked for but that of the field itself.
    static DRAFTS: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

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
            let told = told(verdict).filter(|(at, _)| only.is_none_or(|only| only == *at));
            DRAFTS.with_borrow_mut(|[policies, states]| {
                policies.clear();
                states.clear();
                for (at, limit) in told {
                    push_items(policies, states, verdict, at, &limit);
                }
                append(headers, POLICY, policies);
                append(headers, STATE, states);
            });
        }
        let legacy = self.legacy.and_then(|reset| Some((reset, tightest(verdict)?.1)));
        if let Some((reset, limit)) = legacy {
            append(headers, LEGACY_LIMIT, clamp(limit.limit.amount()).to_string().as_bytes());
            append(
                headers,
                LEGACY_REMAINING,
                clamp(limit.decision.remaining).to_string().as_bytes(),
            );
            append(
                headers,
                LEGACY_RESET,
                legacy_reset(&limit, reset, verdict.decided_at).as_bytes(),
            );
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
    let same = |other: &LimitReport<'_>| (other.rule, other.id) == (limit.rule, limit.id);
    let at = verdict.limits().position(|other| same(&other)).unwrap_or(0);
    let several = is_one_of_several(verdict, at);
    if several { format!("{}/{}", limit.rule, limit.id) } else { limit.rule.to_owned() }
}

/// Limits of one rule stand together, so a rule with several is known by its neighbours.
fn is_one_of_several(verdict: &Verdict, at: usize) -> bool {
    let rule =
        |at: Option<usize>| at.and_then(|at| verdict.entries.get(at)).map(|entry| entry.rule);
    let mine = rule(Some(at));
    rule(at.checked_sub(1)) == mine || rule(at.checked_add(1)) == mine
}

/// The limit that leaves least; of several, the one that refuses longest.
fn tightest(verdict: &Verdict) -> Option<(usize, LimitReport<'_>)> {
    told(verdict).min_by_key(|(_, limit)| {
        (limit.decision.passes(), limit.decision.remaining, std::cmp::Reverse(effective(limit)))
    })
}

/// `"burst";q=100;w=10`, the promise, and `"burst";r=57;t=4`: within the next t seconds no more than r.
fn push_items(
    policies: &mut Vec<u8>,
    states: &mut Vec<u8>,
    verdict: &Verdict,
    at: usize,
    limit: &LimitReport<'_>,
) {
    let promise = || format!("\"{}\"{}", policy_name(verdict, limit), quota(limit));
    // What a rule promises is always the same, so it is kept with its limit. A caller's limit may be a rule's as well.
    let entry = verdict.entries.get(at).filter(|entry| entry.rule != OF_CALLER);
    let promise: Cow<'_, str> = match entry.and_then(|entry| entry.limit(&verdict.live)) {
        Some(kept) => kept.note(promise).into(),
        None => promise().into(),
    };
    let between = if policies.is_empty() { "" } else { ", " };
    for field in [&mut *policies, states] {
        field.extend_from_slice(between.as_bytes());
    }
    policies.extend_from_slice(promise.as_bytes());
    // Up to the second quotation mark.
    let name = promise.bytes().skip(1).position(|byte| byte == b'"');
    let name = name.and_then(|length| promise.get(..length.saturating_add(2)));
    states.extend_from_slice(name.unwrap_or_default().as_bytes());
    push_number(states, b";r=", limit.decision.remaining);
    if let Some(span) = effective(limit) {
        push_number(states, b";t=", seconds(span));
    }
}

fn quota(limit: &LimitReport<'_>) -> String {
    let amount = limit.limit.amount();
    match limit.limit.period() {
        Period::Every(span) => {
            let (quota, window) = whole_seconds(amount, *span);
            format!(";q={};w={}", clamp(quota), clamp(window))
        }
        // Days and months have no one length.
        Period::Calendar(_) => format!(";q={}", clamp(amount)),
    }
}

fn push_number(text: &mut Vec<u8>, before: &[u8], number: u64) {
    text.extend_from_slice(before);
    text.extend_from_slice(itoa::Buffer::new().format(clamp(number)).as_bytes());
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
fn append(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}
