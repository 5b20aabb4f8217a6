//! The generator: so many connections, each of which sends a request, reads the answer, and sends the next.
//!
//! It shares its processors with the server under test, so it is made cheap: one thread, one task for each
//! connection, requests that are rendered in place, nothing allocated for a request. Time is tokio's, which a test can hold.

use super::wire::{Answer, answer};
use crate::rig::schedule::{Schedule, Turns};
use crate::rig::tally::Tally;
use crate::rig::template::{Keys, Template};
use crate::rig::timer::Timer;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

/// What a server is asked, by how many, and when.
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) request: Template,
    pub(crate) keys: NonZeroU32,
    pub(crate) schedule: Schedule,
}

/// More than any server here answers.
const LONGEST_ANSWER: usize = 16 << 10;

impl Load {
    /// Asks, and counts the answers; any but 2xx and 429 is an error.
    pub(crate) async fn run(&self) -> Result<Tally, String> {
        LocalSet::new().run_until(self.run_here()).await
    }

    /// The same, on a thread that tasks do not leave.
    async fn run_here(&self) -> Result<Tally, String> {
        let mut streams = Vec::new();
        for _ in 0..self.schedule.connections {
            streams.push(Connection::open(self.address).await?);
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (number, connection) in (0..).zip(streams) {
            let (turns, request) = (self.schedule.turns(start, number), self.request.clone());
            let keys = Keys::new(self.keys, number);
            let mut timer = Timer::new().map_err(|error| format!("no timer: {error}"))?;
            tasks.spawn_local(async move {
                drive(connection, request, keys, turns, async |at| timer.until(at).await).await
            });
        }
        Tally::gathered(tasks, start, self.schedule.length).await
    }
}

/// Sends at every turn over one connection; `wait` waits until an instant.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<S>,
    mut request: Template,
    mut keys: Keys,
    turns: Turns,
    mut wait: impl AsyncFnMut(Instant) -> io::Result<()>,
) -> Result<Tally, String> {
    let mut tally = Tally::new()?;
    let mut due = turns.first;
    while due < turns.end {
        wait(due).await.map_err(|error| error.to_string())?;
        let answer = connection.exchange(request.of(|| keys.draw())).await?;
        let answered = Instant::now();
        let (passed, refused) = counted(answer.status)?;
        tally.note(passed, refused, answered.saturating_duration_since(due));
        due = turns.next(due, answered);
    }
    Ok(tally)
}

/// What passed and what was refused by such an answer.
fn counted(status: u16) -> Result<(u64, u64), String> {
    match status {
        200..300 => Ok((1, 0)),
        429 => Ok((0, 1)),
        _ => Err(format!("answered {status}")),
    }
}

// === a connection ===

/// A connection that is kept alive, and room for one answer.
pub(crate) struct Connection<S> {
    stream: S,
    buffer: Box<[u8]>,
}

