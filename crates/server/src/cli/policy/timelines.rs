//! `tidegate policy test`: plays timelines, which are requests at given times and the answers that they must get.
//!
//! ```text
//!   policy login.yaml                                              a file with scenarios
//!   scenario the sixth guess is refused                                  │ parsed with the policies that it names
//!   at 0s user=alice ip=192.0.2.7 take times 5 -> allow                  ▼
//!   at 1s user=alice ip=192.0.2.7 take -> deny, retry 899s         a limiter and a manual clock ──► a report of every step
//! ```
//!
//! The language and its parser are in the crate `tidegate-timelines`. The same files test the limiter itself.

mod answer;
mod player;
mod report;

use super::source::{ERROR, PolicyFile};
use clap::Args;
use player::{ScenarioReport, play};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate::Policy;
use tidegate_policy::{Place, Problem, printable};
use tidegate_timelines::policy::{self as timeline, Action, PolicySource, Scenario};

#[derive(Args)]
#[command(after_long_help = "\
Example: the file login.timeline, beside the policy login.yaml

  policy login.yaml
  start 2026-03-29T00:00:00Z

  scenario five wrong passwords in 15 minutes, and the sixth try is refused
  at 0s user=alice ip=192.0.2.7 method=POST path=/login take times 5 then failure -> allow
  at 1min user=alice ip=192.0.2.7 method=POST path=/login take -> deny, retry 14min

  $ tidegate policy test login.timeline

docs/testing-policies.md explains every line that such a file can have.")]
pub(crate) struct TestOptions {
    /// Files with scenarios; `-` is the standard input.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Shows every step with its answer and what each limit had left, not only those that differ.
    #[arg(long, short)]
    verbose: bool,
    /// Prints every step as JSON.
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

/// The exit code if a step was not answered as expected.
const DIFFERS: u8 = 1;
/// The exit code for errors in the files or in the arguments.
const REFUSED: u8 = 2;

/// A file whose scenarios were read together with their policies.
struct TestFile {
    name: String,
    scenarios: Vec<PreparedScenario>,
}

/// A scenario and its policies: the first one, and one for each reload.
struct PreparedScenario {
    scenario: Scenario,
    policies: Vec<Policy>,
}

/// What became of the scenarios of a file.
struct FileReport<'s> {
    name: &'s str,
    scenarios: Vec<ScenarioReport<'s>>,
}

/// Plays all scenarios. Nothing is played if a file has errors, and then all of them are printed.
pub(crate) fn run(options: &TestOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let mut files = Vec::new();
    for path in &options.files {
        files.push(TestFile::read(path, out)?);
    }
    let Some(files) = files.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(ExitCode::from(REFUSED));
    };
    let reports = files.iter().map(TestFile::play).collect::<io::Result<Vec<_>>>()?;
    if options.json {
        report::write_json(&reports, out)?;
    } else {
        report::write_text(&reports, options.verbose, out)?;
    }
    let passed = reports.iter().flat_map(|file| &file.scenarios).all(ScenarioReport::passed);
    Ok(ExitCode::from(if passed { 0 } else { DIFFERS }))
}

// === reading ===

impl TestFile {
    /// Reads a file and its policies; `None` if there are errors, which are printed.
    fn read(path: &Path, out: &mut impl Write) -> io::Result<Option<Self>> {
        let source = PolicyFile::read(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let text = String::from_utf8_lossy(&source.bytes);
        let scenarios = match timeline::parse(&text) {
            Ok(scenarios) => scenarios,
            Err(error) => {
                let (place, text) = (first_word(&text, error.line), printable(&error.problem));
                let problem = Problem { place, text };
                return source.show(&[problem], ERROR, out).map(|()| None);
            }
        };
        let mut prepared = Vec::new();
        for scenario in scenarios {
            let Some(policies) = policies(&scenario, &source, folder, out)? else {
                return Ok(None);
            };
            prepared.push(PreparedScenario { scenario, policies });
        }
        Ok(Some(Self { name: source.name, scenarios: prepared }))
    }

    fn play(&self) -> io::Result<FileReport<'_>> {
        let play = |prepared| play(prepared).map_err(io::Error::other);
        let scenarios = self.scenarios.iter().map(play).collect::<io::Result<_>>()?;
        Ok(FileReport { name: &self.name, scenarios })
    }
}

/// The first policy of a scenario, and those of its reloads.
fn policies(
    scenario: &Scenario,
    file: &PolicyFile,
    folder: &Path,
    out: &mut impl Write,
) -> io::Result<Option<Vec<Policy>>> {
    let reloads = scenario.steps.iter().filter_map(|step| {
        if let Action::Reload(source) = &step.action { Some(source) } else { None }
    });
    let mut policies = Vec::new();
    for source in [&scenario.policy].into_iter().chain(reloads) {
        let Some(policy) = policy(source, file, folder, out)? else { return Ok(None) };
        policies.push(policy);
    }
    Ok(Some(policies))
}

fn policy(
    source: &PolicySource,
    file: &PolicyFile,
    folder: &Path,
    out: &mut impl Write,
) -> io::Result<Option<Policy>> {
    match source {
        PolicySource::File { line, path } => {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}:{line}: {error}", file.name))
            };
            PolicyFile::read(&folder.join(path)).map_err(named)?.parse(out)
        }
        PolicySource::Text { line, text } => match Policy::parse(text.as_bytes()) {
            Ok(policy) => Ok(Some(policy)),
            Err(error) => {
                let before = u32::try_from(line.saturating_sub(1)).unwrap_or(u32::MAX);
                let moved = |problem: &Problem| {
                    let Place { line, column } = problem.place;
                    let place = Place { line: line.saturating_add(before), column };
                    Problem { place, text: problem.text.clone() }
                };
                let problems: Vec<_> = error.problems().iter().map(moved).collect();
                file.show(&problems, ERROR, out).map(|()| None)
            }
        },
    }
}

/// Where a line begins, after its indentation.
fn first_word(text: &str, line: usize) -> Place {
    let text = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let indentation = text.chars().take_while(|letter| letter.is_whitespace()).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Place { line: number(line), column: number(indentation.saturating_add(1)) }
}
