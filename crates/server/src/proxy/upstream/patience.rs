//! How long the proxy waits for an upstream server: for the head of its answer, between two pieces of the body, and for all of it.

use crate::proxy::request_body::BodyProgress;
use crate::timers;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Waits for the head of an answer, at most for `most` after the server took the last piece of the request. `None`: the time
/// is over.
pub(super) async fn answer_within<T>(
    most: Option<Duration>,
    progress: Option<BodyProgress>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let Some(most) = most else { return Some(future.await) };
    let mut future = pin!(future);
    let mut timer = pin!(timers::sleep(most));
    poll_fn(|context| {
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        loop {
            ready!(timer.as_mut().poll(context));
            let until = progress.as_ref().and_then(|progress| progress.last().checked_add(most));
            match until.filter(|until| *until > timers::now()) {
                Some(until) => timer.as_mut().reset(until),
                None => return Poll::Ready(None),
            }
        }
    })
    .await
}

/// The timeouts of an answer's body. The timer exists only while nothing arrives, and is not touched while bytes do.
pub(super) struct BodyPatience {
    /// The longest pause between two pieces.
    quiet: Option<Duration>,
    /// The end of the whole exchange.
    until: Option<Instant>,
    last: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyPatience {
    pub(super) const fn new(quiet: Option<Duration>, until: Option<Instant>) -> Self {
        Self { quiet, until, last: None, timer: None }
    }

    /// A piece has arrived. False if the time for the whole exchange is over.
    pub(super) fn progress(&mut self) -> bool {
        if self.timer.is_none() && self.until.is_none() {
            return true;
        }
        let now = timers::now();
        self.last = Some(now);
        self.until.is_none_or(|until| now < until)
    }

    /// Ready when the server has been silent for too long, or the time for the whole exchange is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.quiet.is_none() && self.until.is_none() {
            return Poll::Pending;
        }
        let last = *self.last.get_or_insert_with(timers::now);
        let silent = self.quiet.and_then(|quiet| last.checked_add(quiet));
        let Some(end) = [silent, self.until].into_iter().flatten().min() else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(timers::sleep_until(end)));
        if timer.is_elapsed() {
            timer.as_mut().reset(end);
        }
        loop {
            ready!(timer.as_mut().poll(context));
            if timers::now() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::request_body::{BodyPipe, PipeEnd, RequestBody};
    use bytes::Bytes;
    use http_body::{Body, Frame};
    use std::future::pending;
    use std::rc::Rc;

    const SECOND: Duration = Duration::from_secs(1);

    /// A server that takes a piece every 0.6 s may answer within a second after the last one.
    #[tokio::test(start_paused = true)]
    async fn the_time_for_the_head_begins_after_the_body() {
        let pipe = Rc::new(BodyPipe::default());
        let mut body = RequestBody::piped(Rc::clone(&pipe), None);
        let progress = body.progress();
        let taking = async {
            for _ in 0..5 {
                timers::sleep(Duration::from_millis(600)).await;
                pipe.push(Frame::data(Bytes::from_static(b"x")));
                poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            }
            pipe.end(PipeEnd::Complete);
            timers::sleep(Duration::from_millis(900)).await;
        };
        let start = timers::now();
        assert_eq!(answer_within(Some(SECOND), progress.clone(), taking).await, Some(()));
        assert_eq!(timers::since(start), Duration::from_millis(3_900));
        assert_eq!(answer_within::<()>(Some(SECOND), progress, pending()).await, None);
        assert_eq!(timers::since(start).as_secs(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_ends_after_silence_or_when_the_time_for_all_is_over() {
        let start = timers::now();
        let mut silent = BodyPatience::new(Some(SECOND), None);
        poll_fn(|context| silent.poll(context)).await;
        assert_eq!(timers::since(start).as_secs(), 1);
        // A piece arrives 0.5 s after the timer began.
        let mut patience = BodyPatience::new(Some(SECOND), None);
        let first = tokio::time::timeout(SECOND / 2, poll_fn(|context| patience.poll(context)));
        assert!(first.await.is_err() && patience.progress());
        poll_fn(|context| patience.poll(context)).await;
        assert_eq!(timers::since(start).as_millis(), 2_500);
        let until = timers::now().checked_add(SECOND);
        let mut whole = BodyPatience::new(None, until);
        assert!(whole.progress());
        poll_fn(|context| whole.poll(context)).await;
        assert_eq!(timers::since(start).as_millis(), 3_500);
        assert!(!whole.progress());
    }
}
