//! What `cargo package` would publish of each library crate.

use super::root;
use std::process::Command;

/// The files of a package, as `cargo package --list` names them. Nothing is built or published.
fn listed(package: &str) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--package", package]);
    let output = cargo.current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{package}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn packages_contain_their_source_their_readme_and_their_licences() {
    for (package, needed) in [
        ("tidegate-core", "src/algorithm/token_bucket.rs"),
        ("tidegate-policy", "src/language/grammar.rs"),
        ("tidegate-store", "src/redis/scripts/short.lua"),
        ("tidegate", "examples/shared.rs"), // part of a guide
    ] {
        let files = listed(package);
        for file in
            ["Cargo.toml", "src/lib.rs", "README.md", "LICENSE-MIT", "LICENSE-APACHE", needed]
        {
            assert!(
                files.iter().any(|listed| listed == file),
                "{package} lacks {file}: {files:#?}"
            );
        }
        let stray = files.iter().find(|file| file.starts_with("target/"));
        assert_eq!(stray, None, "{package}");
    }
}

/// A file outside of the folder of its crate is missing in the package, so the published crate would not compile.
#[test]
fn no_library_crate_includes_a_file_from_outside_its_folder() {
    for name in ["core", "policy", "store", "limiter"] {
        let source = format!("crates/{name}/src");
        for file in super::rust_files(&source) {
            let depth = file.trim_start_matches(&source).matches('/').count();
            for included in super::read(&file).split("include_").skip(1) {
                let path = included.split('"').nth(1).unwrap_or_default();
                let climbs = path.matches("../").count();
                let is_page = path.ends_with("README.md") || path.contains("/docs/");
                let is_doc_test = file == "crates/limiter/src/lib.rs" && is_page;
                assert!(climbs <= depth || is_doc_test, "{file} includes {path}");
            }
        }
    }
}
