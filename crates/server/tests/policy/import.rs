//! `tidegate policy import envoy`: translates rule files into a policy, and lists what a policy cannot express.

use super::run::{Scratch, bounded, stdout, tidegate};
use std::fs;
use std::process::Output;

const RULES: &str = "
domain: rl
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: user
    value: banned
    rate_limit: { unit: minute, requests_per_unit: 0 }
  - key: service
    value: one
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1, shadow_mode: true }
";

const POLICY: &str = r#"version: 1
# LEFT OUT: rl/service=one: `quota_mode`: the rule now denies by itself
rules:
  - name: rl-service-one
    match: { domain: "rl", service: "one" }
    key: []
    limits: [{ rate: 1/h, algorithm: fixed_window }]
    count_rejected: true
  - name: rl-user
    match: { domain: "rl" }
    key: [user]
    limits: [{ rate: 3/min, algorithm: fixed_window }]
    overrides:
      - { key: { user: "banned" }, limits: [{ rate: 0/min, algorithm: fixed_window, block: true }] }
    count_rejected: true
"#;

fn folder(scratch: &Scratch, files: &[(&str, &str)]) -> String {
    let folder = scratch.path("rules");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(format!("{folder}/{name}"), text).unwrap();
    }
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn rule_files_become_a_policy() {
    let scratch = Scratch::new("import");
    let others = [("rl.yaml", RULES), (".hidden.yaml", "nonsense"), ("notes.txt", "nonsense")];
    let folder = folder(&scratch, &others);
    let output = tidegate(&["import", "envoy", &folder]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.ends_with(POLICY), "{text}");
    let told = stderr(&output);
    let expected = [
        format!("{folder}/rl.yaml:12:53: `shadow_mode` has no effect in `rate_limit`"),
        "left out: rl/service=one: `quota_mode`".to_owned(),
    ];
    for line in expected {
        assert!(told.contains(&line), "{line} is not in\n{told}");
    }
    let policy = scratch.file(text);
    assert_eq!(tidegate(&["lint", &policy]).status.code(), Some(0));
}

#[test]
fn files_that_the_server_refuses_are_refused() {
    let scratch = Scratch::new("import-refused");
    let rules =
        folder(&scratch, &[("a.yaml", RULES), ("b.yml", "domain: rl\ndescriptors: [{ kee: x }]")]);
    let output = bounded(&["import", "envoy", &rules]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    let told = stderr(&output);
    assert!(
        told.contains("b.yml:1:1: the domain `rl` is already defined in")
            && told.contains("a.yaml"),
        "{told}"
    );
    let output = bounded(&["import", "envoy", "--merge-domains", &rules]);
    let told = stderr(&output);
    assert!(told.contains("b.yml:2:17: unknown key `kee`, did you mean `key`?"), "{told}");
    let empty = scratch.path("nothing");
    fs::create_dir(&empty).unwrap();
    for (folder, says) in
        [(&empty, "no file whose name ends in .yaml"), (&scratch.path("gone"), "No such file")]
    {
        let output = tidegate(&["import", "envoy", folder]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}

/// Files that could exhaust a machine take at most a second and little memory.
#[test]
fn huge_files_and_alias_bombs_are_refused_within_the_bounds() {
    let scratch = Scratch::new("import-giants");
    let leaf = "&a0 {key: k, rate_limit: {unit: day, requests_per_unit: 1}}";
    let bomb: String = (1..12)
        .map(|n| {
            let alias = format!("*a{}", n - 1);
            format!("    a{n}: &a{n} [{}]\n", vec![alias; 10].join(", "))
        })
        .collect();
    let bomb = format!("domain: d\nmetadata:\n    a0: {leaf}\n{bomb}descriptors: []\n");
    let deep = format!("domain: d\ndescriptors: {}", "[{key: k, descriptors: ".repeat(5_000));
    let many: String = (0..30_000)
        .map(|n| {
            format!(
                "  - {{key: k, value: v{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
            )
        })
        .collect();
    let many = format!("domain: d\ndescriptors:\n{many}");
    for (text, says) in [(&bomb, "aliases expand to more than"), (&deep, "nested deeper than")] {
        let folder = folder(&scratch, &[("rules.yaml", text)]);
        let output = bounded(&["import", "envoy", &folder]);
        assert_eq!(output.status.code(), Some(2), "{says} {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    // Twenty thousand limits take about 70 MiB while they are read.
    let folder = folder(&scratch, &[("rules.yaml", &many)]);
    let output = tidegate(&["import", "envoy", &folder]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("more than 20000 limits"), "{}", stderr(&output));
}
