//! Tokens of clients of the reverse proxy: `user: jwt:sub`.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::support;

use data_encoding::BASE64URL_NOPAD;
use rcgen::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use support::http2::{Answer, END_HEADERS, END_STREAM, HEADERS, Two, fields, frame};
use support::upstream::Upstream;
use support::{Reply, Server, folder, request};

/// A user may send 2 requests an hour, and an address 6.
const POLICY: &str = "
version: 1
identity: { user: 'jwt:sub', tier: 'jwt:plan' }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: per-user, key: [user], limits: [2/h], tiers: { pro: unlimited } }
  - { name: per-address, key: [ip], limits: [6/h] }
";
/// Some time in the year 2100.
const LATER: u64 = 4_102_444_800;

/// An issuer of tokens, with its key file.
struct TokenIssuer {
    key: KeyPair,
    folder: PathBuf,
}

impl TokenIssuer {
    fn new() -> Self {
        let issuer = Self { key: KeyPair::generate().unwrap(), folder: folder("issuer") };
        issuer.publish();
        issuer
    }

    fn file(&self) -> String {
        self.folder.join("keys.pem").to_str().unwrap().to_owned()
    }

    /// Writes the public key.
    fn publish(&self) {
        let new = self.folder.join("keys.new");
        std::fs::write(&new, self.key.public_key_pem()).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn token(&self, claims: &serde_json::Value) -> String {
        let random = SystemRandom::new();
        let der = self.key.serialize_der();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random);
        let [header, claims] = [&json!({ "alg": "ES256" }), claims]
            .map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes()));
        let message = format!("{header}.{claims}");
        let signature = key.unwrap().sign(&random, message.as_bytes()).unwrap();
        format!("Bearer {message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    fn user(&self, name: &str) -> String {
        self.token(&json!({ "sub": name, "exp": LATER }))
    }

    /// A server that accepts its tokens.
    fn server(&self, policy: &str, upstream: &Upstream, flags: &[&str]) -> Server {
        let (url, file) = (format!("http://{}", upstream.address), self.file());
        let mut all = vec!["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url];
        all.extend(["--jwt-keys", &file]);
        all.extend(flags);
        Server::with_policy(policy, &all)
    }
}

impl Drop for TokenIssuer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn get(server: &Server, token: Option<&str>) -> Reply {
    let fields = token.map(|token| ("authorization", token));
    request(server.proxy, "GET", "/", fields.as_slice(), "")
}

#[test]
fn users_are_limited_by_their_tokens() {
    let (issuer, upstream) = (TokenIssuer::new(), Upstream::start("site"));
    let server = issuer.server(POLICY, &upstream, &[]);
    let [alice, bob] = ["alice", "bob"].map(|name| issuer.user(name));
    let pro = issuer.token(&json!({ "sub": "alice", "plan": "pro", "exp": LATER }));
    for (token, expected) in [
        (Some(&alice), 200),
        (Some(&alice), 200),
        (Some(&alice), 429),
        (Some(&bob), 200),
        // Her plan is in the token, too.
        (Some(&pro), 200),
        // Without a token there is no user, so only the limit of the address applies.
        (None, 200),
        (None, 200),
        (None, 429),
    ] {
        assert_eq!(get(&server, token.map(String::as_str)).status, expected);
    }
    assert_eq!(upstream.saw().len(), 6);
}

#[test]
fn a_wrong_token_is_refused_but_counts_for_its_address() {
    let (issuer, upstream) = (TokenIssuer::new(), Upstream::start("site"));
    let server = issuer.server(POLICY, &upstream, &["--jwt-issuer", "me"]);
    let claims =
        |issuer: &str, expires: u64| json!({ "sub": "alice", "iss": issuer, "exp": expires });
    let mallory = TokenIssuer::new();
    for (token, why) in [
        (issuer.token(&claims("me", 1_000)), "it has expired"),
        (issuer.token(&claims("you", LATER)), "it was issued by another issuer"),
        (mallory.token(&claims("me", LATER)), "its signature is wrong"),
        ("Bearer opaque".to_owned(), "it is not a signed JSON Web Token"),
    ] {
        let reply = get(&server, Some(&token));
        assert_eq!(reply.status, 401, "{reply:?}");
        assert_eq!(reply.field("www-authenticate"), Some("Bearer error=\"invalid_token\""));
        assert_eq!(reply.field("content-type"), Some("application/problem+json"));
        let detail = format!("the bearer token is not valid: {why}");
        assert_eq!(reply.json()["detail"], detail.as_str());
    }
    server.until_refused("unauthorized", 4);
    assert_eq!(upstream.saw(), [""; 0]);
    // None of them took from the limit of Alice, and all of them from that of the address.
    let valid = issuer.token(&claims("me", LATER));
    assert_eq!(get(&server, Some(&valid)).status, 200);
    assert_eq!(get(&server, Some("Bearer opaque")).status, 401);
    assert_eq!(get(&server, Some("Bearer opaque")).status, 429);
    assert_eq!(get(&server, Some(&valid)).status, 429);
    assert_eq!(upstream.saw().len(), 1);
}

