//! The body of a request on its way to an upstream server: a pipe that holds one piece, or a body of HTTP/2.
//!
//! ```text
//!   client ──► read ──► BodyPipe (one piece) ──► RequestBody ──► hyper ──► upstream server
//!                         └ full: the client is not read, so TCP slows it down (backpressure)
//! ```

use super::headers;
use crate::timers;
use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The body of a request to an upstream server.
pub(crate) struct RequestBody {
    source: BodySource,
    /// `None` if there is no body.
    progress: Option<BodyProgress>,
    /// Counts the bytes that were passed on, for the access log.
    counter: Option<Rc<Cell<u64>>>,
    /// Fields that this server sets in the header, which therefore cannot be trailers.
    set_by_us: Option<Arc<[HeaderName]>>,
    /// How slow the client may be, while its request holds a seat.
    least_rate: Option<LeastRate>,
}

enum BodySource {
    Empty,
    /// From an HTTP/1 client, with its length if it announced one.
    Piped(Rc<BodyPipe>, Option<u64>),
    /// From an HTTP/2 client.
    Stream(Incoming),
}

/// How a body moves. Its request, its timeouts and its report look at it.
#[derive(Clone)]
pub(crate) struct BodyProgress(Rc<BodyTimes>);

struct BodyTimes {
    /// When the upstream server last took a piece. A server that still reads a slow upload is not late.
    taken: Cell<Instant>,
    /// Since when the upstream server waits for the next piece of the client; `None` while the client waits for the server.
    waiting: Cell<Option<Instant>>,
    /// For how long it waited for earlier pieces.
    waited: Cell<Duration>,
    fault: Cell<Option<BodyFault>>,
    /// The head of the answer is there.
    is_answered: Cell<bool>,
}

/// What a client did wrong with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// It did not send all of it.
    CutShort,
    /// It sent it more slowly than it may.
    Late,
}

