//! A site behind a proxy: a server that remembers what it received, and can hold back its answers.

use super::{PATIENCE, Reply};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A site. Its answers say who it is and what it received; `/forbidden` gets 403.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    seen: Mutex<Vec<String>>,
    /// The header fields of the last request, as they arrived.
    fields: Mutex<Vec<(String, String)>>,
    /// While this is locked, no answer is sent.
    gate: Mutex<()>,
}

impl Upstream {
    pub(crate) fn start(name: &str) -> Self {
        let (seen, fields, gate) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { name: name.to_owned(), seen, fields, gate });
        let remembered = Arc::clone(&shared);
        let address = listen(move |stream| serve(stream, &remembered));
        Self { address, shared }
    }

    /// What it received since the last call: request lines without their version, each with its body.
    pub(crate) fn saw(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.seen.lock().unwrap())
    }

    /// The header fields of the last request whose names begin like this, in lower case.
    pub(crate) fn fields(&self, beginning: &str) -> Vec<(String, String)> {
        let mut fields = self.shared.fields.lock().unwrap().clone();
        fields.retain(|(name, _)| name.starts_with(beginning));
        fields
    }

    /// Requests are received but not answered until this is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.shared.gate.lock().unwrap()
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, shared: &Shared) {
    let Some(request) = read_request(&mut stream) else { return };
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let line = head.split(" HTTP/").next().unwrap();
    let saw = format!("{line} {body}").trim_end().to_owned();
    let status = if line == "GET /forbidden" { "403 Forbidden" } else { "200 OK" };
    let body = format!("{} saw {saw}", shared.name);
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    *shared.fields.lock().unwrap() = fields.collect();
    shared.seen.lock().unwrap().push(saw);
    drop(shared.gate.lock().unwrap_or_else(PoisonError::into_inner));
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
}

/// Reads a request with its body; `None` if there is none.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let reply = Reply::parse(head);
            let length = reply.field("content-length").map_or(0, |length| length.parse().unwrap());
            let whole = match reply.field("transfer-encoding") {
                Some(_) => body.ends_with("0\r\n\r\n"),
                None => body.len() >= length,
            };
            if whole {
                return Some(text.into_owned());
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(buffer.get(..count)?),
        }
    }
}

/// Serves connections, each on its own thread, until the process ends.
pub(crate) fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map(Result::unwrap) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// An address that no other process uses: a loopback address of this process, so that neither a server that takes any
/// free port nor an outgoing connection can take it.
pub(crate) fn free_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    loop {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from(([127, a | 64, b, c], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
