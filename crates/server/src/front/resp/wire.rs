//! Commands as bytes: read where they lie, never copied, never believed about their length before they are here.

use crate::bounds;
use smallvec::SmallVec;

/// A command: its name and what follows it.
pub type Words<'b> = SmallVec<[&'b [u8]; 8]>;

/// What some bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A command of so many bytes; its words were put where they were asked for.
    Command(usize),
    /// Nothing, in so many bytes: an empty line, an empty list.
    Nothing(usize),
    /// The beginning of a command, which has at least so many bytes in all.
    More(usize),
}

/// Why the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command is longer than a line may be.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// The length of a list is not a number, or too large.
    #[error("Protocol error: invalid multibulk length")]
    ListLength,
    /// A command has more words than any command needs.
    #[error("Protocol error: too many arguments")]
    TooManyWords,
    /// A word of a list is not a bulk string.
    #[error("Protocol error: expected '$'")]
    NoBulk,
    /// The length of a bulk string is not a number, or too large.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// A bulk string is longer than its length says.
    #[error("Protocol error: a bulk string does not end where it should")]
    BulkEnd,
    /// The bytes are not a command in any form.
    #[error("Protocol error: this is no command")]
    NoCommand,
    /// A quote is opened and not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// Somebody speaks another protocol; a browser may have been made to.
    #[error("Protocol error: this is not that kind of port")]
    OtherProtocol,
    /// More than a client may send before it has authenticated.
    #[error("Protocol error: too much before AUTH")]
    BeforeAuth,
    /// More empty lines in a row than a client needs.
    #[error("Protocol error: too many empty lines")]
    TooManyEmpty,
    /// The budget for unread bytes is used up.
    #[error("there is no room for so long a command at the moment; try again later")]
    NoRoom,
}

/// How much may be asked at once.
#[derive(Clone, Copy, Debug)]
pub struct CommandBound {
    /// Words of a command.
    pub words: usize,
    /// Bytes of a word.
    pub bulk: usize,
    /// All of a command together.
    pub bytes: usize,
}

impl CommandBound {
    /// Of somebody who is known.
    pub const KNOWN: Self =
        Self { words: bounds::RESP_WORDS, bulk: bounds::RESP_BULK, bytes: bounds::RESP_UNREAD };
    /// Of somebody who must first say who they are.
    pub const UNKNOWN: Self = Self {
        words: bounds::RESP_WORDS_BEFORE_AUTH,
        bulk: bounds::RESP_BULK_BEFORE_AUTH,
        bytes: bounds::RESP_UNREAD_BEFORE_AUTH,
    };

    const fn too_many(self) -> ProtocolError {
        if self.words < bounds::RESP_WORDS {
            ProtocolError::BeforeAuth
        } else {
            ProtocolError::TooManyWords
        }
    }

    const fn too_long(self) -> ProtocolError {
        if self.bulk < bounds::RESP_BULK {
            ProtocolError::BeforeAuth
        } else {
            ProtocolError::BulkLength
        }
    }
}

/// Reads one command from the beginning of some bytes.
pub fn read<'b>(
    input: &'b [u8],
    most: CommandBound,
    words: &mut Words<'b>,
) -> Result<Read, ProtocolError> {
    words.clear();
    match input.first() {
        None => Ok(Read::More(1)),
        Some(b'*') => read_list(input, most, words),
        Some(byte) if byte.is_ascii_alphabetic() || byte.is_ascii_whitespace() => {
            read_inline(input, most, words)
        }
        Some(_) => Err(ProtocolError::NoCommand),
    }
}

// === lists ===

