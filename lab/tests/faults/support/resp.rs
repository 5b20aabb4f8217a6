//! Finds the end of a RESP message. The fault tests need nothing else of the protocol.

/// The length of the first message; `None` while it is incomplete. An invalid message has the length of its
/// first line.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    // How many messages are missing, including nested ones.
    let (mut missing, mut at) = (1u64, 0);
    while missing > 0 {
        let line = bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, count) = (bytes[at], &bytes[at + 1..at + line]);
        let count: Option<u64> = str::from_utf8(count).ok().and_then(|text| text.parse().ok());
        at += line + 2;
        missing -= 1;
        match (kind, count) {
            (b'*' | b'~' | b'>', Some(count)) => missing += count,
            (b'%', Some(count)) => missing += 2 * count,
            (b'$' | b'=' | b'!', Some(count)) => {
                at = at.checked_add(usize::try_from(count).unwrap())?.checked_add(2)?;
            }
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// The name of a command, in capitals.
pub(crate) fn name(command: &[u8]) -> String {
    let text = String::from_utf8_lossy(command);
    text.split("\r\n").nth(2).unwrap_or_default().to_uppercase()
}

#[test]
fn the_end_of_a_message_is_found() {
    for (bytes, expected) in [
        (&b"+OK\r\n:1\r\n"[..], Some(5)),
        (b"+OK\r", None),
        (b"$3\r\nabc\r\n+", Some(9)),
        (b"$3\r\nab", None),
        (b"$-1\r\n+", Some(5)),
        (b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n:7\r\n", Some(19)),
        (b"*2\r\n:1\r\n", None),
        (b"%1\r\n+a\r\n:1\r\n", Some(12)),
        (b"", None),
    ] {
        assert_eq!(length(bytes), expected, "{}", bytes.escape_ascii());
    }
    assert_eq!(name(b"*2\r\n$7\r\nevalsha\r\n$1\r\nx\r\n"), "EVALSHA");
}
