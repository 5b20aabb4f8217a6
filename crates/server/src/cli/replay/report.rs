//! The report of a replay, as data: printed as text, as JSON and as a page of HTML.
//!
//! If the log shows only whole seconds, every count is a range: what is refused if all requests of a second come at its start, and
//! what is refused if they are spread evenly.

use super::input::LinePlace;
use super::lane::{RecordedComparison, ReplayLane};
use super::log_time::shown;
use super::tally::{FirstRefusal, LockOut, RuleTally, Series, counted_from};
use super::windows::Suggestion;
use serde::Serialize;
use tidegate_policy::{Policy, Rule};

/// Everything that a replay found.
#[derive(Debug, Serialize)]
pub(super) struct ReplayReport {
    pub(super) log: LogReport,
    pub(super) policies: Vec<PolicyReport>,
    /// Of two policies: what only one of them refuses.
    pub(super) difference: Option<PolicyDifference>,
}

/// What the log has.
#[derive(Debug, Serialize)]
pub(super) struct LogReport {
    pub(super) requests: u64,
    /// The arrival of the first and of the last request.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) seconds: u64,
    pub(super) bad_lines: u64,
    pub(super) first_bad_lines: Vec<BadLine>,
    /// Whether the user ended the replay before the end of the log.
    pub(super) interrupted: bool,
    /// What makes the counts less certain.
    pub(super) notes: Vec<String>,
}

/// A line that could not be read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BadLine {
    pub(super) file: String,
    pub(super) line: u64,
    pub(super) problem: String,
}

/// Requests that one of two policies refuses, and the other lets pass.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct PolicyDifference {
    pub(super) only_first_refuses: u64,
    pub(super) only_second_refuses: u64,
}

/// What one policy does.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    /// Requests after the shortest first period of a limit.
    pub(super) counted: u64,
    pub(super) refused: CountRange,
    /// The larger end of `refused`, as a share of `counted`.
    pub(super) refused_percent: String,
    pub(super) delayed: u64,
    pub(super) malformed_paths: u64,
    pub(super) undecided: u64,
    /// How the answers differ from the recorded ones.
    pub(super) recorded: Option<RecordedReport>,
    pub(super) rules: Vec<RuleReport>,
    pub(super) series: SeriesReport,
}

/// A count at the two extremes of what whole seconds may hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CountRange {
    pub(super) low: u64,
    pub(super) high: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RecordedReport {
    pub(super) compared: u64,
    pub(super) newly_refused: u64,
    pub(super) newly_allowed: u64,
    pub(super) first_differences: Vec<DifferenceReport>,
}

/// A request that is answered differently from its recording.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DifferenceReport {
    pub(super) at: String,
    pub(super) request: String,
    pub(super) now: &'static str,
}

/// What one rule does.
#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    pub(super) limits: Vec<String>,
    /// Why the rule cannot be evaluated on this log, if that is so.
    pub(super) not_evaluated: Option<String>,
    /// When the first period of each limit is over; refusals before are in `refused_early`.
    pub(super) counts_from: Vec<String>,
    pub(super) applied: u64,
    pub(super) refused: CountRange,
    pub(super) refused_early: u64,
    pub(super) delayed: u64,
    /// What it would refuse if it were not in shadow mode, or did not only flag or deprioritize.
    pub(super) would_refuse: u64,
    pub(super) keys: CountRange,
    pub(super) top: Vec<TopKey>,
    pub(super) first: Vec<FirstReport>,
    pub(super) longest_lock_out: Option<LockOutReport>,
    pub(super) suggestions: Vec<SuggestionReport>,
    pub(super) series: SeriesReport,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TopKey {
    pub(super) key: String,
    pub(super) refused: u64,
    pub(super) longest_lock_out_ms: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FirstReport {
    pub(super) at: String,
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) request: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LockOutReport {
    pub(super) key: String,
    pub(super) from: String,
    pub(super) ms: u64,
    /// Whether no request of the key passed until the end of the log.
    pub(super) until_the_end: bool,
}

/// What a limit would need.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SuggestionReport {
    pub(super) limit: String,
    pub(super) amount: u64,
    pub(super) period_ms: u64,
    pub(super) keys: usize,
    /// Keys whose worst window is above the limit.
    pub(super) keys_above: usize,
    /// Empty if there were too many requests or keys to be exact.
    pub(super) needs: Vec<NeedReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct NeedReport {
    pub(super) share: &'static str,
    pub(super) worst_window: u64,
    pub(super) proposed: u64,
}

/// Requests and refusals over time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SeriesReport {
    pub(super) from_ms: u64,
    pub(super) step_ms: u64,
    pub(super) requests: Vec<u64>,
    pub(super) refused: Vec<u64>,
}