#[test]
fn http2_clients_are_limited_in_the_same_way() {
    let (issuer, upstream) = (TokenIssuer::new(), Upstream::start("site"));
    let server = issuer.server(POLICY, &upstream, &[]);
    let alice = issuer.user("alice");
    let mut two = Two::to(server.proxy);
    for (token, expected) in
        [(alice.as_str(), 200), ("Bearer x", 401), (&alice, 200), (&alice, 429)]
    {
        let stream = two.next();
        let list = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "t"),
            ("authorization", token),
        ];
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
        let Answer::Whole { status, .. } = two.answer(stream) else { panic!("no answer") };
        assert_eq!(status, expected);
    }
}

#[test]
fn keys_are_replaced_while_the_server_runs() {
    let (mut issuer, upstream) = (TokenIssuer::new(), Upstream::start("site"));
    let policy = POLICY.replace("6/h", "1000000/h").replace("2/h", "1000000/h");
    let server = issuer.server(&policy, &upstream, &[]);
    let old = issuer.user("alice");
    assert_eq!(get(&server, Some(&old)).status, 200);
    std::fs::write(issuer.file(), "no key").unwrap();
    server.until("the mistake is reported", |server| {
        server.get("/ready").body.contains("it has no key that verifies signatures")
    });
    // The old keys stay in use.
    assert_eq!(get(&server, Some(&old)).status, 200);
    issuer.key = KeyPair::generate().unwrap();
    issuer.publish();
    let new = issuer.user("alice");
    server.until("the new key verifies", |server| get(server, Some(&new)).status == 200);
    assert_eq!(get(&server, Some(&old)).status, 401);
    server.until("all is well", |server| !server.get("/ready").body.contains("degraded"));
}

#[test]
fn a_policy_that_reads_tokens_needs_keys() {
    let folder = folder("no-keys");
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--policy", policy.to_str().unwrap(), "--data-dir"])
        .arg(folder.join("data"))
        .args(["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "`identity.user` comes from a token (`jwt:sub`), but there are no keys to verify it; set jwt.keys";
    assert!(!output.status.success() && said.contains(expected), "{said}");
    let _ = std::fs::remove_dir_all(folder);

    // Nor does such a policy come into force later.
    let open = "version: 1\nrules: [{ name: per-user, key: [ip], limits: [1000000/h] }]\n";
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", "http://127.0.0.1:1"];
    let server = Server::with_policy(open, &flags);
    std::fs::write(server.folder.join("policy.yaml"), POLICY).unwrap();
    server.until("the policy is refused", |server| server.get("/ready").body.contains("jwt.keys"));
    let uploaded = server.admin("PUT", "/admin/v1/policy", "application/yaml", POLICY);
    assert_eq!(uploaded.status, 422);
    assert!(uploaded.body.contains("jwt.keys"), "{uploaded:?}");
}

#[test]
fn forward_auth_does_not_decide_without_the_token() {
    let policy = POLICY.replace("identity: {", "identity: { trusted: [127.0.0.0/8],");
    let server = Server::with_policy(&policy, &[]);
    let fields = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
    let reply = request(server.http, "GET", "/v1/auth", &fields, "");
    assert_eq!(reply.status, 400);
    assert!(
        reply.body.contains("which only the reverse proxy of the server verifies"),
        "{reply:?}"
    );
    // A service that asks over the API has verified the user itself.
    let reply = server.post("/v1/check", r#"{"attributes":{"user":"alice","ip":"203.0.113.7"}}"#);
    assert_eq!(reply.status, 200);
}

/// A tab or a no-break space behind `Bearer` once hid the token from the limits, and not from the server behind them.
#[test]
fn a_token_cannot_be_hidden() {
    let (issuer, upstream) = (TokenIssuer::new(), Upstream::start("site"));
    let server = issuer.server(&POLICY.replace("6/h", "1000000/h"), &upstream, &[]);
    let token = issuer.user("alice");
    for expected in [200, 200, 429] {
        assert_eq!(get(&server, Some(&token)).status, expected);
    }
    for space in ["\t", " \t", "\u{a0}", "\u{2003}", ",", ""] {
        let hidden = token.replace(' ', space);
        assert_eq!(get(&server, Some(&hidden)).status, 401, "{space:?}");
        let list = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "site"),
            (":path", "/"),
            ("authorization", hidden.as_str()),
        ];
        let mut two = Two::to(server.proxy);
        let stream = two.next();
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
        let answer = two.answer(stream);
        assert!(matches!(answer, Answer::Whole { status: 401, .. }), "{space:?}: {answer:?}");
    }
    assert_eq!(upstream.saw().len(), 2);
}
