//! Parses commands without copying them. No memory is reserved for a length that a client only announces.
//!
//! ```text
//!   *2 ␍␊ $4 ␍␊ ECHO ␍␊ $2 ␍␊ hi ␍␊      a list of bulk strings, as client libraries send it
//!   ECHO hi ␍␊                           the same inline, as people type it
//! ```

use crate::bounds;
use smallvec::SmallVec;

/// The words of a command: its name and its arguments.
pub type Words<'b> = SmallVec<[&'b [u8]; 8]>;

/// What the beginning of the input is.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A command, with its length in bytes; its words were written to the caller's list.
    Command(usize),
    /// An empty line or an empty list, with its length in bytes.
    Nothing(usize),
    /// An incomplete command, with the least number of bytes that the whole command has.
    More(usize),
}

/// A violation of the protocol, after which the connection is closed. Where Redis has a text for it, the same is used.
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
    #[error("Protocol error: not a command")]
    NoCommand,
    /// A quote is opened and not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// The client speaks another protocol; it may be a browser that a web page misuses. It gets no reply.
    #[error("Protocol error: this port expects RESP")]
    OtherProtocol,
    /// More than a client may send before it has authenticated.
    #[error("Protocol error: too much before AUTH")]
    BeforeAuth,
    /// More empty lines in a row than a client needs.
    #[error("Protocol error: too many empty lines")]
    TooManyEmpty,
    /// The budget for unread bytes is used up.
    #[error("no memory left for a command of this length; try again later")]
    NoRoom,
}

/// How large a command may be.
#[derive(Clone, Copy, Debug)]
pub struct CommandBound {
    /// Words of a command.
    pub words: usize,
    /// Bytes of a word.
    pub bulk: usize,
    /// Bytes of a whole command.
    pub bytes: usize,
}

impl CommandBound {
    /// For a client that has authenticated, or need not.
    pub const KNOWN: Self =
        Self { words: bounds::RESP_WORDS, bulk: bounds::RESP_BULK, bytes: bounds::RESP_UNREAD };
    /// For a client that has yet to authenticate.
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

/// Reads one command from the beginning of the input.
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
        ListLength::None | ListLength::Of(0) => return Ok(Read::Nothing(at)),
        ListLength::Of(count) if count > most.words => return Err(most.too_many()),
        ListLength::Of(count) => count,
    };
    for _ in 0..count {
        let bulk = match short_bulk(input, at, most) {
            Some(short) => short,
            None => read_bulk(input, at, most)?,
        };
        match bulk {
            Bulk::Word(word, end) => {
                words.push(word);
                at = end;
            }
            Bulk::More(least) => return Ok(Read::More(least)),
        }
    }
    Ok(Read::Command(at))
}

/// A whole bulk string of 1 to 99 bytes: nearly every word of every command, in less than half of the instructions of [`read_bulk`],
/// which reads all others.
#[inline]
fn short_bulk(input: &[u8], at: usize, most: CommandBound) -> Option<Bulk<'_>> {
    let (word, rest) = short_word(input.get(at..)?)?;
    let end = input.len().wrapping_sub(rest.len()); // `rest` is the end of `input`
    (word.len() <= most.bulk && end <= most.bytes).then_some(Bulk::Word(word, end))
}

/// A bulk string of 1 to 99 bytes, and what follows it.
#[inline]
pub(super) fn short_word(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = short_length(input.strip_prefix(b"$")?)?;
    let (word, rest) = rest.split_at_checked(length)?;
    Some((word, rest.strip_prefix(b"\r\n")?))
}

/// A length of one or two digits, and what follows its line.
#[inline]
fn short_length(text: &[u8]) -> Option<(usize, &[u8])> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    match *text {
        [one @ b'1'..=b'9', b'\r', b'\n', ref rest @ ..] => Some((digit(one), rest)),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ref rest @ ..] => {
            Some((digit(ten).wrapping_mul(10).wrapping_add(digit(one)), rest))
        }
        _ => None,
    }
}

/// A bulk string of a list.
enum Bulk<'b> {
    /// The string, and where it ends.
    Word(&'b [u8], usize),
    /// It is incomplete: the input needs at least this many bytes.
    More(usize),
}

#[inline]
fn read_bulk(input: &[u8], at: usize, most: CommandBound) -> Result<Bulk<'_>, ProtocolError> {
    match input.get(at) {
        None => return Ok(Bulk::More(at.saturating_add(4))),
        Some(b'$') => {}
        Some(_) => return Err(ProtocolError::NoBulk),
    }
    let begin = at.saturating_add(1);
    let Some((length, from)) = number(input, begin, ProtocolError::BulkLength)? else {
        return Ok(Bulk::More(input.len().saturating_add(1)));
    };
    let ListLength::Of(length) = length else { return Err(ProtocolError::BulkLength) };
    let to = from.saturating_add(length);
    let end = to.saturating_add(2);
    if length > most.bulk || end > most.bytes {
        return Err(most.too_long());
    }
    match (input.get(from..to), input.get(to..end)) {
        (Some(word), Some(b"\r\n")) => Ok(Bulk::Word(word, end)),
        (_, Some(_)) => Err(ProtocolError::BulkEnd),
        (_, None) if wrong_end(input, to) => Err(ProtocolError::BulkEnd),
        (_, None) => Ok(Bulk::More(end)),
    }
}

