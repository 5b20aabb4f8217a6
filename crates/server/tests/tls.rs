//! TLS as clients see it: curl, redis-cli and `tidegate check`; renewed certificates; client certificates; and
//! clients that do not speak TLS.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may fail loudly, and some of them are about time"
)]

use crate::support;

use rcgen::{BasicConstraints, IsCa};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::authority::Authority;
use support::{PATIENCE, Server};

impl Authority {
    /// A server that shows the certificate `server`.
    fn server(&self, flags: &[&str]) -> Server {
        self.sign("server");
        let (certificate, key) = (self.text("server.pem"), self.text("server.key"));
        let mut all = vec!["--tls-certificate", &certificate, "--tls-key", &key];
        all.extend(flags);
        Server::start(&all)
    }

    /// The output and exit code of curl for a check.
    fn curl(&self, server: &Server, flags: &[&str]) -> Output {
        Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                "--max-time",
                "20",
                "--cacert",
                &self.text("authority.pem"),
            ])
            .args(["--write-out", "\n%{http_version} %{http_code}"])
            .args(["--json", r#"{"attributes":{"ip":"203.0.113.7"}}"#])
            .args(flags)
            .arg(format!("https://localhost:{}/v1/check", server.http.port()))
            .output()
            .unwrap()
    }

    fn ready(&self, server: &Server) -> String {
        let output = Command::new("curl")
            .args(["--silent", "--cacert", &self.text("authority.pem")])
            .arg(format!("https://localhost:{}/ready", server.http.port()))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn redis_cli(&self, server: &Server, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["--tls", "--cacert", &self.text("authority.pem"), "-h", "localhost"])
            .args(["-p", &server.resp.port().to_string()])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn every_listener_speaks_it_and_clients_choose_the_version_of_http() {
    let authority = Authority::new();
    let policy = authority.text("policy.yaml");
    let rule = "{ name: per-client, key: [ip], limits: [2/h] }";
    std::fs::write(&policy, format!("version: 1\nrules:\n  - {rule}\n")).unwrap();
    let server = authority.server(&["--policy", &policy]);
    assert_eq!(last_line(&authority.curl(&server, &["--http1.1"])), "1.1 200");
    assert_eq!(last_line(&authority.curl(&server, &["--http2"])), "2 200");
    assert_eq!(last_line(&authority.curl(&server, &[])), "2 429");
    assert_eq!(authority.redis_cli(&server, &["PING"]), "PONG\n");
    assert_eq!(
        authority.redis_cli(&server, &["CL.THROTTLE", "k", "1", "1", "60"]),
        "0\n2\n1\n-1\n60\n"
    );
    let live = Command::new("curl")
        .args(["--silent", "--cacert", &authority.text("authority.pem")])
        .arg(format!("https://localhost:{}/metrics", server.admin.port()))
        .args(["--write-out", "%{http_code}", "--output", "/dev/null"])
        .output()
        .unwrap();
    assert_eq!(last_line(&live), "401");
}

#[test]
fn listeners_that_are_not_named_stay_plain() {
    let authority = Authority::new();
    let server = authority.server(&["--tls-listeners", "resp"]);
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    assert_eq!(authority.redis_cli(&server, &["PING"]), "PONG\n");
}

#[test]
fn our_own_command_asks_under_it_too() {
    let authority = Authority::new();
    let server = authority.server(&[]);
    let check = |flags: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["check", "ip=203.0.113.7", "--server"])
            .arg(format!("https://localhost:{}", server.http.port()))
            .args(flags)
            .output()
            .unwrap()
    };
    let trusted = check(&["--cacert", &authority.text("authority.pem")]);
    assert!(trusted.status.success(), "{trusted:?}");
    let blind = check(&[]);
    assert_eq!(blind.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&blind.stderr).contains("--cacert FILE"), "{blind:?}");
    let stranger = Authority::new();
    let deceived = check(&["--cacert", &stranger.text("authority.pem")]);
    assert_eq!(deceived.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&deceived.stderr)
            .contains("the certificate of the server is not trusted"),
        "{deceived:?}"
    );
}

/// The certificate that `openssl req -x509` makes is that of a CA, so it is not accepted as the certificate of a server. The error
/// was `invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))`. It must say what is wrong, and what to do.
#[test]
fn a_certificate_that_is_not_trusted_is_explained() {
    let authority = Authority::new();
    authority.sign_itself("server", IsCa::Ca(BasicConstraints::Unconstrained));
    authority.sign_itself("plain", IsCa::ExplicitNoCa);
    authority.sign_itself("again", IsCa::ExplicitNoCa);
    let other = Authority::new();
    for (shown, given, said) in [
        (
            "server",
            authority.text("server.pem"),
            "Create it again with `-addext basicConstraints=critical,CA:FALSE`",
        ),
        ("plain", authority.text("plain.pem"), ""),
        ("plain", authority.text("again.pem"), "give the new one"),
        ("plain", other.text("authority.pem"), "Give the CA that signed it"),
    ] {
        let (certificate, key) =
            (authority.text(&format!("{shown}.pem")), authority.text(&format!("{shown}.key")));
        let server = Server::start(&["--tls-certificate", &certificate, "--tls-key", &key]);
        let url = format!("https://localhost:{}", server.http.port());
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["check", "--server", &url, "--cacert", &given, "ip=203.0.113.7"])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = if said.is_empty() { 0 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{shown}, {given}: {told}");
        assert!(told.contains(said) && !told.contains("OtherError"), "{shown}, {given}: {told}");
    }
}

