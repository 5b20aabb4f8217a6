//! TLS: certificates, and their renewal while connections are served.
//!
//! ```text
//!   tls.certificate, tls.key ──read──► do they match? ──► used for new connections, chosen by the name that the client asks for
//!                                      └ no: the old ones stay in use; the log and /ready say why
//! ```

use super::certificate_set::{CertificateFacts, CertificateSet};
use crate::files;
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate::Clock;
use tokio_rustls::TlsAcceptor;

/// The files that the TLS settings name.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The first one is the default. There is at least one.
    pub(crate) pairs: Vec<CertificateFiles>,
    /// CA bundle (PEM). If set, clients must present a certificate that one of these authorities signed.
    pub(crate) client_ca_file: Option<PathBuf>,
}

/// A certificate chain and its key, both in PEM.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The certificates in use, which can be reloaded while connections are served.
#[derive(Debug)]
pub(crate) struct Certificate {
    files: TlsFiles,
    clock: Clock,
    shown: ArcSwap<CertificateSet>,
}

/// The largest file that is read. Certificate chains are a few kilobytes; a CA bundle may hold many certificates.
const MOST_BYTES: u64 = 1024 * 1024;

impl Certificate {
    pub(crate) fn read(files: TlsFiles, clock: Clock) -> io::Result<Arc<Self>> {
        let shown = ArcSwap::from_pointee(read_all(&files, &clock)?);
        Ok(Arc::new(Self { files, clock, shown }))
    }

    /// The files to watch for changes.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.pairs.iter().flat_map(|pair| [&*pair.certificate, &*pair.key])
    }

    /// Reads all files again. On an error the old certificates stay in use.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.shown.store(Arc::new(read_all(&self.files, &self.clock)?));
        Ok(())
    }

    /// When the first of the certificates in use expires, in seconds since the epoch.
    pub(crate) fn expires(&self) -> Option<u64> {
        self.shown.load().expires()
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
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown.load().of(hello.server_name())
    }
}

/// The cryptography provider that every TLS connection of this process uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificate authorities of a CA bundle.
pub(crate) fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).map_err(|error| invalid_data(&error.to_string()))?;
    }
    Ok(roots)
}

/// Why the certificate that a server has shown was not accepted, and what to do; `None` for any other error.
pub(crate) fn why_untrusted(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::InvalidCertificate(why) = error else { return None };
    // The library that verifies certificates has no public name for this error.
    let is_ca = matches!(why, CertificateError::Other(OtherError(inner)) if inner.to_string() == "CaUsedAsEndEntity");
    let advice = if is_ca {
        "it is the certificate of a CA, as `openssl req -x509` makes them unless it is told otherwise, and a server must not show one. Create it again with `-addext basicConstraints=critical,CA:FALSE`, or let a CA sign a certificate for the server"
    } else if *why == CertificateError::UnknownIssuer {
        "no CA in the CA bundle has signed it. Give the CA that signed it, or the certificate of the server itself if it is self-signed"
    } else if *why == CertificateError::BadSignature {
        "a CA in the CA bundle has the right name, but another key. The certificate was probably created again since: give the new one"
    } else {
        return Some(format!("the certificate of the server is not valid: {why}"));
    };
    Some(format!("the certificate of the server is not trusted: {advice}"))
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

/// All certificates with their keys.
fn read_all(files: &TlsFiles, clock: &Clock) -> io::Result<CertificateSet> {
    let now = Duration::from_nanos(clock.now().calendar.as_nanos()).as_secs();
    let mut set = CertificateSet::default();
    for files in &files.pairs {
        let wrong = |error: String| invalid_file("tls.certificate", &files.certificate, &error);
        let chain = chain(&files.certificate).map_err(|error| wrong(error.to_string()))?;
        let facts = chain.first().ok_or("it is empty".to_owned()).and_then(CertificateFacts::of);
        let facts = facts.map_err(wrong)?;
        if facts.has_expired(now) {
            return Err(wrong(format!("it has expired on {}; renew it", facts.expires)));
        }
        set.add(pair(chain, &files.key)?, &facts).map_err(wrong)?;
    }
    Ok(set)
}

/// A certificate chain with its key.
fn pair(chain: Vec<CertificateDer<'static>>, key: &Path) -> io::Result<CertifiedKey> {
    let wrong = |error: &str| invalid_file("tls.key", key, error);
    let bytes = files::read_regular(key, MOST_BYTES).map_err(|error| wrong(&error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| wrong("it contains no PEM private key"))?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|error| wrong(&format!("it does not match the certificate: {error}")))
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
