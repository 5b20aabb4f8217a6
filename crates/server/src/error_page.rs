//! Compares the page `docs/reference/errors.md` with the source, in both directions: nothing is missing, and nothing is listed
//! that does not exist.

use crate::doc_pages::path;
use crate::health;
use crate::metrics::Refused;
use ::http::StatusCode;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/reference/errors.md";

/// The first cells of the table in a section, without the marks of code.
fn listed(section: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(path(PAGE)).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let rows = rest.lines().take_while(|line| !line.starts_with("## "));
    let rows = rows.filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.split('|').nth(1).unwrap().trim().replace('`', "")).collect()
}

fn same(section: &str, source: &BTreeSet<String>) {
    let listed = listed(section);
    let missing: Vec<_> = source.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(source).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "{PAGE}, {section}: add {missing:?}; remove {gone:?}"
    );
}

/// The source below a folder of this crate, without tests and without what its documentation comments say.
fn sources(below: &str) -> String {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(below)];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                let (code, _) =
                    source.split_once("\n#[cfg(test)]\nmod tests {").unwrap_or((&source, ""));
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                text.extend(lines.flat_map(|line| [line, "\n"]));
            }
        }
    }
    text
}

/// The words that follow `mark` in a text.
fn words_after(text: &str, mark: &str) -> BTreeSet<String> {
    let word = |rest: &str| {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
    };
    text.split(mark).skip(1).map(word).filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_page_lists_every_http_status_that_the_source_names() {
    let used = words_after(&sources("src"), "StatusCode::");
    let errors = (400..600).filter_map(|code| {
        let title = StatusCode::from_u16(code).ok()?.canonical_reason()?;
        used.contains(&title.to_uppercase().replace(' ', "_")).then(|| format!("{code} {title}"))
    });
    let mut errors: BTreeSet<String> = errors.collect();
    // Only upstream servers send it; the proxy reads it as a failure.
    assert!(errors.remove("402 Payment Required"));
    same("HTTP statuses", &errors);
}

#[test]
fn the_page_lists_every_error_word_of_resp() {
    let source = sources("src/front/resp");
    let words = source.split('"').filter_map(|text| text.split_once(' ')).map(|(word, _)| word);
    let shouted = |word: &&str| {
        word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase()) && *word != "HELLO"
    };
    same("RESP error words", &words.filter(shouted).map(str::to_owned).collect());
}

#[test]
fn the_page_lists_every_code_of_grpc() {
    let source = sources("src/front/grpc") + &sources("../limiter/src/http");
    let codes = [
        (3, "INVALID_ARGUMENT", "Code::InvalidArgument"),
        (4, "DEADLINE_EXCEEDED", "Code::DeadlineExceeded"),
        (8, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED: u64 = 8"),
        (12, "UNIMPLEMENTED", "Code::Unimplemented"),
        (13, "INTERNAL", "Status::internal"),
        (14, "UNAVAILABLE", "UNAVAILABLE: u64 = 14"),
    ];
    let named = words_after(&source, "Code::");
    let known: BTreeSet<&str> =
        codes.iter().filter_map(|(.., code)| code.strip_prefix("Code::")).collect();
    let grpc = |name: &&String| tonic_code(name).is_some();
    for name in named.iter().filter(grpc) {
        assert!(known.contains(&**name) || name == "Unavailable", "Code::{name} is not in {PAGE}");
    }
    for (.., text) in codes {
        assert!(source.contains(text), "{text} is not in the source");
    }
    same("gRPC codes", &codes.map(|(number, name, _)| format!("{number} {name}")).into());
}

/// The number of a code by the name of its variant. (`StatusCode::` ends with the same letters.)
fn tonic_code(name: &str) -> Option<i32> {
    let all = (0..17).map(tonic::Code::from_i32);
    all.map(|code| (format!("{code:?}"), i32::from(code)))
        .find(|(known, _)| known == name)
        .map(|(_, code)| code)
}

#[test]
fn the_page_lists_every_reason_of_refusals() {
    let reasons = Refused::ALL.map(|(_, name)| name.to_owned());
    same("Reasons of `tidegate_refused_total`", &reasons.into());
}

#[test]
fn the_page_lists_every_part_that_can_have_a_problem() {
    same("Problems at `/ready`", &health::PARTS.map(str::to_owned).into());
}

#[test]
fn the_page_lists_every_command_with_an_exit_code_of_its_own() {
    for (file, command) in [
        ("check.rs", "tidegate check"),
        ("admin/consent.rs", "tidegate admin"),
        ("policy/timelines.rs", "tidegate policy test"),
        ("data.rs", "tidegate data verify"),
        ("replay.rs", "tidegate replay"),
    ] {
        let source = path("crates/server/src/cli").join(file);
        let source = fs::read_to_string(source).unwrap();
        assert!(source.contains(": u8 = 1;"), "{file}");
        assert!(listed("Exit codes").contains(command), "{command}");
        let commands = fs::read_to_string(path("docs/reference/command-line.md")).unwrap();
        assert!(commands.contains(&format!("\n## {command}\n")), "there is no {command}");
    }
    let ones = sources("src/cli").matches(": u8 = 1;").count();
    assert_eq!(ones, 5, "{PAGE}, Exit codes: a command with the code 1 is not listed");
}

/// The format strings of the errors in the log, with `…` in place of what they insert. Some only repeat a problem of `/ready`.
fn logged() -> BTreeSet<String> {
    let source = sources("src") + &sources("../limiter/src") + &sources("../store/src");
    let text = |rest: &str| {
        let call = rest.split(");").next().unwrap_or_default();
        let text = call.split('"').nth(1).unwrap_or_default();
        let mut parts =
            text.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + "…" + part)
    };
    let texts = source.split(concat!("tracing::", "error!(")).skip(1).map(text);
    texts.filter(|text| text.chars().any(char::is_alphabetic)).collect()
}

#[test]
fn the_page_lists_every_line_of_the_log_that_is_an_error() {
    assert!(logged().len() > 10);
    same("Log lines worth an alert", &logged());
}
