//! How a server under test is started: its limits, its address and its folder, and tidegate's command line for them.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// What each key is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// A million per second: nothing is refused.
    Generous,
    /// One per hour: nearly everything is refused. Two peers cannot express this exactly. nginx has no rate below one
    /// per minute, and throttlecrab gets a burst of 2, because with a burst of 1 it limits nothing.
    Strict,
}

/// Where a server is started, and with which limits.
pub(crate) struct Launch<'l> {
    pub(crate) limits: Limits,
    pub(crate) address: SocketAddr,
    /// An empty folder for its files.
    pub(crate) folder: &'l Path,
}

impl Launch<'_> {
    /// The command that runs tidegate with one rule per client address. The caller adds the listeners.
    pub(crate) fn tidegate(&self, program: &Path) -> io::Result<Command> {
        let rate = match self.limits {
            Limits::Generous => "1000000/s",
            Limits::Strict => "1/h",
        };
        let rule = format!("{{ name: per-client, key: [ip], limits: [{rate}] }}");
        let (policy, data) = (self.folder.join("policy.yaml"), self.folder.join("data"));
        fs::create_dir(&data)?;
        fs::write(&policy, format!("version: 1\nrules:\n  - {rule}\n"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--policy").arg(policy).arg("--data-dir").arg(data);
        Ok(command)
    }
}
