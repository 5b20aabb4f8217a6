//! A fake Redis. It forwards commands to a real one, or replies to every command with given bytes.
//!
//! The commands at the beginning of a connection (`HELLO`, `AUTH`, `CLIENT`, `SELECT`) are always forwarded,
//! so that a bad reply always hits a decision.

use super::{free_listener, resp};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) struct FakeRedis {
    pub(crate) address: SocketAddr,
    shared: Arc<FakeState>,
}

#[derive(Clone)]
pub(crate) enum Behaviour {
    Correct,
    Replies(Vec<u8>),
    /// Replies with these bytes, and closes the connection.
    RepliesAndCloses(Vec<u8>),
}

struct FakeState {
    real: SocketAddr,
    behaviour: Mutex<Behaviour>,
    /// How many bad replies it has sent.
    bad_replies: AtomicU64,
    over: AtomicBool,
}

const HANDSHAKE: [&str; 4] = ["HELLO", "AUTH", "CLIENT", "SELECT"];

impl FakeRedis {
    pub(crate) fn start(real: SocketAddr) -> Self {
        let (listener, address) = free_listener();
        let shared = Arc::new(FakeState {
            real,
            behaviour: Mutex::new(Behaviour::Correct),
            bad_replies: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if serving.over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), shared) = (client, Arc::clone(&serving)) else { continue };
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Changes the behaviour from now on.
    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn bad_replies(&self) -> u64 {
        self.shared.bad_replies.load(Ordering::Relaxed)
    }
}

impl Drop for FakeRedis {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl FakeState {
    /// Handles one command after another until the client closes the connection.
    fn serve(&self, mut client: TcpStream) -> Option<()> {
        client.set_nodelay(true).ok()?;
        let mut real = TcpStream::connect(self.real).ok()?;
        real.set_nodelay(true).ok()?;
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        loop {
            let command = message(&mut client, &mut asked)?;
            let is_handshake = HANDSHAKE.contains(&resp::name(&command).as_str());
            let behaviour = self.behaviour.lock().unwrap().clone();
            match behaviour {
                Behaviour::Replies(words) if !is_handshake => {
                    self.send_bad_reply(&mut client, &words)?;
                }
                Behaviour::RepliesAndCloses(words) if !is_handshake => {
                    self.send_bad_reply(&mut client, &words)?;
                    return None;
                }
                Behaviour::Correct | Behaviour::Replies(_) | Behaviour::RepliesAndCloses(_) => {
                    real.write_all(&command).ok()?;
                    client.write_all(&message(&mut real, &mut answered)?).ok()?;
                }
            }
        }
    }

    fn send_bad_reply(&self, client: &mut TcpStream, words: &[u8]) -> Option<()> {
        self.bad_replies.fetch_add(1, Ordering::Relaxed);
        client.write_all(words).ok()
    }
}

/// The next complete message of a stream.
fn message(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(length) = resp::length(read) {
            return Some(read.drain(..length).collect());
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            count => read.extend_from_slice(&buffer[..count]),
        }
    }
}
