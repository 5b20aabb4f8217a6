//! A fake sentinel that names the primary that a test sets.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(crate) struct FakeSentinel {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<SentinelState>>,
}

struct SentinelState {
    epoch: u64,
    primary: SocketAddr,
    subscribers: Vec<TcpStream>,
    /// How often it was queried for the primary.
    queries: usize,
}

impl FakeSentinel {
    /// Starts a sentinel that names this primary.
    pub(crate) fn start(primary: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = SentinelState { epoch: 1, primary, subscribers: vec![], queries: 0 };
        let state = Arc::new(Mutex::new(state));
        let served = Arc::clone(&state);
        // This thread and those of the connections end with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&served);
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    /// Names another primary from now on, without an event.
    pub(crate) fn name(&self, epoch: u64, primary: SocketAddr) {
        let mut state = self.state.lock().unwrap();
        (state.epoch, state.primary) = (epoch, primary);
    }

    /// How often it was queried for the primary.
    pub(crate) fn queries(&self) -> usize {
        self.state.lock().unwrap().queries
    }

    /// Sends an event to all subscribers.
    pub(crate) fn publish(&self, channel: &str, text: &str) {
        let message = resp_array(&["message", channel, text]);
        let mut state = self.state.lock().unwrap();
        state.subscribers.retain_mut(|stream| stream.write_all(message.as_bytes()).is_ok());
    }
}

/// Serves one connection.
fn serve(stream: &TcpStream, state: &Mutex<SentinelState>) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(command) = read(&mut reader) {
        let mut state = state.lock().unwrap();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let reply = match command.as_slice() {
            ["SENTINEL", "MASTER", _] => resp_array(&["config-epoch", &state.epoch.to_string()]),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                state.queries += 1;
                let SocketAddr::V4(at) = state.primary else { panic!("not an IPv4 address") };
                resp_array(&[&at.ip().to_string(), &at.port().to_string()])
            }
            ["SUBSCRIBE", channels @ ..] => {
                state.subscribers.push(stream.try_clone().unwrap());
                let confirmation = |channel: &&str| {
                    let length = channel.len();
                    format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                };
                channels.iter().map(confirmation).collect()
            }
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// An array of bulk strings in RESP.
fn resp_array(list: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", list.len(), list.iter().map(word).collect::<String>())
}

/// Reads a command; `None` at the end of the stream.
fn read(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(reader, '*')?;
    let word = |_| {
        let length = number(reader, '$')?;
        let mut bytes = vec![0; length + 2];
        reader.read_exact(&mut bytes).ok()?;
        String::from_utf8(bytes[..length].to_vec()).ok()
    };
    (0..count).map(word).collect()
}

fn number(reader: &mut impl BufRead, sign: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}
