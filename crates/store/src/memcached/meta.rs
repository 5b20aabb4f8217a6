//! The meta protocol of memcached 1.6 in bytes: commands, and replies.
//!
//! | command | meaning | replies |
//! |---|---|---|
//! | `ma key N60 J5 D5 T60 v c` | add 5, or begin with 5 | `VA 1 c7` and the new value |
//! | `ma key MD D5` | subtract 5, not below 0 | `HD`, or `NF` if there is none |
//! | `ma key D5` | add 5, if there is a value | `HD`, or `NF` |
//! | `ma key C7 MD D5` | subtract, if nothing has changed since `c7` | `HD`, or `EX` or `NF` |
//! | `mg key v c` | read | `VA 1 c7` and the value, or `EN` |
//! | `ms key 2 C7 T60` and a value | replace, if nothing has changed since `c7` (compare and swap) | `HD`, or `EX` or `NF` |
//! | `ms key 2 T60` and a value | write | `HD` |
//! | `ms key 2 ME T60` and a value | write, if there is none | `HD`, or `NS` |
//! | `md key` | delete | `HD`, or `NF` |
//!
//! A value that became shorter is padded with spaces at its end.

use smallvec::SmallVec;

/// Seconds that a value is kept: memcached reads more than this as an instant.
const LONGEST_TTL: u64 = 30 * 86_400;
/// A longer line or value is not ours.
const MAX_LINE: usize = 2_048;
const MAX_VALUE: usize = 1_024;
/// Lines of a reply to `stats`.
const MAX_STATS: usize = 1_024;

/// memcached keeps instants in 32 bits.
const LATEST: u64 = (1 << 31) - 1;

/// How long a value is kept, in seconds. memcached removes it then, so that nothing is kept for ever. 0 is no end: for times that
/// memcached cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ttl(u64);

impl Ttl {
    /// `server_time` is the time of the server in seconds, which it counts long times to live by.
    pub(super) const fn new(seconds: u64, server_time: u64) -> Self {
        if seconds <= LONGEST_TTL {
            return Self(seconds);
        }
        let instant = server_time.saturating_add(seconds);
        Self(if instant <= LATEST { instant } else { 0 })
    }
}

// === commands ===

/// A command, with its value.
pub(super) type Command = Vec<u8>;

/// The text of a key.
pub(super) type KeyText = SmallVec<[u8; 48]>;

pub(super) fn add(key: &[u8], weight: u64, first: u64, Ttl(ttl): Ttl) -> Command {
    let mut command = begin(b"ma ", key);
    push(&mut command, b" N", ttl);
    push(&mut command, b" J", first);
    push(&mut command, b" D", weight);
    push(&mut command, b" T", ttl);
    end(command, b" v c")
}

pub(super) fn subtract(key: &[u8], weight: u64) -> Command {
    let mut command = begin(b"ma ", key);
    push(&mut command, b" MD D", weight);
    end(command, b"")
}

/// Subtracts if nothing has changed since the value had this number.
pub(super) fn subtract_from(key: &[u8], weight: u64, cas: u64) -> Command {
    let mut command = begin(b"ma ", key);
    push(&mut command, b" C", cas);
    push(&mut command, b" MD D", weight);
    end(command, b"")
}

/// Adds to a value, if it still exists, and leaves its time to live as it is.
pub(super) fn put_back(key: &[u8], weight: u64) -> Command {
    let mut command = begin(b"ma ", key);
    push(&mut command, b" D", weight);
    end(command, b"")
}

pub(super) fn get(key: &[u8]) -> Command {
    end(begin(b"mg ", key), b" v c")
}

pub(super) fn swap(key: &[u8], value: u64, cas: u64, ttl: Ttl) -> Command {
    let mut digits = itoa::Buffer::new();
    let mode = begin(b" C", digits.format(cas).as_bytes());
    write(key, &mode, itoa::Buffer::new().format(value), ttl)
}

pub(super) fn set(key: &[u8], value: &str, ttl: Ttl) -> Command {
    write(key, b"", value, ttl)
}

pub(super) fn set_if_absent(key: &[u8], value: &str, ttl: Ttl) -> Command {
    write(key, b" ME", value, ttl)
}

