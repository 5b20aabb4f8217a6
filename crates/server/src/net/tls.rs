//! TLS: one certificate, and its renewal while connections are served.
//!
//! ```text
//!   tls.certificate, tls.key ──read──► do they match? ──► used for new connections
//!                                      └ no: the old one stays in use; the log and /ready say why
//! ```

use crate::files;
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The files that the TLS settings name.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// CA bundle (PEM). If set, clients must present a certificate that one of these authorities signed.
    pub(crate) client_ca_file: Option<PathBuf>,
}

/// The certificate in use, which can be reloaded while connections are served.
#[derive(Debug)]
pub(crate) struct Certificate {
    files: TlsFiles,
    shown: ArcSwap<CertifiedKey>,
}

/// The largest file that is read. Certificate chains are a few kilobytes; a CA bundle may hold many certificates.
const MOST_BYTES: u64 = 1024 * 1024;

impl Certificate {
    pub(crate) fn read(files: TlsFiles) -> io::Result<Arc<Self>> {
        let shown = ArcSwap::from_pointee(pair(&files)?);
        Ok(Arc::new(Self { files, shown }))
    }

    /// The files to watch for changes.
    pub(crate) fn files(&self) -> [&Path; 2] {
        [&self.files.certificate, &self.files.key]
    }

    /// Reads both files again. On an error the old certificate stays in use.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.shown.store(Arc::new(pair(&self.files)?));
        Ok(())
    }

    /// Performs the handshakes of a listener; `protocols` are offered by ALPN.
    pub(crate) fn acceptor(self: &Arc<Self>, protocols: &[&[u8]]) -> io::Result<TlsAcceptor> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match &self.files.client_ca_file {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let wrong = |error: String| invalid_file("tls.client_ca_file", path, &error);
                let roots = Arc::new(authorities(path).map_err(|error| wrong(error.to_string()))?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let shown: Arc<Self> = Arc::clone(self);
        let mut config = builder.with_cert_resolver(shown);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.load_full())
    }
}

/// The cryptography provider that every TLS connection of this process uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificate authorities of a CA bundle.
pub(crate) fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).map_err(|error| invalid_data(&error.to_string()))?;
    }
    Ok(roots)
}

/// How upstream servers are verified: by the CAs that this machine trusts. `None` if there are none.
pub(crate) fn client_tls() -> io::Result<Option<Arc<ClientConfig>>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Ok(None);
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// The certificate chain and its key.
fn pair(files: &TlsFiles) -> io::Result<CertifiedKey> {
    let of_chain =
        |error: io::Error| invalid_file("tls.certificate", &files.certificate, &error.to_string());
    let of_key = |error: &str| invalid_file("tls.key", &files.key, error);
    let chain = chain(&files.certificate).map_err(of_chain)?;
    let bytes =
        files::read_regular(&files.key, MOST_BYTES).map_err(|error| of_key(&error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| of_key("it contains no PEM private key"))?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|error| of_key(&format!("it does not match the certificate: {error}")))
}

fn chain(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = files::read_regular(path, MOST_BYTES)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| invalid_data(&error.to_string()))?;
    if chain.is_empty() { Err(invalid_data("it contains no PEM certificate")) } else { Ok(chain) }
}

fn invalid_data(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// An error that names the setting and the file.
fn invalid_file(setting: &str, path: &Path, error: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{setting}: {}: {error}", path.display()))
}
