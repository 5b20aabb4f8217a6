//! The byte stream of a connection: plain TCP, or TLS over it.

#[cfg(target_os = "linux")]
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The byte stream of a connection. `T` is TLS as a server, or as a client towards upstream servers.
pub(crate) enum Stream<T = TlsStream<TcpStream>> {
    Plain(TcpStream),
    /// Boxed, because it is large and most connections are plain.
    Tls(Box<T>),
}

impl Stream {
    /// Performs the TLS handshake. It is an error if the client does not speak TLS or takes longer than `within`.
    pub(crate) async fn under_tls(
        stream: TcpStream,
        acceptor: &TlsAcceptor,
        within: Duration,
    ) -> io::Result<Self> {
        let accepted = timeout(within, acceptor.accept(stream)).await;
        Ok(Self::Tls(Box::new(accepted.map_err(|_late| io::ErrorKind::TimedOut)??)))
    }

    /// Writes as much as the socket takes without waiting. Under TLS that is nothing, because TLS also needs a flush.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => match stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                written => written,
            },
            Self::Tls(_) => Ok(0),
        }
    }

    /// Makes the end of this stream a reset of its connection.
    pub(crate) fn reset_at_close(&self) {
        let socket = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        // It fails only for a socket that is closed.
        let _ = socket.set_zero_linger();
    }

    /// Whether the peer has closed its side, also if bytes before that were not read yet. Where the system does not say so, false.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_hung_up(&self) -> bool {
        let socket = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
        let ready = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        // `HUP` and `ERR` are reported without being asked for.
        ready.is_ok_and(|ready| ready > 0)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn has_hung_up(&self) -> bool {
        false
    }

    /// Whether bytes have arrived that were not read yet.
    pub(crate) fn has_more(&mut self) -> bool {
        let socket = match self {
            Self::Plain(stream) => &*stream,
            Self::Tls(stream) => {
                let (socket, session) = stream.get_mut();
                let state = session.process_new_packets();
                if state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0) {
                    return true;
                }
                &*socket
            }
        };
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(socket, &mut [0; 1][..], peek), Ok((1.., _)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stream<T> {
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

impl<T: AsyncWrite + Unpin> AsyncWrite for Stream<T> {
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
