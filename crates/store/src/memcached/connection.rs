//! A connection that many calls share: commands are sent in the order of the calls, and replies come in the same order.
//!
//! ```text
//!   calls ──► queue ──► writer (all that waits, in one write) ──► server
//!     ▲                   └── who waits for each reply ──► reader ◄──┘
//!     └──────────────────────────────────────────────────────┘
//! ```
//!
//! Whatever ends the connection ends both tasks; then every caller that waits is told why.

use super::meta::{self, Malformed, Reply};
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Clones are the same connection. It ends with the last of them.
#[derive(Clone)]
pub(super) struct MetaConnection(Arc<SharedConnection>);

struct SharedConnection {
    queue: mpsc::Sender<Request>,
    /// Why it ended.
    ended: Arc<Mutex<Option<String>>>,
    tasks: [JoinHandle<()>; 2],
}

struct Request {
    command: Vec<u8>,
    /// `None`: nobody waits for the reply.
    caller: Caller,
}

type Caller = Option<oneshot::Sender<Reply>>;

/// Commands that one write sends together.
const BATCH: usize = 128;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

impl MetaConnection {
    /// At most `bound` commands wait to be sent, and as many for their replies.
    pub(super) fn new(stream: TcpStream, bound: usize) -> Self {
        let (queue, requests) = mpsc::channel(bound.max(1));
        let (waiting, callers) = mpsc::channel(bound.max(1).saturating_add(BATCH));
        let (input, output) = stream.into_split();
        let ended = Arc::new(Mutex::new(None));
        let writer = tokio::spawn(write(output, requests, waiting));
        let reader = tokio::spawn({
            let ended = Arc::clone(&ended);
            async move {
                let why = read(input, callers, &ended).await;
                lock(&ended).get_or_insert(why);
            }
        });
        Self(Arc::new(SharedConnection { queue, ended, tasks: [writer, reader] }))
    }

    /// Sends a command. The reply is awaited with [`MetaConnection::reply`]; dropping the receiver takes nothing back.
    pub(super) fn send(&self, command: Vec<u8>) -> Result<oneshot::Receiver<Reply>, StoreError> {
        let (caller, reply) = oneshot::channel();
        self.queue(command, Some(caller))?;
        Ok(reply)
    }

    /// Sends a command whose reply nobody needs. It is executed after all that were sent before.
    pub(super) fn send_only(&self, command: Vec<u8>) -> Result<(), StoreError> {
        self.queue(command, None)
    }

    fn queue(&self, command: Vec<u8>, caller: Caller) -> Result<(), StoreError> {
        let sent = self.0.queue.try_send(Request { command, caller });
        sent.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => self.why_ended(),
        })
    }

    /// Waits for a reply.
    pub(super) async fn reply(
        &self,
        reply: &mut oneshot::Receiver<Reply>,
    ) -> Result<Reply, StoreError> {
        reply.await.map_err(|_ended| self.why_ended())
    }

    fn why_ended(&self) -> StoreError {
        let why = lock(&self.0.ended).clone();
        StoreError::Unavailable(why.unwrap_or_else(|| "the connection ended".to_owned()).into())
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Sends what waits, until the connection ends.
async fn write(
    mut output: OwnedWriteHalf,
    mut requests: mpsc::Receiver<Request>,
    waiting: mpsc::Sender<Caller>,
) {
    let (mut batch, mut bytes) = (Vec::new(), Vec::new());
    while requests.recv_many(&mut batch, BATCH).await > 0 {
        for Request { command, caller } in batch.drain(..) {
            bytes.extend_from_slice(&command);
            if waiting.send(caller).await.is_err() {
                return;
            }
        }
        if output.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Hands out replies until the connection ends; returns why it did. The callers that wait are dropped after that is known.
async fn read(
    mut input: OwnedReadHalf,
    mut callers: mpsc::Receiver<Caller>,
    ended: &Mutex<Option<String>>,
) -> String {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let why = loop {
        match input.read_buf(&mut bytes).await {
            Ok(0) => break "it closed the connection".to_owned(),
            Ok(_) => {}
            Err(error) => break error_text(&error),
        }
        if let Err(Malformed(what)) = hand_out(&mut bytes, &mut callers) {
            break format!("it sent an invalid reply: {what}");
        }
    };
    *lock(ended) = Some(why.clone());
    why
}

/// Hands the complete replies to their callers, and keeps the rest.
fn hand_out(bytes: &mut Vec<u8>, callers: &mut mpsc::Receiver<Caller>) -> Result<(), Malformed> {
    let mut done = 0_usize;
    while let Some((reply, length)) = meta::parse(bytes.get(done..).unwrap_or_default())? {
        done = done.saturating_add(length);
        let unasked = |_| Malformed("nothing was asked".to_owned());
        if let Some(caller) = callers.try_recv().map_err(unasked)? {
            // A caller that has given up needs no reply.
            let _ = caller.send(reply);
        }
    }
    bytes.drain(..done);
    Ok(())
}

fn error_text(error: &io::Error) -> String {
    error.to_string()
}
