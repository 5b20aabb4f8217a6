//! The key file: a JSON Web Key Set (RFC 7517), or public keys in PEM.
//!
//! ```text
//!   { "keys": [{ "kty": "EC", "crv": "P-256", "kid": "2026-01", … }] }      -----BEGIN PUBLIC KEY-----
//!   RSA: RS256, or what `alg` says    P-256: ES256    P-384: ES384    Ed25519: EdDSA
//! ```
//!
//! Keys of a set that are not for signatures, or of an unknown kind, are skipped, because issuers publish such keys. Secret and
//! private keys are an error: a server that can verify with a secret can also sign.

use super::keys::PublicKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::Value;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The most keys in a file.
const MOST: usize = 64;
/// The most keys without an id: for a token, each of them may have to be tried.
const MOST_WITHOUT_ID: usize = 4;
/// The sizes of RSA keys that are accepted, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// The keys of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<PublicKey>, String> {
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    let keys = if is_json { key_set(bytes)? } else { pem(bytes)? };
    if keys.is_empty() {
        return Err("it has no key that verifies signatures".to_owned());
    }
    if keys.len() > MOST {
        return Err(format!("it has more than {MOST} keys"));
    }
    if keys.iter().filter(|key| key.id.is_none()).count() > MOST_WITHOUT_ID {
        return Err(format!("more than {MOST_WITHOUT_ID} keys have no id (`kid`)"));
    }
    let same = keys.iter().enumerate().find_map(|(at, key)| {
        let id = key.id.as_ref()?;
        keys.iter().take(at).any(|other| other.id.as_ref() == Some(id)).then_some(id)
    });
    match same {
        Some(id) => Err(format!("two keys have the id `{}`", tidegate_policy::printable(id))),
        None => Ok(keys),
    }
}

// === JWKS ===

fn key_set(bytes: &[u8]) -> Result<Vec<PublicKey>, String> {
    let set: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not valid JSON: {error}"))?;
    let keys = set.get("keys").and_then(Value::as_array);
    let keys = keys.ok_or("it is not a JWKS: write `{\"keys\": [...]}`")?;
    let mut found = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let key = from_jwk(key).map_err(|error| format!("`/keys/{at}`: {error}"))?;
        found.extend(key);
    }
    Ok(found)
}

/// A key of a set; `None` if it is for another purpose.
fn from_jwk(value: &Value) -> Result<Option<PublicKey>, String> {
    if value.get("kty").is_some_and(|kind| kind == "oct") {
        return Err("a shared secret (`oct`) is not accepted; sign with a private key, and give its public key here".to_owned());
    }
    if value.get("d").is_some() {
        return Err("it is a private key; give only the public key".to_owned());
    }
    let key: Jwk = serde_json::from_value(value.clone())
        .map_err(|error| format!("it is not a valid key: {error}"))?;
    let Some(possible) = algorithms(&key)? else { return Ok(None) };
    let common = &key.common;
    if common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
        return Ok(None);
    }
    let algorithm = match common.key_algorithm {
        None => possible.first().copied(),
        Some(named) => {
            possible.iter().copied().find(|one| Algorithm::try_from(named).ok() == Some(*one))
        }
    };
    let Some(algorithm) = algorithm else { return Ok(None) };
    let bytes = DecodingKey::from_jwk(&key).map_err(|error| format!("it is not valid: {error}"))?;
    Ok(Some(PublicKey { id: common.key_id.clone(), algorithm, key: bytes }))
}

