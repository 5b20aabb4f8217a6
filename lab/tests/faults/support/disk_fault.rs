//! A disk that fails or hangs for one process: `strace` lets system calls of the thread that writes, or of the one that syncs, return
//! an error or wait. Other threads are not traced, so that the test measures tidegate and not the tracer.

use super::process::Process;
use super::tidegate::Tidegate;
use super::{PATIENCE, within};
use std::fs;
use std::process::{Command, Stdio};

/// A fault of the disk. It ends when this is dropped.
pub(crate) struct DiskFault {
    _tracer: Process,
}

/// The threads of the durable store that use the disk.
#[derive(Clone, Copy)]
pub(crate) enum DiskThread {
    Writes,
    Syncs,
}

impl DiskFault {
    /// From now on, these system calls of a thread are tampered with, as `strace -e inject=` says: `error=EIO`, or
    /// `delay_enter=3s`.
    pub(crate) fn begin(server: &Tidegate, thread: DiskThread, calls: &str, how: &str) -> Self {
        let process = server.process.id();
        let name = match thread {
            DiskThread::Writes => "tidegate-write",
            DiskThread::Syncs => "tidegate-sync",
        };
        let thread = thread_of(process, name);
        let mut strace = Command::new("strace");
        strace
            .args(["-qq", "-o", "/dev/null", "-p", &thread.to_string()])
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:{how}")])
            .stdin(Stdio::null());
        let tracer = Process::spawn(&mut strace);
        let status = format!("/proc/{process}/task/{thread}/status");
        let tracer_line = format!("TracerPid:\t{}", tracer.id());
        within(PATIENCE, "strace is attached", || {
            fs::read_to_string(&status).unwrap().contains(&tracer_line)
        });
        Self { _tracer: tracer }
    }
}

/// The number of the thread with this name.
fn thread_of(process: u32, name: &str) -> u32 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut paths = tasks.map(|task| task.unwrap().path());
    let task = paths.find(|task| fs::read_to_string(task.join("comm")).unwrap().trim() == name);
    task.unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}
