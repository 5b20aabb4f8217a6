//! Arbitrary bytes in a data directory: a store that opens it must not panic, and must keep limiting.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_store::testing::open_strange_data;

fuzz_target!(|bytes: &[u8]| open_strange_data(bytes));
