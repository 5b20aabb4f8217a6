//! `--store` of `policy lint` and `policy explain`: what a store cannot count, and how exactly it counts the rest.

use super::run::{Scratch, stdout, tidegate};
use std::fs;

const POLICY: &str = "version: 1
rules:
  - { name: logins, key: [ip], limits: [{ rate: 5/min, algorithm: sliding_log }] }
  - { name: calls, key: [user], limits: [{ rate: 15/s, algorithm: fixed_window }, 100/min] }
";

#[test]
fn lint_says_what_memcached_cannot_count_and_how_exactly_it_counts_the_rest() {
    let scratch = Scratch::new("stores");
    let path = scratch.path("policy.yaml");
    fs::write(&path, POLICY).unwrap();
    let output = tidegate(&["lint", "--store", "memcached", &path]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for words in [
        ":3:5: error: this store cannot count rule `logins`, 5/min sliding_log: memcached cannot",
        "note: rule `calls`, 15/s fixed_window: memcached counts never more than the limit",
        "note: rule `calls`, 100/min token_bucket: memcached counts as exactly as the clocks",
    ] {
        assert!(stdout(&output).contains(words), "{words}: {}", stdout(&output));
    }
    for store in ["redis", "memory"] {
        let output = tidegate(&["lint", "--store", store, &path]);
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).contains("no problems found"), "{output:?}");
    }
    let output = tidegate(&["lint", "--json", "--store", "memcached", &path]);
    assert!(stdout(&output).contains("\"notes\""), "{output:?}");
}

#[test]
fn explain_adds_the_bound_to_the_rules_that_apply() {
    let scratch = Scratch::new("stores-explain");
    let path = scratch.path("policy.yaml");
    fs::write(&path, POLICY).unwrap();
    let output = tidegate(&["explain", "--store", "memcached", &path, "user=alice"]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        stdout(&output).contains("15/s fixed_window: memcached counts never more"),
        "{output:?}"
    );
    assert!(!stdout(&output).contains("logins`, 5/min"), "{output:?}");
}
