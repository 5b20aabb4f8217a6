//! Answers for HTTP/1 clients: how they are framed, and written while they arrive.

use super::upstream::UpstreamBody;
use crate::net::BufferedConnection;
use crate::web::write_fields;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body::{Body, Frame};
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

/// How the body of an answer is framed for the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerFraming {
    /// No body follows.
    None,
    /// As many bytes as the `content-length` says.
    Length,
    Chunks,
    /// Until the end of the connection, for HTTP/1.0.
    UntilClose,
}

/// Bytes of an answer that are collected before they are written.
const OUTPUT: usize = 32 * 1024;
/// Moves the body of an answer to the client, as far as both sides are ready.
pub(super) fn poll_body(
    stream: &mut BufferedConnection<'_>,
    body: &mut UpstreamBody,
    framing: AnswerFraming,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        if stream.output.len() >= OUTPUT {
            std::task::ready!(stream.poll_flush(context))?;
        }
        match Pin::new(&mut *body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let ended = write_frame(&mut stream.output, frame, framing);
                if ended {
                    return Poll::Ready(Ok(()));
                }
                if framing == AnswerFraming::Length && body.is_end_stream() {
                    return Poll::Ready(Ok(()));
                }
            }
            Poll::Ready(Some(Err(error))) => {
                // A client that has got nothing of the answer may send the request again.
                let _ = stream.poll_flush(context);
                return Poll::Ready(Err(error));
            }
            Poll::Ready(None) => {
                if framing == AnswerFraming::Chunks {
                    stream.output.extend_from_slice(b"0\r\n\r\n");
                }
                return Poll::Ready(Ok(()));
            }
            Poll::Pending => {
                // What has arrived is not held back until more arrives.
                if let Poll::Ready(flushed) = stream.poll_flush(context) {
                    flushed?;
                    stream.free_output();
                    body.delivered();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Writes a frame of an answer. True after trailers, which end it.
fn write_frame(out: &mut Vec<u8>, frame: Frame<Bytes>, framing: AnswerFraming) -> bool {
    let is_chunked = framing == AnswerFraming::Chunks;
    match frame.into_data() {
        Ok(data) if is_chunked => {
            if !data.is_empty() {
                // Writing to a vector cannot fail.
                let _ = write!(out, "{:x}\r\n", data.len());
                out.extend_from_slice(&data);
                out.extend_from_slice(b"\r\n");
            }
            false
        }
        Ok(data) => {
            out.extend_from_slice(&data);
            false
        }
        Err(frame) => {
            let trailers = frame.into_trailers().unwrap_or_default();
            if is_chunked {
                write_trailers(out, &trailers);
            }
            is_chunked
        }
    }
}

fn write_trailers(out: &mut Vec<u8>, trailers: &HeaderMap) {
    out.extend_from_slice(b"0\r\n");
    write_fields(out, trailers);
    out.extend_from_slice(b"\r\n");
}

impl AnswerFraming {
    pub(super) fn of(
        head: &http::response::Parts,
        body: &UpstreamBody,
        method: &Method,
        eleven: bool,
    ) -> Self {
        let empty = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
        if empty || *method == Method::HEAD {
            return Self::None;
        }
        if head.headers.contains_key(header::CONTENT_LENGTH) {
            return if body.is_end_stream() { Self::None } else { Self::Length };
        }
        if eleven { Self::Chunks } else { Self::UntilClose }
    }
}
