//! Arbitrary bytes as a policy file: it is parsed, or it is rejected with problems that are safe to print on one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_policy::Policy;

fuzz_target!(|bytes: &[u8]| {
    match Policy::parse(bytes) {
        Ok(policy) => policy.warnings().iter().for_each(|warning| assert!(!warning.to_string().is_empty())),
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                let text = problem.to_string();
                assert!(!text.contains(['\n', '\r', '\u{1b}']), "{text:?}");
            }
        }
    }
});
