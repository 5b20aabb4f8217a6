//! An HTTP client that keeps its connection open and writes requests and reads answers separately.

#![allow(dead_code, reason = "every file of tests uses its own part of this")]

use crate::support::{Reply, Server, connect};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// One connection, and the bytes that were read beyond the last answer.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    address: SocketAddr,
    read: Vec<u8>,
}

impl Client {
    pub(crate) fn of(address: SocketAddr) -> Self {
        let stream = connect(address);
        stream.set_nodelay(true).unwrap();
        Self { stream, address, read: Vec::new() }
    }

    /// The bytes of a request.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Vec<u8> {
        let (address, body) = (self.address, body.as_ref());
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n").into_bytes();
        for (name, value) in fields {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if !body.is_empty() {
            text.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(body);
        text
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next answer; `None` if the server has closed the connection between two answers.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Reply>> {
        loop {
            if let Some(reply) = self.take_reply() {
                return Ok(Some(reply));
            }
            let mut more = [0; 64 * 1024];
            match self.stream.read(&mut more) {
                Ok(0) if self.read.is_empty() => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read.extend_from_slice(&more[..count]),
                // The machine was suspended for a moment.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Reply {
        let request = self.request(method, path, fields, body);
        self.send(&request).unwrap();
        self.receive()
            .unwrap()
            .unwrap_or_else(|| panic!("the connection was closed before the answer"))
    }

    /// `POST`s JSON.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, &[("content-type", "application/json")], body)
    }

    /// Closes the writing side: nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// An answer that has arrived completely.
    fn take_reply(&mut self) -> Option<Reply> {
        let head = self.read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let text = str::from_utf8(&self.read[..head]).unwrap();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let end = head + length.map_or(0, |digits| digits.parse::<usize>().unwrap());
        if self.read.len() < end {
            return None;
        }
        let rest = self.read.split_off(end);
        let whole = std::mem::replace(&mut self.read, rest);
        Some(Reply::parse(str::from_utf8(&whole).unwrap()))
    }
}

/// A client of the admin listener, with a token.
pub(crate) struct Operator {
    client: Client,
    bearer: String,
}

impl Operator {
    pub(crate) fn of(server: &Server) -> Self {
        Self::with(server, "operator-token")
    }

    pub(crate) fn reader(server: &Server) -> Self {
        Self::with(server, "reader-token")
    }

    fn with(server: &Server, file: &str) -> Self {
        let token = std::fs::read_to_string(server.data(file)).unwrap();
        Self { client: Client::of(server.admin), bearer: format!("Bearer {}", token.trim()) }
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Reply {
        let mut all = vec![("authorization", self.bearer.as_str())];
        all.extend(fields);
        self.client.ask(method, path, &all, body)
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    /// Sends JSON.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &serde_json::Value) -> Reply {
        let json = [("content-type", "application/json")];
        self.ask(method, path, &json, body.to_string())
    }

    /// Uploads a policy to `/admin/v1/policy` with these parameters.
    pub(crate) fn put_policy(&mut self, parameters: &str, text: impl AsRef<[u8]>) -> Reply {
        let yaml = [("content-type", "application/yaml")];
        self.ask("PUT", &format!("/admin/v1/policy{parameters}"), &yaml, text)
    }

    /// One number of `/metrics`, by the beginning of its line; 0 if there is none.
    pub(crate) fn metric(&mut self, series: &str) -> u64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |number| number.parse().unwrap())
    }
}