#[test]
fn whoever_speaks_something_else_is_let_go_and_counted() {
    let authority = Authority::new();
    let server = authority.server(&["--tls-listeners", "http,resp"]);
    for address in [server.http, server.resp] {
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            &[0; 64],
        ] {
            let heard = said(address, bytes);
            assert!(!heard.starts_with(b"HTTP") && !heard.starts_with(b"+"), "{heard:?}");
        }
    }
    server.until_refused("handshake", 8);
    assert_eq!(last_line(&authority.curl(&server, &[])), "2 200");
}

/// Everything that the server sends until it closes the connection.
fn said(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    if let Err(error) = stream.read_to_end(&mut all) {
        // A reset counts as an end, too; a timeout does not.
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    all
}

#[test]
fn a_handshake_that_does_not_come_to_an_end_is_ended() {
    let authority = Authority::new();
    let server =
        authority.server(&["--tls-listeners", "http,resp", "--tls-handshake-timeout", "5s"]);
    let began = Instant::now();
    // The first bytes of a TLS handshake, and nothing more.
    let silent: Vec<_> = [server.http, server.resp, server.http]
        .into_iter()
        .zip([&b"\x16\x03\x01\x02\x00\x01"[..], b"\x16", b""])
        .map(|(address, bytes)| std::thread::spawn(move || said(address, bytes)))
        .collect();
    silent.into_iter().for_each(|each| drop(each.join().unwrap()));
    assert!(began.elapsed() >= Duration::from_secs(5));
    server.until_refused("handshake", 3);
}

#[test]
fn a_server_that_stops_does_not_wait_for_a_handshake() {
    let authority = Authority::new();
    let mut server = authority.server(&["--drain-timeout", "1h"]);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!server.log().contains("closed before their answer"), "{}", server.log());
}

#[test]
fn clients_must_show_a_certificate_if_they_are_asked_for_one() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let trusted = authority.text("authority.pem");
    let server =
        authority.server(&["--tls-client-ca-file", &trusted, "--tls-listeners", "http,resp"]);
    authority.sign("client");
    stranger.sign("client");
    let shown = |by: &Authority| [by.text("client.pem"), by.text("client.key")];
    let [certificate, key] = shown(&authority);
    let known = authority.curl(&server, &["--cert", &certificate, "--key", &key]);
    assert_eq!(last_line(&known), "2 200", "{known:?}");
    let [certificate, key] = shown(&stranger);
    for flags in [&["--cert", &certificate, "--key", &key][..], &[]] {
        let unknown = authority.curl(&server, flags);
        assert_eq!(last_line(&unknown), "0 000", "{unknown:?}");
        assert!(!unknown.status.success());
    }
    server.until_refused("handshake", 2);
}

#[test]
fn a_certificate_is_renewed_while_others_are_served() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.server(&["--tls-listeners", "http,resp"]);
    assert_eq!(last_line(&authority.curl(&server, &[])), "2 200");
    // A certificate and a key that do not match change nothing, and `/ready` reports them.
    let key = std::fs::read(authority.path("server.key")).unwrap();
    std::fs::write(authority.path("server.key"), "nonsense").unwrap();
    server.signal("HUP");
    server.until("it complains", |server| authority.ready(server).contains("tls.key"));
    assert_eq!(last_line(&authority.curl(&server, &[])), "2 200");
    std::fs::write(authority.path("server.key"), key).unwrap();
    server.until("it complains no more", |server| !authority.ready(server).contains("tls.key"));
    // Another CA signs. No signal is sent: the server watches the files.
    other.sign("server");
    for name in ["server.key", "server.pem"] {
        std::fs::copy(other.path(name), authority.path(name)).unwrap();
    }
    server.until("the new one is shown", |server| last_line(&other.curl(server, &[])) == "2 200");
    assert_eq!(last_line(&authority.curl(&server, &[])), "0 000");
}

#[test]
fn files_that_are_none_are_told_before_anything_starts() {
    let authority = Authority::new();
    authority.sign("one");
    authority.sign("two");
    std::fs::write(authority.path("empty"), "").unwrap();
    let path = |name: &str| authority.text(name);
    let (one, key, two, empty) = (path("one.pem"), path("one.key"), path("two.key"), path("empty"));
    for (flags, said) in [
        (vec!["--tls-certificate", &one], "set both tls.certificate and tls.key"),
        (vec!["--tls-client-ca-file", &one], "set both tls.certificate and tls.key"),
        (
            vec!["--tls-certificate", "/no/such", "--tls-key", &key],
            "tls.certificate: /no/such: No such file",
        ),
        (vec!["--tls-certificate", &empty, "--tls-key", &key], "it contains no PEM certificate"),
        (vec!["--tls-certificate", &one, "--tls-key", &empty], "it contains no PEM private key"),
        (vec!["--tls-certificate", &one, "--tls-key", &two], "it does not match the certificate"),
        (
            vec!["--tls-certificate", &one, "--tls-key", &key, "--tls-client-ca-file", &empty],
            "tls.client_ca_file: ",
        ),
        (
            vec!["--tls-listeners", "grpcs"],
            "listeners are `http`, `grpc`, `resp`, `proxy`, `admin` and `metrics`",
        ),
    ] {
        let refused = serve(&authority.path("data"), &flags);
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(said), "{flags:?}: {refused:?}");
    }
}

/// Starts a server that is expected to fail.
fn serve(data: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--data-dir", data.to_str().unwrap(), "--http-listen", "127.0.0.1:0"])
        .args(["--grpc-listen", "off", "--resp-listen", "off", "--admin-listen", "off"])
        .args(flags)
        .output()
        .unwrap()
}
