//! Writes a verdict as header fields: `RateLimit`, `RateLimit-Policy`, `Retry-After` and the older `X-RateLimit-*`.

use crate::limit_report::LimitReport;
use crate::verdict::{CALLER_RULE, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::borrow::Cow;
use std::cell::RefCell;
use tidegate_core::{Algorithm, Need, Outcome, Period, Retry, Span, Timestamp};

/// Which header fields are written, and how. The default is `RateLimit` and `RateLimit-Policy` with all limits.
///
/// ```
/// use tidegate::http::{HeaderStyle, LegacyReset};
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [5/min] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let verdict = limiter.check_now(&Check::new(&request))?;
/// // Only the older fields, for clients that do not know the new ones.
/// let style = HeaderStyle { fields: false, legacy: Some(LegacyReset::Delta), ..HeaderStyle::default() };
/// let mut headers = http::HeaderMap::new();
/// style.write(&verdict, &mut headers);
/// assert_eq!(headers["x-ratelimit-limit"], "5");
/// assert_eq!(headers["x-ratelimit-remaining"], "4");
/// assert!(!headers.contains_key("ratelimit"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStyle {
    /// Whether to write `RateLimit` and `RateLimit-Policy`.
    pub fields: bool,
    /// Whether to write `X-RateLimit-*`, and in which form the reset time is written.
    pub legacy: Option<LegacyReset>,
    /// Whether to show all limits or only the tightest.
    pub reduced: Reduced,
}

/// The form of `X-RateLimit-Reset`. It was never standardized, so servers differ.
///
/// ```
/// use tidegate::http::{HeaderStyle, LegacyReset};
/// # use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
/// # let clock = Clock::manual(Timestamp::from_nanos(1_800_000_000_000_000_000));
/// # let rules = "[{ name: all, key: [], limits: [{ rate: 5/min, algorithm: fixed_window }] }]";
/// # let policy = Policy::parse(format!("{{ version: 1, rules: {rules} }}"))?;
/// # let limiter = Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock)?;
/// # let request = Attributes::new();
/// # let verdict = limiter.check_now(&Check::new(&request))?;
/// // It is 2027-01-15 08:00:00 UTC, and the window ends in one minute.
/// for (reset, value) in [(LegacyReset::Delta, "60"), (LegacyReset::Epoch, "1800000060")] {
///     let mut headers = http::HeaderMap::new();
///     HeaderStyle { legacy: Some(reset), ..HeaderStyle::default() }.write(&verdict, &mut headers);
///     assert_eq!(headers["x-ratelimit-reset"], value);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now, as Envoy and Kong write it.
    Delta,
    /// Seconds since 1970, as GitHub writes it.
    Epoch,
}

/// How many limits the fields show.
///
/// ```
/// use tidegate::http::{HeaderStyle, Reduced};
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [5/h, 90/day] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let verdict = limiter.check_now(&Check::new(&request))?;
/// let mut headers = http::HeaderMap::new();
/// HeaderStyle { reduced: Reduced::ToTightest, ..HeaderStyle::default() }.write(&verdict, &mut headers);
/// assert_eq!(headers["ratelimit-policy"], "\"all/h\";q=5;w=3600");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduced {
    /// All limits.
    #[default]
    No,
    /// Only the limit with the least remaining.
    ToTightest,
}

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

thread_local! {
    /// Buffers in which fields are assembled, so that the only allocation is that of the final value.
    static DRAFTS: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// The largest integer of a structured field: fifteen digits (RFC 9651).
const MOST: u64 = 999_999_999_999_999;
const NANOS_PER_SEC: u128 = 1_000_000_000;

impl Default for HeaderStyle {
    fn default() -> Self {
        Self { fields: true, legacy: None, reduced: Reduced::No }
    }
}

impl HeaderStyle {
    /// Writes the fields of a verdict. Items that `RateLimit` and `RateLimit-Policy` already have, for example from a service
    /// behind this one, stay.
    ///
    /// ```
    /// use tidegate::http::HeaderStyle;
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [5/min] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// let verdict = limiter.check_now(&Check::new(&request))?;
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
            let shown = shown(verdict).filter(|(at, _)| only.is_none_or(|only| only == *at));
            DRAFTS.with_borrow_mut(|[policies, states]| {
                policies.clear();
                states.clear();
                for (at, limit) in shown {
                    push_items(policies, states, verdict, at, &limit);
                }
                append(headers, POLICY, policies);
                append(headers, STATE, states);
            });
        }
        if let Some(reset) = self.legacy {
            append_legacy(headers, verdict, reset);
        }
        if let Outcome::Deny(Retry::After(retry)) = verdict.outcome {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry)));
        }
    }
}

/// Adds the `X-RateLimit-*` fields of the tightest limit.
fn append_legacy(headers: &mut HeaderMap, verdict: &Verdict, reset: LegacyReset) {
    let Some((_, limit)) = tightest(verdict) else { return };
    for (name, value) in [
        (LEGACY_LIMIT, clamp(limit.limit.amount())),
        (LEGACY_REMAINING, clamp(limit.decision.remaining)),
        (LEGACY_RESET, legacy_reset(&limit, reset, verdict.decided_at)),
    ] {
        append(headers, name, value.to_string().as_bytes());
    }
}

/// The limits that clients see: those that can deny, each with its index among all limits.
fn shown(verdict: &Verdict) -> impl Iterator<Item = (usize, LimitReport<'_>)> {
    let can_refuse =
        |limit: &LimitReport<'_>| limit.need == Need::Required && !limit.limit.is_unlimited();
    verdict.limits().enumerate().filter(move |(_, limit)| can_refuse(limit))
}

