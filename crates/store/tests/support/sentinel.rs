//! A sentinel that says what a test tells it to.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(crate) struct FakeSentinel {
    pub(crate) address: SocketAddr,
    says: Arc<Mutex<Says>>,
}

struct Says {
    epoch: u64,
    primary: SocketAddr,
    listeners: Vec<TcpStream>,
    /// How often it was asked.
    asked: usize,
}

impl FakeSentinel {
    /// One that names this primary.
    pub(crate) fn start(primary: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let says = Arc::new(Mutex::new(Says { epoch: 1, primary, listeners: vec![], asked: 0 }));
        let told = Arc::clone(&says);
        // Ends with the process, as the threads of its connections do.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = Arc::clone(&told);
                std::thread::spawn(move || talk(&stream, &told));
            }
        });
        Self { address, says }
    }

    /// Names another primary from now on, and tells nobody who does not ask.
    pub(crate) fn name(&self, epoch: u64, primary: SocketAddr) {
        let mut says = self.says.lock().unwrap();
        (says.epoch, says.primary) = (epoch, primary);
    }

    /// How often it was asked who is the primary.
    pub(crate) fn asked(&self) -> usize {
        self.says.lock().unwrap().asked
    }

    /// Tells whoever listens.
    pub(crate) fn publish(&self, channel: &str, text: &str) {
        let message = words(&["message", channel, text]);
        let mut says = self.says.lock().unwrap();
        says.listeners.retain_mut(|listener| listener.write_all(message.as_bytes()).is_ok());
    }
}

fn talk(stream: &TcpStream, says: &Mutex<Says>) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(command) = read(&mut reader) {
        let mut says = says.lock().unwrap();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let answer = match command.as_slice() {
            ["SENTINEL", "MASTER", _] => words(&["config-epoch", &says.epoch.to_string()]),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                says.asked += 1;
                let SocketAddr::V4(at) = says.primary else { panic!("no such address") };
                words(&[&at.ip().to_string(), &at.port().to_string()])
            }
            ["SUBSCRIBE", channels @ ..] => {
                says.listeners.push(stream.try_clone().unwrap());
                let told = |channel: &&str| {
                    let length = channel.len();
                    format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                };
                channels.iter().map(told).collect()
            }
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A list of words, as RESP writes it.
fn words(list: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", list.len(), list.iter().map(word).collect::<String>())
}

/// A command; nothing when there is none any more.
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