/// The least rate of a body. A client may be silent for [`SILENCE`]; each byte makes up for a part of that time, so in the long run
/// it must keep to the rate. Only time in which the server waits for the client counts.
struct LeastRate {
    bytes_per_second: NonZeroU32,
    /// For how long the client may be silent now.
    left: Duration,
    /// When that time is over; exists while the server waits.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The longest silence of a body with a least rate.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Where the reader of a client's connection leaves the next piece of a body. Both ends are on one worker.
#[derive(Default)]
pub(crate) struct BodyPipe(RefCell<PipeState>);

#[derive(Default)]
struct PipeState {
    piece: Option<Frame<Bytes>>,
    end: Option<PipeEnd>,
    /// The client has sent more, and the proxy has no memory for it yet.
    lacks_memory: bool,
    /// Wakes the side that waits for the other one.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipeEnd {
    Complete,
    /// The client did not send all of it. The upstream server must not take it for the whole body.
    CutShort,
}

impl BodyPipe {
    /// Waits until the pipe has room for the next piece.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        if state.piece.is_none() {
            return Poll::Ready(());
        }
        state.writer = Some(context.waker().clone());
        Poll::Pending
    }

    /// Leaves a piece. The pipe must have room for it.
    pub(crate) fn push(&self, piece: Frame<Bytes>) {
        let mut state = self.0.borrow_mut();
        state.piece = Some(piece);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    pub(crate) fn end(&self, end: PipeEnd) {
        let mut state = self.0.borrow_mut();
        state.end.get_or_insert(end);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Whether the next piece waits for memory, not for the client.
    pub(crate) fn set_lacks_memory(&self, lacks: bool) {
        self.0.borrow_mut().lacks_memory = lacks;
    }

    fn poll_piece(&self, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = self.0.borrow_mut();
        if let Some(piece) = state.piece.take() {
            if let Some(writer) = state.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end {
            Some(PipeEnd::Complete) => Poll::Ready(None),
            Some(PipeEnd::CutShort) => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.0.borrow();
        state.piece.is_none() && state.end == Some(PipeEnd::Complete)
    }
}

// === impl RequestBody ===

impl RequestBody {
    pub(crate) const fn empty() -> Self {
        let source = BodySource::Empty;
        Self { source, progress: None, counter: None, set_by_us: None, least_rate: None }
    }

    pub(crate) fn piped(pipe: Rc<BodyPipe>, length: Option<u64>) -> Self {
        Self::of(BodySource::Piped(pipe, length))
    }

    pub(crate) fn stream(body: Incoming) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self::of(BodySource::Stream(body))
    }

    fn of(source: BodySource) -> Self {
        Self { source, progress: Some(BodyProgress::new()), ..Self::empty() }
    }

    pub(crate) fn progress(&self) -> Option<BodyProgress> {
        self.progress.clone()
    }

    /// Adds the bytes of this body to a counter when they are passed on.
    pub(crate) fn counted(self, bytes: &Rc<Cell<u64>>) -> Self {
        Self { counter: Some(Rc::clone(bytes)), ..self }
    }

    /// Removes trailers of these names from this body: the server sets these fields in the header.
    pub(crate) fn without_trailers(self, set_by_us: &Arc<[HeaderName]>) -> Self {
        Self { set_by_us: Some(Arc::clone(set_by_us)), ..self }
    }

    /// Sets the rate at which this body must arrive.
    pub(crate) fn at_least(self, bytes_per_second: Option<NonZeroU32>) -> Self {
        Self { least_rate: bytes_per_second.map(LeastRate::new), ..self }
    }

    /// The server waits for the client. Ready if the client is too slow.
    fn waits(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(progress) = &self.progress else { return Poll::Pending };
        if let BodySource::Piped(pipe, _) = &self.source
            && pipe.0.borrow().lacks_memory
        {
            return Poll::Pending;
        }
        progress.waits();
        let Some(rate) = &mut self.least_rate else { return Poll::Pending };
        ready!(rate.poll_late(context));
        progress.0.fault.set(Some(BodyFault::Late));
        self.least_rate = None;
        if progress.0.is_answered.get() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Notes that the upstream server has taken a piece.
    fn taken(&mut self, frame: Option<&Result<Frame<Bytes>, io::Error>>) {
        if let Some(progress) = &self.progress {
            progress.taken();
            if matches!(frame, Some(Err(_))) {
                progress.0.fault.set(Some(BodyFault::CutShort));
            }
        }
        let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
        let bytes = data.map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX));
        if let Some(rate) = &mut self.least_rate {
            rate.progress(bytes);
        }
        if let Some(counter) = &self.counter {
            counter.set(counter.get().saturating_add(bytes));
        }
    }
}

impl LeastRate {
    fn new(bytes_per_second: NonZeroU32) -> Self {
        Self { bytes_per_second, left: SILENCE, timer: None }
    }

    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let left = self.left;
        self.timer.get_or_insert_with(|| Box::pin(timers::sleep(left))).as_mut().poll(context)
    }

    /// The client has sent this many bytes.
    fn progress(&mut self, bytes: u64) {
        if let Some(timer) = self.timer.take() {
            self.left = timer.deadline().saturating_duration_since(timers::now());
        }
        let nanos = u128::from(bytes).saturating_mul(1_000_000_000);
        let nanos = nanos.checked_div(u128::from(self.bytes_per_second.get())).unwrap_or(0);
        let earned = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.left = self.left.saturating_add(earned).min(SILENCE);
    }
}

impl BodyProgress {
    fn new() -> Self {
        let (taken, waiting) = (Cell::new(timers::now()), Cell::default());
        let (waited, fault, is_answered) = (Cell::default(), Cell::default(), Cell::default());
        Self(Rc::new(BodyTimes { taken, waiting, waited, fault, is_answered }))
    }

    /// What the client did wrong, if that is why the request broke off.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        self.0.fault.get()
    }

    /// The head of the answer is there. From here on a slow body only loses its seat: in a conversation, silence is no fault.
    pub(crate) fn answered(&self) {
        self.0.is_answered.set(true);
    }

    pub(crate) fn is_late(&self) -> bool {
        self.fault() == Some(BodyFault::Late)
    }

    fn taken(&self) {
        self.0.waited.set(self.waited_for_client());
        self.0.waiting.set(None);
        self.0.taken.set(timers::now());
    }

    /// The upstream server wants a piece, and the client has not sent it.
    fn waits(&self) {
        if self.0.waiting.get().is_none() {
            self.0.waiting.set(Some(timers::now()));
        }
    }

    pub(crate) fn last(&self) -> Instant {
        self.0.taken.get()
    }

    /// For how long the upstream server has waited for the client, in all.
    pub(crate) fn waited_for_client(&self) -> Duration {
        let now = self.0.waiting.get().map(timers::since).unwrap_or_default();
        self.0.waited.get().saturating_add(now)
    }
}

