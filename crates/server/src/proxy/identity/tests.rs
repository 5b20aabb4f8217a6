//! Tokens that are valid, and all kinds that are not.

use super::claims::TokenError;
use super::*;
use data_encoding::BASE64URL_NOPAD;
use http::Method;
use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate::Timestamp;

const NOW: u64 = 1_800_000_000;

/// A key file that is removed when it is dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn with(text: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-keys-{}-{number}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        std::fs::write(&file.0, text).unwrap();
        file
    }

    fn settings(&self) -> TokenSettings {
        TokenSettings { keys: self.0.clone(), issuer: None, audience: Vec::new() }
    }

    fn verifier(&self) -> TokenVerifier {
        verifier(self.settings()).unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn verifier(settings: TokenSettings) -> Result<TokenVerifier, String> {
    let clock = Clock::manual(Timestamp::from_nanos(NOW * 1_000_000_000));
    let keys = LiveKeys::read(settings).map_err(|error| error.to_string())?;
    Ok(TokenVerifier::new(keys, clock))
}

/// Why the file is refused, without its name.
fn refusal(text: &str) -> String {
    let file = KeyFile::with(text);
    let Err(error) = verifier(file.settings()) else { panic!("accepted: {text}") };
    let start = format!("jwt.keys: {}: ", file.0.display());
    error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
}

fn claims() -> Value {
    json!({ "sub": "alice", "exp": NOW + 60, "iss": "https://id.example", "aud": ["api", "web"] })
}

/// A token as an issuer makes it, without the library that verifies.
fn encode(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let [header, claims] =
        [header, claims].map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes()));
    let message = format!("{header}.{claims}");
    let signature = BASE64URL_NOPAD.encode(&sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn ecdsa(curve: &'static EcdsaSigningAlgorithm, key: &KeyPair, message: &[u8]) -> Vec<u8> {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(curve, &key.serialize_der(), &random).unwrap();
    key.sign(&random, message).unwrap().as_ref().to_vec()
}

fn rsa(encoding: &'static dyn RsaEncoding, key: &KeyPair, message: &[u8]) -> Vec<u8> {
    let key = RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap();
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

/// A token of the algorithm ES256, with more fields in its header.
fn signed_with(key: &KeyPair, claims: &Value, fields: &Value) -> String {
    let mut header = json!({ "typ": "JWT", "alg": "ES256" });
    for (name, value) in fields.as_object().unwrap() {
        header[name] = value.clone();
    }
    encode(&header, claims, |message| ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, key, message))
}

/// A token of the algorithm ES256.
fn signed(key: &KeyPair, claims: &Value) -> String {
    signed_with(key, claims, &json!({}))
}

fn jwk(key: &KeyPair, id: &str) -> Value {
    let point = key.public_key_raw();
    let [x, y] = [&point[1..33], &point[33..65]].map(|number| BASE64URL_NOPAD.encode(number));
    json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": id })
}

fn subject(verifier: &TokenVerifier, token: &str) -> Result<String, TokenError> {
    let claims = verifier.verify(token)?;
    Ok(claims.get("sub")?.unwrap_or_default().to_owned())
}

/// An RSA key for tests; ring cannot generate one.
fn rsa_key() -> KeyPair {
    KeyPair::from_pem(include_str!("rsa.pem")).unwrap()
}

#[test]
fn a_key_verifies_tokens_of_its_own_algorithm() {
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let (p256, of_rsa) = (KeyPair::generate().unwrap(), rsa_key());
    type Sign = fn(&KeyPair, &[u8]) -> Vec<u8>;
    let keys: [(&KeyPair, &str, Sign); 4] = [
        (&p256, "ES256", |key, message| ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, key, message)),
        (&p384, "ES384", |key, message| ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING, key, message)),
        (&ed25519, "EdDSA", |key, message| {
            let key = Ed25519KeyPair::from_pkcs8(&key.serialize_der()).unwrap();
            key.sign(message).as_ref().to_vec()
        }),
        (&of_rsa, "RS256", |key, message| rsa(&RSA_PKCS1_SHA256, key, message)),
    ];
    for (public, _, _) in &keys {
        let verifier = KeyFile::with(&public.public_key_pem()).verifier();
        for (key, algorithm, sign) in &keys {
            let token = encode(&json!({ "alg": algorithm }), &claims(), |bytes| sign(key, bytes));
            let same = key.public_key_raw() == public.public_key_raw();
            let expected = if same { Ok("alice".to_owned()) } else { Err(TokenError::UnknownKey) };
            assert_eq!(subject(&verifier, &token), expected, "{algorithm}");
        }
    }
}