/// Whether the first byte after a word has arrived and does not begin the end of a line.
fn wrong_end(input: &[u8], at: usize) -> bool {
    input.get(at).is_some_and(|byte| *byte != b'\r')
}

/// The length of a list or a bulk string.
enum ListLength {
    /// -1: null.
    None,
    Of(usize),
}

/// The length between a type byte and the end of its line, and where that line ends; `None` if the line is incomplete.
fn number(
    input: &[u8],
    from: usize,
    wrong: ProtocolError,
) -> Result<Option<(ListLength, usize)>, ProtocolError> {
    let rest = input.get(from..).unwrap_or_default();
    if let Some((length, after)) = short_length(rest) {
        return Ok(Some((ListLength::Of(length), input.len().wrapping_sub(after.len()))));
    }
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
    let length = list_length(digits).ok_or(wrong)?;
    Ok(Some((length, from.saturating_add(after))))
}

fn list_length(digits: &[u8]) -> Option<ListLength> {
    match digits {
        b"-1" => Some(ListLength::None),
        [b'0'] => Some(ListLength::Of(0)),
        [b'1'..=b'9', others @ ..] if others.iter().all(u8::is_ascii_digit) => {
            let number = digits.iter().try_fold(0_usize, |number, digit| {
                number.checked_mul(10)?.checked_add(usize::from(digit.wrapping_sub(b'0')))
            });
            number.map(ListLength::Of)
        }
        _ => None,
    }
}

/// More characters than any accepted length has.
const LONGEST_NUMBER: usize = 12;

// === inline commands ===

/// A command on one line, as people type it.
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

/// The first word of a line and the rest of the line. A word may be in quotes; there are no escapes.
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

/// Whether the end of a line has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Begun,
    Whole,
}

/// Detects HTTP and SSH. A web page can make a browser send HTTP to this port, with commands in the body (cross-protocol
/// request forgery); the connection is closed at its first line. The verdict on the beginning of a line holds for the whole
/// line, so that it does not matter how the network splits it.
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

/// A command as client libraries send it.
#[cfg(test)]
pub(super) fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let word = |word: &Vec<u8>| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat();
    let count = format!("*{}\r\n", words.len()).into_bytes();
    [count].into_iter().chain(words.iter().map(word)).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    /// Reads all commands, with the bytes arriving one by one; words as text.
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
                    assert!(
                        from + least > to,
                        "the parser asks for bytes that have already arrived"
                    );
                    to += 1;
                }
            }
        }
        Ok(commands)
    }

    #[test]
    fn commands_are_read_when_bytes_arrive_one_by_one() {
        let list = b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n\r\n*0\r\n*-1\r\nPING\r\n  \r\nECHO \"a b\" 'c'\n";
        assert_eq!(
            all(list).unwrap(),
            [vec!["ECHO", "a\r\nbc"], vec!["PING"], vec!["ECHO", "a b", "c"]]
        );
        let empty = b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n";
        assert_eq!(all(empty).unwrap(), [vec!["ECHO", ""]]);
    }

    #[test]
    fn invalid_commands_are_refused() {
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
    fn a_client_may_send_little_before_it_authenticates() {
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

    // === arbitrary input ===

    /// What the beginning of the input is, and its words.
    fn first(bytes: &[u8]) -> Result<(Read, Vec<Vec<u8>>), ProtocolError> {
        let mut words = Words::new();
        let read = read(bytes, CommandBound::KNOWN, &mut words)?;
        Ok((read, words.iter().map(|word| word.to_vec()).collect()))
    }

    /// The words and the length of a command, as the crate `redis_protocol` parses it.
    fn reference(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
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
        fn encoded_commands_are_parsed_as_the_reference_parser_does(words in commands(), behind in vec(any::<u8>(), 0..9)) {
            let command = encoded(&words);
            let bytes = [command.clone(), behind].concat();
            prop_assert_eq!(reference(&bytes), Some((words.clone(), command.len())));
            prop_assert_eq!(first(&bytes), Ok((Read::Command(command.len()), words)));
        }

        /// Every list that this parser accepts, the reference parser reads in the same way.
        #[test]
        fn accepted_lists_agree_with_the_reference_parser(bytes in nearly_commands()) {
            if let Ok((Read::Command(used), words)) = first(&bytes)
                && bytes.starts_with(b"*")
            {
                prop_assert_eq!(reference(&bytes), Some((words, used)));
            }
        }

        /// A verdict on the beginning of the input stays true when more arrives, and `Read::More` never asks for more bytes
        /// than the command has.
        #[test]
        fn results_do_not_depend_on_how_the_input_is_split(bytes in nearly_commands()) {
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
