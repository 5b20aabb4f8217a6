//! The audit log: one line for every change that an operator made. Lines are only appended.
//!
//! ```text
//!   {"at_ms":…,"who":"operator","peer":"127.0.0.1","what":"override","details":{"version":7,…},"chain":"9f86…"}
//! ```
//!
//! Each line is signed together with the signature of the line before it (a hash chain), so a line that is changed or removed
//! breaks the chain behind it. Removing lines from the end does not break the chain. So the control file keeps the number of
//! lines and the signature of the last one: the [`ChainHead`]. Replacing both files with older copies is not noticed.
//!
//! ```text
//!   audit.log.0000120000   lines up to the 120,000th ┐ one chain; the server removes none of these files
//!   audit.log              the lines after it        ┘
//! ```
//!
//! When the log has 64 MiB, it is renamed, and another begins. Its first line repeats where the chain was, signed like every line. So the
//! chain goes on from file to file, and what is left can still be verified when the oldest files were moved away.
//!
//! A line is on the disk before its change is in force. If the change could not be written then, another line says so. After a
//! crash that line is added at the next start.

use crate::files;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidegate::{Clock, Secret};

/// The audit log of a data directory.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    head: ChainHead,
    /// The bytes of all complete lines of the file that is written.
    length: u64,
    /// When the file has this many bytes, the next line begins another.
    most_bytes: u64,
    /// How the log was tampered with, if that was noticed.
    pub(crate) damage: Option<Damage>,
    /// The version of the control document in the last line.
    pub(crate) version: u64,
    /// Whether an incomplete line may follow the last one, because a write failed.
    cut_short: bool,
}

/// The end of the chain. It is kept outside the log, so that lines missing at the end are noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChainHead {
    pub(crate) lines: u64,
    /// The signature of the last line.
    pub(crate) chain: String,
    /// How many of the lines were in older files that are not there any more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) moved: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How the log was tampered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("audit.log was changed: line {line} is not as it was written")]
    Changed { line: u64 },
    #[error("audit.log was shortened: it has {lines} of {expected} lines")]
    Shortened { lines: u64, expected: u64 },
    #[error("audit.log begins with line {first}: older files of it were moved away")]
    Moved { first: u64 },
    #[error(
        "control.json is missing, or does not say how many lines audit.log should have; it has {lines}; changes by operators may be lost"
    )]
    EndUnknown { lines: u64 },
}

/// Who made a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor<'a> {
    pub(crate) who: &'a str,
    pub(crate) peer: std::net::IpAddr,
}

/// The contents of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditEvent<'a> {
    pub(crate) actor: Actor<'a>,
    pub(crate) what: &'a str,
    pub(crate) details: &'a Value,
    /// Why, in the words of the operator.
    pub(crate) reason: Option<&'a str>,
}

/// How many bytes at the end of a file are searched for the last lines.
const TAIL: u64 = 256 * 1024;
const NAME: &str = "audit.log";
/// Bytes of a file before another begins: some 300,000 lines.
const MOST_BYTES: u64 = 64 << 20;
/// What the first line of a file says if there was another before it.
const CONTINUED: &str = "continued";

impl<'a> AuditEvent<'a> {
    /// What the server did by itself.
    pub(crate) const fn of_server(what: &'a str, details: &'a Value) -> Self {
        Self { actor: Actor::SERVER, what, details, reason: None }
    }
}

impl Actor<'_> {
    /// The server itself.
    pub(crate) const SERVER: Actor<'static> =
        Actor { who: "tidegate", peer: std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED) };
}

impl Audit {
    /// Opens or creates the log in this folder. `head` is its end when the control file was written.
    pub(crate) fn open(
        folder: &Path,
        secret: &Secret,
        head: Option<&ChainHead>,
    ) -> io::Result<Self> {
        let path = folder.join(NAME);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut audit = Self {
            path: path.clone(),
            head: ChainHead::default(),
            length: 0,
            most_bytes: MOST_BYTES,
            damage: None,
            version: 0,
            cut_short: false,
        };
        audit.read(secret, head).map_err(named)?;
        Ok(audit)
    }

