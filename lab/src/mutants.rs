//! Mutants: small mistakes, planted one by one. A test suite that lets one live is not a test suite.
//!
//! A copy of the core and its timelines is made under `target/mutants`, so that nothing here can
//! leave a mistake in the real source. For each mutant one text is replaced, and the laws, unit tests
//! and timelines run until one of them fails. A mutant that passes them all, or that no longer applies or
//! compiles, is a failure.

use crate::{root, say};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

/// Enough to catch every mutant, a twentieth of what `make test` runs on the real code.
const CASES: &str = "500";

/// For building and running one test.
const MOST_SECONDS: &str = "120";

/// What the experiment takes from the command line.
#[derive(Args)]
pub(crate) struct Options {
    /// Only mutants whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// One mistake.
#[derive(Debug, Default, Clone)]
struct Mutant {
    name: String,
    file: String,
    from: String,
    to: String,
}

/// Plants every mutant; an error when one was not caught.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let list = fs::read_to_string(root().join("lab/mutants/core.txt"))
        .map_err(told("lab/mutants/core.txt"))?;
    let mutants: Vec<Mutant> =
        parse(&list)?.into_iter().filter(|mutant| mutant.name.contains(&options.only)).collect();
    let copy = Copy::new().map_err(told("target/mutants"))?;
    if let Some(failure) = copy.first_failure()? {
        return Err(format!("the unchanged copy fails already:\n{failure}"));
    }
    let mut alive = 0usize;
    for mutant in &mutants {
        let verdict = copy.plant(mutant)?;
        alive = alive.saturating_add(usize::from(verdict.is_none()));
        let caught = verdict.unwrap_or_else(|| "NOT CAUGHT".to_owned());
        say(&format!("mutant: {:<92} {caught}", mutant.name));
    }
    let caught = mutants.len().saturating_sub(alive);
    say(&format!("mutants: {caught} of {} caught", mutants.len()));
    if alive == 0 { Ok(()) } else { Err(format!("{alive} mutants live")) }
}

fn parse(list: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (number, line) in (1usize..).zip(list.lines()) {
        let Some((word, text)) = line.split_once(' ').filter(|(word, _)| *word != "#") else {
            continue;
        };
        let text = text.trim().to_owned();
        if word == "mutant" {
            mutants.push(Mutant { name: text, ..Mutant::default() });
            continue;
        }
        let field = mutants.last_mut().and_then(|mutant| match word {
            "file" => Some(&mut mutant.file),
            "from" => Some(&mut mutant.from),
            "to" => Some(&mut mutant.to),
            _ => None,
        });
        *field.ok_or_else(|| {
            format!("lab/mutants/core.txt:{number}: expected mutant, file, from or to")
        })? = text;
    }
    Ok(mutants)
}

/// A copy of the part of the workspace that mutants are planted in.
struct Copy {
    folder: PathBuf,
}

impl Copy {
    fn new() -> io::Result<Self> {
        let folder = root().join("target/mutants/workspace");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for part in ["crates/core", "timelines"] {
            copy_folder(&root().join(part), &folder.join(part))?;
        }
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let members = manifest.lines().map(|line| match line.starts_with("members") {
            true => "members = [\"crates/core\", \"timelines\"]",
            false => line,
        });
        fs::write(folder.join("Cargo.toml"), members.collect::<Vec<_>>().join("\n"))?;
        Ok(Self { folder })
    }

    /// Plants a mutant, runs the tests, and takes it out again; answers who caught it.
    fn plant(&self, mutant: &Mutant) -> Result<Option<String>, String> {
        let path = self.folder.join(&mutant.file);
        let original = fs::read_to_string(&path).map_err(told(&mutant.file))?;
        let (flat_from, places) = (mutant.from.as_str(), original.matches(&mutant.from).count());
        if places != 1 {
            return Err(format!(
                "`{flat_from}` stands {places} times in {}, not once: mend the mutant",
                mutant.file
            ));
        }
        fs::write(&path, original.replacen(&mutant.from, &mutant.to, 1))
            .map_err(told(&mutant.file))?;
        let failure = self.first_failure();
        fs::write(&path, original).map_err(told(&mutant.file))?;
        failure
    }

    /// The first test that fails, or the compiler's complaint as an error.
    fn first_failure(&self) -> Result<Option<String>, String> {
        let tests: [&[&str]; 3] = [
            &["-p", "tidegate-core", "--test", "laws"],
            &["-p", "tidegate-core", "--lib"],
            &["-p", "tidegate-timelines", "--test", "core"],
        ];
        for test in tests {
            let built = self.cargo(&[&["test", "--no-run"], test].concat())?;
            if !built.status.success() {
                return Err(format!(
                    "does not compile:\n{}",
                    String::from_utf8_lossy(&built.stderr)
                ));
            }
            let output = self.cargo(&[&["test"], test].concat())?;
            if !output.status.success() {
                return Ok(Some(first_complaint(&String::from_utf8_lossy(&output.stdout))));
            }
        }
        Ok(None)
    }

    fn cargo(&self, words: &[&str]) -> Result<Output, String> {
        // Some mistakes make a loop endless: that is caught, too.
        let mut cargo = Command::new("timeout");
        cargo.arg(MOST_SECONDS).arg(env!("CARGO"));
        cargo.current_dir(&self.folder).args(words).args(["--quiet", "--offline"]);
        cargo
            .env("CARGO_TARGET_DIR", root().join("target/mutants/target"))
            .env("LAWS_CASES", CASES);
        cargo.output().map_err(told("cargo"))
    }
}

/// Which law, test or timeline complained first.
fn first_complaint(output: &str) -> String {
    let complaint = output.lines().find_map(|line| {
        let law = line.strip_prefix("BROKEN: ").map(|law| format!("law: {law}"));
        let test = line.strip_suffix(" stdout ----").map(|test| test.replace("---- ", "test: "));
        law.or(test)
    });
    complaint.unwrap_or_else(|| "caught".to_owned())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn told(what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}
