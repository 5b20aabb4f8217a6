//! Arbitrary bytes as a chunked body, which must not depend on how it arrives.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::proxy;

fuzz_target!(|bytes: &[u8]| {
    if let Err(problem) = proxy::chunked_body(bytes) {
        panic!("{problem}");
    }
});
