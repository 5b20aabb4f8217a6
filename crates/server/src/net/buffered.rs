//! A buffered connection: the bytes that were read and not parsed, the bytes to be written, and the deadlines for both.
//!
//! HTTP/1 and RESP are built on it. The usual case costs one read and one write: the timer is touched only for slow clients,
//! and the drain of the server is a flag until it begins.

use super::after;
use super::budget::{Account, Reservation};
use super::context::ListenerContext;
use super::drain::Drain;
use super::read_buffer::ReadBuffer;
use super::stream::Stream;
use crate::bounds;
use crate::metrics::Refused;
use crate::timers;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, timeout};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// A connection with its read and write buffers.
pub(crate) struct BufferedConnection<'p> {
    stream: Stream,
    pub(crate) listener: &'p ListenerContext,
    pub(crate) input: ReadBuffer,
    pub(crate) output: Vec<u8>,
    /// How much of the output [`poll_flush`](Self::poll_flush) has written.
    written: usize,
    account: Rc<Account>,
    /// Memory for answers: those that are being made, and those that the client has not read.
    answers: Rc<Reservation>,
    deadline: Deadline,
    drain: Drain,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the timer and the drain token hold this task's waker. It is always the same task, so they are not polled again
    /// while requests arrive.
    registered: bool,
    /// Set when the server drains: a client that sends without a pause is closed from this instant on.
    draining: Option<Instant>,
}

/// A deadline with a lazy timer: moving the deadline later does not touch the timer, which is corrected when it fires too early.
struct Deadline {
    at: Instant,
    /// When to check whether other connections need the memory that this one holds, if it holds much.
    check_at: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

/// Why [`BufferedConnection::fill`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Bytes,
    /// The client has closed its side of the connection.
    End,
    /// The deadline has passed.
    Late,
    /// The connection budget: the connection needs more than its share, or holds more than its share and makes no progress.
    NoRoom,
    /// The server drains. This is returned once.
    Draining,
}

/// How long a closing connection waits for the client.
pub(crate) const LINGER: Duration = Duration::from_millis(bounds::LINGER_MILLIS);
/// The cost of writing [`bounds::UNWRITTEN`] bytes, in microseconds.
const WRITE: u32 = 30;
/// How long a connection that holds more than its share may make no progress.
const STALLED: Duration = Duration::from_millis(bounds::STALLED_MILLIS);
/// The capacity that an idle connection keeps for its answers.
const OUTPUT: usize = 4 * 1024;

impl<'p> BufferedConnection<'p> {
    /// A connection that buffers at most `most` unparsed bytes.
    pub(crate) fn new(
        stream: Stream,
        account: Rc<Account>,
        listener: &'p ListenerContext,
        drain: &Drain,
        most: usize,
    ) -> Self {
        Self {
            stream,
            listener,
            input: ReadBuffer::new(most, account.reserve()),
            answers: Rc::new(account.reserve()),
            account,
            output: Vec::new(),
            written: 0,
            deadline: Deadline::new(after(listener.timeouts.head)),
            drained: Box::pin(drain.begun.clone().cancelled_owned()),
            drain: drain.clone(),
            registered: false,
            draining: None,
        }
    }

    /// A new reservation in the account of this connection.
    pub(crate) fn reserve(&self) -> Reservation {
        self.account.reserve()
    }

    /// The memory for answers that are being made. It is given back when they are written.
    pub(crate) fn answers(&self) -> Rc<Reservation> {
        Rc::clone(&self.answers)
    }

    /// How many more bytes of answers the connection budget allows.
    pub(crate) fn room(&self) -> usize {
        self.account.room()
    }

