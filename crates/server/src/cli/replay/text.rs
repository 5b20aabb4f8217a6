//! The report as text: a table of the rules, then for each rule that refuses its keys, first refusals and longest lock-out.

use super::report::{
    CountRange, PolicyReport, RecordedReport, ReplayReport, RuleReport, SuggestionReport,
};
use crate::cli::duration::of_millis;
use crate::cli::style;
use crate::cli::table::{self, Column};
use std::io::{self, Write};
use tidegate_policy::printable;

/// Prints the report.
pub(super) fn write(report: &ReplayReport, out: &mut impl Write) -> io::Result<()> {
    write_log(report, out)?;
    if let [first, second] = report.policies.as_slice() {
        write_both(first, second, out)?;
        if let Some(difference) = report.difference {
            writeln!(
                out,
                "  {} requests only the first policy refuses, {} only the second",
                grouped(difference.only_first_refuses),
                grouped(difference.only_second_refuses)
            )?;
        }
    }
    report.policies.iter().try_for_each(|policy| write_policy(policy, out))
}

fn write_log(report: &ReplayReport, out: &mut impl Write) -> io::Result<()> {
    let log = &report.log;
    write!(out, "{} requests", grouped(log.requests))?;
    if let (Some(from), Some(to)) = (&log.from, &log.to) {
        write!(out, " from {from} to {to} ({})", of_millis(log.seconds.saturating_mul(1_000)))?;
    }
    writeln!(out)?;
    if log.interrupted {
        writeln!(out, "{}: this is what was read so far", style::notable("interrupted"))?;
    }
    if log.bad_lines > 0 {
        writeln!(
            out,
            "{}: {} lines could not be read",
            style::notable("bad lines"),
            grouped(log.bad_lines)
        )?;
    }
    for bad in &log.first_bad_lines {
        writeln!(out, "  {}:{}: {}", bad.file, bad.line, printable(&bad.problem))?;
    }
    log.notes.iter().try_for_each(|note| writeln!(out, "{}: {note}", style::notable("note")))
}

// === two policies ===

const BOTH: [Column; 7] = [
    Column::Left("rule"),
    Column::Left("limits"),
    Column::Right("refused"),
    Column::Right("keys"),
    Column::Left("second policy"),
    Column::Right("refused"),
    Column::Right("keys"),
];

/// One table with the rules of both policies, those of one name in one row.
fn write_both(first: &PolicyReport, second: &PolicyReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{} and {}", first.policy, second.policy)?;
    let cells = |rule: Option<&RuleReport>| match rule {
        None => ["-".to_owned(), String::new(), String::new()],
        Some(rule) => [rule.limits.join(", "), ranged(rule.refused), ranged(rule.keys)],
    };
    let named = |policy: &'_ PolicyReport, name: &str| {
        policy.rules.iter().position(|rule| rule.rule == name)
    };
    let row = |name: &str| {
        let [one, other] = [first, second]
            .map(|policy| cells(named(policy, name).and_then(|at| policy.rules.get(at))));
        let ([a, b, c], [d, e, f]) = (one, other);
        [printable(name), a, b, c, d, e, f]
    };
    let only_second = second.rules.iter().filter(|rule| named(first, &rule.rule).is_none());
    let names = first.rules.iter().chain(only_second).map(|rule| &*rule.rule);
    let mut rows: Vec<_> = names.map(row).collect();
    let [one, other] = [first, second].map(|policy| ranged(policy.refused));
    let empty = String::new;
    rows.push(["all requests".to_owned(), empty(), one, empty(), empty(), other, empty()]);
    table::write(BOTH, &rows, out)
}

// === one policy ===

const RULES: [Column; 8] = [
    Column::Left("rule"),
    Column::Left("limits"),
    Column::Right("applied"),
    Column::Right("refused"),
    Column::Right("keys"),
    Column::Right("delayed"),
    Column::Right("would refuse"),
    Column::Right("in first period"),
];

fn write_policy(policy: &PolicyReport, out: &mut impl Write) -> io::Result<()> {
    let refused = ranged(policy.refused);
    let share = format!("{refused} of {} requests refused", grouped(policy.counted));
    let share = match policy.refused.high {
        0 => style::good(share),
        _ => style::bad(share),
    };
    let percent = &policy.refused_percent;
    writeln!(out, "\n{}: {share} ({percent} %)", policy.policy)?;
    for (count, what) in [
        (policy.delayed, "requests were delayed"),
        (policy.malformed_paths, "requests have malformed paths, which are refused"),
        (policy.undecided, "requests could not be decided: an attribute is not valid"),
    ] {
        if count > 0 {
            writeln!(out, "  {} {what}", grouped(count))?;
        }
    }
    policy.recorded.iter().try_for_each(|recorded| write_recorded(recorded, out))?;
    let rows: Vec<_> = policy.rules.iter().map(row).collect();
    table::write(RULES, &rows, out)?;
    for rule in &policy.rules {
        if let Some(why) = &rule.not_evaluated {
            let name = printable(&rule.rule);
            writeln!(out, "  {}: {name}: {why}", style::notable("not evaluated"))?;
        }
    }
    policy.rules.iter().try_for_each(|rule| write_rule(rule, out))
}

