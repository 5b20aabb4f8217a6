//! Verifies the signatures of tokens with ring, which TLS uses as well.
//!
//! `jsonwebtoken` reads tokens and checks their claims. For signatures it calls a provider, and it brings none for ring.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::error::Unspecified;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        Ok(Box::new(SignatureVerifier { algorithm: *algorithm, key: key.clone() }))
    },
    // For keys in other formats and for thumbprints, which are not used.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Lets `jsonwebtoken` use ring. It keeps the first provider of a process, so further calls change nothing.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

/// Verifies signatures of one algorithm with one key.
struct SignatureVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

/// How ring verifies an algorithm.
enum Method {
    /// The key is a modulus and an exponent.
    Rsa(&'static RsaParameters),
    /// The key is a point. ECDSA signatures are two numbers of a fixed length (RFC 7518, 3.4).
    Curve(&'static dyn VerificationAlgorithm),
}

impl JwtVerifier for SignatureVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for SignatureVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Error> {
        let verified = match (method(self.algorithm), self.key.kind()) {
            (Some(Method::Rsa(parameters)), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Some(Method::Curve(curve)), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(curve, point).verify(message, signature)
            }
            (_, _) => {
                debug_assert!(false, "the key file gives each key an algorithm of its kind");
                Err(Unspecified)
            }
        };
        verified.map_err(|Unspecified| Error::new())
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the algorithms of the library are an open set")]
fn method(algorithm: Algorithm) -> Option<Method> {
    Some(match algorithm {
        Algorithm::RS256 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Method::Rsa(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Method::Rsa(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Method::Rsa(&RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Method::Curve(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Method::Curve(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Method::Curve(&ED25519),
        _ => return None,
    })
}
