//! `tidegate policy`, run as a user would run it, on files that are broken in every way we could think of.
//!
//! Each file must be refused with exit code 2, with the position of the mistake and what to write instead. Linting it must
//! take at most one second of processor time (on a slow machine, five times what an ordinary policy takes there) and at most
//! 64 MiB. `ulimit -d` bounds all memory that a process can write to, except for its stack; the program's own code is not
//! counted, because the file does not cause it.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
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
mod stores;
mod timelines;
mod together;
mod warnings;
mod who;
mod yaml;
