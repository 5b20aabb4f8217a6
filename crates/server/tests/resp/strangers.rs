//! Authentication: tokens, roles, and how little an unauthenticated client gets.

use crate::resp::talk::{APP, OPS, Said, Talk, error, list, numbers, simple, split, text};
use crate::support::Server;
use std::time::{Duration, Instant};

const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const TOO_MUCH: &[u8] = b"-ERR Protocol error: too much before AUTH\r\n";

#[test]
fn a_stranger_may_only_say_who_they_are() {
    let server = Server::with_users(&[]);
    let mut talk = server.talk();
    for words in
        ["PING", "CL.THROTTLE k 1 1 3600", "TG.CHECK 1", "INFO", "CLIENT ID", "EVAL", "SELECT 0"]
    {
        assert_eq!(talk.ask(words), error(NO_AUTH), "{words}");
    }
    let Said::Error(hello) = talk.ask("HELLO 3") else { panic!("strangers are greeted") };
    assert!(hello.starts_with("NOAUTH HELLO must be called"), "{hello}");
    // The protocol version of a refused `HELLO` is not used.
    assert_eq!(talk.ask(&format!("AUTH app {APP}")), simple("OK"));
    assert_eq!(talk.ask("CLIENT GETNAME"), Said::NoText);
    // Nothing was charged before.
    assert_eq!(numbers(&talk.ask("CL.THROTTLE k 1 1 3600")), [0, 2, 1, -1, 3_600]);
    assert_eq!(talk.ask("RESET"), simple("RESET"));
    assert_eq!(talk.ask("PING"), error(NO_AUTH));
}

#[test]
fn a_user_is_who_has_the_token() {
    let server = Server::with_users(&[]);
    for (words, said) in [
        (format!("AUTH {APP}"), simple("OK")),
        (format!("AUTH default {OPS}"), simple("OK")),
        (format!("AUTH ops {OPS}"), simple("OK")),
        (format!("AUTH ops {APP}"), error(WRONG)),
        (format!("AUTH root {OPS}"), error(WRONG)),
        ("AUTH app ''".to_owned(), error(WRONG)),
        (format!("HELLO 3 AUTH app {OPS}"), error(WRONG)),
    ] {
        let mut talk = server.talk();
        assert_eq!(talk.ask(&words), said, "{words}");
        let may = if said == simple("OK") { simple("PONG") } else { error(NO_AUTH) };
        assert_eq!(talk.ask("PING"), may, "{words}");
    }
    // A wrong token does not revoke an earlier authentication.
    let mut talk = server.talk();
    assert_eq!(talk.ask(&format!("AUTH {APP}")), simple("OK"));
    assert_eq!(talk.ask("AUTH wrong"), error(WRONG));
    assert_eq!(talk.ask("PING"), simple("PONG"));
}

#[test]
fn a_greeting_names_who_greets_and_is_taken_whole() {
    let server = Server::with_users(&[]);
    let mut talk = server.talk();
    let Said::Map(greeting) = talk.ask(&format!("HELLO 3 AUTH app {APP} SETNAME me")) else {
        panic!("no map in the dialect that has them")
    };
    let id = greeting[7].clone();
    let version = text(env!("CARGO_PKG_VERSION"));
    let expected = [
        text("server"),
        text("tidegate"),
        text("version"),
        version,
        text("proto"),
        Said::Number(3),
        text("id"),
        id,
        text("mode"),
        text("standalone"),
        text("role"),
        text("master"),
        text("modules"),
        Said::List(vec![]),
    ];
    assert_eq!(greeting, expected);
    assert_eq!(talk.ask("CLIENT GETNAME"), text("me"));
    assert_eq!(talk.ask("COMMAND DOCS"), Said::Map(vec![]));
    let Said::List(greeting) = talk.ask("HELLO 2") else {
        panic!("a map in the dialect that has none")
    };
    assert_eq!((greeting.len(), &greeting[5]), (14, &Said::Number(2)));

    // A `HELLO` with a mistake changes nothing.
    for words in [
        format!("HELLO 3 AUTH app {APP} NONSENSE"),
        format!("HELLO 3 AUTH app {APP} SETNAME"),
        format!("HELLO 3 AUTH app {APP} SETNAME \u{7f}"),
        format!("HELLO 9 AUTH app {APP}"),
        "HELLO 3 SETNAME me AUTH app wrong".to_owned(),
    ] {
        let mut talk = server.talk();
        assert!(matches!(talk.ask(&words), Said::Error(_)), "{words}");
        assert_eq!(talk.ask("PING"), error(NO_AUTH), "{words}");
        assert_eq!(talk.ask(&format!("AUTH {APP}")), simple("OK"));
        assert_eq!(talk.ask("CLIENT GETNAME"), Said::NoText, "{words}");
    }
}

