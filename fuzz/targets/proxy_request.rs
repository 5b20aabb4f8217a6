//! Arbitrary bytes as the head of a request to the reverse proxy.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::proxy;

fuzz_target!(|bytes: &[u8]| {
    if let Err(problem) = proxy::request_head(bytes) {
        panic!("{problem}");
    }
});
