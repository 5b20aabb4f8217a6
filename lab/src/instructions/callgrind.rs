//! Runs a program under callgrind and reads the file that it writes.
//!
//! ```text
//!   fn=(12) tidegate_store::memory::Memory::take_one_now      the first time with its name, later only `fn=(12)`
//!   0 42                                                      42 instructions of the function itself
//!   cfn=(13) memcpy                                           a call: the next two lines belong to it
//!   calls=7 0
//!   0 140                                                     of the called function, so they do not count here
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Instructions by function, without those of the functions that it calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile(BTreeMap<String, u64>);

/// A command that runs a program under callgrind, which writes its counts to a file.
pub(super) fn counted(program: &OsStr, counts: &Path) -> Command {
    let mut command = Command::new("valgrind");
    let mut file = OsStr::new("--callgrind-out-file=").to_owned();
    file.push(counts);
    command.args(["--quiet", "--tool=callgrind"]).arg(file).arg(program);
    command
}

impl Profile {
    /// Reads the text of a callgrind file.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut counts, mut names) = (BTreeMap::new(), HashMap::new());
        let (mut function, mut lines) = (String::new(), text.lines());
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = full_name(name, &mut names);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                full_name(name, &mut names);
            } else if line.starts_with("calls=") {
                lines.next();
            } else if let Some(count) = own_count(line) {
                let own: &mut u64 = counts.entry(function.clone()).or_default();
                *own = own.saturating_add(count);
            }
        }
        if counts.is_empty() {
            Err("callgrind wrote no counts".to_owned())
        } else {
            Ok(Self(counts))
        }
    }

    /// What one of the decisions takes that this run made and `fewer` did not.
    pub(super) fn per_decision(&self, fewer: &Self, decisions: u64) -> Self {
        let more = self.0.iter().map(|(name, count)| {
            let before = fewer.0.get(name).copied().unwrap_or(0);
            (name.clone(), div_rounded(count.saturating_sub(before), decisions))
        });
        Self(more.filter(|(_, count)| *count > 0).collect())
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The functions with the most instructions, at most this many.
    pub(super) fn most(&self, functions: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> =
            self.0.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.truncate(functions);
        all
    }

    /// Instructions by crate, the most first. Inlined code counts for the crate of the function that it was inlined into.
    pub(super) fn crates(&self) -> Vec<(&str, u64)> {
        let mut crates: HashMap<&str, u64> = HashMap::new();
        for (name, count) in &self.0 {
            let of_crate = crates.entry(crate_of(name)).or_default();
            *of_crate = of_crate.saturating_add(*count);
        }
        let mut crates: Vec<_> = crates.into_iter().collect();
        crates.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        crates
    }
}

/// The name in `(12) name`, or the one that had this number before.
fn full_name(text: &str, names: &mut HashMap<String, String>) -> String {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    // A recursive function is listed once for each depth, as `name'2`.
    let name = name.split_once('\'').map_or(name, |(name, _)| name);
    if !name.is_empty() {
        names.insert(number.to_owned(), name.to_owned());
    }
    names.get(number).cloned().unwrap_or_default()
}

/// The count of a line such as `0 42` or `+3 42`.
fn own_count(line: &str) -> Option<u64> {
    let is_count = line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first));
    if is_count { line.rsplit(' ').next()?.parse().ok() } else { None }
}

/// The crate of a function such as `<tidegate_store::Memory as core::clone::Clone>::clone`.
fn crate_of(function: &str) -> &str {
    let path = function.trim_start_matches(['<', '&', '*', '(', '[']);
    let path = path.trim_start_matches("mut ").trim_start_matches("dyn ");
    path.split_once("::").map_or("C and kernel", |(name, _)| name)
}

fn div_rounded(count: u64, by: u64) -> u64 {
    count.saturating_add(by / 2).checked_div(by).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
events: Ir
fl=(1) ???
fn=(1) <tidegate_store::memory::Memory>::take
0 100
cfn=(2) memcpy
calls=7 0
0 140
+2 11

fn=(2)
0 140
fn=(3) tidegate_store::table::read'2
0 9
";

    #[test]
    fn calls_do_not_count_for_the_caller() {
        let profile = Profile::parse(FILE).unwrap();
        assert_eq!(profile.total(), 260);
        assert_eq!(
            profile.most(2),
            [("memcpy", 140), ("<tidegate_store::memory::Memory>::take", 111)]
        );
        assert_eq!(profile.crates(), [("C and kernel", 140), ("tidegate_store", 120)]);
    }

    #[test]
    fn one_decision_is_what_the_longer_run_has_more() {
        let more = Profile::parse(&FILE.replace("0 140", "0 1140")).unwrap();
        let one = more.per_decision(&Profile::parse(FILE).unwrap(), 100);
        assert_eq!(one.most(9), [("memcpy", 10)]);
    }

    #[test]
    fn a_file_without_counts_is_an_error() {
        assert!(Profile::parse("events: Ir\n").is_err());
    }
}
