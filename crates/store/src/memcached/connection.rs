//! A connection that many calls share: commands are sent in the order of the calls, and replies come in the same order.
//!
//! ```text
//!   calls ──► bytes to send, and who waits for each reply ──► writer (all that waits, in one write) ──► server
//!     ▲                                                        reader ◄──────────────────────────────────┘
//!     └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Whatever ends the connection ends both tasks; then every caller that waits is told why.

use super::meta::{self, Command, Malformed, Reply};
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// Clones are the same connection. It ends with the last of them.
#[derive(Clone)]
pub(super) struct MetaConnection(Arc<RunningConnection>);

struct RunningConnection {
    line: Arc<CommandLine>,
    tasks: [JoinHandle<()>; 2],
}

/// What callers and the two tasks share.
struct CommandLine {
    /// Locked to add or to take, never across an await.
    queue: Mutex<Queue>,
    /// Notified when there is something to send.
    wake_writer: Notify,
    /// How many replies may be awaited.
    bound: usize,
}

#[derive(Default)]
struct Queue {
    /// To be sent.
    bytes: Vec<u8>,
    /// Who waits for each reply, whether or not its command was sent yet.
    callers: VecDeque<Caller>,
    /// Why it ended.
    ended: Option<String>,
}

/// Where the reply is sent; `None` if it is read and dropped.
type Caller = Option<oneshot::Sender<Reply>>;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// A buffer that grew larger is not kept.
const KEPT_BYTES: usize = 64 << 10;

impl MetaConnection {
    /// At most `bound` replies are awaited.
    pub(super) fn new(stream: TcpStream, bound: usize) -> Self {
        let (input, output) = stream.into_split();
        let line =
            Arc::new(CommandLine { queue: Mutex::default(), wake_writer: Notify::new(), bound });
        let writer = tokio::spawn({
            let line = Arc::clone(&line);
            async move { line.end(write(output, &line).await) }
        });
        let reader = tokio::spawn({
            let line = Arc::clone(&line);
            async move { line.end(read(input, &line).await) }
        });
        Self(Arc::new(RunningConnection { line, tasks: [writer, reader] }))
    }

    /// Sends a command. The reply is awaited with [`MetaConnection::reply`]; dropping the receiver takes nothing back.
    pub(super) fn send(&self, command: &Command) -> Result<oneshot::Receiver<Reply>, StoreError> {
        let (caller, reply) = oneshot::channel();
        self.0.line.queue([(command, Some(caller))])?;
        Ok(reply)
    }

    /// Sends two commands in one write, so that no connection ends between them.
    pub(super) fn send_both(
        &self,
        [first, second]: [&Command; 2],
    ) -> Result<[oneshot::Receiver<Reply>; 2], StoreError> {
        let ((one, first_reply), (two, second_reply)) = (oneshot::channel(), oneshot::channel());
        self.0.line.queue([(first, Some(one)), (second, Some(two))])?;
        Ok([first_reply, second_reply])
    }

    /// Sends a command, and drops its reply. The server executes it after all commands that were sent before.
    pub(super) fn send_only(&self, command: &Command) -> Result<(), StoreError> {
        self.0.line.queue([(command, None)])
    }

    /// Waits for a reply.
    pub(super) async fn reply(
        &self,
        reply: &mut oneshot::Receiver<Reply>,
    ) -> Result<Reply, StoreError> {
        reply.await.map_err(|_ended| lock(&self.0.line.queue).why_ended())
    }
}

impl Drop for RunningConnection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl CommandLine {
    fn queue<const N: usize>(&self, commands: [(&Command, Caller); N]) -> Result<(), StoreError> {
        let mut queue = lock(&self.queue);
        if queue.ended.is_some() {
            return Err(queue.why_ended());
        }
        if queue.callers.len().saturating_add(N) > self.bound {
            return Err(StoreError::Overloaded);
        }
        let is_first = queue.bytes.is_empty();
        for (command, caller) in commands {
            queue.bytes.extend_from_slice(command);
            queue.callers.push_back(caller);
        }
        drop(queue);
        if is_first {
            self.wake_writer.notify_one();
        }
        Ok(())
    }

    /// What is to be sent, in exchange for an empty buffer; or why it ended.
    fn take_bytes(&self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let mut queue = lock(&self.queue);
        match &queue.ended {
            Some(why) => Err(why.clone()),
            None => {
                mem::swap(bytes, &mut queue.bytes);
                Ok(())
            }
        }
    }

    /// Ends it, and tells all callers that wait.
    fn end(&self, why: String) {
        let mut queue = lock(&self.queue);
        queue.ended.get_or_insert(why);
        let callers = mem::take(&mut queue.callers);
        queue.bytes = Vec::new();
        drop(queue);
        drop(callers);
        self.wake_writer.notify_one();
    }

    /// Hands the complete replies to their callers, and keeps the rest.
    fn hand_out(&self, bytes: &mut Vec<u8>) -> Result<(), Malformed> {
        let (mut done, mut replies) = (0_usize, Vec::new());
        while let Some((reply, length)) = meta::parse(bytes.get(done..).unwrap_or_default())? {
            done = done.saturating_add(length);
            replies.push(reply);
        }
        bytes.drain(..done);
        let mut queue = lock(&self.queue);
        if replies.len() > queue.callers.len() {
            return Err(Malformed("nothing was asked".to_owned()));
        }
        let callers: Vec<Caller> = queue.callers.drain(..replies.len()).collect();
        drop(queue);
        for (caller, reply) in callers.into_iter().zip(replies) {
            if let Some(caller) = caller {
                // A caller that has given up needs no reply.
                let _ = caller.send(reply);
            }
        }
        Ok(())
    }
}

impl Queue {
    fn why_ended(&self) -> StoreError {
        let why = self.ended.clone().unwrap_or_else(|| "the connection ended".to_owned());
        StoreError::Unavailable(why.into())
    }
}

/// Sends what waits, until the connection ends; returns why it did.
async fn write(mut output: OwnedWriteHalf, line: &CommandLine) -> String {
    let mut bytes = Vec::new();
    loop {
        line.wake_writer.notified().await;
        // Other tasks that are ready add their commands first, so that one write sends them all.
        tokio::task::yield_now().await;
        if let Err(why) = line.take_bytes(&mut bytes) {
            return why;
        }
        if let Err(error) = output.write_all(&bytes).await {
            return error.to_string();
        }
        bytes.clear();
        bytes.shrink_to(KEPT_BYTES);
    }
}

/// Hands out replies until the connection ends; returns why it did.
async fn read(mut input: OwnedReadHalf, line: &CommandLine) -> String {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        match input.read_buf(&mut bytes).await {
            Ok(0) => return "it closed the connection".to_owned(),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        if let Err(Malformed(what)) = line.hand_out(&mut bytes) {
            return format!("it sent an invalid reply: {what}");
        }
        bytes.shrink_to(KEPT_BYTES.max(bytes.len()));
    }
}
