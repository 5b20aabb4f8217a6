//! Documents of this node that lost against a different document of the store.
//!
//! ```text
//!   5 ──► 6   made on this node, and lost by a failover of the store       kept in `control-fork-6-9f….json`
//!   ╰───► 6'  made on another node, before this one could write 6 back     in force on all nodes
//! ```
//!
//! Only an operator can say which of the changes are still wanted. So that all nodes decide alike, the document of the store is
//! in force everywhere. Each node that had another one keeps it in a file of its own and names it at `/ready` until the file is
//! removed.

use super::control_file::ControlFile;
use super::{Rulebook, RulebookError};
use crate::backend::Backend;
use crate::control::Edition;
use std::io;
use std::path::{Path, PathBuf};

/// How the names of the files begin.
const PREFIX: &str = "control-fork-";
/// The most files. A store that makes more forks is broken, or in the hands of an attacker, and must not fill the disk.
const MOST: usize = 8;

/// The files of documents that are not in force.
#[derive(Debug, Default)]
pub(super) struct Forks(Vec<PathBuf>);

impl Forks {
    /// The forks that lie beside a control file.
    pub(super) fn found(control_file: &Path) -> io::Result<Self> {
        let folder = control_file.parent().unwrap_or(Path::new("."));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(".json"))
            {
                files.push(entry.path());
            }
        }
        files.sort_unstable();
        Ok(Self(files))
    }
}

impl<S: Backend> Rulebook<S> {
    /// Keeps the document of this node in a file, before that of the store (version `theirs`) replaces it.
    pub(super) fn keep_fork(&self, ours: &Edition, theirs: u64) -> Result<(), RulebookError> {
        let id = ours.lineage.id().map(ToString::to_string).unwrap_or_default();
        let name = format!("{PREFIX}{}.json", id.replace(':', "-"));
        let path = self.control_file.with_file_name(name);
        let known = self.lock().forks.0.clone();
        if known.contains(&path) {
            return Ok(());
        }
        if known.len() >= MOST {
            tracing::error!(
                version = ours.document.version,
                "the store has a different control document; there are {MOST} files of such documents already, so this one is not kept"
            );
            return Ok(());
        }
        ControlFile { edition: ours.clone(), audit: None }.write_document(&path)?;
        tracing::error!(
            ours = ours.document.version,
            theirs,
            file = %path.display(),
            "the store has a different control document"
        );
        self.lock().forks.0.push(path);
        Ok(())
    }

    /// What `/ready` says about documents that are not in force, until their files are removed. Reads the disk if there are some.
    pub(crate) fn fork_problem(&self) -> Option<String> {
        let mut files = self.lock().forks.0.clone();
        files.retain(|path| path.exists());
        let names = files.iter().filter_map(|path| path.file_name()?.to_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let any = !files.is_empty();
        self.lock().forks.0 = files;
        any.then(|| {
            format!(
                "this node had changes of operators that are not in force any more: the store lost them, and other changes were made; they are in {names} of the data directory; make those that are still wanted again, then remove the file"
            )
        })
    }

    /// Whether there may be something for [`Self::fork_problem`] to say.
    pub(crate) fn has_forks(&self) -> bool {
        !self.lock().forks.0.is_empty()
    }
}
