//! A connection as bytes: what was read and not looked at, what is to be written, and how long that may take.
//!
//! Every front that speaks TCP itself stands on this. The usual case costs two system calls and nothing else: a
//! timer is touched only for who is slow, and the end of the server is a flag until it comes.

use super::after;
use super::budget::{Account, Hold};
use super::drain::Drain;
use super::input::Input;
use super::place::Place;
use super::stream::Stream;
use crate::bounds;
use crate::metrics::Refused;
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

/// A connection, and what has been read of it.
pub(crate) struct Line<'p> {
    stream: Stream,
    place: &'p Place,
    pub(crate) input: Input,
    pub(crate) output: Vec<u8>,
    account: Rc<Account>,
    /// For the answers: those that are being made, and those that wait to be taken.
    answers: Rc<Hold>,
    deadline: Deadline,
    drain: Drain,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the timer and the end of the server know whom to wake. They wake the same task however often
    /// they are asked, so while requests come they are not asked again.
    waiting: bool,
    /// The server is stopping; whoever never pauses is told to go from this moment on.
    draining: Option<Instant>,
}

/// A timer that is set back only when it rings too early.
struct Deadline {
    at: Instant,
    /// When to look whether others need what this connection holds, if it holds much.
    look: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

/// Why a connection that waits goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Bytes,
    /// The other side will send no more.
    End,
    Late,
    /// It holds more than others leave it, and does not go on; or it wants more than that.
    NoRoom,
    /// The server is stopping. This is said once.
    Draining,
}

/// How long somebody is waited for at the end.
pub(crate) const LINGER: Duration = Duration::from_millis(bounds::LINGER_MILLIS);
/// What it takes to write [`bounds::UNWRITTEN`] bytes, in microseconds.
const WRITE: u32 = 30;
/// How long a connection that holds more than others leave it may stand still.
const STALLED: Duration = Duration::from_millis(bounds::STALLED_MILLIS);
/// As much as is kept for the answers of a connection that waits.
const OUTPUT: usize = 4 * 1024;

impl<'p> Line<'p> {
    /// A connection of which at most so much is kept unread.
    pub(crate) fn new(
        stream: Stream,
        account: Rc<Account>,
        place: &'p Place,
        drain: &Drain,
        most: usize,
    ) -> Self {
        Self {
            stream,
            place,
            input: Input::new(most, account.hold()),
            answers: Rc::new(account.hold()),
            account,
            output: Vec::new(),
            deadline: Deadline::new(after(place.timeouts.head)),
            drained: Box::pin(drain.begun.clone().cancelled_owned()),
            drain: drain.clone(),
            waiting: false,
            draining: None,
        }
    }

    /// Room for something else of this connection.
    pub(crate) fn hold(&self) -> Hold {
        self.account.hold()
    }

    /// Room for answers that are being made; it is given back when they are written.
    pub(crate) fn answers(&self) -> Rc<Hold> {
        Rc::clone(&self.answers)
    }

    /// How many more bytes of answers there is room for.
    pub(crate) fn room(&self) -> usize {
        self.account.room()
    }

