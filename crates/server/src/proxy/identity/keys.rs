//! The keys that verify tokens: which key is used for a token, and what its claims must be.
//!
//! Each key verifies one algorithm, which the key file determines. The header of a token only selects among the keys, by its
//! algorithm and its key id. So a token cannot ask for `none`, nor for an HMAC whose secret is a public key.

use super::claims::{Claims, TokenError};
use super::{key_file, signatures};
use crate::files;
use arc_swap::ArcSwap;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which tokens are accepted.
#[derive(Clone, Debug)]
pub(crate) struct TokenSettings {
    /// The key file: a JWKS, or public keys in PEM.
    pub(crate) keys: PathBuf,
    /// What `iss` must be, if it is set.
    pub(crate) issuer: Option<String>,
    /// One of them must be in `aud`, if there are any.
    pub(crate) audience: Vec<String>,
}

/// The keys in use, which can be reloaded while tokens are verified.
#[derive(Debug)]
pub(crate) struct LiveKeys {
    settings: TokenSettings,
    keys: ArcSwap<KeySet>,
}

/// The keys of one version of the file.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<VerificationKey>);

/// One key, and what it accepts.
#[derive(Debug)]
struct VerificationKey {
    /// `kid`; keys in PEM have none.
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    validation: Validation,
}

/// A key as the file has it.
#[derive(Debug)]
pub(super) struct PublicKey {
    pub(super) id: Option<String>,
    /// The only algorithm for which it is used.
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// The largest key file. A JWKS with the certificates of its keys has some kilobytes.
const MOST_BYTES: u64 = 256 * 1024;

// === impl LiveKeys ===

impl LiveKeys {
    pub(crate) fn read(settings: TokenSettings) -> io::Result<Arc<Self>> {
        let keys = ArcSwap::from_pointee(KeySet::read(&settings)?);
        Ok(Arc::new(Self { settings, keys }))
    }

    /// The key file, to be watched.
    pub(crate) fn file(&self) -> &Path {
        &self.settings.keys
    }

    /// Reads the file again. On an error the old keys stay in use.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.keys.store(Arc::new(KeySet::read(&self.settings)?));
        Ok(())
    }

    pub(super) fn load(&self) -> Arc<KeySet> {
        self.keys.load_full()
    }
}

// === impl KeySet ===

impl KeySet {
    fn read(settings: &TokenSettings) -> io::Result<Self> {
        let path = &settings.keys;
        let wrong = |error: &dyn std::fmt::Display| {
            let text = format!("jwt.keys: {}: {error}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let bytes = files::read_regular(path, MOST_BYTES).map_err(|error| wrong(&error))?;
        let keys = key_file::parse(&bytes).map_err(|error| wrong(&error))?;
        Ok(Self::new(keys, settings))
    }

    pub(super) fn new(keys: Vec<PublicKey>, settings: &TokenSettings) -> Self {
        signatures::install();
        let keys = keys.into_iter().map(|PublicKey { id, algorithm, key }| {
            let validation = validation(algorithm, settings);
            VerificationKey { id, algorithm, key, validation }
        });
        Self(keys.collect())
    }

    /// The claims of a token, if it is signed by one of these keys and made for this server. `exp` and `nbf` are not checked.
    pub(super) fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        if header.crit.is_some() {
            return Err(TokenError::Critical);
        }
        let mut error = TokenError::UnknownKey;
        for key in self.candidates(&header) {
            match decode(token, &key.key, &key.validation) {
                Ok(token) => return Claims::new(token.claims),
                Err(refused) => error = reason(refused.kind()),
            }
        }
        Err(error)
    }

    /// The keys that may have signed a token. There are few: see [`key_file`].
    fn candidates(&self, header: &Header) -> impl Iterator<Item = &VerificationKey> {
        let is_only = self.0.len() == 1;
        self.0.iter().filter(move |key| {
            key.algorithm == header.alg
                && match (&key.id, &header.kid) {
                    (Some(id), Some(named)) => id == named,
                    (Some(_), None) => is_only,
                    (None, _) => true,
                }
        })
    }
}

fn validation(algorithm: Algorithm, settings: &TokenSettings) -> Validation {
    let mut validation = Validation::new(algorithm);
    // The library would read the clock.
    validation.validate_exp = false;
    let mut required = vec!["exp"];
    if let Some(issuer) = &settings.issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    validation.validate_aud = !settings.audience.is_empty();
    if validation.validate_aud {
        validation.set_audience(&settings.audience);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the errors of the library are an open set")]
fn reason(kind: &ErrorKind) -> TokenError {
    match kind {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::MissingRequiredClaim(claim) => TokenError::Missing(claim.clone()),
        _ => TokenError::Malformed,
    }
}
