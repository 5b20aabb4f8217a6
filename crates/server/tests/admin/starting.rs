//! A server that cannot start ends with exit code 2 and a line that names the problem, before it serves any request.

use crate::support::{folder, write_private};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Starts a server that is expected to fail. If it prints its greeting, it is stopped and the test fails. (With a JSON log the
/// greeting would be a line of the log.)
pub(crate) fn serve(folder: &Path, flags: &[&str]) -> Output {
    let data = folder.join("data");
    let usual = [
        ["--http-listen", "127.0.0.1:0"],
        ["--admin-listen", "127.0.0.1:0"],
        ["--resp-listen", "127.0.0.1:0"],
        ["--grpc-listen", "127.0.0.1:0"],
        ["--data-dir", data.to_str().unwrap()],
    ];
    let usual = usual.iter().filter(|[flag, _]| !flags.contains(flag)).flatten();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .args(usual)
        .args(flags)
        .env("TIDEGATE_LOG_FORMAT", "text")
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut greeting = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
    if !greeting.is_empty() {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("it has started with {flags:?}");
    }
    child.wait_with_output().unwrap()
}

/// Checks that the server did not start, and that its message contains each of these words.
pub(crate) fn refused(folder: &Path, flags: &[&str], words: &[&str]) {
    let output = serve(folder, flags);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{flags:?}: {told}");
    for word in words {
        let line = told.lines().find(|line| line.starts_with("tidegate: ") && line.contains(word));
        assert!(line.is_some(), "{flags:?}: `{word}` is not in: {told}");
    }
}

#[test]
fn settings_that_make_no_sense() {
    let folder = folder("settings");
    for (flags, words) in [
        (&["--admin-listen", "0.0.0.0:0"][..], &["admin.listen", "admin.operator_token_file"][..]),
        (&["--admin-listen", "[::]:0"], &["admin.listen", "admin.operator_token_file"]),
        (&["--admin-listen", "192.0.2.1:0"], &["admin.listen", "admin.operator_token_file"]),
        (
            &["--admin-listen", "127.0.0.1:7", "--http-listen", "127.0.0.1:7"],
            &["http.listen and admin.listen"],
        ),
        (
            &[
                "--admin-listen",
                "off",
                "--http-listen",
                "off",
                "--resp-listen",
                "off",
                "--grpc-listen",
                "off",
            ],
            &["every listener is off"],
        ),
        (&["--http-listen", "localhost"], &["--http-listen: `localhost`"]),
        (&["--memory-budget", "1KiB"], &["--memory-budget"]),
        (&["--workers", "0"], &["--workers"]),
        (&["--drain-timeout", "0s"], &["--drain-timeout"]),
        (&["--http-max-connections", "0"], &["--http-max-connections"]),
        (&["--store", "postgres://x"], &["--store"]),
        (&["--log-level", "loud", "--log-format", "xml"], &["--log-level", "--log-format"]),
        (&["--config", "nowhere.yaml"], &["nowhere.yaml"]),
    ] {
        refused(&folder, flags, words);
    }
    std::fs::write(folder.join("tidegate.yaml"), "http:\n  listn: 127.0.0.1:7\n").unwrap();
    refused(&folder, &[], &["tidegate.yaml:2:3: unknown setting `http.listn`"]);
    assert!(!folder.join("data").exists(), "a start that was refused has left something");
}

#[test]
fn a_flag_that_was_renamed_is_refused_with_its_new_name() {
    let output = serve(&folder("renamed"), &["--settle-within", "5s"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("this flag is now called --receipt-ttl"), "{text}");
}

#[test]
fn files_that_cannot_be_read() {
    let folder = folder("files");
    let path = |name: &str, text: &str| {
        write_private(&folder.join(name), text);
        folder.join(name).to_str().unwrap().to_owned()
    };
    let long = "0123456789abcdef";
    let [broken, short, two, secret, file] = [
        path("broken.yaml", "version: 1\nrules: [{ nmae: a }]\n"),
        path("short", "too-short"),
        path("two", &format!("{long} {long}")),
        path("secret", "much too short"),
        path("file", ""),
    ];
    let nested = format!("{file}/data");
    for (flags, words) in [
        (&["--policy", "nowhere.yaml"][..], &["policy", "nowhere.yaml", "No such file"][..]),
        (&["--policy", "/dev/zero"], &["policy", "/dev/zero", "not a regular file"]),
        (&["--policy", "."], &["policy", "not a regular file"]),
        (&["--policy", &broken], &["broken.yaml:2:11: unknown key `nmae`"]),
        (&["--secret-file", &secret], &["secret_file", "exactly 32 bytes"]),
        (&["--data-dir", &nested], &["data_dir", &nested]),
        (&["--admin-operator-token-file", "nowhere"], &["admin.operator_token_file", "nowhere"]),
        (
            &["--admin-operator-token-file", &short],
            &["admin.operator_token_file", "16 ASCII characters"],
        ),
        (&["--admin-operator-token-file", &two], &["admin.operator_token_file", "one word"]),
        (
            &["--admin-reader-token-file", &short],
            &["admin.reader_token_file", "16 ASCII characters"],
        ),
    ] {
        refused(&folder, flags, words);
    }
}

#[test]
fn ports_that_somebody_else_has() {
    let folder = folder("ports");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&folder, &["--http-listen", &address], &["http.listen", &address, "in use"]);
    refused(&folder, &["--admin-listen", &address], &["admin.listen", &address, "in use"]);
    refused(&folder, &["--http-listen", "192.0.2.1:0"], &["http.listen", "192.0.2.1:0"]);
    // The listeners are opened only after everything else was checked.
    let token = ["--admin-operator-token-file", "nowhere", "--http-listen", &address];
    refused(&folder, &token, &["admin.operator_token_file"]);
    refused(&folder, &["--policy", "nowhere", "--http-listen", &address], &["policy: nowhere"]);
}

/// If both tokens were the same, every reader would be an operator.
#[test]
fn a_reader_is_no_operator() {
    let folder = folder("tokens");
    write_private(&folder.join("token"), "0123456789abcdef0123456789\n");
    write_private(&folder.join("copy"), "0123456789abcdef0123456789");
    let flags = ["--admin-operator-token-file", "token", "--admin-reader-token-file", "copy"];
    refused(&folder, &flags, &["admin.reader_token_file", "admin.operator_token_file"]);
}
