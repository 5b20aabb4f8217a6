//! A copy of some crates of the workspace, in which mutants are applied and reverted.

use super::{Mutant, context};
use crate::root;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

/// A copy of a part of the workspace, with a target directory of its own.
pub(super) struct WorkspaceCopy {
    folder: PathBuf,
    target: PathBuf,
}

impl WorkspaceCopy {
    /// Copies crates to a folder. An earlier copy is replaced; its build artifacts are kept.
    pub(super) fn new(below: &str, crates: &[&str]) -> io::Result<Self> {
        let (folder, target) =
            (root().join(below).join("workspace"), root().join(below).join("target"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for part in crates {
            copy_folder(&root().join(part), &folder.join(part))?;
        }
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let members = format!("members = {crates:?}");
        let line =
            |line: &str| if line.starts_with("members") { &*members } else { line }.to_owned();
        let manifest: Vec<String> = manifest.lines().map(line).collect();
        fs::write(folder.join("Cargo.toml"), manifest.join("\n"))?;
        Ok(Self { folder, target })
    }

    /// Applies a mutant, runs the tests, and reverts the mutant. Returns the result of the tests.
    pub(super) fn with_mutant<T>(
        &self,
        mutant: &Mutant,
        run_tests: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let path = self.folder.join(&mutant.file);
        let original = fs::read_to_string(&path).map_err(context(&mutant.file))?;
        let places = original.matches(&mutant.from).count();
        if places != 1 {
            return Err(format!(
                "`{}` occurs {places} times in {} and must occur once; update the mutant",
                mutant.from, mutant.file
            ));
        }
        fs::write(&path, original.replacen(&mutant.from, &mutant.to, 1))
            .map_err(context(&mutant.file))?;
        let outcome = run_tests();
        fs::write(&path, original).map_err(context(&mutant.file))?;
        outcome
    }

    /// A cargo command in the copy, limited to this many seconds.
    pub(super) fn cargo(&self, seconds: u32, words: &[&str]) -> Command {
        let mut cargo = bounded(seconds, env!("CARGO"));
        cargo.current_dir(&self.folder).args(words).args(["--quiet", "--offline"]);
        // Without debug information builds are faster, and it is not needed here.
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_PROFILE_DEV_DEBUG", "false");
        // CI turns this off; here one file of a crate changes at a time.
        cargo.env("CARGO_INCREMENTAL", "1");
        cargo
    }

    /// Builds with cargo; a compile error is an `Err`.
    pub(super) fn build(&self, seconds: u32, words: &[&str]) -> Result<(), String> {
        let built = output(self.cargo(seconds, words))?;
        if built.status.success() {
            return Ok(());
        }
        Err(format!("does not compile:\n{}", String::from_utf8_lossy(&built.stderr)))
    }

    /// The path of a program that was built with the dev profile.
    pub(super) fn built(&self, name: &str) -> PathBuf {
        self.target.join("debug").join(name)
    }
}

/// A command that is stopped after this many seconds, because some mutants cause an endless loop, and when
/// the lab ends. `setpriv` is needed for the latter: Ctrl-C does not reach the program, because `timeout`
/// creates a process group of its own.
pub(super) fn bounded(seconds: u32, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", &seconds.to_string()]);
    command.arg(program.as_ref());
    command
}

/// Runs a command to its end.
pub(super) fn output(mut command: Command) -> Result<Output, String> {
    command.output().map_err(context("setpriv timeout"))
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
