//! Writes replies, in the protocol version that the client chose with `HELLO`.

use tidegate_policy::printable;

/// The version of RESP that a connection uses: RESP2 or RESP3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    #[default]
    Two,
    Three,
}

pub(crate) fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text.as_bytes());
}

/// An error. Control characters become spaces, so that quoted input cannot end the line and forge another reply.
pub(crate) fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn integer(out: &mut Vec<u8>, number: i64) {
    numbered(out, b':', number);
}

pub(crate) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn null(out: &mut Vec<u8>, dialect: Dialect) {
    out.extend_from_slice(match dialect {
        Dialect::Two => b"$-1\r\n",
        Dialect::Three => b"_\r\n",
    });
}

/// The beginning of a list; its items follow.
pub(crate) fn list(out: &mut Vec<u8>, length: usize) {
    self::length(out, b'*', length);
}

/// The beginning of a map; RESP2 has none, and gets a list of names and values in turn.
pub(crate) fn map(out: &mut Vec<u8>, length: usize, dialect: Dialect) {
    match dialect {
        Dialect::Two => list(out, length.saturating_mul(2)),
        Dialect::Three => self::length(out, b'%', length),
    }
}

/// The beginning of a word, safe to quote in an error.
pub(crate) fn quoted(word: &[u8]) -> String {
    let shown = word.get(..word.len().min(LONGEST_QUOTE)).unwrap_or_default();
    printable(&String::from_utf8_lossy(shown))
}

/// Bytes of a word that are quoted.
const LONGEST_QUOTE: usize = 128;

/// The error that Redis gives for a wrong number of arguments.
pub(crate) fn arity(out: &mut Vec<u8>, command: &str) {
    error(out, &format!("ERR wrong number of arguments for '{command}' command"));
}

fn length(out: &mut Vec<u8>, kind: u8, length: usize) {
    numbered(out, kind, i64::try_from(length).unwrap_or(i64::MAX));
}

fn numbered(out: &mut Vec<u8>, kind: u8, number: i64) {
    match number {
        // Most numbers of a reply are like these. A few bytes of known length are one store.
        -1 => out.extend_from_slice(&[kind, b'-', b'1', b'\r', b'\n']),
        0..=9 => {
            let digit = u8::try_from(number).unwrap_or(0);
            out.extend_from_slice(&[kind, b'0' | digit, b'\r', b'\n']);
        }
        _ => line(out, kind, itoa::Buffer::new().format(number).as_bytes()),
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stays_on_one_line() {
        let mut out = vec![];
        error(&mut out, "ERR unknown command 'a\r\n+OK\r\n'");
        assert_eq!(out, b"-ERR unknown command 'a  +OK  '\r\n");
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        let mut out = vec![];
        [0, 9, 10, -1, i64::MIN, i64::MAX].iter().for_each(|number| integer(&mut out, *number));
        let expected =
            ":0\r\n:9\r\n:10\r\n:-1\r\n:-9223372036854775808\r\n:9223372036854775807\r\n";
        assert_eq!(str::from_utf8(&out).unwrap(), expected);
    }

    #[test]
    fn dialects_differ_in_nulls_and_maps() {
        let (mut two, mut three) = (vec![], vec![]);
        for (out, dialect) in [(&mut two, Dialect::Two), (&mut three, Dialect::Three)] {
            map(out, 1, dialect);
            bulk(out, b"a");
            null(out, dialect);
        }
        assert_eq!(two, b"*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(three, b"%1\r\n$1\r\na\r\n_\r\n");
    }
}
