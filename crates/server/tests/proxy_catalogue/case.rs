//! A case of the catalogue: the bytes that a client sends, and what must come of them on both sides of the proxy.

#![allow(dead_code, reason = "the tests with real proxies use another part of this")]

use crate::support::Reply;
use crate::support::http1::{Dice, Wire};
use std::net::SocketAddr;

pub(crate) struct Case {
    pub(crate) name: String,
    bytes: Vec<u8>,
    /// The statuses of all answers, without interim ones.
    answers: Vec<u16>,
    end: End,
    /// How many complete requests the upstream server gets.
    requests: usize,
    /// Whether it may also get the beginning of one that never becomes complete.
    cut: bool,
    /// Whether the client closes its side at the end.
    client_ends: bool,
    head_only: bool,
}

/// What happens to the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closes,
    /// The next request on it is answered.
    GoesOn,
}

/// Stands for the number of the run in the bytes of a case. It occurs in every target, so that each request that the upstream
/// server gets can be assigned to its case.
pub(crate) const RUN: &str = "@@@@@@";

/// How often a case is sent in pieces, each time cut differently.
const CUTS: u64 = 4;

/// What a client got.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) statuses: Vec<u16>,
    /// The bodies of the answers with status 200: the lines of the requests that the upstream server saw.
    pub(crate) lines: Vec<String>,
    /// What came behind the last complete answer.
    rest: Vec<u8>,
    goes_on: bool,
}

impl Case {
    fn new(name: &str, bytes: impl AsRef<[u8]>, answers: &[u16], end: End) -> Self {
        let requests = answers.iter().filter(|status| **status == 200).count();
        let (name, bytes, answers) = (name.to_owned(), bytes.as_ref().to_vec(), answers.to_vec());
        let (cut, client_ends, head_only) = (false, false, false);
        Self { name, bytes, answers, end, requests, cut, client_ends, head_only }
    }

    /// Requests that pass; the connection stays open.
    pub(crate) fn passes(name: &str, bytes: impl AsRef<[u8]>, requests: usize) -> Self {
        Self::new(name, bytes, &vec![200; requests], End::GoesOn)
    }

    /// The last of these answers is an error, after which the connection is closed. The upstream server gets nothing of the
    /// request that it belongs to.
    pub(crate) fn refused(name: &str, bytes: impl AsRef<[u8]>, answers: &[u16]) -> Self {
        Self::new(name, bytes, answers, End::Closes)
    }

    /// The body of a request is not valid, so the upstream server does not get all of it.
    pub(crate) fn cut(name: &str, bytes: impl AsRef<[u8]>, answers: &[u16]) -> Self {
        Self { cut: true, ..Self::new(name, bytes, answers, End::Closes) }
    }

    /// The request is refused, and its end is known, so the connection stays open.
    pub(crate) fn refused_alone(name: &str, bytes: impl AsRef<[u8]>, status: u16) -> Self {
        Self::new(name, bytes, &[status], End::GoesOn)
    }

    /// The connection is closed after these requests.
    pub(crate) fn last(self) -> Self {
        Self { end: End::Closes, ..self }
    }

    /// The client closes its side after the bytes.
    pub(crate) fn client_ends(self) -> Self {
        Self { client_ends: true, ..self }
    }

    /// The request is `HEAD`, so the answer has no body.
    pub(crate) fn head_only(self) -> Self {
        Self { head_only: true, ..self }
    }

    /// Sends the case to a proxy, and reads all answers. `cut` 0 sends it whole.
    pub(crate) fn play(&self, proxy: SocketAddr, run: &str, cut: u64) -> Received {
        let bytes = with_run(&self.bytes, run);
        let mut wire = Wire::to(proxy);
        send(&mut wire, &bytes, cut);
        if self.client_ends {
            wire.end();
        }
        self.received(&mut wire)
    }

