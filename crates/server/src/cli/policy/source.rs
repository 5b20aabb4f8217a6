//! A policy file as it lies on disk: read within bounds, and quoted in complaints.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use tidegate_policy::{Place, Problem};

/// The bytes of a file, and what to call it.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// One byte more than a policy may have, so that a longer file is noticed and none is read whole.
const MOST_BYTES: u64 = 4 * 1024 * 1024 + 1;
/// As much of a line as fits on a screen.
const WIDEST: usize = 120;

impl Source {
    /// Reads a regular file or, for `-`, the standard input.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let name = path.display().to_string();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let mut bytes = Vec::new();
        if name == "-" {
            io::stdin().lock().take(MOST_BYTES).read_to_end(&mut bytes)?;
            return Ok(Self { name: "standard input".to_owned(), bytes });
        }
        // A pipe or a device could keep us waiting, or never end.
        if !fs::metadata(path).map_err(named)?.is_file() {
            let text = format!("{name}: this is no regular file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        File::open(path).map_err(named)?.take(MOST_BYTES).read_to_end(&mut bytes).map_err(named)?;
        Ok(Self { name, bytes })
    }

    /// A complaint with the line it is about, and a mark below it.
    pub(crate) fn show(
        &self,
        problem: &Problem,
        severity: &str,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Place { line, column } = problem.place;
        writeln!(out, "{}:{line}:{column}: {severity}: {}", self.name, problem.text)?;
        let Some(text) = self.line(line) else { return Ok(()) };
        let before = column.saturating_sub(1);
        // A long line is shown around the place.
        let from = before.saturating_sub(WIDEST / 2);
        let shown: String = text.chars().skip(from).take(WIDEST).collect();
        let mark = " ".repeat(before.saturating_sub(from));
        writeln!(out, "{line:>5} | {}\n      | {mark}^", shown.trim_end())
    }

    /// A line without anything that a terminal would obey.
    fn line(&self, number: usize) -> Option<String> {
        let line = self.bytes.split(|byte| *byte == b'\n').nth(number.checked_sub(1)?)?;
        let text = String::from_utf8_lossy(line);
        Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}
