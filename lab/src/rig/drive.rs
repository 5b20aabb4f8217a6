//! The load generator: a number of connections, each of which sends a request, reads the answer, and sends
//! the next request when its turn comes.
//!
//! It shares the processors with the server under test, so it is made cheap: one thread, two system calls per
//! exchange, one buffer for everything that arrives, requests that are rendered in place, and no allocation
//! per request.

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use super::schedule::{Schedule, Turns};
use super::tally::Tally;
use super::timer::Timer;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The client side of a protocol on one connection.
pub(crate) trait LoadClient {
    /// The bytes of the next request.
    fn request(&mut self) -> &[u8];

    /// Reads bytes that have arrived. Returns `None` while the answer is incomplete, and otherwise how many
    /// requests passed and how many were refused. A client with several requests in flight returns after each
    /// answer, and is asked for the next request while other answers are outstanding.
    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String>;

    /// Whether further answers are outstanding after one has arrived. They are awaited even when nothing more
    /// is sent.
    fn awaits_more(&self) -> bool {
        false
    }
}

/// A connection, its client and its schedule.
struct DrivenConnection<T> {
    stream: TcpStream,
    client: T,
    turns: Turns,
    /// A request was sent, and its answer is outstanding.
    awaiting: bool,
}

/// The most bytes of one `recv`.
const ROOM: usize = 64 << 10;
/// How long an answer may take; a server that needs longer is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// The number of the timer among the epoll events; connections are numbered from 0.
const TIMER: u64 = u64::MAX;

