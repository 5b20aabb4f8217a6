//! An upstream server that keeps all requests, judges each byte with the strict reader, and answers with the request line.

#![allow(dead_code, reason = "the tests with real proxies use another part of this")]

use super::strict::{Parsed, SeenRequest, parse};
use crate::support::PATIENCE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// No more connections are expected.
    over: AtomicBool,
    seen: Mutex<Recorded>,
}

/// Everything that a recorder got.
#[derive(Default)]
pub(crate) struct Recorded {
    /// In the order in which they were complete.
    pub(crate) requests: Vec<SeenRequest>,
    /// Requests that were not complete when their connection ended.
    pub(crate) parts: Vec<Vec<u8>>,
    /// What a strict server does not accept.
    pub(crate) malformed: Vec<String>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let remembered = Arc::clone(&shared);
        let accepting = thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming().map(Result::unwrap) {
                if remembered.over.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&remembered);
                connections.push(thread::spawn(move || serve(stream, &shared)));
            }
            connections
        });
        Self { address, shared, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that arrived. All clients must have ended before, so that nothing is on its way.
    pub(crate) fn finish(self) -> Recorded {
        self.shared.over.store(true, Ordering::SeqCst);
        // Connections are accepted in their order, so all others were accepted before this one.
        let _last = TcpStream::connect(self.address).unwrap();
        for connection in self.accepting.join().unwrap() {
            connection.join().unwrap();
        }
        std::mem::take(&mut self.shared.seen.lock().unwrap())
    }
}

impl Recorded {
    /// The lines of the requests that this text occurs in, in their order.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        self.requests.iter().map(SeenRequest::line).filter(|line| line.contains(text)).collect()
    }

    /// Whether the beginning of a request arrived that this text occurs in.
    pub(crate) fn has_part_with(&self, text: &str) -> bool {
        self.parts.iter().any(|part| String::from_utf8_lossy(part).contains(text))
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) {
    stream.set_read_timeout(Some(PATIENCE * 4)).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match parse(&bytes) {
            Ok(Parsed::Whole(request, length)) => {
                bytes.drain(..length);
                let answer = answer_to(&request);
                shared.seen.lock().unwrap().requests.push(request);
                let _ = stream.write_all(answer.as_bytes());
                continue;
            }
            Ok(Parsed::Part) => {}
            Err(error) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return shared.seen.lock().unwrap().malformed.push(format!("{error} in {text:?}"));
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    if !bytes.is_empty() {
        shared.seen.lock().unwrap().parts.push(bytes);
    }
}

fn answer_to(request: &SeenRequest) -> String {
    let line = request.line();
    let body = if request.method == "HEAD" { "" } else { &line };
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", line.len())
}
