//! A wall clock that can be set while its program runs, by `shim.c`, which is compiled for each clock.

use super::Folder;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// The clock of one process or of several.
pub(crate) struct Shim {
    folder: Folder,
    offset: Mutex<std::fs::File>,
}

impl Shim {
    /// A correct clock.
    pub(crate) fn new() -> Self {
        let folder = Folder::new("clock");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]);
        compile.arg(folder.join("shim.so")).arg(source);
        assert!(compile.status().unwrap().success());
        let offset = Mutex::new(std::fs::File::create(folder.join("offset")).unwrap());
        let clock = Self { folder, offset };
        clock.set(0);
        clock
    }

    /// A clock that is off by this many seconds.
    pub(crate) fn wrong_by(seconds: i64) -> Self {
        let clock = Self::new();
        clock.set(seconds);
        clock
    }

    /// Sets the clock this far ahead of the true time, or behind it. Processes that use it see the change
    /// immediately.
    pub(crate) fn set(&self, seconds: i64) {
        let mut file = self.offset.lock().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(&(seconds * 1_000_000_000).to_ne_bytes()).unwrap();
    }

    /// Makes a command use this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.folder.join("shim.so"));
        command.env("SHIM_OFFSET", self.folder.join("offset"));
    }
}

#[test]
fn a_process_sees_the_clock_that_was_set() {
    let clock = Shim::new();
    let says = || {
        let mut date = Command::new("date");
        clock.preload(date.arg("+%s"));
        let said = String::from_utf8(date.output().unwrap().stdout).unwrap();
        said.trim().parse::<i64>().unwrap()
    };
    let before = says();
    for wrong in [3_600, -7_200, 0] {
        clock.set(wrong);
        assert!((0..60).contains(&(says() - wrong - before)), "{wrong}");
    }
}
