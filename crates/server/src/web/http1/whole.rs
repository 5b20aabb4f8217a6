//! Requests that are answered whole: those of the API, of the admin listener and of the metrics page.
//!
//! ```text
//!   head ──► begin ──► is all of the body here? ──yes──► answered in the read buffer
//!             │                                 └──no───► the head is copied, the body is read, then answered
//!             └ refused by its head
//! ```

use super::body::{Body, BodyBound};
use super::head::{HeadError, HeadLines, Length, RequestHead};
use super::{AfterAnswer, Connection, Responder};
use crate::bounds;
use crate::net::{Reservation, Slot, Woken};
use crate::web::{Answer, Call, Headers, WebHandler, answer};
use std::io;
use std::mem;
use std::net::IpAddr;

/// Answers requests by a [`WebHandler`].
pub(crate) struct WholeAnswers<'f, W> {
    pub(crate) peer: IpAddr,
    /// The slot of the connection at the listener.
    pub(crate) slot: &'f Slot,
    pub(crate) handler: &'f W,
}

/// The result of the fast path: a request that is answered in the read buffer, without copying it.
enum InPlace {
    /// The request is answered. It had this many bytes.
    Answered(AfterAnswer, usize),
    /// The body has not arrived completely.
    BodyToCome,
}

/// The cost of one read of a body, in microseconds.
const READ: u32 = 3;

impl<W: WebHandler> Responder for WholeAnswers<'_, W> {
    async fn respond(
        &self,
        connection: &mut Connection<'_>,
        head_end: usize,
    ) -> io::Result<AfterAnswer> {
        // The request borrows the read buffer while it is answered.
        let input = mem::take(&mut connection.stream.input);
        let result = self.answer_in_place(connection, input.unread(), head_end).await;
        connection.stream.input = input;
        match result {
            Ok(InPlace::Answered(next, used)) => {
                connection.stream.input.consume(used);
                Ok(next)
            }
            Ok(InPlace::BodyToCome) => self.with_body(connection, head_end).await,
            Err(error) => Ok(connection.refuse(error)),
        }
    }
}

impl<W: WebHandler> WholeAnswers<'_, W> {
    /// The fast path: answers a request in the read buffer, if it has arrived completely or its body is not needed.
    async fn answer_in_place(
        &self,
        connection: &mut Connection<'_>,
        here: &[u8],
        head_end: usize,
    ) -> Result<InPlace, HeadError> {
        let (head, rest) = here.split_at_checked(head_end).unwrap_or((here, b""));
        let mut lines = HeadLines::new();
        let head = lines.parse(head)?.without_upgrade()?;
        let room = connection.stream.answers();
        let call = self.call(&head, &room);
        if self.handler.knows(&call) && !self.slot.keep() {
            // The connection was evicted: do not start what could not be answered.
            return Ok(InPlace::Answered(AfterAnswer::Close, here.len()));
        }
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => {
                let next = unread(connection, &answer, &head, rest.is_empty());
                return Ok(InPlace::Answered(next, head_end));
            }
        };
        let body = match head.length {
            Length::None => Some(&b""[..]),
            Length::Bytes(length) => rest.get(..length),
            Length::Chunks => None,
        };
        let Some(body) = body else { return Ok(InPlace::BodyToCome) };
        let most = bound.of(body);
        if body.len() > most {
            return Err(HeadError::BodyTooLarge(most));
        }
        let used = head_end.saturating_add(body.len());
        let next = connection.next(head.close, used == here.len());
        let answer = answer(self.handler, route, &Call { body, ..call }).await;
        connection.write(&answer, head.method == "HEAD", next);
        Ok(InPlace::Answered(next, used))
    }

    fn call<'c>(&self, head: &RequestHead<'c, 'c>, room: &'c Reservation) -> Call<'c> {
        let RequestHead { method, path, query, fields, .. } = *head;
        let headers = Headers::Lines(fields);
        Call { peer: self.peer, method, path, query, headers, body: b"", room }
    }

    /// The slow path: answers a request whose body has not arrived yet. Its head is copied, because the read buffer is needed
    /// for the body.
    async fn with_body(
        &self,
        connection: &mut Connection<'_>,
        head_end: usize,
    ) -> io::Result<AfterAnswer> {
        let reserved = connection.stream.reserve();
        if !reserved.resize(head_end) {
            return Ok(connection.refuse(HeadError::NoRoom));
        }
        let head = connection.stream.input.take(head_end).to_vec();
        let mut lines = HeadLines::new();
        let head = match lines.parse(&head).and_then(RequestHead::without_upgrade) {
            Ok(head) => head,
            Err(error) => return Ok(connection.refuse(error)),
        };
        let room = connection.stream.answers();
        let call = self.call(&head, &room);
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => return Ok(unread(connection, &answer, &head, false)),
        };
        let reserved = connection.stream.reserve();
        let body = match read_body(connection, &head, bound, &reserved).await? {
            Ok(body) => body,
            Err(error) => return Ok(connection.refuse(error)),
        };
        let answer = answer(self.handler, route, &Call { body: &body, ..call }).await;
        let nothing_behind = connection.stream.input.is_empty();
        let next = connection.next(head.close, nothing_behind);
        connection.write(&answer, head.method == "HEAD", next);
        Ok(next)
    }
}

/// Answers a request by its head. Its body is not read, so the next request could not be told apart from it: a connection
/// with a body is closed.
fn unread(
    connection: &mut Connection<'_>,
    answer: &Answer,
    head: &RequestHead<'_, '_>,
    nothing_behind: bool,
) -> AfterAnswer {
    let next = connection.next(head.close || head.length != Length::None, nothing_behind);
    connection.write(answer, head.method == "HEAD", next);
    next
}

/// The body of a request, within bounds and in time.
async fn read_body(
    connection: &mut Connection<'_>,
    head: &RequestHead<'_, '_>,
    most: BodyBound,
    reserved: &Reservation,
) -> io::Result<Result<Vec<u8>, HeadError>> {
    let mut body = match Body::new(head.length, most) {
        Ok(body) => body,
        Err(error) => return Ok(Err(error.into())),
    };
    let mut began = false;
    loop {
        if !reserved.resize_soon(body.needs(&connection.stream.input)).await {
            return Ok(Err(HeadError::NoRoom));
        }
        match body.take_from(&mut connection.stream.input) {
            Ok(true) => return Ok(Ok(body.into_bytes())),
            Ok(false) => {}
            Err(error) => return Ok(Err(error.into())),
        }
        if !mem::replace(&mut began, true) {
            connection.begin_body(head.expects).await?;
        }
        if body.len() > bounds::SHORT_BODY {
            connection.stream.listener.long_work.pass(READ).await;
        }
        match connection.stream.fill().await? {
            Woken::Bytes | Woken::Draining => {}
            Woken::End => return Ok(Err(HeadError::CutShort)),
            Woken::Late => return Ok(Err(HeadError::Late)),
            Woken::NoRoom => return Ok(Err(HeadError::NoRoom)),
        }
    }
}