#[test]
fn only_operators_reset() {
    let server = Server::with_users(&[]);
    let mut talk = server.talk();
    talk.ask(&format!("AUTH {APP}"));
    let needs = error("NOPERM TG.RESET needs the role `operator`: see resp.users_file");
    assert_eq!(talk.ask("TG.RESET default ip 203.0.113.7"), needs);
    assert_eq!(talk.ask("tg.reset default ip 203.0.113.7"), needs);
    let needs = error("NOPERM DEL needs the role `operator`: see resp.users_file");
    assert_eq!(talk.ask("del 203.0.113.7"), needs);
    talk.ask(&format!("AUTH {OPS}"));
    assert!(
        !matches!(&talk.ask("TG.RESET default ip 203.0.113.7"), Said::Error(text) if text.starts_with("NOPERM"))
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "waiting takes time")]
fn whoever_guesses_waits_longer_each_time_and_is_sent_away() {
    let server = Server::with_users(&[]);
    let mut talk = server.talk();
    for wait in [20, 40, 80, 160, 320, 640] {
        let asked = Instant::now();
        assert_eq!(talk.ask("AUTH app wrong"), error(WRONG));
        assert!(asked.elapsed() >= Duration::from_millis(wait), "{wait} ms");
    }
    assert_eq!(talk.rest(), b"");
    let mut talk = server.talk();
    talk.try_send(&list(&split("HELLO 3 AUTH app wrong")).repeat(20));
    talk.try_send(&list(&split("PING")));
    assert_eq!(talk.rest(), format!("-{WRONG}\r\n").repeat(6).into_bytes());
    // `RESET` does not reset the number of wrong tokens.
    let mut talk = server.talk();
    talk.try_send(&[list(&split("AUTH app wrong")), list(&[b"RESET"])].concat().repeat(20));
    talk.finish();
    let heard = String::from_utf8(talk.rest()).unwrap();
    assert_eq!(heard.matches("WRONGPASS").count(), 6, "{heard}");
}

#[test]
fn a_stranger_who_says_much_is_sent_away() {
    let server = Server::with_users(&[]);
    let long = [b'x'; 1_025];
    for bytes in [
        b"*11\r\n".to_vec(),
        b"*2\r\n$4\r\nAUTH\r\n$1025\r\n".to_vec(),
        b"*2\r\n$4\r\nAUTH\r\n$1048576\r\n".to_vec(),
        list(&[b"AUTH", &long]),
        list(&[&long[..1_024]; 4]),
        list(&[b"CL.THROTTLE", &long, b"1", b"1", b"1"]),
        b"AUTH a b c d e f g h i j\r\n".to_vec(),
        // After `RESET`, a client is unauthenticated again.
        [list(&split("RESET")), b"*11\r\n".to_vec()].concat(),
    ] {
        let mut talk = server.talk();
        talk.try_send(&bytes);
        let heard = talk.rest();
        assert!(heard.ends_with(TOO_MUCH), "{}: {}", bytes.escape_ascii(), heard.escape_ascii());
    }
    server.never_broke();
}

/// What an unauthenticated client can make the server hold: an announced name that is not sent, nearly all that may
/// be sent before it is checked, or more than that, which was once held too and took 24 KiB.
#[test]
fn a_stranger_holds_little() {
    const STRANGERS: usize = 500;
    const MOST: usize = 16 * 1024;
    let announced = b"*2\r\n$4\r\nAUTH\r\n$1000\r\n".to_vec();
    let mut nearly = list(&[&[b'x'; 1_000][..]; 4]);
    nearly.truncate(nearly.len() - 3);
    let mut much = list(&[&[b'x'; 1_000][..]; 10]);
    much.truncate(much.len() - 3);
    for bytes in [announced, nearly, much] {
        let server = Server::with_users(&[]);
        let held = held_by(&server, &bytes, STRANGERS);
        assert!(held <= MOST, "{held} bytes for {} of {}", STRANGERS, bytes.len());
    }
}

/// How much memory the server holds for each of this many connections that have sent these bytes.
fn held_by(server: &Server, bytes: &[u8], count: usize) -> usize {
    // Allocate first what is allocated only once.
    let warm = told(server, bytes, 20);
    let before = resident(server);
    let strangers = told(server, bytes, count);
    let held = resident(server).saturating_sub(before) / count;
    drop((warm, strangers));
    held
}

/// Connections whose bytes the server has read.
fn told(server: &Server, bytes: &[u8], count: usize) -> Vec<Talk> {
    let talk = |_| {
        let mut talk = server.talk();
        assert_eq!(talk.ask("PING"), error(NO_AUTH));
        talk.send(bytes);
        talk
    };
    let talks = (0..count).map(talk).collect();
    server.until("all that was sent is read", |server| unread(server) == 0);
    talks
}

/// Bytes that wait in the sockets of the server, according to the kernel.
fn unread(server: &Server) -> u64 {
    let ours = format!("0100007F:{:04X}", server.resp.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[1] == ours && fields[3] == ESTABLISHED)
        .map(|fields| u64::from_str_radix(fields[4].split(':').nth(1).unwrap(), 16).unwrap())
        .sum()
}

/// The kernel's code for an open connection.
const ESTABLISHED: &str = "01";

fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    kib * 1024
}
