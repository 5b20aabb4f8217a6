//! What the tests of all stores share.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod concurrency;
pub(crate) mod timelines;
