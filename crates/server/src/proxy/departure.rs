//! Clients over HTTP/1 that leave: before their request is sent to an upstream server, and after that.
//!
//! A client that closes its sending side has either left, or says that it will send nothing more. While its request waits for a turn or
//! a seat, it counts as gone: otherwise requests of clients that are no longer there would fill the queues. Once its request is sent,
//! it gets the answer, if there is one soon enough.

use super::upstream::{AFTER_LEAVING, ClientPresence, UNTIL_HALF_CLOSE};
use crate::net::{BufferedConnection, Woken};
use crate::timers;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// A request whose decision takes longer than this waits for its turn or its seat. Before that, it is the store or the auth server that
/// is asked, and the request may be on its way in a moment.
const WAITS_AFTER: Duration = Duration::from_millis(100);
/// How often it is looked whether a client has left, if it has sent bytes behind its request: the system tells of more bytes, but not
/// of the end behind bytes that were not read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches a client whose request waits.
#[derive(Default)]
pub(super) struct WaitingWatch {
    timer: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

/// Watches a client whose request was sent.
pub(super) struct Departure<'p> {
    presence: &'p ClientPresence,
    /// Exists when the client has closed its sending side.
    timer: Option<Pin<Box<Sleep>>>,
    server_knows: bool,
}

/// What is known of the client's side of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientEnd {
    Open,
    /// The client has closed its sending side.
    Closed,
    Broken,
}

impl WaitingWatch {
    /// Ready when the client is gone.
    pub(super) fn poll_gone(
        &mut self,
        stream: &mut BufferedConnection<'_>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(timers::sleep(WAITS_AFTER)));
        if !self.waits {
            ready!(timer.as_mut().poll(context));
            self.waits = true;
        }
        loop {
            let end = end_of(stream, context);
            if end != ClientEnd::Open || (!stream.input.is_empty() && stream.has_hung_up()) {
                return Poll::Ready(());
            }
            if stream.input.is_empty() {
                return Poll::Pending; // the end will be read
            }
            if timer.is_elapsed() {
                timer.set(timers::sleep(LOOK_EVERY));
            }
            ready!(timer.as_mut().poll(context));
        }
    }
}

impl<'p> Departure<'p> {
    pub(super) const fn of(presence: &'p ClientPresence) -> Self {
        Self { presence, timer: None, server_knows: false }
    }

    /// Ready when the client is gone, or has been waiting for long enough since it closed its sending side.
    pub(super) fn poll(
        &mut self,
        stream: &mut BufferedConnection<'_>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        if self.timer.is_none() {
            match end_of(stream, context) {
                ClientEnd::Open => return Poll::Pending,
                ClientEnd::Broken => return Poll::Ready(()),
                ClientEnd::Closed => {
                    self.presence.leaves();
                    self.timer = Some(Box::pin(timers::sleep(UNTIL_HALF_CLOSE)));
                }
            }
        }
        while let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(context));
            if self.server_knows {
                break;
            }
            self.server_knows = true;
            self.presence.tell_server();
            // The connection to the server is polled by this task, too.
            context.waker().wake_by_ref();
            timer.set(timers::sleep(AFTER_LEAVING.saturating_sub(UNTIL_HALF_CLOSE)));
        }
        Poll::Ready(())
    }
}

/// Reads up to the next bytes, which are left in the read buffer, or the end. While there are bytes, nothing more is read.
fn end_of(stream: &mut BufferedConnection<'_>, context: &mut Context<'_>) -> ClientEnd {
    if !stream.input.is_empty() {
        return ClientEnd::Open;
    }
    match stream.poll_fill(context) {
        Poll::Ready(Ok(Woken::End)) => ClientEnd::Closed,
        Poll::Ready(Err(_)) => ClientEnd::Broken,
        Poll::Ready(Ok(Woken::Draining)) => {
            // The drain is noticed once; the waker must be registered again.
            context.waker().wake_by_ref();
            ClientEnd::Open
        }
        Poll::Ready(Ok(Woken::Bytes | Woken::Late | Woken::NoRoom)) | Poll::Pending => {
            ClientEnd::Open
        }
    }
}
