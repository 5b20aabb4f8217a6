//! Comparing tidegate with a peer: medians of alternating rounds, one line per comparison, one section of BENCHMARKS.md
//! per experiment.
//!
//! The speed of a shared machine varies by tens of percent within minutes. So two programs are compared only when their
//! rounds alternated: then both see the same good and bad moments.

#![expect(clippy::float_arithmetic, reason = "medians and ratios, for people")]

use crate::{root, say};
use std::fs;

/// One comparison, which becomes one row of a table. For rates a larger number is better, for latencies and bytes a
/// smaller one.
pub(crate) struct Comparison<'c> {
    pub(crate) bench: &'c str,
    pub(crate) case: &'c str,
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) peer_name: &'c str,
    pub(crate) unit: &'c str,
}

impl Comparison<'_> {
    /// Prints it, for people or as JSON, and returns it as a row of a Markdown table.
    pub(crate) fn print(&self, json: bool) -> String {
        let Self { bench, case, ours, peer, peer_name, unit } = self;
        let ratio = ours / peer;
        say(&if json {
            format!(
                "{{\"bench\":\"{bench}\",\"case\":\"{case}\",\"ours\":{ours:.1},\"peer\":{peer:.1},\"peer_name\":\"{peer_name}\",\"unit\":\"{unit}\",\"ratio\":{ratio:.2}}}"
            )
        } else {
            format!(
                "{case:28} {ours:>12.1} {unit:6}  {peer_name:14} {peer:>12.1} {unit:6}  ratio {ratio:.2}"
            )
        });
        format!("| {case} | {ours:.0} {unit} | {peer_name} | {peer:.0} {unit} | {ratio:.2} |\n")
    }
}

const TABLE_HEAD: &str =
    "| case | tidegate | peer | peer's result | ratio |\n|---|--:|---|--:|--:|\n";

/// Writes a section to the end of BENCHMARKS.md; an older section with the same title is removed.
pub(crate) fn write_section(title: &str, text: &str, rows: &[String]) -> Result<(), String> {
    let path = root().join("BENCHMARKS.md");
    let before = fs::read_to_string(&path).map_err(|error| format!("BENCHMARKS.md: {error}"))?;
    let rows: String = rows.concat();
    let text = with_section(&before, title, &format!("{text}\n\n{TABLE_HEAD}{rows}"));
    fs::write(&path, text).map_err(|error| format!("BENCHMARKS.md: {error}"))
}

/// A page with this section at its end, instead of an older one with the same title.
pub(crate) fn with_section(page: &str, title: &str, text: &str) -> String {
    let kept = without_section(page, title);
    format!("{}\n\n## {title}\n\n{}\n", kept.trim_end(), text.trim_end())
}

/// A page without the section of this title.
fn without_section(page: &str, title: &str) -> String {
    let (mut sections, heading) = (page.split("\n## "), format!("{title}\n"));
    let head = sections.next().unwrap_or_default().to_owned();
    let others = sections.filter(|section| !section.starts_with(&heading));
    others.fold(head, |page, section| page + "\n## " + section)
}

/// Times one piece of work, and returns its operations per second.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn rate(operations: f64, work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    operations / start.elapsed().as_secs_f64()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The smallest and the largest value.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

/// Prints the range of the rounds. Where the ranges of two programs overlap, the ratio of their medians says little.
pub(crate) fn print_range(name: &str, values: &[f64], unit: &str) {
    let (least, most) = range(values);
    say(&format!("{name:28} rounds from {least:.0} to {most:.0} {unit}"));
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_removed_by_its_whole_title() {
        let page = "# Page\n\nhead\n\n## A\n\none\n\n## A b\n\ntwo\n";
        assert_eq!(without_section(page, "A"), "# Page\n\nhead\n\n## A b\n\ntwo\n");
        assert_eq!(without_section(page, "B"), page);
    }
}