    /// The stream, and the bytes that were read from it and not parsed.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        let read = self.input.unread().to_vec();
        (self.stream, read)
    }

    /// Borrows the stream and returns the bytes that were read from it and not parsed, for a connection that goes on with another
    /// protocol. Nothing may be read or written through `self` any more.
    pub(crate) fn stream_and_unread(&mut self) -> (&mut Stream, Vec<u8>) {
        let read = self.input.unread().to_vec();
        (&mut self.stream, read)
    }

    /// Makes the end of this connection a reset, which no client takes for the end of a message.
    pub(crate) fn reset_at_close(&self) {
        self.stream.reset_at_close();
    }

    /// Whether the client has closed its side, also if bytes before that were not read yet. Where the system does not say so, false.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.stream.has_hung_up()
    }

    /// Sets the deadline of the next reads.
    pub(crate) fn wait_within(&mut self, time: Duration) {
        self.deadline.set(after(time));
    }

    /// Sets the deadline of the next bytes: the rest of a request that has begun, or else the beginning of the next one. While the
    /// server drains, a client that has begun none is not waited for.
    pub(crate) fn wait_for_more(&mut self) {
        self.wait_within(match self.draining {
            _ if !self.input.is_empty() => self.listener.timeouts.head,
            Some(_) => LINGER,
            None => self.listener.timeouts.idle,
        });
    }

    /// Whether the answer that is about to be written is the last one: the server drains, and the client had sent nothing more,
    /// neither in the read buffer (`nothing_behind`) nor in the socket. A client that never pauses has always sent more; its
    /// connection ends all the same after [`LINGER`].
    pub(crate) fn is_last(&mut self, nothing_behind: bool) -> bool {
        let latest = match self.draining {
            Some(latest) => latest,
            // The drain began after the last bytes and before their answer.
            None if self.drain.has_begun() => after(LINGER),
            None => return false,
        };
        if !nothing_behind {
            return timers::now() >= latest;
        }
        // Requests that arrived before the drain may still be in the socket.
        !self.stream.has_more() || timers::now() >= latest
    }

    // === writing ===

    /// Writes the answers, after the other connections whose requests have arrived were answered too. A client process that
    /// reads several connections is then woken once for all answers instead of once for each.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        yield_now().await;
        self.flush_now().await
    }

    /// Writes the answers immediately.
    pub(crate) async fn flush_now(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        self.reserve_output()?;
        let (mut written, mut slow) = (mem::take(&mut self.written), false);
        loop {
            let part = written..self.output.len().min(written.saturating_add(bounds::UNWRITTEN));
            let bytes = self.output.get(part.clone()).unwrap_or_default();
            // Nearly always the socket takes everything, and no timer is touched.
            let taken = self.stream.try_write(bytes)?;
            if taken < bytes.len() {
                if !mem::replace(&mut slow, true) {
                    self.wait_within(self.listener.timeouts.body);
                }
                self.flush_slowly(part.start.saturating_add(taken)..part.end).await?;
            }
            written = part.end;
            if written == self.output.len() {
                break;
            }
            // The rest of a long answer is long work.
            self.listener.long_work.pass(WRITE).await;
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT);
        self.answers.resize(0);
        Ok(())
    }

    /// Writes a part of a long answer, for a task that also waits for something else. The client must make some progress within
    /// the body timeout.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, deadline, output, account, written, listener, .. } = self;
        let mut rest = output.get(*written..).unwrap_or_default();
        if rest.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let before = rest.len();
        let result = write_some(stream, (deadline, account), &mut rest, context);
        if rest.len() < before {
            deadline.set(after(listener.timeouts.body));
        }
        *written = output.len().saturating_sub(rest.len());
        ready!(result)?;
        *written = 0;
        output.clear();
        Poll::Ready(Ok(()))
    }

    /// Writes all of a long answer whose memory is counted elsewhere, and frees that memory. A short one is left to
    /// [`flush`](Self::flush).
    pub(crate) async fn flush_long(&mut self) -> io::Result<()> {
        if self.output.capacity() > OUTPUT {
            poll_fn(|context| self.poll_flush(context)).await?;
            self.output.shrink_to(OUTPUT);
        }
        Ok(())
    }

    /// Frees the memory of a long answer that was written, while nothing more of it arrives.
    pub(crate) fn free_output(&mut self) {
        if self.output.is_empty() && self.output.capacity() > OUTPUT {
            self.output.shrink_to(OUTPUT);
        }
    }

    /// Counts the answers against the budget. Memory for the answers to batches was reserved before they were decided. Other
    /// answers are short, or the client can repeat its request.
    fn reserve_output(&self) -> io::Result<()> {
        let bytes = self.output.capacity();
        if bytes > OUTPUT && bytes > self.answers.bytes() && !self.answers.resize(bytes) {
            self.listener.metrics.refused(Refused::NoRoom);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Writes a part of the output to a client that is slow to read it.
    async fn flush_slowly(&mut self, part: Range<usize>) -> io::Result<()> {
        let Self { stream, deadline, output, account, .. } = self;
        deadline.watch(account);
        let mut rest = output.get(part).unwrap_or_default();
        let written =
            poll_fn(|context| write_some(stream, (deadline, account), &mut rest, context)).await;
        match written.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::TimedOut) => self.listener.metrics.refused(Refused::Unread),
            Err(io::ErrorKind::OutOfMemory) => self.listener.metrics.refused(Refused::NoRoom),
            Err(_) | Ok(()) => {}
        }
        written
    }

    // === reading ===

    /// Waits for more bytes and reads them into the read buffer.
    pub(crate) async fn fill(&mut self) -> io::Result<Woken> {
        poll_fn(|context| self.poll_fill(context)).await
    }

    /// Polls [`fill`](Self::fill), for a task that also waits for something else. It must always be polled by the same task.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Woken>> {
        let Self { stream, input, deadline, drain, drained, registered, draining, account, .. } =
            self;
        if !input.make_room() {
            return Poll::Ready(Ok(Woken::NoRoom));
        }
        deadline.watch(account);
        if let Poll::Ready(read) = input.poll_read_from(stream, context) {
            // A connection that never waits would never notice the drain.
            if draining.is_none() && drain.has_begun() {
                *draining = Some(after(LINGER));
            }
            deadline.progress();
            return Poll::Ready(match read? {
                0 => Ok(Woken::End),
                _ => Ok(Woken::Bytes),
            });
        }
        if draining.is_none() && drain.has_begun() {
            *draining = Some(after(LINGER));
            return Poll::Ready(Ok(Woken::Draining));
        }
        if *registered && !deadline.timer.is_elapsed() {
            return Poll::Pending;
        }
        // The flag was read above; this poll only registers the waker.
        let _ = drained.as_mut().poll(context);
        *registered = true;
        deadline.poll(account, context).map(Ok)
    }

    /// Closes the connection after the last answer (a lingering close). For up to [`LINGER`], bytes that the client still sends
    /// are read and discarded: closing a socket with unread bytes resets the connection, and the client may lose the answer.
    /// After [`bounds::LINGER_BYTES`] nothing more is read, and the client has the rest of the time to read the answer.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        // TLS sends a closing message, for which the socket may have no room.
        timeout(LINGER, self.stream.shutdown())
            .await
            .map_err(|_late| io::ErrorKind::TimedOut)??;
        self.wait_within(LINGER);
        let mut left = bounds::LINGER_BYTES;
        loop {
            self.input.clear();
            match self.fill().await? {
                Woken::Bytes => left = left.saturating_sub(self.input.unread().len()),
                Woken::Draining => {}
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(()),
            }
            if left == 0 {
                timers::sleep_until(self.deadline.at).await;
                return Ok(());
            }
        }
    }
}

