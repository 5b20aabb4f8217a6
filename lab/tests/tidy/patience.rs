//! Tests wait patiently for stores. The product gives up after 50 ms, which a busy machine needs now and then.

use super::{read, rust_files};

/// What makes a store or a server, and the only file of tests that may do so.
const MAKERS: [(&str, &str); 2] = [
    ("RedisSettings::new(", "crates/store/tests/support/settings.rs"),
    ("MemcachedSettings::new(", "crates/store/tests/support/memcached.rs"),
];
/// Makes the command of every server in tests, with its timeouts in the environment.
const SERVERS: &str = "crates/server/tests/support/mod.rs";

/// The tests of a file of source, or a whole file of tests.
fn tests_of(file: &str) -> String {
    let text = read(file);
    if file.contains("/tests/") || file.ends_with("/tests.rs") {
        return text;
    }
    text.split_once("#[cfg(test)]").map_or(String::new(), |(_, tests)| tests.to_owned())
}

/// The story: a test connected with the default timeout, and failed on a machine at load 4.
#[test]
fn one_place_makes_the_stores_of_tests() {
    let files = ["crates", "lab/tests", "simulator/tests"].map(rust_files).concat();
    let mut made = 0;
    for file in files.iter().filter(|file| !file.ends_with("tidy/patience.rs")) {
        // Time is virtual for a simulated store.
        let text = tests_of(file).replace("RedisSettings::new(\"redis://simulated/\")", "");
        for (word, maker) in MAKERS {
            if text.contains(word) {
                made += 1;
                assert_eq!(file, maker, "take the settings of a store from {maker}");
            }
        }
        let remote = ["support::redis::", "support::memcached::", "Memcached::started("];
        if file.starts_with("crates/server/tests/")
            && remote.iter().any(|word| text.contains(word))
            && text.contains("CARGO_BIN_EXE_tidegate")
        {
            assert_eq!(file, SERVERS, "start the server with `support::tidegate()`");
        }
    }
    assert_eq!(made, MAKERS.len(), "the test looks in the wrong place");
}
