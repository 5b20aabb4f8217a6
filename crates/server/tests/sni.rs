//! Several certificates, chosen by the name that the client asks for.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]

use crate::support;

use std::process::Command;
use support::authority::Authority;
use support::{Server, folder};

const LATER: i32 = 4096;

impl Authority {
    /// The flags for these certificates.
    fn flags(&self, names: &[&str]) -> Vec<String> {
        let files = |end: &str| {
            let files: Vec<String> =
                names.iter().map(|name| self.text(&format!("{name}.{end}"))).collect();
            files.join(",")
        };
        ["--tls-certificate".to_owned(), files("pem"), "--tls-key".to_owned(), files("key")].into()
    }

    /// Whether curl accepts the certificate for this name.
    fn is_accepted(&self, server: &Server, host: &str) -> bool {
        let (port, ip) = (server.http.port(), server.http.ip());
        Command::new("curl")
            .args(["--silent", "--max-time", "20", "--cacert", &self.text("authority.pem")])
            .args(["--resolve", &format!("{host}:{port}:{ip}")])
            .arg(format!("https://{host}:{port}/live"))
            .output()
            .unwrap()
            .status
            .success()
    }
}

/// What the server says that does not start with these flags.
fn refusal(flags: &[String]) -> String {
    let folder = folder("refused");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "off"])
        .args(["--grpc-listen", "off", "--resp-listen", "off", "--data-dir"])
        .arg(folder.join("data"))
        .args(flags)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(folder);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

#[test]
fn each_client_gets_the_certificate_for_its_host_also_after_renewal() {
    let authority = Authority::new();
    authority.sign_until("site", &["127.0.0.1", "site.example"], LATER);
    authority.sign_until("shops", &["*.shops.example"], LATER);
    authority.sign_until("one", &["one.shops.example"], LATER);
    let flags = authority.flags(&["site", "shops", "one"]);
    let server = Server::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    for (host, expected) in [
        ("site.example", true),
        // Without a name, the first one is shown.
        ("127.0.0.1", true),
        ("two.shops.example", true),
        ("one.shops.example", true),
        ("a.b.shops.example", false),
        ("new.example", false),
    ] {
        assert_eq!(authority.is_accepted(&server, host), expected, "{host}");
    }
    authority.sign_until("one", &["one.shops.example", "new.example"], LATER);
    server.until("the renewed certificate is shown", |server| {
        authority.is_accepted(server, "new.example")
    });
    // A certificate with a mistake changes nothing.
    authority.sign_until("one", &["newer.example"], 2001);
    server.until("the mistake is reported", |server| server.log().contains("it has expired on"));
    assert!(!authority.is_accepted(&server, "newer.example"));
    assert!(authority.is_accepted(&server, "new.example"));
    assert!(authority.is_accepted(&server, "two.shops.example"));
}

#[test]
fn mistakes_are_reported_with_the_file_at_the_start() {
    let authority = Authority::new();
    authority.sign_until("a", &["a.example"], LATER);
    authority.sign_until("b", &["b.example"], LATER);
    authority.sign_until("old", &["old.example"], 2001);
    authority.sign_until("bare", &["127.0.0.1"], LATER);
    authority.sign_until("same", &["a.example"], LATER);
    std::fs::write(authority.path("none.pem"), "no certificate").unwrap();
    std::fs::write(authority.path("none.key"), "no key").unwrap();
    let about = |file: &str| authority.text(file);
    let mut swapped = authority.flags(&["a", "b"]);
    swapped[3] = authority.flags(&["b", "a"])[3].clone();
    let mut fewer = authority.flags(&["a", "b"]);
    fewer[3] = authority.flags(&["a"])[3].clone();
    for (flags, file, expected) in [
        (swapped, about("b.key"), "it does not match the certificate"),
        (fewer, "tls.certificate and tls.key".to_owned(), "list different numbers of files"),
        (authority.flags(&["a", "old"]), about("old.pem"), "it has expired on"),
        (authority.flags(&["a", "bare"]), about("bare.pem"), "it has no host name"),
        (authority.flags(&["a", "same"]), about("same.pem"), "have all of its names (a.example)"),
        (authority.flags(&["a", "none"]), about("none.pem"), "it contains no PEM certificate"),
    ] {
        let said = refusal(&flags);
        assert!(said.contains(&file) && said.contains(expected), "{said}");
    }
}