    /// Verifies the chain from the first line to the last.
    fn read(&mut self, secret: &Secret, expected: Option<&ChainHead>) -> io::Result<()> {
        let mut files = older_files(&self.path)?;
        files.push(self.path.clone());
        for path in files {
            self.length = 0;
            let Some(file) = existing(&path)? else { continue };
            let mut log = io::BufReader::new(file);
            let mut line = Vec::new();
            while log.read_until(b'\n', &mut line)? > 0 {
                // The last line may be incomplete after a crash or on a full disk. The next append removes it.
                self.cut_short = line.last() != Some(&b'\n');
                if self.cut_short {
                    break;
                }
                self.length = self.length.saturating_add(u64::try_from(line.len()).unwrap_or(0));
                self.follow(secret, &line);
                let head = expected.filter(|head| head.lines == self.head.lines);
                if head.is_some_and(|head| head.chain != self.head.chain) {
                    self.changed(self.head.lines);
                }
                line.clear();
            }
        }
        let (expected, moved) = expected.map_or((0, 0), |head| (head.lines, head.moved));
        if self.head.lines < expected {
            let lines = self.head.lines;
            self.damage.get_or_insert(Damage::Shortened { lines, expected });
        }
        if self.head.moved > moved {
            let first = self.head.moved.saturating_add(1);
            self.damage.get_or_insert(Damage::Moved { first });
        }
        Ok(())
    }

    /// Verifies the next line.
    fn follow(&mut self, secret: &Secret, line: &[u8]) {
        let mut line: Value = serde_json::from_slice(line).unwrap_or_default();
        if self.head.lines == 0
            && let Some(before) = before_file(&line)
        {
            self.head = before;
        }
        self.head.lines = self.head.lines.saturating_add(1);
        let chain = line.as_object_mut().and_then(|fields| fields.remove("chain"));
        let chain = chain.as_ref().and_then(Value::as_str);
        if chain != Some(&sign(secret, &self.head.chain, &line)) {
            self.changed(self.head.lines);
        }
        // Behind a damaged line, the chain continues from the last signature that can be read.
        if let Some(chain) = chain {
            chain.clone_into(&mut self.head.chain);
        }
        if let Some(version) = line.pointer("/details/version").and_then(Value::as_u64) {
            self.version = version;
        }
    }

    fn changed(&mut self, line: u64) {
        self.damage.get_or_insert(Damage::Changed { line });
    }

    /// Appends a line and returns when it is on the disk. If it could not be written, an incomplete line is removed.
    pub(crate) fn append(
        &mut self,
        secret: &Secret,
        clock: &Clock,
        version: u64,
        event: AuditEvent<'_>,
    ) -> io::Result<()> {
        if self.length >= self.most_bytes {
            self.begin_file()?;
        }
        if self.length == 0 && self.head.lines > 0 {
            let before = json!({ "lines": self.head.lines, "chain": self.head.chain });
            let continued = AuditEvent::of_server(CONTINUED, &before);
            self.append_line(secret, clock, self.version, continued)?;
        }
        self.append_line(secret, clock, version, event)
    }

    fn append_line(
        &mut self,
        secret: &Secret,
        clock: &Clock,
        version: u64,
        event: AuditEvent<'_>,
    ) -> io::Result<()> {
        let at_ms = clock.now().calendar.as_nanos().checked_div(1_000_000);
        let mut line = json!({
            "at_ms": at_ms, "who": event.actor.who, "peer": event.actor.peer.to_string(),
            "what": event.what, "details": { "version": version, "change": event.details },
        });
        if let (Some(fields), Some(reason)) = (line.as_object_mut(), event.reason) {
            fields.insert("reason".to_owned(), json!(reason));
        }
        let chain = sign(secret, &self.head.chain, &line);
        if let Some(fields) = line.as_object_mut() {
            fields.insert("chain".to_owned(), json!(chain));
        }
        let line = format!("{line}\n");
        self.write(line.as_bytes())?;
        self.length = self.length.saturating_add(u64::try_from(line.len()).unwrap_or(0));
        self.head.lines = self.head.lines.saturating_add(1);
        self.head.chain = chain;
        self.version = version;
        Ok(())
    }

