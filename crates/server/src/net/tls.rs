//! TLS: one certificate, and its renewal while connections are served.
//!
//! ```text
//!   tls.certificate, tls.key ──read──► do they belong together? ──► shown to whoever connects from now on
//!                                      └ no: the old one stays, and everybody who could wonder is told
//! ```

use crate::files;
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// What is said about TLS before the server starts.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Clients must show a certificate that one of these has signed.
    pub(crate) client_ca_file: Option<PathBuf>,
}

/// The certificate that is shown now.
#[derive(Debug)]
pub(crate) struct Certificate {
    files: TlsFiles,
    shown: ArcSwap<CertifiedKey>,
}

/// Chains are a few kilobytes; authorities may be many.
const MOST_BYTES: u64 = 1024 * 1024;

impl Certificate {
    pub(crate) fn read(files: TlsFiles) -> io::Result<Arc<Self>> {
        let shown = ArcSwap::from_pointee(pair(&files)?);
        Ok(Arc::new(Self { files, shown }))
    }

    /// The files that are worth watching.
    pub(crate) fn files(&self) -> [&Path; 2] {
        [&self.files.certificate, &self.files.key]
    }

    /// Reads both files again; what is wrong with them changes nothing.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.shown.store(Arc::new(pair(&self.files)?));
        Ok(())
    }

    /// What a listener does with a connection, and the protocols that clients may choose from.
    pub(crate) fn acceptor(self: &Arc<Self>, protocols: &[&[u8]]) -> io::Result<TlsAcceptor> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match &self.files.client_ca_file {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let wrong = |error: String| told("tls.client_ca_file", path, &error);
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

/// The one provider of cryptography in this process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Those who sign, out of a file.
pub(crate) fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).map_err(|error| no_pem(&error.to_string()))?;
    }
    Ok(roots)
}

fn pair(files: &TlsFiles) -> io::Result<CertifiedKey> {
    let of_chain =
        |error: io::Error| told("tls.certificate", &files.certificate, &error.to_string());
    let of_key = |error: &str| told("tls.key", &files.key, error);
    let chain = chain(&files.certificate).map_err(of_chain)?;
    let bytes =
        files::read_regular(&files.key, MOST_BYTES).map_err(|error| of_key(&error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| of_key("there is no private key in PEM in it"))?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|error| of_key(&format!("it does not go with the certificate: {error}")))
}

fn chain(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = files::read_regular(path, MOST_BYTES)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| no_pem(&error.to_string()))?;
    if chain.is_empty() { Err(no_pem("there is no certificate in PEM in it")) } else { Ok(chain) }
}

fn no_pem(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// With the setting that it is about.
fn told(setting: &str, path: &Path, error: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{setting}: {}: {error}", path.display()))
}
