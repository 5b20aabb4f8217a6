//! As much of RESP as the load generator needs: commands that are rendered once, and a scanner that counts
//! replies while their bytes arrive.
//!
//! ```text
//! *2 \r\n :0 \r\n $2 \r\n hi \r\n      one reply: a list is complete when all its announced values are
//! 1 owed, 2 owed, 1 owed …  0 owed
//! ```
//!
//! Of each reply the scanner keeps one fact: whether the first number in it is a zero, because rate limiters
//! report their decision there. This is *not* a general client. It supports only RESP 2, and an error reply
//! ends the experiment.

/// A command as clients send it: a list of bulk strings.
pub(crate) fn command(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>())
}

/// Counts replies, wherever the stream of bytes is split.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    position: Position,
    /// How many values the current reply still lacks; 0 between replies.
    owed: u64,
    /// Whether the current reply has contained a number yet.
    numbered: bool,
    counted: ReplyCount,
}

/// A number of complete replies.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyCount {
    pub(crate) replies: u64,
    /// Replies whose first number is zero.
    pub(crate) zeros: u64,
}

/// Where in a reply the next byte is.
#[derive(Debug, Default, Clone, Copy)]
enum Position {
    /// At the type byte of a value.
    #[default]
    Mark,
    /// In a simple string.
    Words,
    /// In a line that is a number.
    Number { of: NumberKind, value: u64, negative: bool },
    /// In a bulk string, this many bytes before its end.
    Text(u64),
}

/// What a number means.
#[derive(Debug, Clone, Copy)]
enum NumberKind {
    Integer,
    Length,
    Values,
}

impl Scanner {
    /// Reads bytes that have arrived, and returns how many replies are complete since the last reset.
    pub(crate) fn scan(&mut self, mut bytes: &[u8]) -> Result<ReplyCount, String> {
        while !bytes.is_empty() {
            bytes = match self.position {
                Position::Mark => self.mark(bytes)?,
                Position::Words => self.words(bytes),
                Position::Number { of, value, negative } => {
                    self.number(bytes, of, value, negative)?
                }
                Position::Text(left) => self.text(bytes, left),
            };
        }
        Ok(self.counted)
    }

    /// Starts to count from zero again.
    pub(crate) fn reset(&mut self) {
        self.counted = ReplyCount::default();
    }