/// An RSA key could verify six algorithms. In a key set it verifies the one that it names, and in PEM RS256.
#[test]
fn an_rsa_key_is_pinned_to_one_algorithm() {
    let key = rsa_key();
    let private = RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap();
    let PublicKeyComponents::<Vec<u8>> { n, e } = private.public().into();
    let [n, e] = [n, e].map(|number| BASE64URL_NOPAD.encode(&number));
    let algorithms: [(&str, &'static dyn RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    let in_set = |pinned| json!({ "keys": [{ "kty": "RSA", "n": n, "e": e, "alg": pinned }] });
    let mut files = vec![("RS256", key.public_key_pem())];
    files.extend(algorithms.map(|(pinned, _)| (pinned, in_set(pinned).to_string())));
    for (pinned, file) in files {
        let verifier = KeyFile::with(&file).verifier();
        for (algorithm, encoding) in algorithms {
            let header = json!({ "alg": algorithm });
            let token = encode(&header, &claims(), |message| rsa(encoding, &key, message));
            let is_pinned = algorithm == pinned;
            let expected = if is_pinned { Ok("alice".into()) } else { Err(TokenError::UnknownKey) };
            assert_eq!(subject(&verifier, &token), expected, "{pinned}: {algorithm}");
        }
    }
}

#[test]
fn forged_tokens_are_refused() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let verifier = KeyFile::with(&key.public_key_pem()).verifier();
    let valid = signed(&key, &claims());
    assert_eq!(subject(&verifier, &valid), Ok("alice".to_owned()));
    let parts: Vec<&str> = valid.split('.').collect();
    let [head, body, signature] = [parts[0], parts[1], parts[2]];
    let coded = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let mallory = coded(&json!({ "sub": "mallory", "exp": NOW + 60 }));
    let none = coded(&json!({ "alg": "none", "typ": "JWT" }));
    // Every client knows the public key, so it must not serve as a secret.
    let hmac = |secret: &[u8]| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let sign = |message: &[u8]| hmac::sign(&secret, message).as_ref().to_vec();
        encode(&json!({ "alg": "HS256" }), &claims(), sign)
    };
    let critical = signed_with(&key, &claims(), &json!({ "crit": ["exp"] }));
    for (token, expected) in [
        (format!("{head}.{mallory}.{signature}"), TokenError::Signature),
        (signed(&other, &claims()), TokenError::Signature),
        (format!("{head}.{body}."), TokenError::Signature),
        (format!("{none}.{body}."), TokenError::Malformed),
        (format!("{none}.{body}.{signature}"), TokenError::Malformed),
        (hmac(key.public_key_pem().as_bytes()), TokenError::UnknownKey),
        (hmac(key.public_key_raw()), TokenError::UnknownKey),
        (critical, TokenError::Critical),
        (format!("{head}.{body}"), TokenError::Malformed),
        (format!("{head}.{body}.{signature}.x"), TokenError::Malformed),
        (String::new(), TokenError::Malformed),
        ("opaque".to_owned(), TokenError::Malformed),
        (format!("{valid}="), TokenError::Malformed),
        ("x".repeat(LONGEST_TOKEN + 1), TokenError::TooLong),
    ] {
        assert_eq!(subject(&verifier, &token), Err(expected), "{token}");
    }
}

