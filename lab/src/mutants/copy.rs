//! A copy of some crates of the workspace, in which mistakes are planted and taken out again.

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
    /// Copies crates below a folder; what was there before is replaced, what was built is kept.
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

    /// Plants a mutant, hunts for it, and takes it out again; answers what the hunt did.
    pub(super) fn plant<T>(
        &self,
        mutant: &Mutant,
        hunt: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let path = self.folder.join(&mutant.file);
        let original = fs::read_to_string(&path).map_err(context(&mutant.file))?;
        let places = original.matches(&mutant.from).count();
        if places != 1 {
            return Err(format!(
                "`{}` stands {places} times in {}, not once: mend the mutant",
                mutant.from, mutant.file
            ));
        }
        fs::write(&path, original.replacen(&mutant.from, &mutant.to, 1))
            .map_err(context(&mutant.file))?;
        let outcome = hunt();
        fs::write(&path, original).map_err(context(&mutant.file))?;
        outcome
    }

    /// Runs cargo in the copy, for this many seconds at most.
    pub(super) fn cargo(&self, seconds: u32, words: &[&str]) -> Command {
        let mut cargo = bounded(seconds, env!("CARGO"));
        cargo.current_dir(&self.folder).args(words).args(["--quiet", "--offline"]);
        // Nobody debugs a mutant, and they are built sooner without.
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_PROFILE_DEV_DEBUG", "false");
        cargo
    }

    /// Builds with cargo; what does not compile is an error.
    pub(super) fn build(&self, seconds: u32, words: &[&str]) -> Result<(), String> {
        let built = output(self.cargo(seconds, words))?;
        if built.status.success() {
            return Ok(());
        }
        Err(format!("does not compile:\n{}", String::from_utf8_lossy(&built.stderr)))
    }

    /// A program that was built without further options.
    pub(super) fn built(&self, name: &str) -> PathBuf {
        self.target.join("debug").join(name)
    }
}

/// A program that ends after this many seconds at the latest, since some mistakes make a loop endless; and when we do: Ctrl-C
/// does not reach it, because `timeout` has a process group of its own.
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
