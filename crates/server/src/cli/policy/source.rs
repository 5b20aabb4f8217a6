//! The source text of a policy file: read within bounds, and quoted in error messages.

use crate::cli::{explained, style};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use tidegate_policy::{Place, Policy, Problem, printable};

/// The bytes of a file, and its name for messages.
pub(crate) struct PolicyFile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// One byte more than a policy may have, so that a file that is too long is noticed without reading all of it.
const MOST_BYTES: u64 = 4 * 1024 * 1024 + 1;
/// The severities of problems.
pub(crate) const ERROR: style::Styled<&str> = style::bad("error");
pub(crate) const WARNING: style::Styled<&str> = style::notable("warning");
/// How many characters of a line are quoted: as many as fit on a screen.
const WIDEST: usize = 120;

impl PolicyFile {
    /// Reads a regular file or, for `-`, the standard input.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let name = printable(&path.display().to_string());
        let named = |error: io::Error| explained(&name, &error);
        let mut bytes = Vec::new();
        if name == "-" {
            io::stdin().lock().take(MOST_BYTES).read_to_end(&mut bytes)?;
            return Ok(Self { name: "standard input".to_owned(), bytes });
        }
        // Reading a pipe or a device could block, or never end.
        if !fs::metadata(path).map_err(named)?.is_file() {
            let text = format!(
                "{name}: it is not a regular file; give a file, or `-` for the standard input"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        File::open(path).map_err(named)?.take(MOST_BYTES).read_to_end(&mut bytes).map_err(named)?;
        Ok(Self { name, bytes })
    }

    /// Parses the policy; `None` if it has errors, which are printed.
    pub(crate) fn parse(&self, out: &mut impl Write) -> io::Result<Option<Policy>> {
        match Policy::parse(&self.bytes) {
            Ok(policy) => Ok(Some(policy)),
            Err(error) => self.show(error.problems(), ERROR, out).map(|()| None),
        }
    }

    /// Prints problems in the order of the file, each with its line and a mark below the column.
    pub(crate) fn show(
        &self,
        problems: &[Problem],
        severity: style::Styled<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        // One pass over the file, however many problems there are.
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

/// Prints the part of a line around a column, without terminal control characters.
fn quote(line: &[u8], number: u32, before: usize, out: &mut impl Write) -> io::Result<()> {
    let from = before.saturating_sub(WIDEST / 2);
    let bytes = line.get(byte_of(line, from)..).unwrap_or_default();
    // A character has at most four bytes, so the rest of a long line is not needed.
    let bytes = bytes.get(..bytes.len().min(WIDEST.saturating_mul(4))).unwrap_or_default();
    let text: String = String::from_utf8_lossy(bytes).chars().take(WIDEST).collect();
    let mark = " ".repeat(before.saturating_sub(from));
    writeln!(out, "{number:>5} | {}\n      | {mark}^", printable(text.trim_end()))
}

/// The byte offset of a character. Characters are counted by their first bytes.
fn byte_of(line: &[u8], character: usize) -> usize {
    let first = |(_, byte): &(usize, &u8)| **byte & 0xc0 != 0x80;
    line.iter().enumerate().filter(first).nth(character).map_or(line.len(), |(at, _)| at)
}