const TOP_KEYS: usize = 20;
const NANOS_PER_MS: u64 = 1_000_000;

// === building ===

/// The report of one policy. `other` is the lane with the other placement of whole seconds.
pub(super) fn of_policy(
    policy: String,
    lane: &ReplayLane,
    other: Option<&ReplayLane>,
    lacking: &dyn Fn(&Rule) -> Option<String>,
) -> PolicyReport {
    let tally = &lane.tally;
    let refused = CountRange::of(tally.refused, other.map(|other| other.tally.refused));
    let rules = lane.policy().rules().iter().enumerate();
    let rules = rules.filter(|(_, rule)| rule.enabled());
    let rules = rules.map(|(number, _)| of_rule(number, lane, other, lacking)).collect();
    PolicyReport {
        policy,
        counted: tally.counted,
        refused,
        refused_percent: percent(refused.high, tally.counted),
        delayed: tally.delayed,
        malformed_paths: tally.unreadable,
        undecided: tally.undecided,
        recorded: RecordedReport::of(&lane.recorded),
        rules,
        series: SeriesReport::of(&tally.series),
    }
}

fn of_rule(
    number: usize,
    lane: &ReplayLane,
    other: Option<&ReplayLane>,
    lacking: &dyn Fn(&Rule) -> Option<String>,
) -> RuleReport {
    let (policy, none) = (lane.policy(), RuleTally::default());
    let tally = lane.tally.rules.get(number).unwrap_or(&none);
    let second = other.map(|other| other.tally.rules.get(number).unwrap_or(&none));
    let rule = policy.rules().get(number);
    let limits = || rule.into_iter().flat_map(|rule| rule.allowance().limits());
    let off = lane.turned_off.iter().find(|(off, _)| *off == number).map(|(_, why)| *why);
    let begin = lane.begin.unwrap_or(0);
    let keys = |tally: &RuleTally| u64::try_from(tally.keys.len()).unwrap_or(u64::MAX);
    RuleReport {
        rule: rule.map(Rule::name).unwrap_or_default().to_owned(),
        limits: limits().map(tidegate::RuleLimit::summary).collect(),
        not_evaluated: off.map(str::to_owned).or_else(|| rule.and_then(lacking)),
        counts_from: limits().map(|limit| shown(counted_from(limit.limit(), begin))).collect(),
        applied: tally.applied,
        refused: CountRange::of(tally.refused, second.map(|second| second.refused)),
        refused_early: tally.early,
        delayed: tally.delayed,
        would_refuse: tally.marked,
        keys: CountRange::of(keys(tally), second.map(keys)),
        top: top(tally),
        first: tally.first.iter().map(FirstReport::of).collect(),
        longest_lock_out: tally.longest.as_ref().map(LockOutReport::of),
        suggestions: suggestions(lane, number),
        series: SeriesReport::of(&tally.series),
    }
}

fn top(tally: &RuleTally) -> Vec<TopKey> {
    let keys = tally.top(TOP_KEYS).into_iter().map(|key| TopKey {
        key: key.key.to_string(),
        refused: key.refused,
        longest_lock_out_ms: key.longest / NANOS_PER_MS,
    });
    keys.collect()
}

