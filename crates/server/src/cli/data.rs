//! `tidegate data`: looks into a data directory that no server uses.

use crate::files;
use crate::settings::parse_bytes;
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate::{Clock, Secret};
use tidegate_core::{Limit, Period, Span, Timestamp};
use tidegate_store::{
    Compacted, Damage, DataContents, DataFile, DataFileKind, DurableSettings, Recovered,
};

/// The exit code when something is damaged.
const DAMAGED: u8 = 1;

#[derive(Args)]
pub(crate) struct DataOptions {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Shows the files of a data directory, and how many counters of which limits they have.
    Inspect(Inspect),
    /// Reads a data directory as a start would, and says whether it is intact. Changes nothing.
    ///
    /// The exit code is 0 if it is intact, 1 if something is damaged, and 2 on error.
    Verify(Verify),
    /// Replaces the logs and snapshots by one snapshot. No server may use the directory meanwhile.
    Compact(Compact),
}

#[derive(Args)]
struct Inspect {
    #[command(flatten)]
    place: DataPlace,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Verify {
    #[command(flatten)]
    place: DataPlace,
    #[command(flatten)]
    opening: DataOpening,
}

#[derive(Args)]
struct Compact {
    #[command(flatten)]
    place: DataPlace,
    #[command(flatten)]
    opening: DataOpening,
    /// Goes on although something is damaged, and drops that.
    #[arg(long)]
    drop_damaged: bool,
}

#[derive(Args)]
struct DataPlace {
    /// The data directory.
    #[arg(default_value = "tidegate-data")]
    directory: PathBuf,
}

#[derive(Args)]
struct DataOpening {
    /// The secret of the deployment; by default the file `secret` in the data directory.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The memory for counters: the setting `memory.budget` of the server.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory_budget: usize,
}

/// Runs a subcommand of `tidegate data`.
pub(crate) fn run(options: &DataOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    match &options.command {
        DataCommand::Inspect(options) => inspect(options, out),
        DataCommand::Verify(options) => verify(options, out),
        DataCommand::Compact(options) => compact(options, out),
    }
}

impl DataPlace {
    /// Where the counters are.
    fn states(&self) -> PathBuf {
        self.directory.join("states")
    }

    fn secret(&self, opening: &DataOpening) -> io::Result<Secret> {
        let usual = || self.directory.join("secret");
        let path = opening.secret_file.clone().unwrap_or_else(usual);
        Secret::load(&path).map_err(|error| named(&path, &error))
    }

