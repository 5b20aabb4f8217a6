//! A durable store is killed (`kill -9`) under load, again and again. What it has forgotten was admitted within the last interval and
//! the longest write.

use crate::support::resp;
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{Dice, PATIENCE, pause, pause_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const RULE: &str = "{ name: all, key: [ip], limits: [15/s] }";
const FLAGS: [&str; 2] = ["--resp-listen", "127.0.0.1:0"];
const KILLS: u64 = 20;
/// How often the log is written.
const INTERVAL: Duration = Duration::from_millis(50);
const CONNECTIONS: u64 = 4;
const KEYS_PER_CONNECTION: u64 = 2_500;
/// Each connection asks this many times, together, every four milliseconds: 50,000 a second in all.
const TOGETHER: u64 = 50;
const EVERY: Duration = Duration::from_millis(4);
/// A bucket that is never empty. A token comes back in 53 minutes.
const BURST: u64 = 1_000_000;

/// A request of a key that was admitted: the key, how much of it is used, and when the answer came.
type Admitted = (u64, u64, Instant);

fn command(key: u64, quantity: u64) -> String {
    let words = ["CL.THROTTLE", &format!("key:{key}"), &BURST.to_string(), "10000", "31536000"];
    let words: Vec<String> =
        words.iter().map(|word| (*word).to_owned()).chain([quantity.to_string()]).collect();
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*6\r\n{words}")
}

/// A connection of a Redis client.
struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, read: vec![] }
    }

    /// How much is used of each key, after a request; `None` when the server is gone.
    fn ask(&mut self, keys: &[u64], quantity: u64) -> Option<Vec<u64>> {
        let commands: String = keys.iter().map(|key| command(*key, quantity)).collect();
        self.stream.write_all(commands.as_bytes()).ok()?;
        keys.iter().map(|_| self.used()).collect()
    }

    /// The next answer: five numbers, of which the third is what remains.
    fn used(&mut self) -> Option<u64> {
        let mut buffer = [0; 16_384];
        let length = loop {
            match resp::length(&self.read) {
                Some(length) => break length,
                None => match self.stream.read(&mut buffer).ok()? {
                    0 => return None,
                    count => self.read.extend_from_slice(&buffer[..count]),
                },
            }
        };
        let answer = String::from_utf8(self.read.drain(..length).collect()).unwrap();
        let remaining: u64 = answer.split("\r\n:").nth(3).unwrap().trim().parse().unwrap();
        Some(BURST + 1 - remaining)
    }
}

/// Asks until the server is gone. Returns what was admitted.
fn load(server: SocketAddr, connection: u64, over: &AtomicBool) -> Vec<Admitted> {
    let mut client = Client::connect(server);
    let mut dice = Dice::new(connection);
    let mut admitted = vec![];
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let first = connection * KEYS_PER_CONNECTION;
        let keys: Vec<u64> =
            (0..TOGETHER).map(|_| first + dice.below(KEYS_PER_CONNECTION)).collect();
        let Some(used) = client.ask(&keys, 1) else { break };
        let now = Instant::now();
        admitted.extend(keys.iter().zip(used).map(|(key, used)| (*key, used, now)));
        due += EVERY;
        pause_until(due);
    }
    admitted
}

/// Kills a server under load; returns the one that was started again, what was admitted, and when it was killed.
fn kill(
    deployment: &Deployment,
    server: Tidegate,
    after: Duration,
) -> (Tidegate, Vec<Admitted>, Instant, Duration) {
    let over = Arc::new(AtomicBool::new(false));
    let address = server.resp.unwrap();
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|connection| {
            let over = Arc::clone(&over);
            thread::spawn(move || load(address, connection, &over))
        })
        .collect();
    pause(after);
    let longest = Duration::from_micros(server.metric("tidegate_file_longest_write_microseconds"));
    let killed = Instant::now();
    let server = deployment.restart(server, "file:", &FLAGS);
    over.store(true, Ordering::Relaxed);
    let admitted = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    (server, admitted, killed, longest)
}

#[test]
fn what_is_forgotten_was_admitted_within_the_last_interval_and_the_longest_write() {
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server("file:", &FLAGS);
    let mut dice = Dice::new(1);
    let (mut asked, mut oldest) = (0, Duration::ZERO);
    for number in 0..KILLS {
        let after = Duration::from_millis(800 + dice.below(400));
        let (again, admitted, killed, longest) = kill(&deployment, server, after);
        server = again;
        let keys: Vec<u64> = (0..CONNECTIONS * KEYS_PER_CONNECTION).collect();
        let mut client = Client::connect(server.resp.unwrap());
        let remembered: Vec<u64> =
            keys.chunks(500).flat_map(|keys| client.ask(keys, 0).unwrap()).collect();
        let forgotten = admitted.iter().filter(|(key, used, at)| {
            *at < killed && *used > remembered[usize::try_from(*key).unwrap()]
        });
        let ages = forgotten.map(|(_, _, at)| killed.duration_since(*at));
        let age = ages.max().unwrap_or_default();
        asked += admitted.len();
        oldest = oldest.max(age);
        assert!(
            age <= INTERVAL + longest,
            "kill {number}: forgotten after {age:?}; the longest write took {longest:?}"
        );
    }
    println!(
        "killed {KILLS} times: {asked} answers; the oldest that was forgotten came {oldest:?} before"
    );
    server.assert_healthy();
}
