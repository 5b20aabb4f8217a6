//! The byte stream to an upstream server: plain TCP, or TLS over it.

use crate::proxy::routes::{Scheme, ServerUrl};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The byte stream to an upstream server.
pub(crate) enum UpstreamStream {
    Plain(TcpStream),
    /// Boxed, because it is large.
    Tls(Box<TlsStream<TcpStream>>),
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
            (Scheme::Http, _) => Ok((Self::Plain(stream), UpstreamVersion::One)),
            (Scheme::H2c, _) => Ok((Self::Plain(stream), UpstreamVersion::Two)),
            (Scheme::Https, None) => Err(io::Error::other("TLS is not configured")),
            (Scheme::Https, Some(config)) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
                let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let version = if two { UpstreamVersion::Two } else { UpstreamVersion::One };
                Ok((Self::Tls(Box::new(stream)), version))
            }
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