    /// The connection, and what has been read of it.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        let read = self.input.here().to_vec();
        (self.stream, read)
    }

    /// What is waited for must come within this time.
    pub(crate) fn wait_within(&mut self, time: Duration) {
        self.deadline.set(after(time));
    }

    /// How long somebody who has begun nothing may be silent.
    pub(crate) fn patience(&self) -> Duration {
        if self.draining.is_some() { LINGER } else { self.place.timeouts.idle }
    }

    /// Whether the answer that is about to be written is the last: the server is stopping, and nothing more
    /// had been sent, neither what was read behind it nor what was not read yet. Whoever never pauses has
    /// always sent more, and is told to go all the same.
    pub(crate) fn is_last(&mut self, nothing_behind: bool) -> bool {
        let at_the_latest = match self.draining {
            Some(at_the_latest) => at_the_latest,
            // The end came after the last bytes and before their answer.
            None if self.drain.has_begun() => after(LINGER),
            None => return false,
        };
        if !nothing_behind {
            return Instant::now() >= at_the_latest;
        }
        // What came before the end may still lie in the socket.
        !self.stream.has_more() || Instant::now() >= at_the_latest
    }

    // === writing ===

    /// Sends what is to be written, when everybody else whose requests are at hand has been answered, too. Answers
    /// that go out together wake their readers once; each sent by itself, they wake a reader each time for one.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        // Room was kept for the answers to lists. Others are short, or can be asked for again.
        let room = self.output.capacity();
        if room > OUTPUT && room > self.answers.bytes() && !self.answers.resize(room) {
            self.place.metrics.refused(Refused::NoRoom);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        yield_now().await;
        let (mut written, mut slow) = (0_usize, false);
        loop {
            let part = written..self.output.len().min(written.saturating_add(bounds::UNWRITTEN));
            let bytes = self.output.get(part.clone()).unwrap_or_default();
            // Nearly always the socket takes all at once, and no timer is touched.
            let taken = match self.stream.try_write(bytes) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            if taken < bytes.len() {
                if !mem::replace(&mut slow, true) {
                    self.wait_within(self.place.timeouts.body);
                }
                self.flush_slowly(part.start.saturating_add(taken)..part.end).await?;
            }
            written = part.end;
            if written == self.output.len() {
                break;
            }
            // The rest of a long answer waits for its turn.
            self.place.turns.pass(WRITE).await;
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT);
        self.answers.resize(0);
        Ok(())
    }

    /// Writes a part to somebody who is slow to read it.
    async fn flush_slowly(&mut self, part: Range<usize>) -> io::Result<()> {
        let Self { stream, deadline, output, account, .. } = self;
        deadline.watch(account);
        let mut rest = output.get(part).unwrap_or_default();
        let written =
            poll_fn(|context| write_some(stream, (deadline, account), &mut rest, context)).await;
        match written.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::TimedOut) => self.place.metrics.refused(Refused::Unread),
            Err(io::ErrorKind::OutOfMemory) => self.place.metrics.refused(Refused::NoRoom),
            Err(_) | Ok(()) => {}
        }
        written
    }

    // === reading ===

    /// Waits for more bytes.
    pub(crate) async fn fill(&mut self) -> io::Result<Woken> {
        let Self { stream, input, deadline, drain, drained, waiting, draining, account, .. } = self;
        if !input.make_room() {
            return Ok(Woken::NoRoom);
        }
        deadline.watch(account);
        poll_fn(|context| {
            if let Poll::Ready(read) = input.poll_read_from(stream, context) {
                // Whoever is never waited for would never hear of the end.
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
            if *waiting && !deadline.timer.is_elapsed() {
                return Poll::Pending;
            }
            // Its flag was looked at: it is asked only so that it wakes us.
            let _ = drained.as_mut().poll(context);
            *waiting = true;
            deadline.poll(account, context).map(Ok)
        })
        .await
    }

    /// Closes after the last answer. Bytes that were still on their way are read over for a moment: a socket
    /// that is closed with unread bytes takes the answer back. Whoever sends too much of them is not read any
    /// more, and has the rest of the moment to take what was written.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        self.flush().await?;
        // Under TLS it says goodbye, for which there may be no room.
        timeout(LINGER, self.stream.shutdown())
            .await
            .map_err(|_late| io::ErrorKind::TimedOut)??;
        self.wait_within(LINGER);
        let mut left = bounds::LINGER_BYTES;
        loop {
            self.input.clear();
            match self.fill().await? {
                Woken::Bytes => left = left.saturating_sub(self.input.here().len()),
                Woken::Draining => {}
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(()),
            }
            if left == 0 {
                tokio::time::sleep_until(self.deadline.at).await;
                return Ok(());
            }
        }
    }
}

/// Writes as much as the socket takes, until all is written or the time is over.
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
        Self { at, look: None, timer: Box::pin(tokio::time::sleep_until(at)) }
    }

    fn set(&mut self, at: Instant) {
        self.at = at;
        self.wake_by(at);
    }

    /// Looks now and then from here on, if the connection holds much.
    fn watch(&mut self, account: &Account) {
        if self.look.is_none() && account.counts() {
            let look = after(STALLED);
            self.look = Some(look);
            self.wake_by(look);
        }
    }

    /// The other side sent or took something.
    fn progress(&mut self) {
        if self.look.is_some() {
            self.look = Some(after(STALLED));
        }
    }

    /// Waits until the time is over, or until others need what a connection holds that does not go on.
    fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<Woken> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let now = Instant::now();
            if now >= self.at {
                return Poll::Ready(Woken::Late);
            }
            if self.look.is_some_and(|look| now >= look) {
                if account.is_over() {
                    return Poll::Ready(Woken::NoRoom);
                }
                self.look = account.counts().then(|| after(STALLED));
            }
            let next = self.look.unwrap_or(self.at).min(self.at);
            self.timer.as_mut().reset(next);
        }
    }

    /// The timer rings by then; a ring that is too early is put right when it comes.
    fn wake_by(&mut self, at: Instant) {
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::budget::{Budget, OfSource};
    use crate::net::{Timeouts, Versions};
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn whoever_else_is_at_hand_is_answered_before_anything_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = Stream::Plain(listener.accept().await.unwrap().0);
        let [handshake, head, body, idle] = [Duration::from_secs(9); 4];
        let timeouts = Timeouts { handshake, head, body, idle };
        let budget = Budget::new(0);
        let place = Place::new(timeouts, Versions::One, (Arc::default(), Arc::clone(&budget)));
        let account = Account::new(budget, OfSource::default());
        let mut line = Line::new(server, account, &place, &Drain::default(), 99);
        line.output.extend_from_slice(b"yes");
        let mut client = Stream::Plain(client);
        let (flushed, came_early) = tokio::join!(line.flush(), async { client.has_more() });
        assert!(flushed.is_ok() && !came_early && client.has_more());
    }
}
