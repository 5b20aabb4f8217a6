//! The generator: so many connections, each of which sends its commands together, reads all replies, and sends the next.
//!
//! It shares its processors with the server under test, so it is made cheap: one task for each connection, commands
//! that are rendered in place, replies that are only counted, nothing allocated for any of them.

use super::wire::{Counted, Scanner};
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
    pub(crate) ask: Ask,
    pub(crate) keys: NonZeroU32,
    pub(crate) schedule: Schedule,
}

/// Commands that are sent together.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) commands: Template,
    /// How many they are.
    pub(crate) depth: u64,
    pub(crate) verdict: Verdict,
}

/// What the first number of a reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Zero: not limited.
    ZeroPasses,
    /// Zero: not allowed.
    ZeroRefuses,
}

impl Verdict {
    /// What passed and what was refused.
    pub(crate) fn split(self, Counted { replies, zeros }: Counted) -> (u64, u64) {
        let others = replies.saturating_sub(zeros);
        match self {
            Self::ZeroPasses => (zeros, others),
            Self::ZeroRefuses => (others, zeros),
        }
    }
}

impl Load {
    /// Asks, and counts the replies; an error is one.
    pub(crate) async fn run(&self) -> Result<Tally, String> {
        LocalSet::new().run_until(self.run_here()).await
    }

    /// The same, on a thread that tasks do not leave.
    async fn run_here(&self) -> Result<Tally, String> {
        let mut connections = Vec::new();
        for _ in 0..self.schedule.connections {
            connections.push(Connection::open(self.address).await?);
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            let (turns, ask) = (self.schedule.turns(start, number), self.ask.clone());
            let keys = Keys::new(self.keys, number);
            let mut timer = Timer::new().map_err(|error| format!("no timer: {error}"))?;
            tasks.spawn_local(async move {
                drive(connection, ask, keys, turns, async |at| timer.until(at).await).await
            });
        }
        Tally::gathered(tasks, start, self.schedule.length).await
    }
}

/// Sends at every turn over one connection; `wait` waits until an instant.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<S>,
    Ask { mut commands, depth, verdict }: Ask,
    mut keys: Keys,
    turns: Turns,
    mut wait: impl AsyncFnMut(Instant) -> io::Result<()>,
) -> Result<Tally, String> {
    let mut tally = Tally::new()?;
    let mut due = turns.first;
    while due < turns.end {
        wait(due).await.map_err(|error| error.to_string())?;
        let counted = connection.exchange(commands.of(|| keys.draw()), depth).await?;
        let answered = Instant::now();
        let (passed, refused) = verdict.split(counted);
        tally.note(passed, refused, answered.saturating_duration_since(due));
        due = turns.next(due, answered);
    }
    Ok(tally)
}

/// A connection, and room for what arrives at once.
pub(crate) struct Connection<S> {
    stream: S,
    scanner: Scanner,
    buffer: Box<[u8]>,
}

/// The replies to a pipeline of 64 fit in.
const ROOM: usize = 16 << 10;

impl Connection<TcpStream> {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self::over(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn over(stream: S) -> Self {
        Self { stream, scanner: Scanner::default(), buffer: vec![0; ROOM].into() }
    }

    /// Sends commands and reads as many replies.
    pub(crate) async fn exchange(&mut self, commands: &[u8], many: u64) -> Result<Counted, String> {
        self.stream.write_all(commands).await.map_err(|error| error.to_string())?;
        self.scanner.forget();
        loop {
            let read = self.stream.read(&mut self.buffer).await;
            let read = read.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the server hung up".to_owned());
            }
            let counted = self.scanner.scan(self.buffer.get(..read).unwrap_or_default())?;
            if counted.replies > many {
                return Err(format!("{} replies to {many} commands", counted.replies));
            }
            if counted.replies == many {
                return Ok(counted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp_bench::wire::command;
    use crate::rig::schedule::after;
    use std::time::Duration;
    use tokio::time::sleep_until;

    const MILLI: Duration = Duration::from_millis(1);
    const REPLY: &str = "*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n";

    fn ask(depth: usize) -> Ask {
        let text = command("CL.THROTTLE key:######## 1000000 1000000 1");
        Ask {
            commands: Template::new(&text).repeated(depth),
            depth: u64::try_from(depth).unwrap(),
            verdict: Verdict::ZeroPasses,
        }
    }

    /// What a connection finds in ten milliseconds at a server that answers nobody before the hundredth, and then in pieces.
    async fn found(
        apart: Option<Duration>,
        depth: usize,
        replies: String,
    ) -> Result<Tally, String> {
        let (near, mut far) = tokio::io::duplex(4_096);
        let first = Instant::now();
        let asked = ask(depth).commands.of(|| 0).len();
        tokio::spawn(async move {
            let mut commands = vec![0; asked];
            while far.read_exact(&mut commands).await.is_ok() {
                sleep_until(after(first, Duration::from_millis(100))).await;
                for piece in replies.as_bytes().chunks(7) {
                    far.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let turns = Turns { first, apart, end: after(first, Duration::from_millis(10)) };
        let wait = async |at| {
            sleep_until(at).await;
            Ok(())
        };
        let keys = Keys::new(NonZeroU32::MIN, 0);
        drive(Connection::over(near), ask(depth), keys, turns, wait).await
    }

    /// A thread of which time stands still until all tasks wait for it.
    fn held(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn in_an_open_loop_a_stall_is_felt_by_all_who_were_due_in_it() {
        held(async {
            let tally = found(Some(MILLI), 1, REPLY.to_owned()).await.unwrap();
            assert_eq!((tally.passed, tally.refused), (10, 0));
            let millis = |nanos: u64| nanos.saturating_add(500_000) / 1_000_000;
            assert_eq!((millis(tally.latency.min()), millis(tally.latency.max())), (91, 100));
        });
    }

    #[test]
    fn a_pipeline_waits_for_all_its_replies_and_counts_each() {
        held(async {
            let refused = REPLY.replacen(":0", ":1", 1);
            let tally = found(None, 3, format!("{REPLY}{refused}{REPLY}")).await.unwrap();
            assert_eq!((tally.passed, tally.refused, tally.latency.len()), (2, 1, 3));
        });
    }

    #[test]
    fn more_replies_than_commands_end_it() {
        held(async {
            let told = found(None, 1, "+\r\n+\r\n".to_owned()).await.err();
            assert_eq!(told.as_deref(), Some("2 replies to 1 commands"));
        });
    }
}
