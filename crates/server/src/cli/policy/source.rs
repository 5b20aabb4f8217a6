//! A policy file as it lies on disk: read within bounds, and quoted in complaints.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use tidegate_policy::{Place, Problem, printable};

/// The bytes of a file, and what to call it.
pub(crate) struct PolicyFile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// One byte more than a policy may have, so that a longer file is noticed and none is read whole.
const MOST_BYTES: u64 = 4 * 1024 * 1024 + 1;
/// As much of a line as fits on a screen.
const WIDEST: usize = 120;

impl PolicyFile {
    /// Reads a regular file or, for `-`, the standard input.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let name = printable(&path.display().to_string());
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

    /// Complaints in the order of the file, each with the line it is about and a mark below it.
    pub(crate) fn show(
        &self,
        problems: &[Problem],
        severity: &str,
        out: &mut impl Write,
    ) -> io::Result<()> {
        // The file is walked through once, however many complaints there are.
        let mut lines = (1..).zip(self.bytes.split(|byte| *byte == b'\n'));
        let mut line: (u32, &[u8]) = (0, &[]);
        for problem in problems {
            let Place { line: wanted, column } = problem.place;
            writeln!(out, "{}:{wanted}:{column}: {severity}: {}", self.name, problem.text)?;
            while line.0 < wanted {
                let Some(next) = lines.next() else { break };
                line = next;
            }
            if line.0 == wanted {
                let before = usize::try_from(column).unwrap_or(usize::MAX).saturating_sub(1);
                quote(line.1, wanted, before, out)?;
            }
        }
        Ok(())
    }
}

/// A line around a place, without anything that a terminal would obey.
fn quote(line: &[u8], number: u32, before: usize, out: &mut impl Write) -> io::Result<()> {
    let from = before.saturating_sub(WIDEST / 2);
    let bytes = line.get(byte_of(line, from)..).unwrap_or_default();
    // Four bytes to a character at most; the rest of a long line is not looked at.
    let bytes = bytes.get(..bytes.len().min(WIDEST.saturating_mul(4))).unwrap_or_default();
    let text: String = String::from_utf8_lossy(bytes).chars().take(WIDEST).collect();
    let mark = " ".repeat(before.saturating_sub(from));
    writeln!(out, "{number:>5} | {}\n      | {mark}^", printable(text.trim_end()))
}

/// Where a character begins; characters are counted by their first bytes.
fn byte_of(line: &[u8], character: usize) -> usize {
    let first = |(_, byte): &(usize, &u8)| **byte & 0xc0 != 0x80;
    line.iter().enumerate().filter(first).nth(character).map_or(line.len(), |(at, _)| at)
}
