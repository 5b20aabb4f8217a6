//! `tidegate policy`, run as a user would: files that are broken in every way we could think of.
//!
//! Each of them is refused with exit code 2, at the place of the mistake and with what to write instead,
//! within a second of a processor (on a slow machine, within five times what an ordinary policy takes there) and within
//! 64 MiB: `ulimit -d` bounds all that a process can write to, but for its stack; its own code
//! is not of the file's making.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod amounts;
mod explain;
mod files;
mod giants;
mod import;
mod keys;
mod run;
mod together;
mod warnings;
mod who;
mod yaml;