fn write(key: &[u8], mode: &[u8], value: &str, Ttl(ttl): Ttl) -> Command {
    let mut command = begin(b"ms ", key);
    push(&mut command, b" ", value.len().try_into().unwrap_or(u64::MAX));
    command.extend_from_slice(mode);
    push(&mut command, b" T", ttl);
    let mut command = end(command, b"");
    command.extend_from_slice(value.as_bytes());
    end(command, b"")
}

pub(super) fn plain(command: &[u8]) -> Command {
    end(command.to_vec(), b"")
}

pub(super) fn delete(key: &[u8]) -> Command {
    end(begin(b"md ", key), b"")
}

/// Commands are built from bytes, because formatting took a third of a decision.
fn begin(name: &[u8], key: &[u8]) -> Command {
    let mut command = Command::with_capacity(128);
    command.extend_from_slice(name);
    command.extend_from_slice(key);
    command
}

fn push(command: &mut Command, name: &[u8], number: u64) {
    command.extend_from_slice(name);
    command.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn end(mut command: Command, flags: &[u8]) -> Command {
    command.extend_from_slice(flags);
    command.extend_from_slice(b"\r\n");
    command
}

// === replies ===

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `HD`, or `MN`.
    Done,
    /// `VA`: a value that is a number, and the number by which it is compared and swapped; 0 if the server has none.
    Number { value: u64, cas: u64 },
    /// `VA`: any other value.
    Text(String),
    /// `EN` or `NF`.
    Missing,
    /// `NS` or `EX`: another caller was faster.
    NotStored,
    /// `VERSION`.
    Version(String),
    /// `STAT` lines.
    Stats(Vec<(String, String)>),
    /// `ERROR`, `CLIENT_ERROR` or `SERVER_ERROR`, with its text.
    Error(String),
}

/// Bytes that are not a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl Reply {
    /// The value as a number.
    pub(super) const fn number(&self) -> Option<u64> {
        if let Self::Number { value, .. } = self { Some(*value) } else { None }
    }
}

/// Reads the first reply of these bytes, and how long it is. `None` if it is not complete.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let Some((line, mut end)) = line(bytes)? else { return Ok(None) };
    let mut words = line.split(' ');
    let reply = match words.next().unwrap_or_default() {
        "HD" | "MN" => Reply::Done,
        "EN" | "NF" => Reply::Missing,
        "NS" | "EX" => Reply::NotStored,
        "VERSION" => Reply::Version(words.collect::<Vec<_>>().join(" ")),
        "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => Reply::Error(line.to_owned()),
        "END" => Reply::Stats(vec![]),
        "STAT" => return stats(bytes),
        "VA" => {
            let size = words.next().and_then(|size| size.parse().ok()).unwrap_or(usize::MAX);
            if size > MAX_VALUE {
                return Err(Malformed(format!("a value is announced by `{line}`")));
            }
            let after = end.saturating_add(size);
            let Some(rest) = bytes.get(end..after.saturating_add(2)) else { return Ok(None) };
            let value = rest.strip_suffix(b"\r\n");
            let value = value.ok_or_else(|| Malformed("a value does not end".to_owned()))?;
            end = after.saturating_add(2);
            let cas = words.find_map(|word| word.strip_prefix('c')?.parse().ok()).unwrap_or(0);
            let digits = value.trim_ascii_end();
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let text = str::from_utf8(digits).unwrap_or_default();
            match text.parse() {
                Ok(value) if is_number => Reply::Number { value, cas },
                _ => Reply::Text(String::from_utf8_lossy(value).into_owned()),
            }
        }
        _ => return Err(Malformed(format!("it is `{line}`"))),
    };
    Ok(Some((reply, end)))
}

/// The first line, and where the next one begins.
fn line(bytes: &[u8]) -> Result<Option<(&str, usize)>, Malformed> {
    let head = bytes.get(..MAX_LINE).unwrap_or(bytes);
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
        if bytes.len() >= MAX_LINE {
            return Err(Malformed(format!("a line is longer than {MAX_LINE} bytes")));
        }
        return Ok(None);
    };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| Malformed("a line is not text".to_owned()))?;
    Ok(Some((text, end.saturating_add(1))))
}