    /// Renames the file, so that the next line begins another.
    fn begin_file(&mut self) -> io::Result<()> {
        if self.cut_short {
            OpenOptions::new().write(true).open(&self.path)?.set_len(self.length)?;
            self.cut_short = false;
        }
        let mut older = self.path.clone().into_os_string();
        older.push(format!(".{:010}", self.head.lines));
        std::fs::rename(&self.path, older)?;
        self.length = 0;
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file =
            files::open_regular(options.append(true).create(true).mode(0o600), &self.path)?;
        let length = file.metadata()?.len();
        if length < self.length {
            // Lines were removed. How many would be known only after reading the whole log.
            let (lines, expected) = (0, self.head.lines);
            self.damage.get_or_insert(Damage::Shortened { lines, expected });
            self.length = length;
        }
        if self.cut_short {
            file.set_len(self.length)?;
        }
        self.cut_short = true;
        let written = file.write_all(line).and_then(|()| file.sync_data());
        // This works on a full disk too, because truncating a file takes no space.
        let whole = written.is_ok() || file.set_len(self.length).is_ok();
        self.cut_short = !whole;
        written
    }

    /// Reports damage if the log has lines and the control file does not say how many. The first start writes the control file,
    /// so a person or another program has removed it since.
    pub(crate) fn end_is_unknown(&mut self) {
        let lines = self.head.lines;
        if lines > 0 {
            self.damage.get_or_insert(Damage::EndUnknown { lines });
        }
    }

    /// The end of the chain.
    pub(crate) const fn head(&self) -> &ChainHead {
        &self.head
    }

    /// The last lines, the oldest first.
    pub(crate) fn last(&self, count: usize) -> io::Result<Vec<Value>> {
        let mut tail = Vec::new();
        // Also of the file before, because this one may have just begun.
        for path in older_files(&self.path)?.last().into_iter().chain([&self.path]) {
            let Some(mut file) = existing(path)? else { continue };
            let length = file.metadata()?.len();
            file.seek(io::SeekFrom::Start(length.saturating_sub(TAIL)))?;
            file.take(TAIL).read_to_end(&mut tail)?;
        }
        // The first line may be incomplete, even in the middle of a character; then it does not parse.
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

/// The older files of a log, the oldest first.
fn older_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path.parent().unwrap_or(Path::new(".")))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(NAME)?.strip_prefix('.'));
        let number =
            number.filter(|digits| digits.len() >= 10).and_then(|digits| digits.parse().ok());
        found.extend(number.map(|number: u64| (number, path.with_file_name(name))));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Where the chain was before the file that begins with this line, if there was one.
fn before_file(line: &Value) -> Option<ChainHead> {
    let what = line.get("what").and_then(Value::as_str);
    let before = line.pointer("/details/change").filter(|_| what == Some(CONTINUED))?;
    let (lines, chain) = (before.get("lines")?.as_u64()?, before.get("chain")?.as_str()?);
    Some(ChainHead { lines, chain: chain.to_owned(), moved: lines })
}

