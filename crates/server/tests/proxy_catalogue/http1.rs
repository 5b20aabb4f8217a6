//! Sends the catalogue to the proxy, whole and cut in pieces.

use super::case::Case;
use super::recorder::Recorder;
use super::{OPEN, proxy, requests};

fn try_all(cases: &[Case]) {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    let mut wrong: Vec<String> =
        (0..).zip(cases).flat_map(|(number, case)| case.try_on(server.proxy, number)).collect();
    server.is_sound();
    drop(server);
    let seen = recorder.finish();
    wrong.extend((0..).zip(cases).flat_map(|(number, case)| case.judge(&seen, number)));
    wrong.extend(seen.malformed.iter().map(|error| format!("not well formed: {error}\n")));
    wrong.extend(seen.lines_with("/smuggled").iter().map(|line| format!("smuggled: {line}\n")));
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn a_body_has_one_length() {
    try_all(&requests::lengths());
}

#[test]
fn only_chunked_is_a_coding() {
    try_all(&requests::codings());
}

#[test]
fn chunks_are_chunks() {
    try_all(&requests::chunks());
}

#[test]
fn trailers_do_not_frame() {
    try_all(&requests::trailers());
}

#[test]
fn a_request_line_has_three_words() {
    try_all(&requests::lines());
}

#[test]
fn fields_are_written_as_fields_are_written() {
    try_all(&requests::fields());
}

#[test]
fn a_request_asks_for_a_path() {
    try_all(&requests::targets());
}

#[test]
fn a_request_names_one_host() {
    try_all(&requests::hosts());
}

#[test]
fn every_request_of_a_pipeline_is_one_request() {
    try_all(&requests::pipelines());
}

#[test]
fn the_catalogue_is_large() {
    let (cases, names) = (requests::all(), |case: &Case| case.name.clone());
    let different: std::collections::BTreeSet<_> = cases.iter().map(names).collect();
    assert!(cases.len() >= 200, "{}", cases.len());
    assert_eq!(different.len(), cases.len(), "two cases have the same name");
}
