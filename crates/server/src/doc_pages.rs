//! Compares pages of the documentation with what the source says, and writes them again if `WRITE_DOCS` is set.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn path(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)
}

/// The page must be this text.
pub(crate) fn compare(page: &str, text: &str) {
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(path(page), text).unwrap();
    }
    let found = fs::read_to_string(path(page)).unwrap_or_default();
    let different = found.lines().zip(text.lines()).find(|(found, text)| found != text);
    assert!(
        found == text,
        "{page} is not what the source says; `make references` writes it. First difference: {different:#?}"
    );
}

/// Text in a cell of a table.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