impl Connection<TcpStream> {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self::over(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn over(stream: S) -> Self {
        Self { stream, buffer: vec![0; LONGEST_ANSWER].into() }
    }

    /// Sends one request and reads its answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Answer, String> {
        self.stream.write_all(request).await.map_err(|error| error.to_string())?;
        let mut filled = 0usize;
        loop {
            let room = self.buffer.get_mut(filled..).filter(|room| !room.is_empty());
            let room = room.ok_or_else(|| format!("an answer of more than {filled} bytes"))?;
            let read = self.stream.read(room).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the server hung up".to_owned());
            }
            filled = filled.saturating_add(read);
            if let Some(answer) = answer(self.buffer.get(..filled).unwrap_or_default())? {
                return Ok(answer);
            }
        }
    }

    /// The body of the last answer.
    pub(crate) fn body(&self, answer: &Answer) -> &[u8] {
        self.buffer.get(answer.body.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_bench::wire::get;
    use crate::rig::schedule::{Pace, after};
    use std::time::Duration;
    use tokio::time::sleep_until;

    const MILLI: Duration = Duration::from_millis(1);
    const ASKED: &str = "GET /? HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// A thread of which time stands still until all tasks wait for it.
    fn held(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    /// Answers one request after the other, each at its instant or when it comes, byte by byte.
    async fn serve(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        status: &str,
        at: impl Fn(usize) -> Instant,
    ) {
        let mut request = [0; ASKED.len()];
        for number in 0.. {
            if stream.read_exact(&mut request).await.is_err() {
                return;
            }
            sleep_until(at(number)).await;
            for byte in format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").bytes() {
                stream.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    }

    /// What a connection finds that sends to such a server for ten milliseconds.
    async fn found(
        apart: Option<Duration>,
        status: &'static str,
        at: impl Fn(usize) -> Instant + Send + 'static,
    ) -> Result<Tally, String> {
        let (near, far) = tokio::io::duplex(4_096);
        tokio::spawn(serve(far, status, at));
        let first = Instant::now();
        let turns = Turns { first, apart, end: after(first, Duration::from_millis(10)) };
        let keys = Keys::new(NonZeroU32::MIN, 0);
        let wait = async |at| {
            sleep_until(at).await;
            Ok(())
        };
        drive(Connection::over(near), get("/?"), keys, turns, wait).await
    }

    fn millis(tally: &Tally) -> Vec<u64> {
        let recorded = tally.latency.iter_recorded();
        recorded
            .flat_map(|step| {
                let times = usize::try_from(step.count_at_value()).unwrap();
                // To three digits; a millisecond is told from its neighbours.
                vec![step.value_iterated_to().saturating_add(500_000) / 1_000_000; times]
            })
            .collect()
    }

    #[test]
    fn in_an_open_loop_a_stall_is_felt_by_all_who_were_due_in_it() {
        held(async {
            let stalled = Instant::now() + 100 * MILLI;
            let tally = found(Some(MILLI), "200 OK", move |_| stalled).await.unwrap();
            assert_eq!(millis(&tally), [91, 92, 93, 94, 95, 96, 97, 98, 99, 100]);
            assert_eq!((tally.passed, tally.refused), (10, 0));
        });
    }

    #[test]
    fn in_an_open_loop_nobody_is_sent_before_its_turn() {
        held(async {
            let start = Instant::now();
            let tally = found(Some(MILLI), "200 OK", move |_| start).await.unwrap();
            assert_eq!(millis(&tally), [0; 10]);
            assert_eq!(start.elapsed(), 9 * MILLI);
        });
    }

    #[test]
    fn in_a_closed_loop_each_waits_for_its_own_answer() {
        held(async {
            let start = Instant::now();
            // The first answer after 4 ms, the second 4 ms later, the third too.
            let at = move |number| start + MILLI * 4 * (u32::try_from(number).unwrap() + 1);
            let tally = found(None, "429 Too Many Requests", at).await.unwrap();
            assert_eq!(millis(&tally), [4, 4, 4]);
            assert_eq!((tally.passed, tally.refused), (0, 3));
        });
    }

    #[test]
    fn an_answer_that_is_neither_yes_nor_no_ends_it() {
        held(async {
            let start = Instant::now();
            let told = found(None, "500 Oops", move |_| start).await.err();
            assert_eq!(told.as_deref(), Some("answered 500"));
        });
    }

    /// So many connections for nine microseconds, of which each is a turn.
    fn load(address: SocketAddr, connections: u32) -> Load {
        let pace = Pace::Open { apart: Duration::from_micros(1) };
        let schedule = Schedule { connections, pace, length: Duration::from_micros(9) };
        Load { address, request: get("/?"), keys: NonZeroU32::MIN, schedule }
    }

    #[test]
    fn a_load_goes_over_all_its_connections_and_adds_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let load = load(listener.local_addr().unwrap(), 3);
            let server = tokio::spawn(async move {
                for _ in 0..3 {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    tokio::spawn(serve(stream, "200 OK", |_| Instant::now()));
                }
            });
            let tally = load.run().await.unwrap();
            server.await.unwrap();
            assert_eq!((tally.passed, tally.refused, tally.latency.len()), (9, 0, 9));
        });
    }
}