#[test]
fn issuer_audience_and_times_are_checked() {
    let key = KeyPair::generate().unwrap();
    let file = KeyFile::with(&key.public_key_pem());
    let issuer = Some("https://id.example".to_owned());
    let audience = vec!["api".to_owned(), "app".to_owned()];
    let verifier = verifier(TokenSettings { issuer, audience, ..file.settings() }).unwrap();
    let missing = |name: &str| TokenError::Missing(name.to_owned());
    for (name, value, expected) in [
        ("sub", json!("bob"), None),
        ("aud", json!("app"), None),
        ("aud", json!("web"), Some(TokenError::Audience)),
        ("aud", json!([]), Some(TokenError::Audience)),
        ("aud", Value::Null, Some(missing("aud"))),
        ("iss", json!("https://id.example.evil"), Some(TokenError::Issuer)),
        ("iss", json!(7), Some(missing("iss"))),
        ("iss", Value::Null, Some(missing("iss"))),
        ("exp", json!(NOW - 29), None),
        ("exp", json!(NOW - 30), Some(TokenError::Expired)),
        ("exp", Value::Null, Some(missing("exp"))),
        ("nbf", json!(NOW + 30), None),
        ("nbf", json!(NOW + 31), Some(TokenError::TooEarly)),
        ("sub", json!(7), None),
    ] {
        let mut claims = claims();
        claims[name] = value;
        let found = subject(&verifier, &signed(&key, &claims)).err();
        assert_eq!(found, expected, "{claims}");
    }
}

#[test]
fn a_key_is_chosen_by_its_id() {
    let keys = [KeyPair::generate().unwrap(), KeyPair::generate().unwrap()];
    let set = json!({ "keys": [jwk(&keys[0], "a"), jwk(&keys[1], "b")] });
    let verifier = KeyFile::with(&set.to_string()).verifier();
    let token =
        |key: &KeyPair, id: Option<&str>| signed_with(key, &claims(), &json!({ "kid": id }));
    for (key, id, expected) in [
        (&keys[0], Some("a"), Ok("alice".to_owned())),
        (&keys[1], Some("b"), Ok("alice".to_owned())),
        (&keys[1], Some("a"), Err(TokenError::Signature)),
        (&keys[0], Some("c"), Err(TokenError::UnknownKey)),
        (&keys[0], None, Err(TokenError::UnknownKey)),
    ] {
        assert_eq!(subject(&verifier, &token(key, id)), expected, "{id:?}");
    }
    // If there is one key only, a token need not name it.
    let set = json!({ "keys": [jwk(&keys[0], "a")] });
    let verifier = KeyFile::with(&set.to_string()).verifier();
    assert_eq!(subject(&verifier, &token(&keys[0], None)), Ok("alice".to_owned()));
    assert_eq!(subject(&verifier, &token(&keys[0], Some("z"))), Err(TokenError::UnknownKey));
}

/// A cache that outlived its keys would accept tokens of a key that was withdrawn because it leaked.
#[test]
fn a_remembered_token_is_refused_when_its_key_is_withdrawn_or_it_expires() {
    let (key, next) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let file = KeyFile::with(&key.public_key_pem());
    let verifier = file.verifier();
    let token = signed(&key, &claims());
    assert_eq!(subject(&verifier, &token), Ok("alice".to_owned()));
    verifier.clock.set(Timestamp::from_nanos((NOW + 90) * 1_000_000_000));
    assert_eq!(subject(&verifier, &token), Err(TokenError::Expired));
    verifier.clock.set(Timestamp::from_nanos(NOW * 1_000_000_000));
    assert_eq!(subject(&verifier, &token), Ok("alice".to_owned()));
    // A file with a mistake changes nothing.
    std::fs::write(&file.0, "{").unwrap();
    assert!(verifier.keys.reload().is_err());
    assert_eq!(subject(&verifier, &token), Ok("alice".to_owned()));
    std::fs::write(&file.0, next.public_key_pem()).unwrap();
    verifier.keys.reload().unwrap();
    assert_eq!(subject(&verifier, &token), Err(TokenError::Signature));
    assert_eq!(subject(&verifier, &signed(&next, &claims())), Ok("alice".to_owned()));
}