fn suggestions(lane: &ReplayLane, number: usize) -> Vec<SuggestionReport> {
    let all = lane.windows.iter().flat_map(super::windows::WindowTally::suggestions);
    all.filter(|one| one.rule == number).map(SuggestionReport::of).collect()
}

/// Why a rule cannot be evaluated: the attributes that the log lacks or has only as digests.
pub(super) fn lacking(
    rule: &Rule,
    knows: impl Fn(&str) -> bool,
    shows: impl Fn(&str) -> bool,
) -> Option<String> {
    let lacking = rule.lacking(&knows, &shows);
    let (hashed, missing): (Vec<&str>, Vec<&str>) =
        lacking.into_iter().partition(|name| knows(name));
    let listed = |names: &[&str]| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    match (hashed.as_slice(), missing.as_slice()) {
        ([], []) => None,
        (_, [_, ..]) => {
            Some(format!("the log has no {}; name its field with --attribute", listed(&missing)))
        }
        (_, []) => Some(format!(
            "it compares {}, which the recording has only as digests",
            listed(&hashed)
        )),
    }
}

/// Notes about what all rules share.
pub(super) fn policy_notes(policy: &Policy, knows: impl Fn(&str) -> bool) -> Vec<String> {
    let mut notes = Vec::new();
    if policy.tiers().usual().is_some() && !knows("tier") {
        notes.push("the log has no `tier`, so every request has the default tier".to_owned());
    }
    notes
}

// === parts ===

impl CountRange {
    pub(super) fn of(one: u64, other: Option<u64>) -> Self {
        let other = other.unwrap_or(one);
        Self { low: one.min(other), high: one.max(other) }
    }
}

impl RecordedReport {
    /// `None` if the log is no recording.
    fn of(recorded: &RecordedComparison) -> Option<Self> {
        let RecordedComparison { compared, newly_refused, newly_allowed, first } = recorded.clone();
        let first = first.into_iter().map(|one| DifferenceReport {
            at: shown(one.at),
            request: one.request,
            now: if one.allowed { "passes" } else { "is refused" },
        });
        let first_differences = first.collect();
        (compared > 0).then_some(Self { compared, newly_refused, newly_allowed, first_differences })
    }
}

impl FirstReport {
    fn of(refusal: &FirstRefusal) -> Self {
        let FirstRefusal { at, limit, key, request } = refusal.clone();
        Self { at: shown(at), limit, key, request }
    }
}

impl LockOutReport {
    fn of(lock_out: &LockOut) -> Self {
        let LockOut { key, from, nanos, open } = lock_out.clone();
        Self { key, from: shown(from), ms: nanos / NANOS_PER_MS, until_the_end: open }
    }
}

impl SuggestionReport {
    fn of(suggestion: Suggestion) -> Self {
        let needs = suggestion.needs.into_iter().flatten().map(|need| NeedReport {
            share: need.share,
            worst_window: need.worst,
            proposed: need.proposed,
        });
        Self {
            limit: suggestion.limit,
            amount: suggestion.amount,
            period_ms: suggestion.period.as_nanos() / NANOS_PER_MS,
            keys: suggestion.keys,
            keys_above: suggestion.above,
            needs: needs.collect(),
        }
    }
}

impl SeriesReport {
    fn of(series: &Series) -> Self {
        Self {
            from_ms: series.begin().unwrap_or(0) / NANOS_PER_MS,
            step_ms: series.step / NANOS_PER_MS,
            requests: series.steps.iter().map(|(requests, _)| *requests).collect(),
            refused: series.steps.iter().map(|(_, refused)| *refused).collect(),
        }
    }
}

impl BadLine {
    pub(super) fn new(place: &LinePlace, problem: String) -> Self {
        Self { file: place.file.to_string(), line: place.line, problem }
    }
}

/// A share in per cent, rounded up to three digits after the point, so that it is 0 only if nothing is refused.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0".to_owned();
    }
    let thousandths = u128::from(part).saturating_mul(100_000).div_ceil(u128::from(whole));
    let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
