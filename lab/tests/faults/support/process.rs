//! A process that is killed when it is dropped, also by a test that panics.

use super::{PATIENCE, within};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command};

pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Stops the process (SIGSTOP), and returns when it is stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        within(PATIENCE, "the process is stopped", || self.state() == Some('T'));
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The state of the process according to the kernel: `R`, `S`, `T`, …
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    }

    /// The resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.kib("VmRSS:")
    }

    /// The peak of the resident memory, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.kib("VmHWM:")
    }

    fn kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
