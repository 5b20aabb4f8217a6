//! The byte stream to an upstream server. Its sending side can be closed while hyper uses it.

use crate::net::Stream;
use crate::proxy::routes::{Scheme, ServerUrl};
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The byte stream to an upstream server.
pub(crate) struct UpstreamStream {
    socket: Stream<TlsStream<TcpStream>>,
    half_close: HalfClose,
    is_half_closed: bool,
}

/// Ends the sending side of a stream that hyper uses: as soon as everything was written.
#[derive(Clone, Default)]
pub(crate) struct HalfClose(Rc<Cell<bool>>);

impl HalfClose {
    pub(super) fn begin(&self) {
        self.0.set(true);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.0.get()
    }
}

/// The stream as hyper reads it.
pub(crate) type UpstreamIo = TokioIo<UpstreamStream>;

/// Whether TLS negotiated HTTP/2, or the URL asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamVersion {
    One,
    Two,
}

impl UpstreamStream {
    /// Connects to a server. Its name is looked up each time, so a change of its address is noticed.
    pub(crate) async fn connect(
        url: &ServerUrl,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<(Self, UpstreamVersion)> {
        let host = url.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, url.port)).await?;
        stream.set_nodelay(true)?;
        match (url.scheme, tls) {
            (Scheme::Http, _) => Ok((Self::of(Stream::Plain(stream)), UpstreamVersion::One)),
            (Scheme::H2c, _) => Ok((Self::of(Stream::Plain(stream)), UpstreamVersion::Two)),
            (Scheme::Https, None) => Err(io::Error::other("TLS is not configured")),
            (Scheme::Https, Some(config)) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
                let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let version = if two { UpstreamVersion::Two } else { UpstreamVersion::One };
                Ok((Self::of(Stream::Tls(Box::new(stream))), version))
            }
        }
    }

    fn of(socket: Stream<TlsStream<TcpStream>>) -> Self {
        Self { socket, half_close: HalfClose::default(), is_half_closed: false }
    }

    pub(super) fn half_close(&self) -> HalfClose {
        self.half_close.clone()
    }
}

/// Whether no more files may be open: the server is not to blame.
pub(super) fn lacks_files(error: &io::Error) -> bool {
    let error = Errno::from_io_error(error);
    error.is_some_and(|error| [Errno::MFILE, Errno::NFILE].contains(&error))
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(context, bytes)
    }

    /// hyper calls this whenever it has written everything that there is.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.socket).poll_flush(context))?;
        if this.half_close.has_begun() && !this.is_half_closed {
            ready!(self.as_mut().poll_shutdown(context))?;
            self.is_half_closed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