fn existing(path: &Path) -> io::Result<Option<File>> {
    match files::open_regular(OpenOptions::new().read(true), path) {
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
        files::private_folder(&folder).unwrap();
        folder
    }

    fn append(audit: &mut Audit, secret: &Secret, number: u64) -> io::Result<()> {
        let clock = Clock::manual(tidegate::Timestamp::from_nanos(5_000_000));
        let actor = Actor { who: "operator", peer: [127, 0, 0, 1].into() };
        let details = json!({ "number": number });
        audit.append(
            secret,
            &clock,
            number,
            AuditEvent { actor, what: "rule", details: &details, reason: None },
        )
    }

    /// A log of three lines, each written by another server.
    fn written(folder: &Path, secret: &Secret) -> Audit {
        for number in 0..3 {
            let mut audit = Audit::open(folder, secret, None).unwrap();
            append(&mut audit, secret, number).unwrap();
        }
        Audit::open(folder, secret, None).unwrap()
    }

    fn numbers(audit: &Audit) -> Vec<u64> {
        numbers_of(&audit.last(99).unwrap())
    }

    fn numbers_of(lines: &[Value]) -> Vec<u64> {
        lines.iter().filter_map(|line| line["details"]["change"]["number"].as_u64()).collect()
    }

    #[test]
    fn lines_stay_and_are_chained_over_restarts() {
        let (folder, secret) = (folder("chain"), Secret::new([7; 32]));
        let audit = written(&folder, &secret);
        assert_eq!((audit.damage, audit.version, audit.head().lines), (None, 2, 3));
        assert_eq!(numbers(&audit), [0, 1, 2]);
        assert_eq!(audit.last(2).unwrap().len(), 2);
        assert_eq!(audit.last(9).unwrap()[0]["at_ms"], 5);
    }

    #[test]
    fn a_changed_or_removed_line_is_noticed() {
        let (folder, secret) = (folder("broken"), Secret::new([7; 32]));
        let path = written(&folder, &secret).path;
        let good = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        for (text, line) in [
            (good.replace("\"number\":1", "\"number\":9"), 2),
            (format!("{}\n{}\n", lines[0], lines[2]), 2),
            (format!("{}\nnonsense\n", lines[0]), 2),
            (format!("{}\n", lines[1]), 1),
        ] {
            std::fs::write(&path, text).unwrap();
            let damage = Audit::open(&folder, &secret, None).unwrap().damage;
            assert_eq!(damage, Some(Damage::Changed { line }));
        }
    }

    /// The chain alone does not contain its length: the last lines, or all of them, could be removed.
    #[test]
    fn lines_missing_at_the_end_are_noticed() {
        let (folder, secret) = (folder("shortened"), Secret::new([7; 32]));
        let audit = written(&folder, &secret);
        let (path, head) = (audit.path.clone(), audit.head().clone());
        let good = std::fs::read_to_string(&path).unwrap();
        let damage = || Audit::open(&folder, &secret, Some(&head)).unwrap().damage;
        assert_eq!(damage(), None);
        let shortened = |lines| Some(Damage::Shortened { lines, expected: 3 });
        for (left, lines) in
            [(good.lines().next().unwrap().to_owned() + "\n", 1), (String::new(), 0)]
        {
            std::fs::write(&path, left).unwrap();
            assert_eq!(damage(), shortened(lines));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(damage(), shortened(0));
        // Another log of the same length is noticed too.
        let mut other = Audit::open(&folder, &secret, None).unwrap();
        (0..3).for_each(|number| append(&mut other, &secret, number + 7).unwrap());
        assert_eq!(damage(), Some(Damage::Changed { line: 3 }));
        // Lines that were appended after the control file was written are not damage.
        std::fs::write(&path, good).unwrap();
        let mut audit = Audit::open(&folder, &secret, Some(&head)).unwrap();
        append(&mut audit, &secret, 3).unwrap();
        assert_eq!(damage(), None);
    }

    /// A log that is truncated while the server runs is noticed when the next line is appended.
    #[test]
    fn a_log_truncated_while_the_server_runs_is_noticed() {
        let (folder, secret) = (folder("emptied"), Secret::new([7; 32]));
        let mut audit = written(&folder, &secret);
        std::fs::write(&audit.path, "").unwrap();
        append(&mut audit, &secret, 3).unwrap();
        assert_eq!(audit.damage, Some(Damage::Shortened { lines: 0, expected: 3 }));
    }

    /// The next line was once appended to an incomplete one, and the next start took that for an attack.
    #[test]
    fn an_incomplete_line_is_removed() {
        let (folder, secret) = (folder("half"), Secret::new([7; 32]));
        let path = written(&folder, &secret).path;
        let good = std::fs::read(&path).unwrap();
        let half = good.len() - 20;
        std::fs::write(&path, &good[..half]).unwrap();
        let mut audit = Audit::open(&folder, &secret, None).unwrap();
        assert_eq!((audit.damage, audit.head().lines), (None, 2));
        append(&mut audit, &secret, 7).unwrap();
        assert_eq!(numbers(&audit), [0, 1, 7]);
        assert_eq!(Audit::open(&folder, &secret, Some(audit.head())).unwrap().damage, None);
    }

    /// On a full disk, only the beginning of a line is written.
    #[test]
    fn a_line_that_does_not_fit_is_removed() {
        let (folder, secret) = (folder("full"), Secret::new([7; 32]));
        let mut audit = written(&folder, &secret);
        let length = std::fs::metadata(&audit.path).unwrap().len();
        std::fs::write(
            &audit.path,
            [std::fs::read(&audit.path).unwrap(), b"half".to_vec()].concat(),
        )
        .unwrap();
        audit.cut_short = true; // as after a write that failed and could not be undone
        append(&mut audit, &secret, 3).unwrap();
        assert!(std::fs::metadata(&audit.path).unwrap().len() > length);
        assert_eq!(Audit::open(&folder, &secret, Some(audit.head())).unwrap().damage, None);
    }

    /// A log of eight lines and more, in several files.
    fn in_files(folder: &Path, secret: &Secret) -> (Audit, Vec<PathBuf>) {
        let mut audit = Audit::open(folder, secret, None).unwrap();
        audit.most_bytes = 400;
        (0..8).for_each(|number| append(&mut audit, secret, number).unwrap());
        let older = older_files(&audit.path).unwrap();
        assert!(older.len() >= 2, "{older:?}");
        (audit, older)
    }

    /// The log was one file, which grew for ever and was read whole at each start. It could not be rotated without breaking the chain.
    #[test]
    fn the_chain_goes_on_from_file_to_file() {
        let (folder, secret) = (folder("files"), Secret::new([7; 32]));
        let (audit, older) = in_files(&folder, &secret);
        let open = || Audit::open(&folder, &secret, Some(audit.head())).unwrap();
        let again = open();
        assert_eq!((again.damage, again.head(), again.version), (None, audit.head(), 7));
        assert_eq!(again.length, std::fs::metadata(&audit.path).unwrap().len());
        // The last lines are found, also if the file has just begun.
        let numbers = numbers_of(&again.last(99).unwrap());
        assert!(numbers.ends_with(&[5, 6, 7]), "{numbers:?}");
        // Each file is verified.
        for path in &older {
            let good = std::fs::read_to_string(path).unwrap();
            let (line, rest) = good.split_once('\n').unwrap();
            for bad in [good.replace("operator", "nobody"), rest.to_owned(), format!("{line}\n")] {
                std::fs::write(path, bad).unwrap();
                assert!(matches!(open().damage, Some(Damage::Changed { .. })), "{path:?}");
            }
            std::fs::write(path, &good).unwrap();
        }
        assert_eq!(open().damage, None);
    }

    #[test]
    fn the_oldest_files_can_be_moved_away_and_no_others() {
        let (folder, secret) = (folder("moved"), Secret::new([7; 32]));
        let (audit, older) = in_files(&folder, &secret);
        let (last, away) = (older.last().unwrap(), folder.join("away"));
        std::fs::rename(last, &away).unwrap();
        let damage = Audit::open(&folder, &secret, Some(audit.head())).unwrap().damage;
        assert!(matches!(damage, Some(Damage::Changed { .. })), "{damage:?}");
        std::fs::rename(&away, last).unwrap();
        std::fs::remove_file(&older[0]).unwrap();
        let mut opened = Audit::open(&folder, &secret, Some(audit.head())).unwrap();
        let moved = opened.head().moved;
        assert!(moved > 0 && opened.head().lines == audit.head().lines);
        assert_eq!(opened.damage, Some(Damage::Moved { first: moved + 1 }));
        // That is reported once: from then on the control file says where the log begins.
        append(&mut opened, &secret, 9).unwrap();
        assert_eq!(Audit::open(&folder, &secret, Some(opened.head())).unwrap().damage, None);
    }

    #[test]
    fn a_crash_between_two_files_breaks_nothing() {
        let (folder, secret) = (folder("renamed"), Secret::new([7; 32]));
        let mut audit = written(&folder, &secret);
        let head = audit.head().clone();
        audit.begin_file().unwrap();
        let mut again = Audit::open(&folder, &secret, Some(&head)).unwrap();
        assert_eq!((again.damage, again.head()), (None, &head));
        append(&mut again, &secret, 3).unwrap();
        assert_eq!(Audit::open(&folder, &secret, Some(again.head())).unwrap().damage, None);
    }

    #[test]
    fn a_log_that_is_not_a_regular_file_is_refused() {
        let (folder, secret) = (folder("pipe"), Secret::new([7; 32]));
        let path = folder.join("audit.log");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Audit::open(&folder, &secret, None).unwrap_err().to_string();
        assert!(error.contains("audit.log: it is not a regular file"), "{error}");
    }
}
