//! Rounds that alternate: machines wander, so two things are compared only when they ran in turns.

#![expect(clippy::float_arithmetic, reason = "medians and ratios, for people")]

use crate::{root, say};
use std::fs;

/// One comparison.
pub(crate) struct Comparison<'l> {
    pub(crate) bench: &'l str,
    pub(crate) case: &'l str,
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) peer_name: &'l str,
    pub(crate) unit: &'l str,
}

impl Comparison<'_> {
    /// Prints it, and answers it as a row of a table.
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

/// Writes a section of BENCHMARKS.md, in place of the one of this title.
pub(crate) fn write_section(title: &str, text: &str, rows: &[String]) -> Result<(), String> {
    let path = root().join("BENCHMARKS.md");
    let before = fs::read_to_string(&path).map_err(|error| format!("BENCHMARKS.md: {error}"))?;
    let heading = format!("## {title}\n");
    let kept: String = before
        .split("\n## ")
        .enumerate()
        .filter(|(place, section)| *place == 0 || !section.starts_with(&format!("{title}\n")))
        .map(
            |(place, section)| {
                if place == 0 { section.to_owned() } else { format!("\n## {section}") }
            },
        )
        .collect();
    let table = "| case | tidegate | peer | its rate | ratio |\n|---|--:|---|--:|--:|\n";
    let rows: String = rows.concat();
    let text = format!("{}\n\n{heading}\n{text}\n\n{table}{rows}", kept.trim_end());
    fs::write(&path, text).map_err(|error| format!("BENCHMARKS.md: {error}"))
}

/// Times one piece of work: so many operations a second.
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

/// The least and the most of them.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

/// How far the rounds lie apart: where ranges overlap, a ratio of medians says little.
pub(crate) fn tell_range(name: &str, values: &[f64], unit: &str) {
    let (least, most) = range(values);
    say(&format!("{name:28} rounds from {least:.0} to {most:.0} {unit}"));
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}
