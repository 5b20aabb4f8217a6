//! The byte stream to a server: over TCP, TLS or a Unix socket, with a bound on each reply.

use super::reply_meter::{MAX_REPLY, ReplyMeter, TooLong};
use super::settings::RedisTls;
use crate::remote::tcp;
use ::redis::ConnectionAddr;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

/// Any of the streams.
trait AnyStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AnyStream for S {}

/// A stream that ends with an error if a reply is too long.
pub(super) struct ServerStream {
    stream: Box<dyn AnyStream>,
    meter: ReplyMeter,
}

impl ServerStream {
    pub(super) async fn connect(
        address: &ConnectionAddr,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let stream: Box<dyn AnyStream> = match (address, tls) {
            (ConnectionAddr::Tcp(host, port), _) => Box::new(tcp(host, *port).await?),
            (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                Box::new(TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?)
            }
            (ConnectionAddr::Unix(path), _) => Box::new(UnixStream::connect(path).await?),
            _ => return Err(io::Error::other("this kind of address is not known")),
        };
        Ok(Self { stream, meter: ReplyMeter::default() })
    }
}

/// How servers are verified, and how this node identifies itself.
pub(super) fn client_config(tls: &RedisTls) -> Result<Arc<ClientConfig>, String> {
    fn text(error: impl Display) -> String {
        error.to_string()
    }
    let mut roots = RootCertStore::empty();
    match &tls.authority {
        Some(authority) => {
            for certificate in CertificateDer::pem_slice_iter(authority) {
                roots.add(certificate.map_err(text)?).map_err(text)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .with_root_certificates(roots);
    let config = match &tls.client {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(key).map_err(text)?;
            config.with_client_auth_cert(chain.map_err(text)?, key).map_err(text)?
        }
    };
    Ok(Arc::new(config))
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(this.meter.read(read).map_err(|TooLong| {
            let why = format!("its reply is longer than {} KiB", MAX_REPLY / 1_024);
            io::Error::new(io::ErrorKind::InvalidData, why)
        }))
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
