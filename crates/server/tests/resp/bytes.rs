//! Bytes that are commands, nearly commands, or neither: what is answered, and which connections are closed.
//!
//! Every case is sent in one write and in many small ones, and the client must see the same result.

use crate::resp::talk::{Dice, Talk, list, numbers, split};
use crate::support::{Server, connect};
use std::io::{Read, Write};
use std::time::Duration;

/// In how many ways each case is cut.
const SPLITS: u64 = 200;
/// The number of writes of a cut case. More would only take longer.
const PIECES: usize = 12;
/// In a case, six digits that differ each time it is sent, for keys that are not used yet.
const FRESH: &[u8; 6] = b"@@@@@@";

struct Case {
    bytes: Vec<u8>,
    replies: Vec<u8>,
    then: Then,
}

/// What happens to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    IsClosed,
}

fn case(bytes: impl AsRef<[u8]>, replies: impl AsRef<[u8]>, then: Then) -> Case {
    Case { bytes: bytes.as_ref().to_vec(), replies: replies.as_ref().to_vec(), then }
}

fn answered(bytes: impl AsRef<[u8]>, replies: impl AsRef<[u8]>) -> Case {
    case(bytes, replies, Then::GoesOn)
}

/// A command, and the error that it gets.
fn told(words: &str, error: &str) -> Case {
    answered(list(&split(words)), format!("-{error}\r\n"))
}

/// Bytes that end a connection, with an error.
fn refused(bytes: impl AsRef<[u8]>, error: &str) -> Case {
    case(bytes, format!("-ERR Protocol error: {error}\r\n"), Then::IsClosed)
}

/// Bytes that end a connection without an answer.
fn ignored(bytes: impl AsRef<[u8]>) -> Case {
    case(bytes, "", Then::IsClosed)
}

// === running the cases ===

/// Sends the cases whole and in pieces to one server.
fn play(server: &Server, cases: &[Case]) {
    let mut fresh = 0_u32;
    for case in cases {
        for seed in 0..=SPLITS {
            fresh += 1;
            let digits = format!("{fresh:06}");
            let bytes = renewed(&case.bytes, digits.as_bytes());
            let replies = renewed(&case.replies, digits.as_bytes());
            let pieces = if seed == 0 { vec![&*bytes] } else { cut(&bytes, seed) };
            let heard = heard(server, &pieces, case.then);
            let (heard, replies) = (heard.escape_ascii().to_string(), replies.escape_ascii());
            let shown = bytes.get(..bytes.len().min(200)).unwrap().escape_ascii();
            assert_eq!(heard, replies.to_string(), "to {shown}, seed {seed}");
        }
        server.is_well();
    }
}

/// Everything that the server sends until the connection is closed, by the server or by the client.
fn heard(server: &Server, pieces: &[&[u8]], then: Then) -> Vec<u8> {
    let mut talk = server.talk();
    for piece in pieces {
        talk.try_send(piece);
    }
    match then {
        Then::GoesOn => {
            talk.send(b"ECHO on\r\n");
            talk.finish();
            let mut heard = talk.rest();
            assert!(heard.ends_with(b"$2\r\non\r\n"), "{}", heard.escape_ascii());
            heard.truncate(heard.len() - 8);
            heard
        }
        Then::IsClosed => {
            // Bytes after it are not read.
            talk.try_send(b"\r\nPING\r\n");
            talk.rest()
        }
    }
}