/// Writes as much as the socket takes, until everything is written or the deadline has passed.
fn write_some(
    stream: &mut Stream,
    (deadline, account): (&mut Deadline, &Account),
    rest: &mut &[u8],
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let stream = Pin::new(&mut *stream);
        let written = match rest.is_empty() {
            true => stream.poll_flush(context).map_ok(|()| None),
            false => stream.poll_write(context, rest).map_ok(Some),
        };
        match written {
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(Some(0))) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(Some(written))) => {
                deadline.progress();
                *rest = rest.get(written..).unwrap_or_default();
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                return Poll::Ready(Err(match ready!(deadline.poll(account, context)) {
                    Woken::NoRoom => io::ErrorKind::OutOfMemory.into(),
                    Woken::Bytes | Woken::End | Woken::Late | Woken::Draining => {
                        io::ErrorKind::TimedOut.into()
                    }
                }));
            }
        }
    }
}

// === impl Deadline ===

impl Deadline {
    fn new(at: Instant) -> Self {
        Self { at, check_at: None, timer: Box::pin(timers::sleep_until(at)) }
    }

    fn set(&mut self, at: Instant) {
        self.at = at;
        self.wake_by(at);
    }

    /// Starts to check for progress, if the connection holds much.
    fn watch(&mut self, account: &Account) {
        if self.check_at.is_none() && account.counts() {
            let check_at = after(STALLED);
            self.check_at = Some(check_at);
            self.wake_by(check_at);
        }
    }

    /// The client has sent or read something.
    fn progress(&mut self) {
        if self.check_at.is_some() {
            self.check_at = Some(after(STALLED));
        }
    }

    /// Waits until the deadline has passed, or until a connection without progress holds memory that others need.
    fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<Woken> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let now = timers::now();
            if now >= self.at {
                return Poll::Ready(Woken::Late);
            }
            if self.check_at.is_some_and(|check_at| now >= check_at) {
                if account.is_over() {
                    return Poll::Ready(Woken::NoRoom);
                }
                self.check_at = account.counts().then(|| after(STALLED));
            }
            let next = self.check_at.unwrap_or(self.at).min(self.at);
            self.timer.as_mut().reset(next);
        }
    }

    /// Makes the timer fire at `at` or earlier. If it fires too early, `poll` corrects it.
    fn wake_by(&mut self, at: Instant) {
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::budget::{Budget, SourceBytes};
    use crate::net::{Timeouts, Versions};
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn other_ready_connections_run_before_answers_are_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = Stream::Plain(listener.accept().await.unwrap().0);
        let [handshake, head, body, idle] = [Duration::from_secs(9); 4];
        let timeouts = Timeouts { handshake, head, body, idle };
        let budget = Budget::new(0);
        let listener =
            ListenerContext::new(timeouts, Versions::One, (Arc::default(), Arc::clone(&budget)));
        let account = Account::new(budget, SourceBytes::default());
        let mut line = BufferedConnection::new(server, account, &listener, &Drain::default(), 99);
        line.output.extend_from_slice(b"yes");
        let mut client = Stream::Plain(client);
        let (flushed, came_early) = tokio::join!(line.flush(), async { client.has_more() });
        assert!(flushed.is_ok() && !came_early && client.has_more());
    }
}
