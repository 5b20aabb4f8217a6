//! The client side of one connection: a pipeline of commands, all their replies, the next pipeline.

use super::wire::{ReplyCount, Scanner, command};
use crate::rig::drive::LoadClient;
use crate::rig::template::{Keys, Template};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Commands that are sent together.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) commands: Template,
    /// The number of commands.
    pub(crate) depth: u64,
    pub(crate) meaning: ReplyMeaning,
}

/// What a zero as the first number of a reply means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyMeaning {
    /// Not limited, as `CL.THROTTLE` says it.
    ZeroPasses,
    /// Not allowed.
    ZeroRefuses,
}

impl ReplyMeaning {
    /// How many commands passed, and how many were refused.
    pub(crate) fn split(self, ReplyCount { replies, zeros }: ReplyCount) -> (u64, u64) {
        let others = replies.saturating_sub(zeros);
        match self {
            Self::ZeroPasses => (zeros, others),
            Self::ZeroRefuses => (others, zeros),
        }
    }
}

/// Sends one pipeline after another, with random keys. An error reply ends the experiment.
pub(crate) struct RespClient {
    pipeline: Pipeline,
    keys: Keys,
    scanner: Scanner,
}

impl RespClient {
    pub(crate) fn new(pipeline: Pipeline, keys: Keys) -> Self {
        Self { pipeline, keys, scanner: Scanner::default() }
    }
}

impl LoadClient for RespClient {
    fn request(&mut self) -> &[u8] {
        self.pipeline.commands.of(|| self.keys.draw())
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
        let counted = self.scanner.scan(bytes)?;
        let whole = all(counted, self.pipeline.depth)?;
        if whole {
            self.scanner.reset();
        }
        Ok(whole.then(|| self.pipeline.meaning.split(counted)))
    }
}

/// Whether the replies to all commands have arrived.
fn all(counted: ReplyCount, many: u64) -> Result<bool, String> {
    if counted.replies > many {
        return Err(format!("{} replies to {many} commands", counted.replies));
    }
    Ok(counted.replies == many)
}

// === single commands ===

/// A connection with a buffer.
pub(crate) struct RespConnection {
    stream: TcpStream,
    scanner: Scanner,
    buffer: Box<[u8]>,
}

/// Room for the replies to a pipeline of 64.
const ROOM: usize = 16 << 10;

impl RespConnection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self { stream, scanner: Scanner::default(), buffer: vec![0; ROOM].into() })
    }

    /// Sends commands and reads the same number of replies.
    pub(crate) async fn exchange(
        &mut self,
        commands: &[u8],
        many: u64,
    ) -> Result<ReplyCount, String> {
        self.stream.write_all(commands).await.map_err(|error| error.to_string())?;
        self.scanner.reset();
        loop {
            let read = self.stream.read(&mut self.buffer).await;
            let read = read.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the server closed the connection".to_owned());
            }
            let counted = self.scanner.scan(self.buffer.get(..read).unwrap_or_default())?;
            if all(counted, many)? {
                return Ok(counted);
            }
        }
    }
}

/// Sends a command once for each key.
pub(crate) async fn once_per_key(server: SocketAddr, text: &str, keys: u32) -> Result<(), String> {
    const AT_ONCE: u32 = 100;
    let mut connection = RespConnection::open(server).await?;
    let mut commands = Template::new(&command(text)).repeated(100);
    let mut next = 0..keys.next_multiple_of(AT_ONCE);
    while !next.is_empty() {
        let commands = commands.of(|| next.next().unwrap_or(0));
        connection.exchange(commands, AT_ONCE.into()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp_bench::wire::command;
    use std::num::NonZeroU32;

    const REPLY: &str = "*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n";

    fn client(depth: usize) -> RespClient {
        let text = command("CL.THROTTLE key:######## 1000000 1000000 1");
        let pipeline = Pipeline {
            commands: Template::new(&text).repeated(depth),
            depth: u64::try_from(depth).unwrap(),
            meaning: ReplyMeaning::ZeroPasses,
        };
        RespClient::new(pipeline, Keys::new(NonZeroU32::MIN, 0))
    }

    #[test]
    fn a_pipeline_waits_for_all_its_replies_and_counts_each() {
        let refused = REPLY.replacen(":0", ":1", 1);
        let replies = format!("{REPLY}{refused}{REPLY}");
        let mut client = client(3);
        for _ in 0..2 {
            let mut pieces = replies.as_bytes().chunks(7).peekable();
            while let Some(piece) = pieces.next() {
                let whole = pieces.peek().is_none();
                assert_eq!(client.receive(piece).unwrap(), whole.then_some((2, 1)));
            }
        }
    }

    #[test]
    fn more_replies_than_commands_are_an_error() {
        let error = client(1).receive(b"+\r\n+\r\n");
        assert_eq!(error, Err("2 replies to 1 commands".to_owned()));
    }
}
