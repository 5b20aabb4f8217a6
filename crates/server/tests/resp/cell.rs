//! redis-cell, replayed: the recorded answers (`redis-cell.txt`) must be the answers here.

use crate::resp::talk::{Said, Talk, list, numbers, split};
use crate::support::{Server, project};
use std::time::{Duration, Instant};

/// Within this time no answer of the recording changes; the head of the file says why.
const CALM: Duration = Duration::from_millis(500);

#[test]
fn every_field_is_as_redis_cell_answers_it() {
    let file = project("crates/server/tests/resp/redis-cell.txt");
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let recorded: Vec<(&str, &str)> = lines.map(|line| line.split_once(" => ").unwrap()).collect();
    assert!(recorded.len() >= 300);
    let server = Server::start(&[]);
    let mut talk = server.talk();
    let mut wrong = vec![];
    for requests in recorded.chunk_by(|(one, _), (next, _)| key(one) == key(next)) {
        for ((request, expected), said) in requests.iter().zip(replies(&mut talk, requests)) {
            if said != *expected {
                wrong.push(format!("{request}: {said}, recorded {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), recorded.len(), wrong.join("\n"));
    server.is_well();
}

/// The replies to the commands of one key. A replay that took so long that an answer may have changed proves nothing;
/// then the next one uses a new key.
#[expect(clippy::disallowed_methods, reason = "whether it took half a second is the question")]
fn replies(talk: &mut Talk, requests: &[(&str, &str)]) -> Vec<String> {
    let replay = |attempt: u32| {
        let start = Instant::now();
        let replies = replayed(talk, requests, attempt);
        (start.elapsed() < CALM).then_some(replies)
    };
    (0..).find_map(replay).unwrap()
}

/// The replies to commands that are sent in one write.
fn replayed(talk: &mut Talk, requests: &[(&str, &str)], attempt: u32) -> Vec<String> {
    let bytes = requests.iter().flat_map(|(request, _)| {
        let mut words = split(request);
        let key = [words[1], b" attempt ", attempt.to_string().as_bytes()].concat();
        words[1] = &key;
        list(&words)
    });
    talk.send(&bytes.collect::<Vec<u8>>());
    requests.iter().map(|_| line(&talk.hear())).collect()
}

fn key(request: &str) -> &str {
    request.split(' ').nth(1).unwrap_or_default()
}

/// A reply in the form of the recording.
fn line(said: &Said) -> String {
    if let Said::Error(text) = said {
        return format!("-{text}");
    }
    let numbers: Vec<String> = numbers(said).iter().map(i64::to_string).collect();
    numbers.join(" ")
}

/// Changed parameters are an edit of the limit: what was used stays used, whether the limit grows or shrinks. A token
/// of the first limit takes six minutes to come back, so none does while this test runs.
#[test]
fn what_was_used_stays_used_when_parameters_change() {
    let server = Server::start(&[]);
    let mut talk = server.talk();
    let mut ask = |parameters: &str| {
        let said = numbers(&talk.ask(&format!("CL.THROTTLE k {parameters}")));
        (said[0], said[1], said[2])
    };
    for left in [9, 8, 7, 6, 5] {
        assert_eq!(ask("9 10 3600"), (0, 10, left));
    }
    assert_eq!(ask("19 20 3600"), (0, 20, 14)); // six of twenty
    assert_eq!(ask("3 4 3600"), (1, 4, 0)); // six of four
    assert_eq!(ask("9 10 3600"), (0, 10, 3)); // a refusal changes nothing: seven of ten
}