    fn settings(&self, opening: &DataOpening) -> DurableSettings {
        DurableSettings { budget: opening.memory_budget, ..DurableSettings::new(self.states()) }
    }
}

fn inspect(options: &Inspect, out: &mut impl Write) -> io::Result<ExitCode> {
    let states = options.place.states();
    let contents = DataContents::read(&states, &mut progress()).map_err(io::Error::other)?;
    if options.json {
        writeln!(out, "{:#}", contents_json(&contents))?;
        return Ok(ExitCode::SUCCESS);
    }
    if contents.files.is_empty() {
        writeln!(out, "{} has no counters", states.display())?;
    } else {
        let [bytes, records, receipts] = ["bytes", "records", "receipts"];
        writeln!(out, "{:<22}{bytes:>14}{records:>12}{receipts:>10}  last written", "file")?;
    }
    for file in &contents.files {
        let DataFile { name, bytes, states, receipts, .. } = file;
        let written = file.written.map(date).unwrap_or_default();
        let note = note(file);
        writeln!(out, "{name:<22}{bytes:>14}{states:>12}{receipts:>10}  {written}{note}")?;
    }
    for name in &contents.unfinished {
        writeln!(out, "{name}: not complete; the next start removes it")?;
    }
    for name in &contents.unreadable {
        writeln!(out, "{name}: its beginning is damaged; the next start leaves it out")?;
    }
    if !contents.limits.is_empty() {
        writeln!(out, "\n{:>12}  limit", "records")?;
    }
    for (limit, records) in &contents.limits {
        writeln!(out, "{records:>12}  {}", limit_text(limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is unusual about a file.
fn note(file: &DataFile) -> String {
    let damage = match file.damaged_bytes {
        0 => String::new(),
        bytes => format!("; {bytes} bytes are in no intact frame"),
    };
    let end = match (file.kind, file.is_ended) {
        (_, true) => "",
        (DataFileKind::Snapshot, false) => "; it is not complete",
        (DataFileKind::Log, false) => "; the server is still running, or did not stop as it should",
    };
    format!("{end}{damage}")
}

fn contents_json(contents: &DataContents) -> serde_json::Value {
    let file = |file: &DataFile| {
        json!({
            "name": file.name,
            "kind": match file.kind {
                DataFileKind::Log => "log",
                DataFileKind::Snapshot => "snapshot",
            },
            "bytes": file.bytes,
            "created": date(file.created),
            "written": file.written.map(date),
            "frames": file.frames,
            "records": file.states,
            "receipts": file.receipts,
            "ended": file.is_ended,
            "damaged_bytes": file.damaged_bytes,
        })
    };
    let limit =
        |(limit, records): &(Limit, u64)| json!({ "limit": limit_text(limit), "records": records });
    json!({
        "files": contents.files.iter().map(file).collect::<Vec<_>>(),
        "unfinished": contents.unfinished,
        "unreadable": contents.unreadable,
        "limits": contents.limits.iter().map(limit).collect::<Vec<_>>(),
    })
}

fn verify(options: &Verify, out: &mut impl Write) -> io::Result<ExitCode> {
    let settings = options.place.settings(&options.opening);
    let secret = options.place.secret(&options.opening)?;
    let found = settings.verify(Some(&secret), &mut progress()).map_err(io::Error::other)?;
    show_damage(&found, out)?;
    let Recovered { states, frames, bytes, .. } = found;
    writeln!(out, "read {states} records of counters in {frames} frames, {bytes} bytes")?;
    if found.damage.is_empty() {
        writeln!(out, "{} is intact", settings.folder.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(DAMAGED))
}

fn compact(options: &Compact, out: &mut impl Write) -> io::Result<ExitCode> {
    let settings = options.place.settings(&options.opening);
    let secret = options.place.secret(&options.opening)?;
    let directory = &options.place.directory;
    let _lock = files::lock_folder(directory).map_err(|error| named(directory, &error))?;
    let found = settings.verify(Some(&secret), &mut progress()).map_err(io::Error::other)?;
    show_damage(&found, out)?;
    if !found.damage.is_empty() && !options.drop_damaged {
        writeln!(out, "nothing was changed; with --drop-damaged, what is damaged is dropped")?;
        return Ok(ExitCode::from(DAMAGED));
    }
    let compacted = settings.compact(&secret, Clock::system(), &mut progress());
    let Compacted { bytes: [before, after], .. } = compacted.map_err(io::Error::other)?;
    writeln!(out, "{}: {before} bytes before, {after} bytes now", settings.folder.display())?;
    Ok(ExitCode::SUCCESS)
}

fn show_damage(found: &Recovered, out: &mut impl Write) -> io::Result<()> {
    found.damage.iter().try_for_each(|Damage { file, offset, bytes }| {
        writeln!(out, "{file} is damaged: {bytes} bytes from byte {offset} on are left out")
    })
}

/// Shows on a terminal how much has been read.
fn progress() -> impl FnMut(u64, u64) {
    let (is_terminal, mut shown) = (io::stderr().is_terminal(), 0);
    move |read, all| {
        let percent = read.saturating_mul(100).checked_div(all).unwrap_or(100);
        if is_terminal && percent > shown {
            shown = percent;
            let end = if percent == 100 { "\n" } else { "" };
            // It is only for the eye: if it cannot be written, the work goes on.
            let _ = write!(io::stderr(), "\rreading: {percent} %{end}");
        }
    }
}

/// A limit, for people.
fn limit_text(limit: &Limit) -> String {
    let period = match limit.period() {
        Period::Every(span) => span_text(*span),
        Period::Calendar(_) => "calendar period".to_owned(),
    };
    format!("{} per {period}, {}", limit.amount(), limit.algorithm().name())
}

/// A length of time, in the largest unit in which it is a whole number.
fn span_text(span: Span) -> String {
    const SECOND: u64 = 1_000_000_000;
    let units = [(86_400 * SECOND, "d"), (3_600 * SECOND, "h"), (60 * SECOND, "min")];
    let whole = units.iter().find_map(|(unit, name)| {
        let count = span.as_nanos().checked_div(*unit)?;
        (count.checked_mul(*unit) == Some(span.as_nanos())).then(|| format!("{count}{name}"))
    });
    whole.unwrap_or_else(|| span.to_string())
}

/// A time of the wall clock, to the second.
fn date(time: Timestamp) -> String {
    let seconds = i64::try_from(time.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    super::explained(&path.display(), error)
}
