//! What a server uses: processor time, memory and open files of all processes of its group, as the kernel counts them in
//! `/proc`.

use rustix::process::Pid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The processes of a group, such as a server and its workers, as their folders in `/proc`.
pub(crate) struct ProcessGroup(Vec<PathBuf>);

impl ProcessGroup {
    /// The processes that are in the group now.
    pub(crate) fn of(leader: Pid) -> io::Result<Self> {
        let leader = leader.as_raw_nonzero().to_string();
        let folders = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
        Ok(Self(folders.filter(|folder| group_of(folder).as_ref() == Some(&leader)).collect()))
    }

    /// The processor time of all threads that run now.
    pub(crate) fn cpu(&self) -> Duration {
        let tasks = self.0.iter().filter_map(|folder| fs::read_dir(folder.join("task")).ok());
        let nanos = tasks.flatten().flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.fold(0, u64::saturating_add))
    }

    /// Bytes of resident memory.
    pub(crate) fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most bytes of resident memory since [`ProcessGroup::forget_peak`].
    pub(crate) fn peak(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Sets the peak of the resident memory to what is resident now.
    pub(crate) fn forget_peak(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|folder| fs::write(folder.join("clear_refs"), "5"))
    }

    /// The number of open files, which includes connections.
    pub(crate) fn open_files(&self) -> usize {
        let files = self.0.iter().filter_map(|folder| fs::read_dir(folder.join("fd")).ok());
        files.flatten().count()
    }

    /// The sum of a field of `status` that is in KiB, as bytes.
    fn status(&self, name: &str) -> u64 {
        let kib = self.0.iter().filter_map(|folder| {
            let text = fs::read_to_string(folder.join("status")).ok()?;
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            value.split_whitespace().next()?.parse::<u64>().ok()
        });
        kib.fold(0, u64::saturating_add).saturating_mul(1024)
    }
}

/// The number of the group of a process.
fn group_of(folder: &Path) -> Option<String> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name of the program, in parentheses, may contain spaces. State, parent and group follow.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(2).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn the_processes_of_a_group_are_found_and_no_others() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let group = ProcessGroup::of(Pid::from_child(&child)).unwrap();
        let expected = PathBuf::from(format!("/proc/{}", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(group.0, [expected]);
    }

    #[test]
    fn memory_and_files_of_this_process_are_counted() {
        let group = ProcessGroup(vec!["/proc/self".into()]);
        // The peak is read last: other tests may need more memory in between.
        let resident = group.resident();
        assert!(resident > 0 && group.peak() >= resident);
        assert!(group.open_files() > 0 && group.cpu() > Duration::ZERO);
    }
}