fn read_list<'b>(
    input: &'b [u8],
    most: CommandBound,
    words: &mut Words<'b>,
) -> Result<Read, ProtocolError> {
    let Some((length, mut at)) = number(input, 1, ProtocolError::ListLength)? else {
        return Ok(Read::More(input.len().saturating_add(1)));
    };
    let count = match length {
        ListLength::None => return Ok(Read::Nothing(at)),
        ListLength::Of(0) => return Ok(Read::Nothing(at)),
        ListLength::Of(count) if count > most.words => return Err(most.too_many()),
        ListLength::Of(count) => count,
    };
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(Read::More(at.saturating_add(4))),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError::NoBulk),
        }
        let begin = at.saturating_add(1);
        let Some((length, from)) = number(input, begin, ProtocolError::BulkLength)? else {
            return Ok(Read::More(input.len().saturating_add(1)));
        };
        let ListLength::Of(length) = length else { return Err(ProtocolError::BulkLength) };
        if length > most.bulk {
            return Err(most.too_long());
        }
        let to = from.saturating_add(length);
        let end = to.saturating_add(2);
        if end > most.bytes {
            return Err(most.too_long());
        }
        match (input.get(from..to), input.get(to..end)) {
            (Some(word), Some(b"\r\n")) => words.push(word),
            (_, Some(_)) => return Err(ProtocolError::BulkEnd),
            (_, None) if wrong_end(input, to) => return Err(ProtocolError::BulkEnd),
            (_, None) => return Ok(Read::More(end)),
        }
        at = end;
    }
    Ok(Read::Command(at))
}

/// Whether the first byte behind a word is here and is not the end of a line.
fn wrong_end(input: &[u8], at: usize) -> bool {
    input.get(at).is_some_and(|byte| *byte != b'\r')
}

/// What a length says.
enum ListLength {
    /// -1: no list.
    None,
    Of(usize),
}

/// The number between a type byte and the end of its line, and where that line ends.
fn number(
    input: &[u8],
    from: usize,
    wrong: ProtocolError,
) -> Result<Option<(ListLength, usize)>, ProtocolError> {
    let rest = input.get(from..).unwrap_or_default();
    let line = rest.get(..rest.len().min(LONGEST_NUMBER)).unwrap_or_default();
    let Some(end) = line.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'-') else {
        return if rest.len() < LONGEST_NUMBER { Ok(None) } else { Err(wrong) };
    };
    let digits = line.get(..end).unwrap_or_default();
    let after = end.saturating_add(2);
    match rest.get(end..after) {
        Some(b"\r\n") => {}
        Some(_) => return Err(wrong),
        None if rest.get(end) == Some(&b'\r') => return Ok(None),
        None => return Err(wrong),
    }
    let length = match digits {
        b"-1" => ListLength::None,
        [b'0'] => ListLength::Of(0),
        [b'1'..=b'9', others @ ..] if others.iter().all(u8::is_ascii_digit) => {
            let number = digits.iter().try_fold(0_usize, |number, digit| {
                number.checked_mul(10)?.checked_add(usize::from(digit.wrapping_sub(b'0')))
            });
            ListLength::Of(number.ok_or(wrong)?)
        }
        _ => return Err(wrong),
    };
    Ok(Some((length, from.saturating_add(after))))
}

/// More digits than any length here has.
const LONGEST_NUMBER: usize = 12;

// === lines ===

/// A command as people type it.
fn read_inline<'b>(
    input: &'b [u8],
    most: CommandBound,
    words: &mut Words<'b>,
) -> Result<Read, ProtocolError> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        other_protocol(input, LineEnd::Begun)?;
        if input.len() > bounds::RESP_LINE {
            return Err(ProtocolError::InlineTooLong);
        }
        return Ok(Read::More(input.len().saturating_add(1)));
    };
    let line = input.get(..end).unwrap_or_default();
    other_protocol(line, LineEnd::Whole)?;
    if end > bounds::RESP_LINE {
        return Err(ProtocolError::InlineTooLong);
    }
    let mut rest = line.trim_ascii();
    while !rest.is_empty() {
        if words.len() >= most.words {
            return Err(most.too_many());
        }
        let (word, others) = one_word(rest)?;
        words.push(word);
        rest = others.trim_ascii_start();
    }
    let used = end.saturating_add(1);
    Ok(if words.is_empty() { Read::Nothing(used) } else { Read::Command(used) })
}

/// A word, which may stand in quotes; there are no escapes.
fn one_word(text: &[u8]) -> Result<(&[u8], &[u8]), ProtocolError> {
    match text {
        [quote @ (b'"' | b'\''), rest @ ..] => {
            let end = memchr::memchr(*quote, rest).ok_or(ProtocolError::Quotes)?;
            let (word, others) = rest.split_at_checked(end).unwrap_or((rest, b""));
            let others = others.get(1..).unwrap_or_default();
            let apart = others.first().is_none_or(u8::is_ascii_whitespace);
            if apart { Ok((word, others)) } else { Err(ProtocolError::Quotes) }
        }
        _ => {
            let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
            Ok(text.split_at_checked(end).unwrap_or((text, b"")))
        }
    }
}

