//! The audit log: every change that an operator made, one line each, never rewritten.
//!
//! ```text
//!   {"at_ms":…,"who":"operator","peer":"127.0.0.1","what":"override","change":{…},"version":7,"chain":"9f86…"}
//! ```
//!
//! Each line is signed together with the signature of the line before it, so a line that is changed or taken
//! out breaks the chain behind it.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidegate::{Clock, Secret};

/// A file that only grows.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    /// The signature of the last line.
    chain: String,
    /// The first line that is not as it was written, when the log was opened.
    pub(crate) broken: Option<usize>,
    /// The last line was not written to its end, so the next begins with one.
    cut_short: bool,
}

/// Who did something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor<'a> {
    pub(crate) who: &'a str,
    pub(crate) peer: std::net::IpAddr,
}

/// The end of the log that is looked at.
const TAIL: u64 = 256 * 1024;

impl Audit {
    /// Opens the log in this folder, or begins it.
    pub(crate) fn open(folder: &Path, secret: &Secret) -> io::Result<Self> {
        let path = folder.join("audit.log");
        let mut audit = Self { path, chain: String::new(), broken: None, cut_short: false };
        audit.read(secret)?;
        Ok(audit)
    }

    /// Follows the chain from the first line to the last.
    fn read(&mut self, secret: &Secret) -> io::Result<()> {
        let Some(file) = existing(&self.path)? else { return Ok(()) };
        let mut log = io::BufReader::new(file);
        for number in 1.. {
            let mut line = Vec::new();
            if log.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            self.cut_short = line.last() != Some(&b'\n');
            let mut line: Value = serde_json::from_slice(&line).unwrap_or_default();
            let chain = line.as_object_mut().and_then(|fields| fields.remove("chain"));
            let chain = chain.as_ref().and_then(Value::as_str);
            if chain != Some(&sign(secret, &self.chain, &line)) {
                self.broken.get_or_insert(number);
            }
            // Behind a broken line the chain goes on from the last one that can be read.
            if let Some(chain) = chain {
                chain.clone_into(&mut self.chain);
            }
        }
        Ok(())
    }

    /// Adds a line, and comes back when it lies on the disk.
    pub(crate) fn append(
        &mut self,
        secret: &Secret,
        clock: &Clock,
        actor: Actor<'_>,
        what: &str,
        details: &Value,
    ) -> io::Result<()> {
        let at_ms = clock.now().calendar.as_nanos().checked_div(1_000_000);
        let mut line = json!({
            "at_ms": at_ms, "who": actor.who, "peer": actor.peer.to_string(), "what": what,
            "details": details,
        });
        let chain = sign(secret, &self.chain, &line);
        if let Some(fields) = line.as_object_mut() {
            fields.insert("chain".to_owned(), json!(chain));
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        let begin = if self.cut_short { "\n" } else { "" };
        self.cut_short = true;
        file.write_all(format!("{begin}{line}\n").as_bytes())?;
        self.cut_short = false;
        file.sync_data()?;
        self.chain = chain;
        Ok(())
    }

    /// The last lines, the oldest first.
    pub(crate) fn last(&self, count: usize) -> io::Result<Vec<Value>> {
        let Some(mut file) = existing(&self.path)? else { return Ok(vec![]) };
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut tail = Vec::new();
        file.take(TAIL).read_to_end(&mut tail)?;
        // The first may have been cut, in the middle of a letter even.
        let lines = tail.split(|byte| *byte == b'\n');
        let lines: Vec<Value> =
            lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Ok(lines.iter().skip(lines.len().saturating_sub(count)).cloned().collect())
    }
}

fn sign(secret: &Secret, before: &str, line: &Value) -> String {
    let message = format!("audit\n{before}\n{line}");
    let signature = secret.sign(message.as_bytes());
    HEXLOWER.encode(signature.get(..16).unwrap_or_default())
}

fn existing(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("tidegate-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        crate::files::private_folder(&folder).unwrap();
        folder
    }

    fn written(folder: &Path, secret: &Secret) -> Audit {
        let clock = Clock::manual(tidegate::Timestamp::from_nanos(5_000_000));
        let actor = Actor { who: "operator", peer: [127, 0, 0, 1].into() };
        for number in 0..3 {
            let mut audit = Audit::open(folder, secret).unwrap();
            let details = json!({ "number": number });
            audit.append(secret, &clock, actor, "rule", &details).unwrap();
        }
        Audit::open(folder, secret).unwrap()
    }

    #[test]
    fn lines_stay_and_are_chained_over_restarts() {
        let (folder, secret) = (folder("chain"), Secret::new([7; 32]));
        let audit = written(&folder, &secret);
        assert_eq!(audit.broken, None);
        let numbers: Vec<Value> =
            audit.last(2).unwrap().iter().map(|line| line["details"]["number"].clone()).collect();
        assert_eq!(numbers, [json!(1), json!(2)]);
        assert_eq!(audit.last(9).unwrap()[0]["at_ms"], 5);
    }

    #[test]
    fn a_line_that_was_changed_or_taken_out_is_noticed() {
        let (folder, secret) = (folder("broken"), Secret::new([7; 32]));
        let path = written(&folder, &secret).path;
        let good = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        for (text, broken) in [
            (good.replace("\"number\":1", "\"number\":9"), 2),
            (format!("{}\n{}\n", lines[0], lines[2]), 2),
            (format!("{}\nnonsense\n", lines[0]), 2),
            (format!("{}\n", lines[1]), 1),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Audit::open(&folder, &secret).unwrap().broken, Some(broken));
        }
    }
}
