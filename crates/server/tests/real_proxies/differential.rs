//! The catalogue with other programs on either side. They read HTTP in their own ways; a request that they and tidegate read
//! differently is how requests are smuggled.
//!
//! ```text
//!   client ──► tidegate ──► nginx or HAProxy, which counts requests
//!   client ──► nginx or HAProxy ──► tidegate ──► recorder
//! ```

use super::case::{Case, run};
use super::peer::Program;
use super::recorder::Recorder;
use super::{OPEN, proxy, requests};
use std::sync::Mutex;
use std::thread;

/// Each case is sent whole, and cut in pieces in two ways.
const CUTS: [u64; 3] = [0, 1, 2];

/// Requests that tidegate forwards and this program refuses. It answers each of them with an error.
fn refused_by(program: Program) -> &'static [&'static str] {
    match program {
        Program::Nginx => &["a method in small letters", "a method of signs"],
        // They have no `sec-websocket-key`.
        Program::Haproxy => &["a websocket that gets an answer", "a websocket and a request"],
    }
}

fn as_upstream(program: Program) {
    let peer = program.as_upstream();
    let server = proxy(OPEN, &peer.url());
    let cases = requests::all();
    let (mut wrong, mut answered) = (Vec::new(), Vec::new());
    for (number, case) in cases.iter().enumerate() {
        for cut in CUTS {
            let received = case.play(server.proxy, &run(number, cut), cut);
            let expected = case.expected();
            let is_expected = received.statuses == expected;
            let is_refused = refused_by(program).contains(&case.name.as_str());
            if is_expected == is_refused {
                let statuses = &received.statuses;
                wrong.push(format!("{}: {expected:?}, not {statuses:?}\n", case.name));
            }
            answered.push((run(number, cut), case, received.lines));
        }
    }
    server.is_sound();
    drop(server);
    let seen = peer.seen();
    for (run, case, lines) in answered {
        let seen = seen.iter().filter(|line| line.contains(&run));
        let (passed, errors): (Vec<_>, Vec<_>) = seen.partition(|line| line.starts_with("200 "));
        let passed = passed.len();
        let may_fail = case.may_be_cut() || refused_by(program).contains(&case.name.as_str());
        // HAProxy also answers a request whose client goes away before its end.
        let cut = usize::from(program == Program::Haproxy && case.may_be_cut());
        let is_right = (lines.len()..=lines.len() + cut).contains(&passed);
        if !is_right || (!errors.is_empty() && !may_fail) {
            wrong.push(format!("{}: {passed} for {lines:?}, {errors:?}\n", case.name));
        }
    }
    let smuggled = seen.iter().filter(|line| line.contains("/smuggled"));
    wrong.extend(smuggled.map(|line| format!("smuggled: {line}\n")));
    assert!(wrong.is_empty(), "{}\n{}", wrong.concat(), peer.log());
    println!("{program:?} behind tidegate: {} cases, {} requests", cases.len(), seen.len());
}

fn in_front(program: Program) {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    let front = program.in_front_of(server.proxy);
    let cases = requests::all();
    let cases: Vec<(usize, &Case)> =
        cases.iter().enumerate().filter(|(_, case)| case.has_bodies()).collect();
    let answered = Mutex::new(Vec::new());
    // A program that waits for more bytes ends the connection after five seconds, so cases run at the same time.
    thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(24)) {
            let (answered, front) = (&answered, &front);
            scope.spawn(move || {
                for (number, case) in part {
                    for cut in CUTS {
                        let lines = case.play_behind(front.address, &run(*number, cut), cut);
                        answered.lock().unwrap().extend(lines);
                    }
                }
            });
        }
    });
    server.is_sound();
    drop((front, server));
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0], "what tidegate sends is well formed");
    let (mut answered, mut got) = (answered.into_inner().unwrap(), seen.lines_with(""));
    answered.sort_unstable();
    got.sort_unstable();
    let lost: Vec<_> = got.iter().filter(|line| !answered.contains(line)).collect();
    assert!(lost.is_empty(), "the server got requests that no client got an answer to: {lost:?}");
    assert_eq!(answered, got, "as many answers as requests");
    println!("{program:?} before tidegate: {} cases, {} requests", cases.len(), got.len());
}

#[test]
fn nginx_as_upstream_server() {
    as_upstream(Program::Nginx);
}

#[test]
fn haproxy_as_upstream_server() {
    as_upstream(Program::Haproxy);
}

#[test]
fn nginx_in_front() {
    in_front(Program::Nginx);
}

#[test]
fn haproxy_in_front() {
    in_front(Program::Haproxy);
}