#[test]
fn key_files_with_mistakes_are_refused() {
    let key = KeyPair::generate().unwrap();
    let pem = key.public_key_pem();
    let set = |keys: Value| json!({ "keys": keys }).to_string();
    let with = |name: &str, value: Value| {
        let mut key = jwk(&key, "a");
        key[name] = value;
        set(json!([key]))
    };
    let of_bytes = |bytes: &[u8]| {
        let text = data_encoding::BASE64.encode(bytes);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    };
    let longer = [&key.subject_public_key_info()[..], &[0]].concat();
    let weak = json!({ "kty": "RSA", "n": BASE64URL_NOPAD.encode(&[7; 128]), "e": "AQAB" });
    for (text, expected) in [
        ("".to_owned(), "it has no key that verifies signatures"),
        ("no key".to_owned(), "it has no key that verifies signatures"),
        ("{".to_owned(), "it is not valid JSON"),
        ("{}".to_owned(), "it is not a JWKS"),
        (set(json!([])), "it has no key that verifies signatures"),
        (set(json!([7])), "`/keys/0`: it is not a valid key"),
        (set(json!([{ "kty": "oct", "k": "AAAA" }])), "`/keys/0`: a shared secret (`oct`)"),
        (with("d", json!("AAAA")), "`/keys/0`: it is a private key"),
        (with("x", json!("AAAA")), "`/keys/0`: its numbers have the wrong length"),
        (with("x", json!("?")), "`/keys/0`: a number is not valid base64url"),
        (set(json!([weak])), "`/keys/0`: an RSA key of 1024 bits is not accepted"),
        (with("use", json!("enc")), "it has no key that verifies signatures"),
        (with("alg", json!("ES384")), "it has no key that verifies signatures"),
        (with("crv", json!("P-521")), "it has no key that verifies signatures"),
        (set(json!([jwk(&key, "a"), jwk(&key, "a")])), "two keys have the id `a`"),
        (pem.repeat(5), "more than 4 keys have no id"),
        (set((0..65).map(|id| jwk(&key, &id.to_string())).collect()), "it has more than 64 keys"),
        (key.serialize_pem(), "it contains something else than public keys"),
        (of_bytes(&[0x30, 0]), "a public key in it is not valid"),
        (of_bytes(&longer), "a public key in it is not valid"),
    ] {
        let refused = refusal(&text);
        assert!(refused.starts_with(expected), "{refused}\n{text}");
    }
    // Keys for other purposes do not keep the rest of a set from being used.
    let other = json!({ "kty": "new", "kid": "n" });
    let file = KeyFile::with(&set(json!([other, jwk(&key, "a")])));
    assert_eq!(subject(&file.verifier(), &signed(&key, &claims())), Ok("alice".to_owned()));
}

fn head(method: Method, fields: &[&str]) -> Parts {
    let mut request = http::Request::builder().method(method);
    for field in fields {
        request = request.header("authorization", *field);
    }
    request.body(()).unwrap().into_parts().0
}