/// Writes of a few bytes near the beginning and the end, where mistakes are likely, and of more bytes between.
fn cut(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut dice = Dice(seed);
    let mut places: Vec<usize> = (0..PIECES - 1)
        .map(|place| match place % 3 {
            0 => dice.roll(bytes.len() + 1),
            1 => dice.roll(bytes.len().min(24) + 1),
            _ => bytes.len() - dice.roll(bytes.len().min(24) + 1),
        })
        .collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn renewed(bytes: &[u8], digits: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    while let Some(at) = bytes.windows(FRESH.len()).position(|window| window == FRESH) {
        bytes[at..at + FRESH.len()].copy_from_slice(digits);
    }
    bytes
}

// === commands ===

#[test]
fn a_command_is_a_list_or_a_line() {
    play(
        &Server::start(&[]),
        &[
            answered("*1\r\n$4\r\nPING\r\n", "+PONG\r\n"),
            answered(
                "*1\r\n$4\r\npInG\r\n*2\r\n$4\r\nPING\r\n$3\r\na\r\n\r\n",
                "+PONG\r\n$3\r\na\r\n\r\n",
            ),
            answered("PING\r\nPING\n  \r\nping", "+PONG\r\n+PONG\r\n").then_line("+PONG\r\n"),
            answered(
                "ECHO \"a b\"\r\n  ECHO   'c'  \r\nECHO ''\r\n",
                "$3\r\na b\r\n$1\r\nc\r\n$0\r\n\r\n",
            ),
            answered("\r\n\n*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n", "+PONG\r\n"),
            answered("\r\n".repeat(99), ""),
            answered("*0\r\n*-1\r\n".repeat(50).as_bytes(), ""),
            answered(format!("{0}PING\r\n{0}", "\r\n".repeat(99)), "+PONG\r\n"),
            answered(format!("{}ECHO {}\r\n", "PING\n".repeat(50), "e".repeat(1_000)), {
                format!("{}$1000\r\n{}\r\n", "+PONG\r\n".repeat(50), "e".repeat(1_000))
            }),
            answered(
                list(&[b"ECHO", &[b'e'; 8_192]]),
                [b"$8192\r\n", &[b'e'; 8_192][..], b"\r\n"].concat(),
            ),
            answered(
                list(&[b"ECHO".as_slice(); 64]),
                "-ERR wrong number of arguments for 'echo' command\r\n",
            ),
        ],
    );
}

impl Case {
    /// Ends its last line, which is answered, too.
    fn then_line(mut self, reply: &str) -> Self {
        self.bytes.extend(b"\r\n");
        self.replies.extend(reply.bytes());
        self
    }
}

#[test]
fn what_is_no_command_ends_the_connection() {
    let ping = "*1\r\n$4\r\nPING\r\n";
    let words = |length: &str| refused(format!("*1\r\n${length}\r\n"), "invalid bulk length");
    let lists = |length: &str| refused(format!("*{length}\r\n"), "invalid multibulk length");
    let mut cases = vec![
        refused("A".repeat(64 * 1024), "too big inline request"),
        refused(format!("{}\r\n", "A".repeat(1_025)), "too big inline request"),
        refused("\r\n".repeat(100_000), "too many empty lines"),
        refused("*0\r\n".repeat(101), "too many empty lines"),
        refused("*-1\r\n".repeat(101), "too many empty lines"),
        lists("99999999999999999999"),
        lists("+3"),
        lists("3.0"),
        lists(""),
        lists("-2"),
        lists("03"),
        lists("?"),
        lists(" 1"),
        lists("1 "),
        refused("*3\n", "invalid multibulk length"),
        refused("*2147483648\r\n", "too many arguments"),
        refused("*65\r\n", "too many arguments"),
        words("-1"),
        words("-2"),
        words("8193"),
        words("9223372036854775807"),
        words("01"),
        words("+4"),
        words("?"),
        words(""),
        refused("*1\r\n$4\r\nPINGxx", "a bulk string does not end where it should"),
        refused("*1\r\n$4\r\nPING\rx", "a bulk string does not end where it should"),
        refused("*1\r\n$4\r\nPING\n\n", "a bulk string does not end where it should"),
        refused("*1\r\n".repeat(10_000), "expected '$'"),
        refused("*1\r\n:1\r\n", "expected '$'"),
        refused("*2\r\n$4\r\nECHO\r\n+a\r\n", "expected '$'"),
        refused("ECHO \"a\r\n", "unbalanced quotes in request"),
        refused("ECHO \"a\"b\r\n", "unbalanced quotes in request"),
        ignored("POST / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n"),
        ignored("GET / HTTP/1.1\r\n"),
        ignored(format!("GET /{} HTTP/1.1\r\n", "a".repeat(2_000))),
        ignored("OPTIONS * HTTP/1.1\r\n"),
        ignored("Host: x\r\n"),
        ignored("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ignored("SSH-2.0-OpenSSH_9.2\r\n"),
        refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "not a command"),
    ];
    let others = [
        ":1", "+OK", "-ERR", "%1", "~1", ">1", "(123", ",1.5", "#t", "_", "=15", "!5", "|1", "$?",
        "$4", "\0", "{}", "\u{fc}",
    ];
    cases.extend(others.map(|other| refused(format!("{other}\r\n"), "not a command")));
    // Commands before it are answered first.
    cases.push(case(
        format!("{ping}PING\r\n{ping}*-7\r\n{ping}"),
        "+PONG\r\n+PONG\r\n+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n",
        Then::IsClosed,
    ));
    cases.push(case(
        format!("CL.THROTTLE {0} 1 1 3600\r\nCL.THROTTLE {0} 1 1 3600\r\n:1\r\n", "bad-@@@@@@"),
        "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:3600\r\n*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:7200\r\n-ERR Protocol error: not a command\r\n",
        Then::IsClosed,
    ));
    cases.push(case(format!("{ping}QUIT\r\n{ping}"), "+PONG\r\n+OK\r\n", Then::IsClosed));
    let server = Server::start(&[]);
    play(&server, &cases);
    let metrics = server.admin("GET", "/metrics", "", "").body;
    let browsers = "tidegate_refused_total{reason=\"other_protocol\"}";
    let count = metrics.lines().find_map(|line| line.strip_prefix(browsers)).unwrap_or("none");
    assert_eq!(count.trim(), (7 * (SPLITS + 1)).to_string(), "{metrics}");
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let usage = "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    let no_number = "Cell error: Store error: Couldn't parse as integer: ";
    let unknown = |name: &str| told(name, &format!("ERR unknown command '{name}'"));
    let long = "U".repeat(8_192);
    let mut cases = vec![
        answered(
            list(&[long.as_bytes()]),
            format!("-ERR unknown command '{}'\r\n", "U".repeat(128)),
        ),
        answered(
            list(&[b"a\r\n+OK\r\n"]),
            "-ERR unknown command 'a\u{fffd}\u{fffd}+OK\u{fffd}\u{fffd}'\r\n",
        ),
        answered(list(&[b"CL.THROTTLE", b"k", b"\r\n+OK\r\n", b"1", b"1"]), {
            format!("-{no_number}\u{fffd}\u{fffd}+OK\u{fffd}\u{fffd}\r\n")
        }),
        answered(list(&[b"CLIENT", b"\r\n+OK\r\n"]), {
            "-ERR unknown subcommand or wrong number of arguments for 'client'\r\n"
        }),
        answered(list(&[b"TG.CHECK", b"1", b"a\r\nb", b"v"]), {
            "-ERR `a\u{fffd}\u{fffd}b` is not a valid attribute name; use 1 to 64 bytes without control characters\r\n"
        }),
        answered(list(&[b"TG.RESET", b"a\r\nb"]), "-ERR there is no rule `a  b`\r\n"),
        told("HELLO 4", "NOPROTO unsupported protocol version"),
        told("HELLO 3 SETNAME", "ERR Syntax error in HELLO option"),
        answered(list(&[b"HELLO", b"3", b"SETNAME", b"a b\n"]), {
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n"
        }),
        told("AUTH x", "ERR AUTH is not needed: this server has no users"),
        told("AUTH a b c", "ERR wrong number of arguments for 'auth' command"),
        told("CL.THROTTLE k -1 30 60", "ERR the max_burst is negative"),
        told("CL.THROTTLE k 9223372036854775808 30 60", &format!("{no_number}9223372036854775808")),
        told("CL.THROTTLE k 15 30 0", "Cell error: Store error: Zero rates are not supported"),
        told("CL.THROTTLE k 15 0 60", "Cell error: Store error: Zero rates are not supported"),
        told(
            "CL.THROTTLE k 15 30 60 -1",
            "ERR the quantity is negative; use TG.REPORT to give tokens back",
        ),
        told("CL.THROTTLE k 1e3 30 60", &format!("{no_number}1e3")),
        told("CL.THROTTLE k 15 0x10 60", &format!("{no_number}0x10")),
        told("CL.THROTTLE k 15 30 ''", no_number),
        answered(list(&[b"CL.THROTTLE", b"k", b"15", b"30", b"60", b" 5"]), {
            format!("-{no_number} 5\r\n")
        }),
        told("PING a b", "ERR wrong number of arguments for 'ping' command"),
        told("ECHO", "ERR wrong number of arguments for 'echo' command"),
        told("TG.REPORT", "ERR wrong number of arguments for 'tg.report' command"),
        told("TG.RESET", "ERR wrong number of arguments for 'tg.reset' command"),
        told("TG.CHECK", "ERR usage: TG.CHECK cost [MAXWAIT ms] [RECEIPT] attribute value …"),
    ];
    for count in [0, 1, 2, 3, 6, 7, 12] {
        let words = ["CL.THROTTLE", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1"];
        cases.push(told(&words[..=count].join(" "), usage));
    }
    cases.extend(
        [
            "EVAL",
            "CONFIG",
            "DEBUG",
            "FLUSHALL",
            "SLAVEOF",
            "MODULE",
            "KEYS",
            "MONITOR",
            "SUBSCRIBE",
            "MULTI",
            "WATCH",
        ]
        .map(unknown),
    );
    // A colon within a name is not a colon after it, wherever the bytes are cut.
    cases.push(answered("a:b c\r\n", "-ERR unknown command 'a:b'\r\n"));
    play(&Server::start(&[]), &cases);
}

#[test]
fn what_libraries_say_when_they_connect_is_answered() {
    let info = format!(
        "# Server\r\ntidegate_version:{}\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n# Tidegate\r\npolicy_version:1\r\n",
        env!("CARGO_PKG_VERSION")
    );
    play(
        &Server::start(&[]),
        &[
            answered("SELECT 1\r\n", "+OK\r\n"),
            answered("CLIENT SETINFO LIB-NAME x\r\nCLIENT SETINFO LIB-VER 1\r\n", "+OK\r\n+OK\r\n"),
            answered("CLIENT SETNAME me\r\nCLIENT GETNAME\r\n", "+OK\r\n$2\r\nme\r\n"),
            answered("CLIENT GETNAME\r\n", "$-1\r\n"),
            answered("COMMAND\r\nCOMMAND DOCS\r\nCOMMAND COUNT\r\n", "*0\r\n*0\r\n:0\r\n"),
            answered("INFO\r\n", format!("${}\r\n{info}\r\n", info.len())),
            answered(
                "CLIENT SETNAME me\r\nRESET\r\nCLIENT GETNAME\r\n",
                "+OK\r\n+RESET\r\n$-1\r\n",
            ),
        ],
    );
}

/// A key is a sequence of any bytes.
#[test]
fn keys_are_apart_when_their_bytes_are() {
    let long = "l".repeat(8_186);
    let keys: [Vec<u8>; 9] = [
        b"@@@@@@".to_vec(),
        b"{@@@@@@}".to_vec(),
        b"{@@@@@@}a".to_vec(),
        b"{@@@@@@}b".to_vec(),
        b"@@@@@@\0".to_vec(),
        b"@@@@@@\r\n".to_vec(),
        b"@@@@@@\xff".to_vec(),
        b"@@@@@@\xfe".to_vec(),
        format!("@@@@@@{long}").into_bytes(),
    ];
    let mut bytes = vec![];
    let mut replies = String::new();
    for (left, resets) in [(1, 3_600), (0, 7_200)] {
        for key in &keys {
            bytes.extend(list(&[b"CL.THROTTLE", key, b"1", b"1", b"3600"]));
            replies += &format!("*5\r\n:0\r\n:2\r\n:{left}\r\n:-1\r\n:{resets}\r\n");
        }
    }
    let server = Server::start(&[]);
    play(&server, &[answered(bytes, replies)]);
    // The empty key is a key, too.
    let empty = |left| vec![0, 2, left, -1, 3_600 * (2 - left)];
    let mut talk = server.talk();
    assert_eq!(numbers(&talk.ask("CL.THROTTLE '' 1 1 3600")), empty(1));
    assert_eq!(numbers(&talk.ask("CL.THROTTLE '' 1 1 3600")), empty(0));
}

// === slow clients ===

/// A command that is never finished holds its connection for `resp.command_timeout`, even if its bytes keep dripping.
#[test]
fn whoever_does_not_finish_a_command_is_sent_away() {
    let server = Server::start(&["--resp-command-timeout", "300ms"]);
    let mut silent: Vec<Talk> = (0..100).map(|_| server.talk()).collect();
    for talk in &mut silent {
        talk.send(b"*3\r\n$8\r\nTHROTTLE");
    }
    for talk in &mut silent {
        assert_eq!(talk.rest(), b"");
    }
    let mut dripping = connect(server.resp);
    dripping.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // Each takes 20 ms or more, all of them twenty seconds.
    let drops = list(&[b"ECHO", &[b'e'; 1_000]]);
    let given = drops.iter().take_while(|drop| {
        let _ = dripping.write_all(&[**drop]);
        !matches!(dripping.read(&mut [0; 1]), Ok(0))
    });
    assert!(given.count() < drops.len(), "a drop every 20 ms was waited for");
    server.is_well();
}

/// Unread replies are kept up to a bound, and for a limited time.
#[test]
fn whoever_does_not_read_is_not_written_to() {
    let server = Server::start(&["--resp-write-timeout", "300ms"]);
    let mut talk = server.talk();
    let pipeline = list(&[b"ECHO", &[b'e'; 8_000]]).repeat(100);
    let sent = (0..1_000).take_while(|_| talk.stream().write_all(&pipeline).is_ok()).count();
    assert!(sent < 1_000, "800 MB of replies were kept for nobody");
    server.until("the connection is closed for what it did not read", |server| {
        let metrics = server.admin("GET", "/metrics", "", "").body;
        metrics.contains("tidegate_refused_total{reason=\"unread\"} 1")
    });
    server.is_well();
}
