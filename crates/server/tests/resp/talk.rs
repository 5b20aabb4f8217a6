//! A RESP connection, and the replies on it.

use crate::support::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Simple(String),
    Error(String),
    Number(i64),
    Text(String),
    List(Vec<Self>),
    /// Alternating names and values, in RESP3, which has maps.
    Map(Vec<Self>),
    /// `$-1`, in RESP2.
    NoText,
    /// `_`, in RESP3.
    Null,
}

/// A connection.
pub(crate) struct Talk {
    stream: BufReader<TcpStream>,
}

impl Talk {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream().write_all(bytes).unwrap();
    }

    /// Sends bytes, although the server may not read all of them.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream().write_all(bytes);
    }

    /// Closes the writing side: nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        // Fails if the connection is already closed, which is fine.
        let _ = self.stream().shutdown(Shutdown::Write);
    }

    /// Everything until the server closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.stream.read_to_end(&mut all).unwrap();
        all
    }

    /// Sends one command and returns its reply.
    pub(crate) fn ask(&mut self, words: &str) -> Said {
        self.send(&list(&split(words)));
        self.hear()
    }

    /// Reads one reply.
    pub(crate) fn hear(&mut self) -> Said {
        let line = self.line();
        let (kind, text) = line.split_at(1);
        let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("no number: {line:?}"));
        match kind {
            "+" => Said::Simple(text.to_owned()),
            "-" => Said::Error(text.to_owned()),
            ":" => Said::Number(number()),
            "_" => Said::Null,
            "$" if number() < 0 => Said::NoText,
            "$" => self.text(usize::try_from(number()).unwrap()),
            "*" => Said::List((0..number()).map(|_| self.hear()).collect()),
            "%" => Said::Map((0..2 * number()).map(|_| self.hear()).collect()),
            _ => panic!("no reply: {line:?}"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no line: {line:?}")).to_owned()
    }

    fn text(&mut self, length: usize) -> Said {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        let text = bytes.strip_suffix(b"\r\n").unwrap();
        Said::Text(String::from_utf8(text.to_vec()).unwrap())
    }
}

/// Words separated by spaces; `''` is an empty one.
pub(crate) fn split(words: &str) -> Vec<&[u8]> {
    words
        .split(' ')
        .map(|word| if word == "''" { b"".as_slice() } else { word.as_bytes() })
        .collect()
}

/// A command as clients send it.
pub(crate) fn list(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The numbers of a reply.
pub(crate) fn numbers(said: &Said) -> Vec<i64> {
    let Said::List(all) = said else { panic!("no list: {said:?}") };
    let number = |one: &Said| {
        let Said::Number(number) = one else { panic!("no number: {one:?}") };
        *number
    };
    all.iter().map(number).collect()
}

pub(crate) fn text(text: &str) -> Said {
    Said::Text(text.to_owned())
}

pub(crate) fn error(text: &str) -> Said {
    Said::Error(text.to_owned())
}

pub(crate) fn simple(text: &str) -> Said {
    Said::Simple(text.to_owned())
}

impl Server {
    pub(crate) fn talk(&self) -> Talk {
        Talk::to(self.resp)
    }

    /// Starts a server with these users: `app`, a client, and `ops`, an operator.
    pub(crate) fn with_users(flags: &[&str]) -> Self {
        let folder = crate::support::folder("server");
        let users = folder.join("users");
        crate::support::write_private(&users, format!("app client {APP}\nops operator {OPS}\n"));
        let mut all = vec!["--resp-users-file", users.to_str().unwrap()];
        all.extend(flags);
        Self::start_in(folder.clone(), &all)
    }

    /// Checks that the server works, and had no internal error.
    pub(crate) fn is_well(&self) {
        assert_eq!(self.talk().ask("ECHO well"), text("well"));
        self.never_broke();
    }

    pub(crate) fn never_broke(&self) {
        let log = self.log();
        assert!(!log.contains("panick") && !log.contains("bug in tidegate"), "{log}");
    }
}

/// The token of the client.
pub(crate) const APP: &str = "token-of-the-app-0123";
/// The token of the operator.
pub(crate) const OPS: &str = "token-of-the-ops-4567";

/// Pseudo-random numbers, the same in every run (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap() % sides
    }
}
