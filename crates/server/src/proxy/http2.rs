//! Clients that speak HTTP/2. The protocol is implemented by hyper; bodies pass through in both directions.

use super::exchange::ClientSide;
use super::gate::{Proxy, ProxyClient};
use super::headers;
use super::interim::InterimAnswers;
use super::preflight::HasBody;
use super::request_body::RequestBody;
use super::upstream::UpstreamBody;
use crate::backend::Backend;
use crate::net::{ListenerContext, Stream};
use crate::web::{
    Answer, HeadError, InFlightRequest, UnreadResponse, check_head, refused, response,
    serve_streams,
};
use bytes::{Buf, Bytes};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The body of an answer to an HTTP/2 client. The request counts as in flight until the body is dropped.
pub(super) enum StreamedBody {
    Upstream {
        /// Boxed, because it is much larger than the other kind.
        body: Box<UpstreamBody>,
        /// Counts the request until the client has read the answer.
        _work: InFlightRequest,
    },
    /// An answer of the proxy itself.
    Own(Option<UnreadResponse>),
}

/// A piece of an answer.
pub(super) enum Piece {
    Upstream(Bytes),
    Own(UnreadResponse),
}

/// Serves a connection to its end.
pub(super) async fn serve<S: Backend>(
    parts: (Stream, Vec<u8>),
    client: Rc<ProxyClient>,
    proxy: &Rc<Proxy<S>>,
    listener: &Rc<ListenerContext>,
) -> io::Result<()> {
    let on_call = |request: Request<Incoming>, work: InFlightRequest| {
        let (proxy, client, listener) = (Rc::clone(proxy), Rc::clone(&client), Rc::clone(listener));
        async move { one_request(request, &client, &proxy, &listener, work).await }
    };
    serve_streams(parts, &client.account, listener, &client.drain, on_call).await
}

async fn one_request<S: Backend>(
    request: Request<Incoming>,
    client: &ProxyClient,
    proxy: &Proxy<S>,
    listener: &ListenerContext,
    work: InFlightRequest,
) -> Response<StreamedBody> {
    let head_only = request.method() == Method::HEAD;
    match forwarded(request, client, proxy, listener, &work).await {
        Ok(answer) => {
            let (mut head, body) = answer.into_parts();
            head.version = http::Version::HTTP_2;
            Response::from_parts(head, StreamedBody::Upstream { body: Box::new(body), _work: work })
        }
        Err(answer) => {
            response(answer, head_only, work, listener).map(|body| StreamedBody::Own(Some(body)))
        }
    }
}

async fn forwarded<S: Backend>(
    request: Request<Incoming>,
    client: &ProxyClient,
    proxy: &Proxy<S>,
    listener: &ListenerContext,
    work: &InFlightRequest,
) -> Result<Response<UpstreamBody>, Answer> {
    let (mut head, body) = request.into_parts();
    if !body.is_end_stream() {
        head.extensions.insert(HasBody);
    }
    let refuse = |error: HeadError| refused(error, listener);
    if !work.fits() {
        return Err(refuse(HeadError::NoRoom));
    }
    check_head(&head).map_err(refuse)?;
    headers::check_request(&head.headers, head.version)
        .map_err(|why| refuse(HeadError::Malformed(why)))?;
    if head.method == Method::CONNECT {
        return Err(refuse(HeadError::Malformed("its target")));
    }
    let admitted = proxy.admit(&head, client).await?;
    // hyper cannot send interim answers over HTTP/2, so they are only counted.
    let (interim, presence) = (InterimAnswers::default(), Rc::default());
    let side = ClientSide { client, interim: &interim, presence: &presence };
    proxy.forward(admitted, head, RequestBody::stream(body), &side).await
}

impl Body for StreamedBody {
    type Data = Piece;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, io::Error>>> {
        match self.get_mut() {
            Self::Upstream { body, .. } => {
                let frame = Pin::new(&mut *body).poll_frame(context);
                if frame.is_pending() {
                    // hyper asks for the next piece only when the client's window has room for it.
                    body.delivered();
                }
                let frame = std::task::ready!(frame);
                Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(Piece::Upstream))))
            }
            Self::Own(body) => {
                Poll::Ready(body.take().map(|body| Ok(Frame::data(Piece::Own(body)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream { body, .. } => body.is_end_stream(),
            Self::Own(body) => body.as_ref().is_none_or(|body| body.remaining() == 0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream { body, .. } => body.size_hint(),
            Self::Own(body) => {
                let bytes = body.as_ref().map_or(0, Buf::remaining);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        match self {
            Self::Upstream(bytes) => bytes.remaining(),
            Self::Own(bytes) => bytes.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Upstream(bytes) => bytes.chunk(),
            Self::Own(bytes) => bytes.chunk(),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Upstream(bytes) => bytes.advance(count),
            Self::Own(bytes) => bytes.advance(count),
        }
    }
}