fn stats(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some((text, length)) = line(rest)? else { return Ok(None) };
        at = at.saturating_add(length);
        if text == "END" {
            return Ok(Some((Reply::Stats(found), at)));
        }
        let stat = text.strip_prefix("STAT ").and_then(|stat| stat.split_once(' '));
        let Some((name, value)) = stat.filter(|_| found.len() < MAX_STATS) else {
            return Err(Malformed(format!("`{text}` among statistics")));
        };
        found.push((name.to_owned(), value.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(value: u64, cas: u64) -> Reply {
        Reply::Number { value, cas }
    }

    #[test]
    fn every_reply_is_read_and_measured() {
        for (text, expected) in [
            ("HD\r\n", Reply::Done),
            ("MN\r\n", Reply::Done),
            ("EN\r\n", Reply::Missing),
            ("NF\r\n", Reply::Missing),
            ("NS\r\n", Reply::NotStored),
            ("EX\r\n", Reply::NotStored),
            ("VA 2 c3\r\n7 \r\n", number(7, 3)),
            ("VA 2\r\n12\r\n", number(12, 0)),
            ("VA 4 t9 c18446744073709551615\r\na\r\nb\r\n", Reply::Text("a\r\nb".to_owned())),
            ("VERSION 1.6.18\r\n", Reply::Version("1.6.18".to_owned())),
            ("SERVER_ERROR out of memory\r\n", Reply::Error("SERVER_ERROR out of memory".into())),
            ("END\r\n", Reply::Stats(vec![])),
            (
                "STAT a 1\r\nSTAT b two words\r\nEND\r\n",
                Reply::Stats(vec![("a".into(), "1".into()), ("b".into(), "two words".into())]),
            ),
        ] {
            let followed = format!("{text}HD\r\n");
            assert_eq!(parse(followed.as_bytes()), Ok(Some((expected, text.len()))), "{text:?}");
            for cut in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..cut]), Ok(None), "{:?}", &text[..cut]);
            }
        }
        for text in ["VA 1 c1\r\nx\r\n", "VA 2 c1\r\n+7\r\n", "VA 0 c1\r\n\r\n"] {
            let (reply, _) = parse(text.as_bytes()).unwrap().unwrap();
            assert_eq!(reply.number(), None, "{text:?}");
        }
        let key = b"tg0f.1";
        let text = |command: Command| String::from_utf8(command).unwrap();
        assert_eq!(text(add(key, 5, 7, Ttl(60))), "ma tg0f.1 N60 J7 D5 T60 v c\r\n");
        assert_eq!(text(subtract(key, 5)), "ma tg0f.1 MD D5\r\n");
        assert_eq!(text(subtract_from(key, 5, 99)), "ma tg0f.1 C99 MD D5\r\n");
        assert_eq!(text(put_back(key, 5)), "ma tg0f.1 D5\r\n");
        assert_eq!(text(set(key, "abc", Ttl(9))), "ms tg0f.1 3 T9\r\nabc\r\n");
        assert_eq!(text(swap(key, 12, 99, Ttl(60))), "ms tg0f.1 2 C99 T60\r\n12\r\n");
        assert_eq!(text(set_if_absent(key, "abc", Ttl(0))), "ms tg0f.1 3 ME T0\r\nabc\r\n");
    }

    #[test]
    fn what_is_not_a_reply_is_refused() {
        for text in [
            "hello\r\n",
            "VA x c1\r\n",
            "VA 99999999 c1\r\n",
            "VA 1 c1\r\n123\r\n",
            "STAT a 1\r\nhello\r\n",
            "\r\n",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(parse(&vec![b'a'; MAX_LINE]).is_err());
        assert!(parse("STAT a 1\r\n".repeat(MAX_STATS + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_long_time_to_live_is_an_instant() {
        let [short, long] = [2_592_000, 2_592_001].map(|seconds| Ttl::new(seconds, 1_795_000_000));
        assert_eq!((short, long), (Ttl(2_592_000), Ttl(1_797_592_001)));
        assert_eq!(Ttl::new(u64::MAX, 1_795_000_000), Ttl(0));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
