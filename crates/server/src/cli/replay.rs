//! `tidegate replay`: what would these limits have refused? Runs the real limiter over a log, on a virtual clock.
//!
//! ```text
//!   access log ──► requests in the order of arrival ──► limiter, in memory ──► who would have been refused, by which rule
//! ```
//!
//! | file | part |
//! |---|---|
//! | `input.rs` | files, gzip, pipes, Ctrl-C |
//! | `format.rs`, `nginx.rs`, `json_lines.rs`, `recorded.rs` | from a line to a request |
//! | `fields.rs`, `log_time.rs` | which field becomes which attribute; times |
//! | `reorder.rs` | from the order of the log to that of arrival |
//! | `run.rs`, `lane.rs` | the replay; one policy in it |
//! | `tally.rs`, `windows.rs` | what is counted; what keys need |
//! | `report.rs`, `text.rs`, `html.rs` | what is printed |

mod fields;
mod format;
mod html;
mod input;
mod json_lines;
mod lane;
mod log_time;
mod nginx;
mod recorded;
mod reorder;
mod report;
mod run;
mod tally;
mod text;
mod windows;

use super::explained;
use super::policy::source::PolicyFile;
use crate::settings::parse_bytes;
use clap::Args;
use fields::{FieldFlags, WantedFields};
use format::FormatName;
use input::LogInput;
use lane::LaneSettings;
use log_time::decimal_nanos;
use report::percent;
use run::{ReplayRun, ReplaySettings};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate::{Policy, Span};
use tidegate_policy::printable;

#[derive(Args)]
#[command(after_long_help = "\
Examples:

  tidegate replay --policy new.yaml --log /var/log/nginx/access.log
  zcat access.log.*.gz | tidegate replay --policy new.yaml --against old.yaml --log -
  tidegate replay --policy new.yaml --log caddy.json --format json --fail-over 0.1%
  tidegate replay --policy new.yaml --log access.log --suggest --html report.html

docs/replay.md explains the report and its limits.")]
pub(crate) struct ReplayOptions {
    /// The policy to try.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Another policy to compare with, such as the one in force.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// The log, also compressed by gzip; `-` is the standard input. May be repeated, the oldest file first.
    #[arg(long, value_name = "FILE", required = true)]
    log: Vec<PathBuf>,
    /// What the log looks like.
    #[arg(long, value_enum, default_value = "nginx")]
    format: FormatName,
    /// The format of nginx's log: the text of its `log_format` directive, or the whole directive. Without it, the log has the format
    /// `combined`.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Proposes limits from the worst windows of keys.
    #[arg(long)]
    suggest: bool,
    /// Makes the exit code 1 if more than this share of the requests is refused, such as `0.1%`.
    #[arg(long, value_name = "PERCENT")]
    fail_over: Option<String>,
    /// Counts refusals in the first period of each limit, too. They are too few, because the replay starts with empty counters.
    #[arg(long)]
    count_first_period: bool,
    /// How long clients wait for their turn if a limit delays them and its rule does not say.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    max_wait: String,
    /// How many lines may be unreadable before the replay stops: a number, or `any`.
    #[arg(long, value_name = "N", default_value = "1000")]
    max_bad_lines: String,
    /// The most memory for counters, for each policy.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: String,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// Also writes the report with plots to this file, as one page of HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    fields: FieldFlags,
}

/// The exit code if more is refused than `--fail-over` allows.
const TOO_MANY: u8 = 1;
/// The exit code on error.
const FAILED: u8 = 2;
const NANOS_PER_PERCENT: u64 = 1_000_000_000;

/// The exit code is 0, or 1 if more is refused than `--fail-over` allows, or 2 on error.
pub(crate) fn run(options: &ReplayOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let fail_over = options.fail_over.as_deref().map(share).transpose()?;
    let mut policies = Vec::new();
    for path in [&options.policy].into_iter().chain(&options.against) {
        let file = PolicyFile::read(path)?;
        let Some(policy) = file.parse(out)? else { return Ok(ExitCode::from(FAILED)) };
        policies.push((file.name, policy));
    }
    let mut run = ReplayRun::new(settings(options, policies)?);
    let mut input = LogInput::open(&options.log, io::stderr().is_terminal())?;
    run.replay(&mut input)?;
    let report = run.report();
    if let Some(path) = &options.html {
        let page = html::page(&report);
        std::fs::write(path, page).map_err(|error| explained(&path.display(), &error))?;
    }
    if options.json {
        writeln!(out, "{}", printable(&serde_json::to_string(&report)?))?;
    } else {
        text::write(&report, out)?;
    }
    judged(&run, fail_over, report.log.interrupted)
}

fn settings(
    options: &ReplayOptions,
    policies: Vec<(String, Policy)>,
) -> io::Result<ReplaySettings> {
    let wanted = WantedFields::new(&options.fields, policies.iter().map(|(_, policy)| policy));
    let flag = |name: &str, problem: &str| invalid(format!("{name}: {problem}"));
    let wait = decimal_nanos(&options.max_wait);
    let most_bad_lines = match &*options.max_bad_lines {
        "any" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    let lanes = LaneSettings {
        max_wait: Span::from_nanos(
            wait.ok_or_else(|| flag("--max-wait", "write seconds, like `2.5`"))?,
        ),
        memory: parse_bytes(&options.memory).map_err(|problem| flag("--memory", &problem))?,
        count_first_period: options.count_first_period,
    };
    Ok(ReplaySettings {
        format: options.format,
        log_format: options.log_format.clone(),
        wanted: wanted.map_err(invalid)?,
        policies,
        lanes,
        most_bad_lines: most_bad_lines
            .ok_or_else(|| flag("--max-bad-lines", "write a number, or `any`"))?,
        suggest: options.suggest,
    })
}

/// A share in billionths of a per cent.
fn share(text: &str) -> io::Result<u64> {
    let number = text.strip_suffix('%').and_then(|number| decimal_nanos(number.trim_end()));
    number.filter(|share| *share <= NANOS_PER_PERCENT.saturating_mul(100)).ok_or_else(|| {
        invalid(format!("--fail-over: `{text}` is not a share; write it like `0.1%`"))
    })
}

/// The exit code.
fn judged(run: &ReplayRun, fail_over: Option<u64>, interrupted: bool) -> io::Result<ExitCode> {
    let Some(most) = fail_over else { return Ok(ExitCode::SUCCESS) };
    let (counted, refused) = run.share();
    if interrupted {
        return Err(io::Error::other(
            "--fail-over: interrupted, so nothing is said about the whole log",
        ));
    }
    if counted == 0 {
        let text = "--fail-over: no request came after the first period of a limit, so nothing can be said; take a longer log, or use --count-first-period";
        return Err(io::Error::other(text));
    }
    let part = u128::from(refused).saturating_mul(100).saturating_mul(NANOS_PER_PERCENT.into());
    if part <= u128::from(counted).saturating_mul(most.into()) {
        return Ok(ExitCode::SUCCESS);
    }
    let percent = percent(refused, counted);
    writeln!(
        io::stderr(),
        "tidegate: {percent} % of the requests are refused, which is more than --fail-over allows"
    )?;
    Ok(ExitCode::from(TOO_MANY))
}

fn invalid(text: impl AsRef<str>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, printable(text.as_ref()))
}