/// The algorithms that a key can verify, the default first; `None` for unknown kinds.
fn algorithms(key: &Jwk) -> Result<Option<&'static [Algorithm]>, String> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let length = |text: &str| {
        let decoded = data_encoding::BASE64URL_NOPAD.decode(text.as_bytes());
        decoded.map(|bytes| bytes.len()).map_err(|_| "a number is not valid base64url".to_owned())
    };
    let known: (&[Algorithm], bool) = if let AlgorithmParameters::RSA(rsa) = &key.algorithm {
        rsa_size(length(&rsa.n)?.saturating_mul(8))?;
        (&[RS256, RS384, RS512, PS256, PS384, PS512], true)
    } else if let AlgorithmParameters::EllipticCurve(point) = &key.algorithm {
        let lengths = (length(&point.x)?, length(&point.y)?);
        if point.curve == EllipticCurve::P256 {
            (&[ES256], lengths == (32, 32))
        } else if point.curve == EllipticCurve::P384 {
            (&[ES384], lengths == (48, 48))
        } else {
            return Ok(None);
        }
    } else if let AlgorithmParameters::OctetKeyPair(pair) = &key.algorithm
        && pair.curve == EllipticCurve::Ed25519
    {
        (&[EdDSA], length(&pair.x)? == 32)
    } else {
        return Ok(None);
    };
    let (algorithms, fits) = known;
    if fits { Ok(Some(algorithms)) } else { Err("its numbers have the wrong length".to_owned()) }
}

fn rsa_size(bits: usize) -> Result<(), String> {
    if RSA_BITS.contains(&bits) {
        return Ok(());
    }
    let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
    Err(format!("an RSA key of {bits} bits is not accepted; use {least} to {most} bits"))
}

// === PEM ===

fn pem(bytes: &[u8]) -> Result<Vec<PublicKey>, String> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes) {
        let (kind, der) = section.map_err(|error| format!("it is not valid PEM: {error}"))?;
        if kind != SectionKind::PublicKey {
            return Err("it contains something else than public keys; write `-----BEGIN PUBLIC KEY-----`, as `openssl pkey -pubout` does".to_owned());
        }
        keys.push(from_der(&der)?);
    }
    Ok(keys)
}

/// A public key with its kind (`SubjectPublicKeyInfo`).
fn from_der(der: &[u8]) -> Result<PublicKey, String> {
    let wrong = || "a public key in it is not valid".to_owned();
    let (rest, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| wrong())?;
    if !rest.is_empty() {
        return Err(wrong());
    }
    let kind = &info.algorithm.algorithm;
    let bytes = &info.subject_public_key.data;
    let curve = info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
    let found = if *kind == OID_PKCS1_RSAENCRYPTION {
        Some((Algorithm::RS256, rsa(&info)?))
    } else if *kind == OID_SIG_ED25519 && bytes.len() == 32 {
        Some((Algorithm::EdDSA, DecodingKey::from_ed_der(bytes)))
    } else if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY && bytes.first() == Some(&4) {
        match (curve, bytes.len()) {
            (Some(curve), 65) if curve == OID_EC_P256 => {
                Some((Algorithm::ES256, DecodingKey::from_ec_der(bytes)))
            }
            (Some(curve), 97) if curve == OID_NIST_EC_P384 => {
                Some((Algorithm::ES384, DecodingKey::from_ec_der(bytes)))
            }
            (_, _) => None,
        }
    } else {
        None
    };
    let (algorithm, key) =
        found.ok_or("a key is of another kind than RSA, P-256, P-384 or Ed25519")?;
    Ok(PublicKey { id: None, algorithm, key })
}

fn rsa(info: &SubjectPublicKeyInfo<'_>) -> Result<DecodingKey, String> {
    let parsed = info.parsed().map_err(|_| "an RSA key in it is not valid".to_owned())?;
    let ParsedKey::RSA(key) = parsed else { return Err("it is not an RSA key".to_owned()) };
    let digits = |number: &'_ [u8]| -> Vec<u8> {
        number.iter().copied().skip_while(|digit| *digit == 0).collect()
    };
    let (modulus, exponent) = (digits(key.modulus), digits(key.exponent));
    rsa_size(modulus.len().saturating_mul(8))?;
    Ok(DecodingKey::from_rsa_raw_components(&modulus, &exponent))
}