    fn mark<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], String> {
        let (mark, rest) = bytes.split_first().unwrap_or((&0, &[]));
        if self.owed == 0 {
            (self.owed, self.numbered) = (1, false);
        }
        let number = |of| Position::Number { of, value: 0, negative: false };
        self.position = match mark {
            b'+' => Position::Words,
            b':' => number(NumberKind::Integer),
            b'$' => number(NumberKind::Length),
            b'*' => number(NumberKind::Values),
            b'-' => {
                return Err(format!(
                    "the server replied with an error: {}",
                    String::from_utf8_lossy(rest)
                ));
            }
            _ => return Err(format!("a reply cannot begin with {:?}", char::from(*mark))),
        };
        Ok(rest)
    }

    fn words<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return &[] };
        self.done(0);
        bytes.get(end.saturating_add(1)..).unwrap_or_default()
    }

    fn number<'b>(
        &mut self,
        bytes: &'b [u8],
        of: NumberKind,
        mut value: u64,
        mut negative: bool,
    ) -> Result<&'b [u8], String> {
        let mut rest = bytes.iter();
        for byte in rest.by_ref() {
            match byte {
                b'0'..=b'9' => {
                    value = value.wrapping_mul(10).wrapping_add(u64::from(byte & 0xf));
                }
                b'-' => negative = true,
                b'\r' => {}
                b'\n' => {
                    self.numbered(of, value, negative);
                    return Ok(rest.as_slice());
                }
                _ => return Err(format!("{:?} in a number", char::from(*byte))),
            }
        }
        self.position = Position::Number { of, value, negative };
        Ok(&[])
    }

    /// Handles a complete number.
    fn numbered(&mut self, of: NumberKind, value: u64, negative: bool) {
        match of {
            NumberKind::Integer => {
                if value == 0 && !self.numbered {
                    self.counted.zeros = self.counted.zeros.saturating_add(1);
                }
                self.numbered = true;
                self.done(0);
            }
            // A negative length means a null string or a null list.
            NumberKind::Length | NumberKind::Values if negative => self.done(0),
            NumberKind::Length => self.position = Position::Text(value.saturating_add(2)),
            NumberKind::Values => self.done(value),
        }
    }

    fn text<'b>(&mut self, bytes: &'b [u8], left: u64) -> &'b [u8] {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left.saturating_sub(u64::try_from(here).unwrap_or(u64::MAX));
        if left == 0 {
            self.done(0);
        } else {
            self.position = Position::Text(left);
        }
        bytes.get(here..).unwrap_or_default()
    }

    /// Handles a complete value, or the head of a list with `more` values.
    fn done(&mut self, more: u64) {
        self.position = Position::Mark;
        self.owed = self.owed.saturating_sub(1).saturating_add(more);
        if self.owed == 0 {
            self.counted.replies = self.counted.replies.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_list_of_strings_with_their_lengths() {
        assert_eq!(command("GET key:########"), "*2\r\n$3\r\nGET\r\n$12\r\nkey:########\r\n");
    }

    /// Replies, each with whether its first number is zero.
    const REPLIES: [(&str, bool); 12] = [
        ("+OK\r\n", false),
        (":0\r\n", true),
        (":1000\r\n", false),
        ("$5\r\n:0\r\n*\r\n", false),
        ("$0\r\n\r\n", false),
        ("$-1\r\n", false),
        ("*-1\r\n", false),
        ("*0\r\n", false),
        ("*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n", true),
        ("*5\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n", false),
        ("*3\r\n*2\r\n$2\r\n-E\r\n:0\r\n*0\r\n:0\r\n", true),
        ("*1\r\n+0\r\n", false),
    ];

    #[test]
    fn replies_are_counted_wherever_the_stream_is_split() {
        let text: String = REPLIES.map(|(reply, _)| reply).concat();
        let zeros = REPLIES.iter().filter(|(_, zero)| *zero).count();
        let all = ReplyCount { replies: 12, zeros: u64::try_from(zeros).unwrap() };
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut scanner = Scanner::default();
                scanner.scan(&text.as_bytes()[..first]).unwrap();
                scanner.scan(&text.as_bytes()[first..second]).unwrap();
                let counted = scanner.scan(&text.as_bytes()[second..]).unwrap();
                assert_eq!(counted, all, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_reply_counts_when_its_last_byte_has_arrived_and_not_before() {
        for (reply, zero) in REPLIES {
            let mut scanner = Scanner::default();
            for (place, byte) in reply.bytes().enumerate() {
                let counted = scanner.scan(&[byte]).unwrap();
                let whole = place + 1 == reply.len();
                assert_eq!(counted.replies, u64::from(whole), "{reply:?} at {place}");
            }
            assert_eq!(scanner.scan(b"").unwrap().zeros, u64::from(zero), "{reply:?}");
            scanner.reset();
            assert_eq!(scanner.scan(b"").unwrap(), ReplyCount::default());
        }
    }

    #[test]
    fn error_replies_and_unknown_types_are_errors() {
        for (text, error) in [
            ("-ERR no\r\n", "the server replied with an error: ERR no\r\n"),
            ("*2\r\n:1\r\n-OOM\r\n", "the server replied with an error: OOM\r\n"),
            ("HTTP/1.1 400\r\n", "a reply cannot begin with 'H'"),
            (":1x\r\n", "'x' in a number"),
        ] {
            assert_eq!(Scanner::default().scan(text.as_bytes()), Err(error.to_owned()));
        }
    }
}