/// The name under which clients see a limit: that of its rule, followed by that of the limit if the rule has several.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules:
///   - { name: all, key: [], limits: [9/s] }
///   - { name: each, key: [], limits: [5/s, 90/h] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let verdict = limiter.check_now(&Check::new(&request))?;
/// let names: Vec<String> =
///     verdict.limits().map(|limit| tidegate::http::policy_name(&verdict, &limit)).collect();
/// assert_eq!(names, ["all", "each/s", "each/h"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn policy_name(verdict: &Verdict, limit: &LimitReport<'_>) -> String {
    let same = |other: &LimitReport<'_>| (other.rule, other.id) == (limit.rule, limit.id);
    let at = verdict.limits().position(|other| same(&other)).unwrap_or(0);
    let several = is_one_of_several(verdict, at);
    if several { format!("{}/{}", limit.rule, limit.id) } else { limit.rule.to_owned() }
}

/// Whether the limit at this index is one of several of its rule. Limits of one rule are adjacent, so its neighbours tell.
fn is_one_of_several(verdict: &Verdict, at: usize) -> bool {
    let rule =
        |at: Option<usize>| at.and_then(|at| verdict.entries.get(at)).map(|entry| entry.rule);
    let mine = rule(Some(at));
    rule(at.checked_sub(1)) == mine || rule(at.checked_add(1)) == mine
}

/// The tightest limit: one that denies, then the one with the least remaining, then the one with the longest wait.
fn tightest(verdict: &Verdict) -> Option<(usize, LimitReport<'_>)> {
    shown(verdict).min_by_key(|(_, limit)| {
        (limit.decision.passes(), limit.decision.remaining, std::cmp::Reverse(effective(limit)))
    })
}

/// Adds the two items of a limit: its policy, `"burst";q=100;w=10` (100 per 10 s), and its state, `"burst";r=57;t=4` (at
/// most 57 more within the next 4 s).
fn push_items(
    policies: &mut Vec<u8>,
    states: &mut Vec<u8>,
    verdict: &Verdict,
    at: usize,
    limit: &LimitReport<'_>,
) {
    let policy_item = || format!("\"{}\"{}", policy_name(verdict, limit), quota(limit));
    // The policy item of a rule never changes, so it is cached with the limit. Not for a limit that the caller named: the
    // caller may have passed the limit of a rule, whose item has another name.
    let entry = verdict.entries.get(at).filter(|entry| entry.rule != CALLER_RULE);
    let policy_item: Cow<'_, str> = match entry.and_then(|entry| entry.limit(&verdict.live)) {
        Some(limit) => limit.note(policy_item).into(),
        None => policy_item().into(),
    };
    let between = if policies.is_empty() { "" } else { ", " };
    for field in [&mut *policies, states] {
        field.extend_from_slice(between.as_bytes());
    }
    policies.extend_from_slice(policy_item.as_bytes());
    // The quoted name is the part up to the second quotation mark.
    let name = policy_item.bytes().skip(1).position(|byte| byte == b'"');
    let name = name.and_then(|length| policy_item.get(..length.saturating_add(2)));
    states.extend_from_slice(name.unwrap_or_default().as_bytes());
    push_number(states, b";r=", limit.decision.remaining);
    if let Some(span) = effective(limit) {
        push_number(states, b";t=", seconds(span));
    }
}

fn quota(limit: &LimitReport<'_>) -> String {
    let amount = limit.limit.amount();
    match limit.limit.period() {
        // A quota of requests in flight, which has no window.
        Period::Every(_) if limit.limit.lease().is_some() => {
            format!(";q={};qu=\"concurrent-requests\"", clamp(amount))
        }
        Period::Every(span) => {
            let (quota, window) = whole_seconds(amount, *span);
            format!(";q={};w={}", clamp(quota), clamp(window))
        }
        // Calendar days and months differ in length.
        Period::Calendar(_) => format!(";q={}", clamp(amount)),
    }
}

fn push_number(text: &mut Vec<u8>, before: &[u8], number: u64) {
    text.extend_from_slice(before);
    text.extend_from_slice(itoa::Buffer::new().format(clamp(number)).as_bytes());
}

/// A rate per whole seconds: 1 per 500 ms becomes 2 per 1 s.
fn whole_seconds(amount: u64, period: Span) -> (u64, u64) {
    let nanos = u128::from(period.as_nanos()).max(1);
    let window = nanos.div_ceil(NANOS_PER_SEC).max(1);
    let quota = u128::from(amount)
        .saturating_mul(window.saturating_mul(NANOS_PER_SEC))
        .checked_div(nanos)
        .unwrap_or(0);
    (u64::try_from(quota).unwrap_or(u64::MAX), u64::try_from(window).unwrap_or(u64::MAX))
}

/// How long `remaining` is valid: until the retry time on a denial, until the next token for buckets, until the reset for
/// windows.
fn effective(limit: &LimitReport<'_>) -> Option<Span> {
    // How many permits remain may change at any moment.
    if limit.limit.lease().is_some() {
        return None;
    }
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

fn legacy_reset(limit: &LimitReport<'_>, style: LegacyReset, now: Timestamp) -> u64 {
    let reset = match limit.decision.outcome {
        Outcome::Deny(Retry::After(retry)) => retry,
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => {
            limit.decision.reset.unwrap_or(Span::ZERO)
        }
    };
    match style {
        LegacyReset::Delta => clamp(reset.as_secs_ceil()),
        LegacyReset::Epoch => {
            let then = now.as_nanos().saturating_add(reset.as_nanos());
            clamp(then.div_ceil(1_000_000_000))
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

/// Adds a line to a field. Names were validated when the policy was parsed. If a value were not valid in a header all the
/// same, it would be left out rather than break the response.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}
