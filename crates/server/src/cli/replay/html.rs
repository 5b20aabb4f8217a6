//! The report as one page of HTML with plots. It needs no network: style and plots (SVG) are in the page. All texts from the log are
//! escaped.

use super::report::{PolicyReport, ReplayReport, RuleReport, SeriesReport};
use super::text::{grouped, ranged};
use crate::cli::duration::of_millis;
use std::fmt::{self, Write};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #d7dce1}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}.note{background:#fff6dc;padding:.4rem .8rem}\
code{overflow-wrap:anywhere}.all{fill:#b9c6d6}.bad{fill:#c0392b}figcaption{color:#57606a}figure{margin:1rem 0}";

/// Width and height of a plot.
const WIDE: u64 = 960;
const HIGH: u64 = 120;

/// Writes the page.
pub(super) fn page(report: &ReplayReport) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(report, &mut out);
    out
}

fn write_page(report: &ReplayReport, out: &mut String) -> fmt::Result {
    let log = &report.log;
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>tidegate replay</title><style>{STYLE}</style></head><body>\n<h1>What these limits would have refused</h1>\n"
    )?;
    let (from, to) = (log.from.as_deref().unwrap_or("-"), log.to.as_deref().unwrap_or("-"));
    writeln!(out, "<p>{} requests from {from} to {to}.</p>", grouped(log.requests))?;
    if log.interrupted {
        writeln!(
            out,
            "<p class=\"note\">The replay was interrupted; this is what it had read.</p>"
        )?;
    }
    if log.bad_lines > 0 {
        writeln!(out, "<p class=\"note\">{} lines could not be read.</p>", grouped(log.bad_lines))?;
    }
    for note in &log.notes {
        writeln!(out, "<p class=\"note\">{}</p>", escaped(note))?;
    }
    report.policies.iter().try_for_each(|policy| write_policy(policy, out))?;
    writeln!(out, "</body></html>")
}

fn write_policy(policy: &PolicyReport, out: &mut String) -> fmt::Result {
    let (refused, counted) = (ranged(policy.refused), grouped(policy.counted));
    writeln!(out, "<h2>{}</h2>", escaped(&policy.policy))?;
    writeln!(
        out,
        "<p><strong>{refused} of {counted} requests refused ({} %).</strong></p>",
        policy.refused_percent
    )?;
    write_plot(&policy.series, out)?;
    let rows = policy.rules.iter().map(|rule| {
        let numbers = [grouped(rule.applied), ranged(rule.refused), ranged(rule.keys)];
        (vec![rule.rule.clone(), rule.limits.join(", ")], numbers.to_vec())
    });
    write_table(&["rule", "limits"], &["applied", "refused", "keys"], rows, out)?;
    policy.rules.iter().try_for_each(|rule| write_rule(rule, out))
}

fn write_rule(rule: &RuleReport, out: &mut String) -> fmt::Result {
    if let Some(why) = &rule.not_evaluated {
        let name = escaped(&rule.rule);
        writeln!(out, "<p class=\"note\">{name} was not evaluated: {}.</p>", escaped(why))?;
    }
    if rule.refused.high == 0 && rule.suggestions.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h3>{}</h3>", escaped(&rule.rule))?;
    if rule.refused.high > 0 {
        write_plot(&rule.series, out)?;
        let top = rule.top.iter().map(|key| {
            let numbers = vec![grouped(key.refused), of_millis(key.longest_lock_out_ms)];
            (vec![key.key.clone()], numbers)
        });
        write_table(&["key"], &["refused", "longest lock-out"], top, out)?;
        let first = rule.first.iter().map(|one| {
            let texts = [&one.at, &one.limit, &one.key, &one.request].map(Clone::clone);
            (texts.to_vec(), vec![])
        });
        write_table(&["first refusals", "limit", "key", "request"], &[], first, out)?;
    }
    for one in &rule.suggestions {
        let period = of_millis(one.period_ms);
        writeln!(out, "<p>Suggestions per {period}; now {}.</p>", escaped(&one.limit))?;
        let rows = one.needs.iter().map(|need| {
            (vec![need.share.to_owned()], vec![grouped(need.worst_window), grouped(need.proposed)])
        });
        write_table(&["keys"], &["worst window", "proposed"], rows, out)?;
    }
    Ok(())
}

/// A table with columns of text, then of numbers.
fn write_table(
    texts: &[&str],
    numbers: &[&str],
    rows: impl Iterator<Item = (Vec<String>, Vec<String>)>,
    out: &mut String,
) -> fmt::Result {
    write!(out, "<table><tr>")?;
    texts.iter().try_for_each(|heading| write!(out, "<th>{heading}</th>"))?;
    numbers.iter().try_for_each(|heading| write!(out, "<th class=\"n\">{heading}</th>"))?;
    writeln!(out, "</tr>")?;
    for (texts, numbers) in rows {
        write!(out, "<tr>")?;
        texts.iter().try_for_each(|text| write!(out, "<td><code>{}</code></td>", escaped(text)))?;
        numbers
            .iter()
            .try_for_each(|text| write!(out, "<td class=\"n\">{}</td>", escaped(text)))?;
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>")
}

/// Bars for requests over time, with the refused part in another colour.
fn write_plot(series: &SeriesReport, out: &mut String) -> fmt::Result {
    let most = series.requests.iter().copied().max().unwrap_or(0).max(1);
    let steps = u64::try_from(series.requests.len()).unwrap_or(1).max(1);
    let scaled = |number: u64, to: u64, of: u64| {
        let scaled =
            u128::from(number).saturating_mul(u128::from(to)).div_ceil(u128::from(of.max(1)));
        u64::try_from(scaled).unwrap_or(to)
    };
    write!(
        out,
        "<figure><svg viewBox=\"0 0 {WIDE} {HIGH}\" role=\"img\" aria-label=\"requests over time\">"
    )?;
    for ((at, all), refused) in (0..).zip(&series.requests).zip(&series.refused) {
        let (x, end) = (scaled(at, WIDE, steps), scaled(at.saturating_add(1), WIDE, steps));
        let wide = end.saturating_sub(x).max(1);
        for (class, number) in [("all", *all), ("bad", *refused)] {
            let high = scaled(number, HIGH, most);
            let y = HIGH.saturating_sub(high);
            if high > 0 {
                write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\"/>"
                )?;
            }
        }
    }
    let (step, refused) = (of_millis(series.step_ms), series.refused.iter().copied().max());
    let (most, refused) = (grouped(most), grouped(refused.unwrap_or(0)));
    writeln!(
        out,
        "</svg><figcaption>Requests in each {step}: at most {most}; refused (red): at most {refused}.</figcaption></figure>"
    )
}

/// A text without characters that HTML or a reader's eye could take for something else.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in tidegate_policy::printable(text).chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_log_cannot_become_markup() {
        let text = escaped("<script>alert('\"&')</script>\u{202e}");
        assert_eq!(text, "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;\u{fffd}");
    }

    #[test]
    fn bars_are_within_the_plot() {
        let series = SeriesReport {
            from_ms: 0,
            step_ms: 1_000,
            requests: vec![7, 3, 0, u64::MAX],
            refused: vec![0, 3, 0, 1],
        };
        let mut out = String::new();
        write_plot(&series, &mut out).unwrap();
        assert_eq!(out.matches("class=\"all\"").count(), 3);
        assert!(out.contains("x=\"720\" y=\"0\" width=\"240\" height=\"120\""), "{out}");
    }
}