/// Runs a load to its end, and blocks the thread until then.
pub(crate) fn drive<T: LoadClient>(
    address: SocketAddr,
    schedule: &Schedule,
    mut client: impl FnMut(u32) -> T,
) -> Result<Tally, String> {
    let mut streams = Vec::new();
    for number in 0..schedule.connections {
        streams.push((connect(address).map_err(|error| error.to_string())?, client(number)));
    }
    let start = Instant::now();
    let connections = (0..).zip(streams).map(|(number, (stream, client))| {
        let turns = schedule.turns(start, number);
        DrivenConnection { stream, client, turns, awaiting: false }
    });
    let mut driver =
        Driver::new(connections.collect(), start).map_err(|error| error.to_string())?;
    driver.run()?;
    driver.tally.took = start.elapsed();
    Ok(driver.tally)
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

struct Driver<T> {
    connections: Vec<DrivenConnection<T>>,
    epoll: OwnedFd,
    timer: Timer,
    buffer: Box<[u8]>,
    tally: Tally,
    /// When the last answer arrived.
    last_answer: Instant,
}

impl<T: LoadClient> Driver<T> {
    fn new(connections: Vec<DrivenConnection<T>>, start: Instant) -> Result<Self, String> {
        let as_text = |error: Errno| error.to_string();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(as_text)?;
        for (number, connection) in (0..).zip(&connections) {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN).map_err(as_text)?;
        }
        let timer =
            Timer::new().map_err(|error| format!("the timer cannot be created: {error}"))?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge).map_err(as_text)?;
        let (buffer, tally) = (vec![0; ROOM].into(), Tally::new()?);
        Ok(Self { connections, epoll, timer, buffer, tally, last_answer: start })
    }

    fn run(&mut self) -> Result<(), String> {
        let mut events = Vec::with_capacity(self.connections.len().saturating_add(1));
        loop {
            self.send_what_is_due()?;
            if self.connections.iter().all(DrivenConnection::is_done) {
                return Ok(());
            }
            let patience = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
            let free = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, free, Some(&patience)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            for event in events.drain(..) {
                if event.data.u64() != TIMER {
                    self.receive(usize::try_from(event.data.u64()).unwrap_or(usize::MAX))?;
                }
            }
            let awaiting = self.connections.iter().any(|connection| connection.awaiting);
            if awaiting && self.last_answer.elapsed() > PATIENCE {
                return Err(format!("the server has not answered for {PATIENCE:?}"));
            }
        }
    }

    /// Sends on each connection whose turn has come, and sets the timer to the next turn.
    fn send_what_is_due(&mut self) -> Result<(), String> {
        // In a closed loop no connection waits for a turn.
        if self.connections.iter().all(|connection| connection.awaiting) {
            return Ok(());
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for connection in &mut self.connections {
            connection.send(now)?;
            if !connection.awaiting && !connection.is_done() {
                let due = connection.turns.due;
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        match next {
            Some(next) => self.timer.set(next).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Reads what has arrived on a connection, and sends its next request if that is due.
    fn receive(&mut self, number: usize) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(number) else { return Ok(()) };
        let read = match recv(&connection.stream, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err("the server closed the connection".to_owned()),
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        let Some((passed, refused)) = connection.client.receive(bytes)? else { return Ok(()) };
        if !connection.awaiting {
            return Err("the server sent an answer without a request".to_owned());
        }
        let now = Instant::now();
        self.last_answer = now;
        connection.awaiting = false;
        self.tally.note(passed, refused, connection.turns.answered(now));
        connection.send(now)?;
        connection.awaiting |= connection.client.awaits_more();
        Ok(())
    }
}

impl<T: LoadClient> DrivenConnection<T> {
    /// Whether nothing is left to send and no answer is outstanding.
    fn is_done(&self) -> bool {
        !self.awaiting && self.turns.are_over()
    }

    /// Sends the next request if its turn has come.
    fn send(&mut self, now: Instant) -> Result<(), String> {
        if self.awaiting || !self.turns.has_come(now) {
            return Ok(());
        }
        let request = self.client.request();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match send(&self.stream, request, flags) {
            Ok(sent) if sent == request.len() => {}
            // The answer to the previous request has arrived, so the socket buffer has room for one request.
            Ok(_) | Err(Errno::AGAIN) => {
                return Err("the server does not read its requests".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
        self.awaiting = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::schedule::Pace;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    /// Sends one byte, and receives `y` (passed) or `n` (refused).
    struct Byte;

    impl LoadClient for Byte {
        fn request(&mut self) -> &[u8] {
            b"?"
        }

        fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
            match bytes {
                b"." => Ok(None),
                b"y" | b".y" => Ok(Some((1, 0))),
                b"n" | b".n" => Ok(Some((0, 1))),
                other => Err(format!("{other:?}")),
            }
        }
    }

    /// The tally of three connections to a server that sends these pieces as each answer, one write per
    /// piece.
    fn found(pace: Pace, answer: &'static [&'static [u8]]) -> Result<Tally, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let served: Vec<_> = (0..3)
                .map(|_| {
                    let mut stream = listener.accept().unwrap().0;
                    thread::spawn(move || {
                        while let Ok(1) = stream.read(&mut [0; 1]) {
                            // A client that has given up has closed its connection.
                            let _ = answer.iter().try_for_each(|piece| stream.write_all(piece));
                        }
                    })
                })
                .collect();
            served.into_iter().for_each(|each| each.join().unwrap());
        });
        let schedule = Schedule { connections: 3, pace, length: Duration::from_micros(9) };
        let found = drive(address, &schedule, |_| Byte);
        serving.join().unwrap();
        found
    }

    #[test]
    fn a_load_goes_over_all_its_connections_and_adds_up() {
        let pace = Pace::Open { apart: Duration::from_micros(1) };
        let tally = found(pace, &[b"y"]).unwrap();
        assert_eq!((tally.passed, tally.refused, tally.latency.len()), (9, 0, 9));
    }

    #[test]
    fn an_answer_counts_when_it_is_complete() {
        let tally = found(Pace::Closed, &[b".", b"n"]).unwrap();
        // Each connection sends at least once; how often in all depends on the machine.
        assert!(tally.refused >= 3 && tally.passed == 0);
        assert_eq!(tally.latency.len(), tally.refused);
    }

    /// Has five requests in flight, and tells the server whenever it has received an answer.
    struct Five {
        in_flight: usize,
        received: mpsc::Sender<()>,
    }

    impl LoadClient for Five {
        fn request(&mut self) -> &[u8] {
            let missing = 5usize.checked_sub(self.in_flight).unwrap();
            self.in_flight = 5;
            &b"?????"[..missing]
        }

        fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
            assert_eq!(bytes, b"y");
            self.in_flight = self.in_flight.checked_sub(1).unwrap();
            self.received.send(()).unwrap();
            Ok(Some((1, 0)))
        }

        fn awaits_more(&self) -> bool {
            self.in_flight > 0
        }
    }

    /// The load ends with the first answer. The server sends the others one by one, each after the one before
    /// was received.
    #[test]
    fn a_client_with_several_requests_in_flight_receives_all_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (received, was_received) = mpsc::channel();
        let serving = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; 5]).unwrap();
            for _ in 0..5 {
                stream.write_all(b"y").unwrap();
                // The client is gone if it did not wait.
                let _ = was_received.recv();
            }
        });
        let length = Duration::from_nanos(1);
        let schedule = Schedule { connections: 1, pace: Pace::Closed, length };
        let five = |_| Five { in_flight: 0, received: received.clone() };
        let tally = drive(address, &schedule, five).unwrap();
        drop(received);
        assert_eq!(tally.passed, 5);
        serving.join().unwrap();
    }

    #[test]
    fn an_invalid_answer_ends_the_load() {
        assert_eq!(found(Pace::Closed, &[b"x"]).err().as_deref(), Some("[120]"));
    }
}