    fn received(&self, wire: &mut Wire) -> Received {
        let mut received = Received::default();
        let method = if self.head_only { "HEAD" } else { "GET" };
        while received.statuses.len() < self.answers.len() || self.end == End::Closes {
            let Some(reply) = wire.answer_to(method) else { break };
            received.add(reply);
        }
        if self.end == End::Closes {
            received.rest = wire.rest();
        } else {
            wire.send(b"GET /honest HTTP/1.1\r\nhost: site\r\n\r\n");
            received.goes_on = wire.answer().is_some_and(|reply| reply.body == "GET /honest");
        }
        received
    }

    /// Plays the case to another proxy in front, which may read it in its own way. A last request follows, so that the connection
    /// ends. Returns the lines of the requests that were answered with 200.
    pub(crate) fn play_behind(&self, front: SocketAddr, run: &str, cut: u64) -> Vec<String> {
        const LAST: &[u8] = b"GET /@@@@@@/last HTTP/1.1\r\nhost: site\r\nconnection: close\r\n\r\n";
        let bytes = with_run(&[&self.bytes[..], LAST].concat(), run);
        let mut wire = Wire::to(front);
        send(&mut wire, &bytes, cut);
        let mut received = Received::default();
        while let Some(reply) = wire.answer() {
            received.add(reply);
        }
        received.lines
    }

    /// Whether its answers can be told apart without knowing the methods of its requests.
    pub(crate) const fn has_bodies(&self) -> bool {
        !self.head_only
    }

    /// Whether the upstream server may get the beginning of a request that never becomes complete.
    pub(crate) const fn may_be_cut(&self) -> bool {
        self.cut
    }

    /// The statuses of all answers.
    pub(crate) fn expected(&self) -> &[u16] {
        &self.answers
    }

    /// Plays the case whole and in pieces. Returns what was wrong with the answers.
    pub(crate) fn try_on(&self, proxy: SocketAddr, number: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        for cut in cuts() {
            let received = self.play(proxy, &run(number, cut), cut);
            let as_told = received.statuses == self.answers
                && received.rest.is_empty()
                && received.goes_on == (self.end == End::GoesOn);
            if !as_told {
                let rest = String::from_utf8_lossy(&received.rest);
                wrong.push(format!(
                    "{}, cut {cut}: {:?} and then {:?} were expected, not {:?} {rest:?} (goes on: {})\n",
                    self.name, self.answers, self.end, received.statuses, received.goes_on
                ));
            }
        }
        wrong
    }

    /// What was wrong with what the upstream server got.
    pub(crate) fn judge(&self, seen: &super::recorder::Recorded, number: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        for cut in cuts() {
            let run = run(number, cut);
            let lines = seen.lines_with(&run);
            if lines.len() != self.requests {
                wrong.push(format!("{}, cut {cut}: the server got {lines:?}\n", self.name));
            }
            if seen.has_part_with(&run) && !self.cut {
                wrong.push(format!("{}, cut {cut}: the server got a part\n", self.name));
            }
        }
        wrong
    }
}

impl Received {
    fn add(&mut self, reply: Reply) {
        if reply.status == 200 {
            self.lines.push(reply.body);
        }
        if reply.status >= 200 {
            self.statuses.push(reply.status);
        }
    }
}

/// The number of a run, as long as [`RUN`].
pub(crate) fn run(number: usize, cut: u64) -> String {
    format!("{number:03}.{cut:02}")
}

pub(crate) fn cuts() -> std::ops::RangeInclusive<u64> {
    0..=CUTS
}

fn send(wire: &mut Wire, bytes: &[u8], cut: u64) {
    if cut == 0 {
        return wire.send(bytes);
    }
    // Large cases are cut into larger pieces.
    wire.send_cut(bytes, 7.max(bytes.len() / 64), &mut Dice::new(cut));
}

fn with_run(bytes: &[u8], run: &str) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len().saturating_sub(RUN.len() - 1) {
        if bytes[at..].starts_with(RUN.as_bytes()) {
            bytes[at..at + RUN.len()].copy_from_slice(run.as_bytes());
        }
    }
    bytes
}
