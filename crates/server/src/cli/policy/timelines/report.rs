//! Prints what became of scenarios: a line for each, and for a step that differs what was expected, what was answered, and
//! what each limit had left.

use super::FileReport;
use super::answer::SeenLimit;
use super::player::{ScenarioReport, StepReport};
use crate::cli::table::{self, Column};
use crate::cli::{duration, style};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidegate_policy::printable;
use tidegate_timelines::policy::span_text;

const LIMITS: [Column; 5] = [
    Column::Left("limit"),
    Column::Right("left"),
    Column::Right("of"),
    Column::Left("full again in"),
    Column::Left("its answer"),
];

// === text ===

/// Prints for people. With `verbose`, every step.
pub(super) fn write_text(
    files: &[FileReport<'_>],
    verbose: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    for file in files {
        writeln!(out, "{}", file.name)?;
        for scenario in &file.scenarios {
            write_scenario(file.name, scenario, verbose, out)?;
        }
    }
    let all = || files.iter().flat_map(|file| &file.scenarios);
    let steps = || all().flat_map(|scenario| &scenario.steps);
    let [scenarios, played] = [all().count(), steps().count()];
    let failed = all().filter(|scenario| !scenario.passed()).count();
    match failed {
        0 => writeln!(
            out,
            "{}: {}, {}",
            style::good("passed"),
            counted(scenarios, "scenario"),
            counted(played, "step")
        ),
        _ => {
            let wrong = steps().filter(|step| !step.passed()).count();
            let [failed, wrong] = [(failed, scenarios, "scenario"), (wrong, played, "step")]
                .map(|(some, all, noun)| format!("{some} of {}", counted(all, noun)));
            writeln!(out, "{}: {failed}, {wrong}", style::bad("failed"))
        }
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn write_scenario(
    file: &str,
    report: &ScenarioReport<'_>,
    verbose: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let title = printable(&report.scenario.title);
    match report.passed() {
        true => writeln!(out, "  {}      {title}", style::good("ok"))?,
        false => writeln!(out, "  {}  {title}", style::bad("failed"))?,
    }
    let mut shown = report.steps.iter().filter(|step| verbose || !step.passed());
    shown.try_for_each(|step| write_step(file, step, out))
}

fn write_step(file: &str, report: &StepReport<'_>, out: &mut impl Write) -> io::Result<()> {
    let (asked, expected) = halves(&report.step.text);
    let place = format!("{file}:{}", report.step.line);
    writeln!(out, "    {place}: {}", printable(asked))?;
    if let Some(expected) = expected {
        writeln!(out, "      expected  {}", printable(expected))?;
    }
    if let Some(words) = &report.seen.words {
        let repetition = report.repetition.map(|number| format!("   (repetition {number})"));
        writeln!(out, "      got       {}{}", printable(words), repetition.unwrap_or_default())?;
    }
    for difference in &report.differences {
        writeln!(out, "      {}     {}", style::bad("wrong"), printable(difference))?;
    }
    if report.seen.limits.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = report.seen.limits.iter().map(row).collect();
    let mut table = Vec::new();
    table::write(LIMITS, &rows, &mut table)?;
    String::from_utf8_lossy(&table).lines().try_for_each(|line| writeln!(out, "    {line}"))
}

/// A step before and after its arrow.
fn halves(text: &str) -> (&str, Option<&str>) {
    text.split_once("->")
        .map_or((text, None), |(asked, expected)| (asked.trim(), Some(expected.trim())))
}

fn row(limit: &SeenLimit) -> [String; 5] {
    [
        printable(&limit.name),
        limit.remaining.to_string(),
        limit.amount.to_string(),
        limit.reset.map(duration::of_span).unwrap_or_default(),
        limit.words.clone(),
    ]
}

// === JSON ===

/// Prints every step as JSON.
pub(super) fn write_json(files: &[FileReport<'_>], out: &mut impl Write) -> io::Result<()> {
    let of_file = |file: &FileReport<'_>| {
        let scenarios: Vec<Value> = file.scenarios.iter().map(scenario_json).collect();
        json!({ "file": file.name, "scenarios": scenarios })
    };
    let passed = files.iter().flat_map(|file| &file.scenarios).all(ScenarioReport::passed);
    let all: Vec<Value> = files.iter().map(of_file).collect();
    writeln!(out, "{}", printable(&json!({ "passed": passed, "files": all }).to_string()))
}

fn scenario_json(report: &ScenarioReport<'_>) -> Value {
    json!({
        "scenario": report.scenario.title,
        "line": report.scenario.line,
        "passed": report.passed(),
        "steps": report.steps.iter().map(step_json).collect::<Vec<_>>(),
    })
}

fn step_json(report: &StepReport<'_>) -> Value {
    let (asked, expected) = halves(&report.step.text);
    let limit = |limit: &SeenLimit| {
        json!({
            "limit": limit.name,
            "remaining": limit.remaining,
            "of": limit.amount,
            "reset": limit.reset.map(span_text),
            "answer": limit.words,
        })
    };
    json!({
        "line": report.step.line,
        "step": asked,
        "expected": expected,
        "got": report.seen.words,
        "passed": report.passed(),
        "wrong": report.differences,
        "repetition": report.repetition,
        "limits": report.seen.limits.iter().map(limit).collect::<Vec<_>>(),
    })
}