/// A frame of a request without trailers that the upstream server must not get.
fn cleaned(mut frame: Frame<Bytes>, set_by_us: &[HeaderName]) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        headers::trailers_to_upstream(trailers, set_by_us);
    }
    frame
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let polled = match &mut this.source {
            BodySource::Empty => Poll::Ready(None),
            BodySource::Piped(pipe, _) => pipe.poll_piece(context),
            BodySource::Stream(body) => {
                Pin::new(body).poll_frame(context).map_err(io::Error::other)
            }
        };
        match &polled {
            Poll::Ready(frame) => this.taken(frame.as_ref()),
            Poll::Pending => {
                ready!(this.waits(context));
                return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
            }
        }
        let set_by_us = this.set_by_us.as_deref().unwrap_or_default();
        polled.map(|frame| frame.map(|frame| frame.map(|frame| cleaned(frame, set_by_us))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Empty => true,
            BodySource::Piped(pipe, _) => pipe.is_over(),
            BodySource::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Empty => SizeHint::with_exact(0),
            BodySource::Piped(_, Some(length)) => SizeHint::with_exact(*length),
            BodySource::Piped(_, None) => SizeHint::default(),
            BodySource::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A piped body that must bring 10 bytes a second, and its pipe.
    fn slow() -> (RequestBody, Rc<BodyPipe>) {
        let pipe = Rc::new(BodyPipe::default());
        let body = RequestBody::piped(Rc::clone(&pipe), None);
        (body.at_least(NonZeroU32::new(10)), pipe)
    }

    async fn next(body: &mut RequestBody) -> Option<Result<Frame<Bytes>, io::Error>> {
        poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    fn data(bytes: usize) -> Frame<Bytes> {
        Frame::data(Bytes::from(vec![b'x'; bytes]))
    }

    /// The story: a byte every eight seconds was progress, so ten such uploads held all seats for hours.
    #[tokio::test(start_paused = true)]
    async fn a_body_below_its_least_rate_breaks_off() {
        let (mut body, pipe) = slow();
        let (progress, start) = (body.progress().unwrap(), timers::now());
        let sending = async {
            for _ in 0..9 {
                timers::sleep(second(2)).await;
                if progress.fault().is_some() {
                    break;
                }
                pipe.push(data(1));
            }
        };
        let taking = async {
            while let Some(Ok(_)) = next(&mut body).await {}
            timers::since(start)
        };
        let ((), ended) = tokio::join!(sending, taking);
        // Five seconds, and a tenth for each of the two bytes.
        assert_eq!((ended.as_millis(), progress.fault()), (5_200, Some(BodyFault::Late)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_keeps_to_its_rate_may_pause_and_a_slow_server_is_no_fault() {
        let (mut body, pipe) = slow();
        let progress = body.progress().unwrap();
        for _ in 0..20 {
            let sending = async {
                timers::sleep(second(4)).await;
                pipe.push(data(40));
            };
            let (taken, ()) = tokio::join!(next(&mut body), sending);
            assert!(taken.unwrap().is_ok());
        }
        assert_eq!(progress.waited_for_client(), second(80));
        // The server takes nothing for a minute.
        timers::sleep(second(60)).await;
        pipe.push(data(1));
        assert!(next(&mut body).await.unwrap().is_ok());
        assert_eq!((progress.waited_for_client(), progress.fault()), (second(80), None));
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_head_of_the_answer_a_silent_body_is_late_but_goes_on() {
        let (mut body, pipe) = slow();
        let progress = body.progress().unwrap();
        progress.answered();
        let sending = async {
            timers::sleep(second(60)).await;
            assert!(progress.is_late());
            pipe.push(data(1));
        };
        let (taken, ()) = tokio::join!(next(&mut body), sending);
        assert!(taken.unwrap().is_ok());
    }
}
