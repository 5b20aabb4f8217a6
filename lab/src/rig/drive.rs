//! The generator: so many connections, each of which sends its requests, reads the answers, and sends the next when it is its turn.
//!
//! It shares its processors with the server under test, so it is made cheap: one thread, two system calls for an exchange, one
//! buffer for all that arrives, requests that are rendered in place, nothing allocated for any of them.

#![expect(
    clippy::disallowed_methods,
    reason = "a generator reads the clock: that is what it is for"
)]

use super::schedule::{Schedule, Turns};
use super::tally::Tally;
use super::timer::Timer;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// What is said over one connection.
pub(crate) trait LoadClient {
    /// What is sent next.
    fn request(&mut self) -> &[u8];

    /// Takes what has arrived; when the answer is whole, how many passed and how many were refused. Whoever has several requests
    /// in flight tells of each answer, and is asked for the next request while others are still to come.
    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String>;

    /// Whether, after an answer, others are still to come, which are waited for even when nothing is sent any more.
    fn awaits_more(&self) -> bool {
        false
    }
}

/// A connection, and where it stands.
struct DrivenConnection<T> {
    stream: TcpStream,
    client: T,
    turns: Turns,
    /// Something was sent, and its answer is still to come.
    asked: bool,
}

/// As much as arrives at once.
const ROOM: usize = 64 << 10;
/// How long after the last request its answer may come; a server that lets anybody wait longer is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the timer is called among the connections.
const TIMER: u64 = u64::MAX;

/// Sends at every turn over every connection. It keeps its thread until it is done.
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
        DrivenConnection { stream, client, turns, asked: false }
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
    /// When something was last heard.
    heard: Instant,
}

impl<T: LoadClient> Driver<T> {
    fn new(connections: Vec<DrivenConnection<T>>, start: Instant) -> Result<Self, String> {
        let told = |error: Errno| error.to_string();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(told)?;
        for (number, connection) in (0..).zip(&connections) {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN).map_err(told)?;
        }
        let timer = Timer::new().map_err(|error| format!("no timer: {error}"))?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge).map_err(told)?;
        let (buffer, tally) = (vec![0; ROOM].into(), Tally::new()?);
        Ok(Self { connections, epoll, timer, buffer, tally, heard: start })
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
                    self.hear(usize::try_from(event.data.u64()).unwrap_or(usize::MAX))?;
                }
            }
            let asked = self.connections.iter().any(|connection| connection.asked);
            if asked && self.heard.elapsed() > PATIENCE {
                return Err(format!("no answer for {PATIENCE:?}"));
            }
        }
    }

    /// Sends for whoever waits for a turn that has come, and sets the timer to the next.
    fn send_what_is_due(&mut self) -> Result<(), String> {
        // In a closed loop nobody waits for a turn.
        if self.connections.iter().all(|connection| connection.asked) {
            return Ok(());
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for connection in &mut self.connections {
            connection.send(now)?;
            if !connection.asked && !connection.is_done() {
                let due = connection.turns.due;
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        match next {
            Some(next) => self.timer.ring_at(next).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Reads what has come over a connection, and sends its next request if that is due.
    fn hear(&mut self, number: usize) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(number) else { return Ok(()) };
        let read = match recv(&connection.stream, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err("the server hung up".to_owned()),
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        let Some((passed, refused)) = connection.client.receive(bytes)? else { return Ok(()) };
        if !connection.asked {
            return Err("an answer to nothing".to_owned());
        }
        let now = Instant::now();
        self.heard = now;
        connection.asked = false;
        self.tally.note(passed, refused, connection.turns.answered(now));
        connection.send(now)?;
        connection.asked |= connection.client.awaits_more();
        Ok(())
    }
}

impl<T: LoadClient> DrivenConnection<T> {
    /// Nothing is to be sent any more, and nothing is to come.
    fn is_done(&self) -> bool {
        !self.asked && self.turns.are_over()
    }

    /// Sends, if it is its turn.
    fn send(&mut self, now: Instant) -> Result<(), String> {
        if self.asked || !self.turns.has_come(now) {
            return Ok(());
        }
        let request = self.client.request();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match send(&self.stream, request, flags) {
            Ok(sent) if sent == request.len() => {}
            // The answer to what was sent before has come, so there is room for one request.
            Ok(_) | Err(Errno::AGAIN) => return Err("the server does not read".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        self.asked = true;
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

    /// Says one byte, and hears one that passed or was refused.
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

    /// What three connections find, of which each is answered by such bytes, one write each.
    fn found(pace: Pace, answer: &'static [&'static [u8]]) -> Result<Tally, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let served: Vec<_> = (0..3)
                .map(|_| {
                    let mut stream = listener.accept().unwrap().0;
                    thread::spawn(move || {
                        while let Ok(1) = stream.read(&mut [0; 1]) {
                            // Whoever has given up reads nothing any more.
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
    fn an_answer_counts_when_it_is_whole() {
        let tally = found(Pace::Closed, &[b".", b"n"]).unwrap();
        // Each connection sends at least once, and how often besides is up to the machine.
        assert!(tally.refused >= 3 && tally.passed == 0);
        assert_eq!(tally.latency.len(), tally.refused);
    }

    /// Has five bytes in flight, and lets the server know when it has heard one.
    struct Five {
        in_flight: usize,
        heard: mpsc::Sender<()>,
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
            self.heard.send(()).unwrap();
            Ok(Some((1, 0)))
        }

        fn awaits_more(&self) -> bool {
            self.in_flight > 0
        }
    }

    /// The end comes with the first answer; the others are sent one by one, each when the one before was heard.
    #[test]
    fn whoever_has_several_in_flight_hears_the_answers_to_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, was_heard) = mpsc::channel();
        let serving = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; 5]).unwrap();
            for _ in 0..5 {
                stream.write_all(b"y").unwrap();
                // Nobody is there any more if it did not wait.
                let _ = was_heard.recv();
            }
        });
        let length = Duration::from_nanos(1);
        let schedule = Schedule { connections: 1, pace: Pace::Closed, length };
        let five = |_| Five { in_flight: 0, heard: heard.clone() };
        let tally = drive(address, &schedule, five).unwrap();
        drop(heard);
        assert_eq!(tally.passed, 5);
        serving.join().unwrap();
    }

    #[test]
    fn what_is_no_answer_ends_it() {
        assert_eq!(found(Pace::Closed, &[b"x"]).err().as_deref(), Some("[120]"));
    }
}
