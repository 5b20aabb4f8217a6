//! An upstream server that answers as a case says, and remembers which connection each request came over.

use crate::support::PATIENCE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What the server does after the bytes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It waits for the next request.
    Open,
    Closes,
    /// It resets the connection.
    Resets,
}

/// What a server answers to a request.
#[derive(Clone)]
pub(crate) struct Answered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ending: Ending,
}

/// A server with a script: an answer for each path.
pub(crate) struct ScriptedServer {
    pub(crate) address: SocketAddr,
    /// The paths of the requests of each connection.
    connections: Arc<Mutex<Vec<Vec<String>>>>,
}

impl ScriptedServer {
    /// Starts a server. `answer` gets the path of a request, and may wait before it returns.
    pub(crate) fn start(answer: impl Fn(&str) -> Answered + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let (remembered, answer) = (Arc::clone(&connections), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map(Result::unwrap) {
                let (seen, answer) = (Arc::clone(&remembered), Arc::clone(&answer));
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(Vec::new());
                    seen.len() - 1
                };
                thread::spawn(move || {
                    serve(stream, &*answer, |path| seen.lock().unwrap()[number].push(path));
                });
            }
        });
        Self { address, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The paths of the requests of each connection.
    pub(crate) fn connections(&self) -> Vec<Vec<String>> {
        self.connections.lock().unwrap().clone()
    }

    /// How often a path was asked for.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.connections().iter().flatten().filter(|seen| *seen == path).count()
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&str) -> Answered, mut saw: impl FnMut(String)) {
    stream.set_read_timeout(Some(PATIENCE * 4)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut bytes = Vec::new();
    while let Some(head) = read_head(&mut stream, &mut bytes) {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        saw(path.clone());
        let Answered { bytes, ending } = answer(&path);
        let _ = stream.write_all(&bytes);
        match ending {
            Ending::Open => {}
            Ending::Closes => return,
            Ending::Resets => {
                // Closing with a linger time of zero resets the connection.
                let zero = Some(std::time::Duration::ZERO);
                return rustix::net::sockopt::set_socket_linger(&stream, zero).unwrap();
            }
        }
    }
}

/// The head of the next request; `None` at the end of the connection. Bodies with a length are skipped.
pub(crate) fn read_head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
            let length = crate::support::Reply::parse(&head)
                .field("content-length")
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if bytes.len() >= end + 4 + length {
                bytes.drain(..end + 4 + length);
                return Some(head);
            }
        }
        let mut buffer = [0; 16 * 1024];
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
