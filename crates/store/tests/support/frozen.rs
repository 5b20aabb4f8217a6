//! A library that lets the clocks of a server stand still.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles it into this folder, for `LD_PRELOAD`.
pub(crate) fn library(folder: &Path, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/frozen.c");
    let library = folder.join("frozen.so");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]).args(flags);
    compile.arg("-o").arg(&library).arg(source);
    assert!(compile.status().unwrap().success());
    library
}
