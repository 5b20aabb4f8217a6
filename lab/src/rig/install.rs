//! Finds the programs of the experiments, and installs the peers that are missing.

use super::LoadOptions;
use crate::root;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that several experiments run. Other peers are found on the `PATH`.
pub(crate) struct Programs {
    pub(crate) tidegate: PathBuf,
    pub(crate) throttlecrab: PathBuf,
}

impl Programs {
    /// Finds both programs, and installs throttlecrab if it is missing.
    pub(crate) fn found(options: &LoadOptions) -> Result<Self, String> {
        Ok(Self { tidegate: tidegate(options.tidegate.as_deref())?, throttlecrab: throttlecrab()? })
    }
}

/// tidegate: the binary that was given, or the one in the directory of this program.
pub(crate) fn tidegate(given: Option<&Path>) -> Result<PathBuf, String> {
    let tidegate = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("tidegate"),
    };
    if tidegate.exists() {
        return Ok(tidegate);
    }
    let path = tidegate.display();
    Err(format!("{path} is missing; build it with `cargo build --release -p tidegate-server`"))
}

fn throttlecrab() -> Result<PathBuf, String> {
    let peers = root().join("target/peers");
    let throttlecrab = peers.join("bin/throttlecrab-server");
    if !throttlecrab.exists() {
        // Its build script compiles a Protocol Buffers file.
        provide("protoc", "protobuf-compiler")?;
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "throttlecrab-server@0.4.40", "--root"]);
        done(cargo.arg(peers))?;
    }
    Ok(throttlecrab)
}

/// Envoy: the binary that was given, or the one that `make deps` installs.
pub(crate) fn envoy(given: Option<&Path>) -> Result<PathBuf, String> {
    let envoy = given.map_or_else(|| root().join("target/envoy/envoy"), Path::to_owned);
    if envoy.exists() {
        return Ok(envoy);
    }
    Err(format!("{} is missing; install it with `make deps`", envoy.display()))
}

/// Installs a Debian package unless its program is there.
pub(crate) fn provide(program: &str, package: &str) -> Result<(), String> {
    if Command::new(program).arg("--help").output().is_ok() {
        return Ok(());
    }
    done(Command::new("apt-get").args(["update", "-q"]))?;
    done(Command::new("apt-get").args(["install", "-y", "-q", "--no-install-recommends", package]))
}

/// Runs a command to its end. Its output goes to standard error, because standard output may be JSON.
fn done(command: &mut Command) -> Result<(), String> {
    let status = command.stdout(io::stderr()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