/// Whether the end of a line is here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Begun,
    Whole,
}

/// A browser that was made to talk to us speaks HTTP; its first line is the last that is read. What is said of
/// the beginning of a line is true of all of it, so that it does not matter how it was cut on its way.
fn other_protocol(line: &[u8], here: LineEnd) -> Result<(), ProtocolError> {
    const VERBS: [&str; 10] =
        ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "CONNECT", "TRACE", "PRI"];
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (word, rest) = line.split_at_checked(end).unwrap_or((line, b""));
    let verb = rest.starts_with(b" ") && VERBS.iter().any(|verb| verb.as_bytes() == word);
    let field = word.ends_with(b":") && (!rest.is_empty() || here == LineEnd::Whole);
    if verb || field || word.starts_with(b"SSH-") {
        return Err(ProtocolError::OtherProtocol);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    /// Reads everything, with the bytes arriving one by one; words as text.
    fn all(bytes: &[u8]) -> Result<Vec<Vec<String>>, ProtocolError> {
        let mut commands = vec![];
        let (mut from, mut to) = (0, 0);
        while to <= bytes.len() {
            let mut words = Words::new();
            match read(&bytes[from..to], CommandBound::KNOWN, &mut words)? {
                Read::Command(used) => {
                    commands.push(
                        words
                            .iter()
                            .map(|word| String::from_utf8_lossy(word).into_owned())
                            .collect(),
                    );
                    from += used;
                }
                Read::Nothing(used) => from += used,
                Read::More(least) => {
                    assert!(from + least > to, "more is wanted than there is");
                    to += 1;
                }
            }
        }
        Ok(commands)
    }

    #[test]
    fn commands_are_read_however_they_arrive() {
        let list = b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n\r\n*0\r\n*-1\r\nPING\r\n  \r\nECHO \"a b\" 'c'\n";
        assert_eq!(
            all(list).unwrap(),
            [vec!["ECHO", "a\r\nbc"], vec!["PING"], vec!["ECHO", "a b", "c"]]
        );
        let empty = b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n";
        assert_eq!(all(empty).unwrap(), [vec!["ECHO", ""]]);
    }

    #[test]
    fn what_is_no_command_is_refused() {
        use ProtocolError::*;
        let long_line = "A".repeat(bounds::RESP_LINE + 1);
        for (bytes, error) in [
            ("*2147483648\r\n", TooManyWords),
            ("*99999999999999999999\r\n", ListLength),
            ("*+3\r\n", ListLength),
            ("*3.0\r\n", ListLength),
            ("*\r\n", ListLength),
            ("*-2\r\n", ListLength),
            ("*03\r\n", ListLength),
            ("*3\n", ListLength),
            ("*65\r\n", TooManyWords),
            ("*1\r\n$-1\r\n", BulkLength),
            ("*1\r\n$-2\r\n", BulkLength),
            ("*1\r\n$8193\r\n", BulkLength),
            ("*1\r\n$9223372036854775807\r\n", BulkLength),
            ("*1\r\n$01\r\n", BulkLength),
            ("*1\r\n$4\r\nPINGxx", BulkEnd),
            ("*1\r\n*1\r\n*1\r\n", NoBulk),
            (":1\r\n", NoCommand),
            ("+OK\r\n", NoCommand),
            ("%1\r\n", NoCommand),
            ("$4\r\nPING\r\n", NoCommand),
            ("\u{16}\u{3}\u{1}", NoCommand),
            (&long_line, InlineTooLong),
            ("POST / HTTP/1.1\r\n", OtherProtocol),
            ("GET / HTTP/1.1\r\n", OtherProtocol),
            ("OPTIONS * HTTP/1.1\r\n", OtherProtocol),
            ("Host: x\r\n", OtherProtocol),
            ("PRI * HTTP/2.0\r\n", OtherProtocol),
            ("SSH-2.0-OpenSSH\r\n", OtherProtocol),
            ("ECHO \"a\r\n", Quotes),
            ("ECHO \"a\"b\r\n", Quotes),
        ] {
            assert_eq!(all(bytes.as_bytes()), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn strangers_may_say_little() {
        let kilobyte = format!("$1024\r\n{}\r\n", "x".repeat(1_024));
        let three = format!("*4\r\n{}$900\r\n", kilobyte.repeat(3));
        let four = format!("*4\r\n{}$1024\r\n", kilobyte.repeat(3));
        let mut words = Words::new();
        let eleven = b"*11\r\n";
        assert_eq!(read(eleven, CommandBound::UNKNOWN, &mut words), Err(ProtocolError::BeforeAuth));
        let long = b"*1\r\n$1025\r\n";
        assert_eq!(read(long, CommandBound::UNKNOWN, &mut words), Err(ProtocolError::BeforeAuth));
        let more = Read::More(three.len() + 902);
        assert_eq!(read(three.as_bytes(), CommandBound::UNKNOWN, &mut words), Ok(more));
        let too_much = Err(ProtocolError::BeforeAuth);
        assert_eq!(read(four.as_bytes(), CommandBound::UNKNOWN, &mut words), too_much);
    }

    // === whatever arrives ===

    /// What some bytes begin with, and its words.
    fn first(bytes: &[u8]) -> Result<(Read, Vec<Vec<u8>>), ProtocolError> {
        let mut words = Words::new();
        let read = read(bytes, CommandBound::KNOWN, &mut words)?;
        Ok((read, words.iter().map(|word| word.to_vec()).collect()))
    }

    fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
        let word =
            |word: &Vec<u8>| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat();
        let count = format!("*{}\r\n", words.len()).into_bytes();
        [count].into_iter().chain(words.iter().map(word)).flatten().collect()
    }

    /// A command, as somebody else's parser reads it: its words, and its bytes.
    fn as_others_read(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        use redis_protocol::resp2::types::OwnedFrame::{Array, BulkString};
        let (frame, used) = redis_protocol::resp2::decode::decode(bytes).ok()??;
        let Array(frames) = frame else { return None };
        let word = |frame| if let BulkString(word) = frame { Some(word) } else { None };
        Some((frames.into_iter().map(word).collect::<Option<_>>()?, used))
    }

    fn commands() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec(vec(any::<u8>(), 0..40), 1..12)
    }

    /// Bytes that look like commands: whole ones, lines, and pieces of both, with a few bytes changed.
    fn nearly_commands() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            commands().prop_map(|words| encoded(&words)),
            "[A-Za-z]{1,8}( [ -~]{0,8}){0,3}\r?\n".prop_map(String::into_bytes),
            "[*$][-+0-9]{0,13}\r?\n?".prop_map(String::into_bytes),
            "(GET|POST|Host:|SSH-|PRI|a:b)[ /a-z\r\n]{0,5}".prop_map(String::into_bytes),
            vec(any::<u8>(), 0..6),
        ];
        let changes = vec((any::<Index>(), any::<u8>()), 0..3);
        (vec(piece, 1..4), changes).prop_map(|(pieces, changes)| {
            let mut bytes = pieces.concat();
            for (place, byte) in changes {
                if !bytes.is_empty() {
                    let at = place.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn what_clients_encode_is_read_as_others_read_it(words in commands(), behind in vec(any::<u8>(), 0..9)) {
            let command = encoded(&words);
            let bytes = [command.clone(), behind].concat();
            prop_assert_eq!(as_others_read(&bytes), Some((words.clone(), command.len())));
            prop_assert_eq!(first(&bytes), Ok((Read::Command(command.len()), words)));
        }

        /// Whatever is taken for a list is what others take it for.
        #[test]
        fn nothing_is_read_that_others_read_otherwise(bytes in nearly_commands()) {
            if let Ok((Read::Command(used), words)) = first(&bytes)
                && bytes.starts_with(b"*")
            {
                prop_assert_eq!(as_others_read(&bytes), Some((words, used)));
            }
        }

        /// What is said of the beginning of some bytes stays true when the others come, and whoever is told
        /// to wait for more really needs them.
        #[test]
        fn nothing_depends_on_how_bytes_are_cut(bytes in nearly_commands()) {
            let whole = first(&bytes);
            for end in 0..bytes.len() {
                match first(&bytes[..end]) {
                    Ok((Read::More(least), _)) => {
                        prop_assert!(least > end);
                        if let Ok((Read::Command(used) | Read::Nothing(used), _)) = whole {
                            prop_assert!(used >= least, "{} of {} are awaited", least, used);
                        }
                    }
                    decided => prop_assert_eq!(&decided, &whole, "after {}", end),
                }
            }
        }
    }
}
