//! Arbitrary bytes as the head of an upstream server's answer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::proxy;

fuzz_target!(|bytes: &[u8]| {
    if let Err(problem) = proxy::answer_head(bytes) {
        panic!("{problem}");
    }
});