fn write_recorded(recorded: &RecordedReport, out: &mut impl Write) -> io::Result<()> {
    let RecordedReport { compared, newly_refused, newly_allowed, first_differences } = recorded;
    let differ = newly_refused.saturating_add(*newly_allowed);
    let [compared, differ, refused, allowed] =
        [*compared, differ, *newly_refused, *newly_allowed].map(grouped);
    writeln!(
        out,
        "  {differ} of {compared} answers differ from the recorded ones: {refused} newly refused, {allowed} newly allowed"
    )?;
    first_differences.iter().try_for_each(|one| {
        writeln!(out, "    {} {}: {}", one.at, one.now, printable(&one.request))
    })
}

fn row(rule: &RuleReport) -> [String; 8] {
    let some = |count: u64| if count == 0 { String::new() } else { grouped(count) };
    [
        printable(&rule.rule),
        rule.limits.join(", "),
        grouped(rule.applied),
        ranged(rule.refused),
        ranged(rule.keys),
        some(rule.delayed),
        some(rule.would_refuse),
        some(rule.refused_early),
    ]
}

const KEYS: [Column; 3] =
    [Column::Left("key"), Column::Right("refused"), Column::Right("longest lock-out")];
const FIRST: [Column; 4] = [
    Column::Left("first refusals"),
    Column::Left("limit"),
    Column::Left("key"),
    Column::Left("request"),
];

/// The details of a rule that refuses something, and suggestions.
fn write_rule(rule: &RuleReport, out: &mut impl Write) -> io::Result<()> {
    if rule.refused.high > 0 {
        writeln!(out, "\n{}", style::heading(printable(&rule.rule)))?;
        let keys: Vec<_> = rule
            .top
            .iter()
            .map(|key| {
                [printable(&key.key), grouped(key.refused), of_millis(key.longest_lock_out_ms)]
            })
            .collect();
        table::write(KEYS, &keys, out)?;
        let first: Vec<_> = rule
            .first
            .iter()
            .map(|one| {
                [one.at.clone(), one.limit.clone(), printable(&one.key), printable(&one.request)]
            })
            .collect();
        table::write(FIRST, &first, out)?;
        if let Some(lock_out) = &rule.longest_lock_out {
            let until = if lock_out.until_the_end { ", until its last request" } else { "" };
            let (key, time) = (printable(&lock_out.key), of_millis(lock_out.ms));
            writeln!(out, "  longest lock-out: {key} for {time} from {}{until}", lock_out.from)?;
        }
    }
    rule.suggestions.iter().try_for_each(|one| write_suggestion(rule, one, out))
}

const NEEDS: [Column; 4] = [
    Column::Left("keys"),
    Column::Right("worst window"),
    Column::Right("× 1.25"),
    Column::Right("rounded up"),
];

fn write_suggestion(
    rule: &RuleReport,
    suggestion: &SuggestionReport,
    out: &mut impl Write,
) -> io::Result<()> {
    let period = of_millis(suggestion.period_ms);
    let period = period.strip_prefix("1 ").unwrap_or(&period);
    let name = printable(&rule.rule);
    writeln!(out, "\n{}", style::heading(format!("{name}: suggestions per {period}")))?;
    if suggestion.needs.is_empty() {
        let why = if suggestion.keys == 0 { "the rule applied to no request" } else { "" };
        let why = if why.is_empty() {
            "too many requests or keys to be exact; take a shorter log"
        } else {
            why
        };
        return writeln!(out, "  none: {why}");
    }
    let rows: Vec<_> = suggestion
        .needs
        .iter()
        .map(|need| {
            let reserve = need.worst_window.saturating_mul(5);
            let reserve = format!("{}.{:02}", reserve / 4, (reserve % 4).saturating_mul(25));
            let proposed = format!("{} per {period}", grouped(need.proposed));
            [need.share.to_owned(), grouped(need.worst_window), reserve, proposed]
        })
        .collect();
    table::write(NEEDS, &rows, out)?;
    let keys = u64::try_from(suggestion.keys).unwrap_or(u64::MAX);
    let above = u64::try_from(suggestion.keys_above).unwrap_or(u64::MAX);
    writeln!(
        out,
        "  now {}; {} of {} keys have a worst window above {}",
        suggestion.limit,
        grouped(above),
        grouped(keys),
        grouped(suggestion.amount)
    )
}

// === numbers ===

/// A range, or one number if both ends are the same.
pub(super) fn ranged(range: CountRange) -> String {
    match range {
        CountRange { low, high } if low == high => grouped(low),
        CountRange { low, high } => format!("{} to {}", grouped(low), grouped(high)),
    }
}

/// `1,234,567`
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len().saturating_mul(2));
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digits.len().saturating_sub(at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