#[test]
fn a_request_without_a_token_has_no_user_and_one_with_a_wrong_token_is_refused() {
    let key = KeyPair::generate().unwrap();
    let verifier = KeyFile::with(&key.public_key_pem()).verifier();
    let token = signed(&key, &claims());
    let (valid, small, wrong) =
        (format!("Bearer {token}"), format!("bearer  {token} "), "Bearer x".to_owned());
    let user = VerifiedSource::Jwt("sub");
    for (method, fields, expected) in [
        (Method::GET, &[][..], Ok(None)),
        (Method::GET, &["Basic YTpi"], Ok(None)),
        (Method::GET, &[&valid], Ok(Some("alice"))),
        (Method::GET, &[&small], Ok(Some("alice"))),
        (Method::GET, &[&wrong], Err(TokenError::Malformed)),
        (Method::GET, &["Bearer"], Err(TokenError::Malformed)),
        (Method::GET, &[&valid, &valid], Err(TokenError::Repeated)),
        (Method::GET, &["Basic YTpi", &valid], Err(TokenError::Repeated)),
        // Only a preflight request is not asked for a token.
        (Method::OPTIONS, &[&wrong], Err(TokenError::Malformed)),
        (Method::OPTIONS, &[], Ok(None)),
    ] {
        let head = head(method, fields);
        let identity = RequestIdentity::of(Some(&verifier), &head, AuthAnswer::Nothing);
        let value = identity.value(user);
        let answer = identity.check();
        match expected {
            Ok(expected) => {
                assert_eq!(value.as_deref(), expected, "{fields:?}");
                assert!(answer.is_ok(), "{fields:?}");
            }
            Err(error) => {
                let answer = answer.unwrap_err();
                assert_eq!((value, answer.status.as_u16()), (None, 401), "{fields:?}");
                assert_eq!(answer.body, unauthorized(&error).body);
                assert!(
                    answer
                        .fields
                        .iter()
                        .any(|(_, value)| value == "Bearer error=\"invalid_token\"")
                );
            }
        }
    }
    // If the policy names no claim, the token is the upstream server's business.
    let head = head(Method::GET, &[&wrong]);
    assert!(RequestIdentity::of(Some(&verifier), &head, AuthAnswer::Nothing).check().is_ok());
    let without_keys = RequestIdentity::of(None, &head, AuthAnswer::Nothing);
    assert_eq!(without_keys.value(user), None);
    assert!(without_keys.check().is_err());
}

/// `Bearer<TAB>…` and `Bearer<NBSP>…` were once taken for another scheme, so the request had no user and no limit for one, while
/// passport-jwt (`\s+`) and Python (`split()`) found the token.
#[test]
fn what_begins_like_a_bearer_token_is_one_or_is_refused() {
    let key = KeyPair::generate().unwrap();
    let verifier = KeyFile::with(&key.public_key_pem()).verifier();
    let token = signed(&key, &claims());
    let value = |field: &[u8]| {
        let mut head = head(Method::GET, &[]);
        head.headers.insert("authorization", HeaderValue::from_bytes(field).unwrap());
        let identity = RequestIdentity::of(Some(&verifier), &head, AuthAnswer::Nothing);
        let value = identity.value(VerifiedSource::Jwt("sub"));
        (value, identity.check().map_err(|answer| answer.status.as_u16()).err())
    };
    let of = |start: &[u8], end: &[u8]| [start, token.as_bytes(), end].concat();
    for start in ["Bearer ", "bearer   ", "BEARER ", " \tBearer "] {
        let (value, refused) = value(&of(start.as_bytes(), b" \t"));
        assert_eq!((value.as_deref(), refused), (Some("alice"), None), "{start:?}");
    }
    let spaces: [&[u8]; 9] = [
        b"\t",
        b" \t",
        b"\t ",
        b"\xa0",
        b" \xa0",
        "\u{a0}".as_bytes(),
        "\u{2003}".as_bytes(),
        "\u{3000}".as_bytes(),
        b"\x85",
    ];
    for space in spaces {
        let between = of(&[b"bearer", space].concat(), b"");
        let before = of(&[space, b"\xa0Bearer "].concat(), b"");
        let behind = of(b"Bearer ", &[space, b"x"].concat());
        for field in [between, before, behind] {
            assert_eq!(value(&field), (None, Some(401)), "{}", String::from_utf8_lossy(&field));
        }
    }
    for field in [
        "Bearer",
        "Bearer ",
        "bearer,",
        "Bearer: x",
        "Bearerx y",
        "Bearer=x",
        "Bearer \"x\"",
        "Bearer x, Basic y",
    ] {
        assert_eq!(value(field.as_bytes()), (None, Some(401)), "{field}");
    }
    for field in ["Basic YTpi", "Beare r", "bear", "", "\u{a0}", "Digest bearer=x"] {
        assert_eq!(value(field.as_bytes()), (None, None), "{field}");
    }
}
