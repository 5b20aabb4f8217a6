//! How long each reply of a server is. The client library keeps a whole reply in memory, so one that is too long ends the
//! connection as soon as its length is known.
//!
//! ```text
//!   *3\r\n :7\r\n $5\r\n hello\r\n …     a value is a line; some lines announce bytes ($), others announce values (*)
//! ```

/// The longest reply, in bytes. Replies to plans have a few kilobytes; the list of a large cluster has a few hundred.
pub(super) const MAX_REPLY: usize = 1 << 20;
/// The fewest bytes of a value.
const SHORTEST_VALUE: usize = 3;

/// Follows the replies in a stream of bytes.
#[derive(Debug, Default)]
pub(super) struct ReplyMeter {
    /// Bytes of the current reply, with those that were announced.
    size: usize,
    /// Values of the current reply that have not begun, besides the current one.
    values: usize,
    /// Bytes of the current value that are to come.
    bytes: usize,
    line: ReplyLine,
}

/// The line that is being read.
#[derive(Debug, Default)]
struct ReplyLine {
    /// Its first byte.
    kind: Option<u8>,
    /// The number behind it. It is one for all lines that announce something.
    number: usize,
    is_negative: bool,
}

/// A reply is longer than [`MAX_REPLY`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl ReplyMeter {
    /// Goes on with these bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.bytes == 0 {
                self.add(1)?;
                bytes = rest;
                self.read_line(*first)?;
                continue;
            }
            let skipped = self.bytes.min(bytes.len());
            self.bytes = self.bytes.saturating_sub(skipped);
            bytes = bytes.get(skipped..).unwrap_or_default();
            if self.bytes == 0 {
                self.value_ends();
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: usize) -> Result<(), TooLong> {
        self.size = self.size.saturating_add(bytes);
        if self.size > MAX_REPLY { Err(TooLong) } else { Ok(()) }
    }

    fn read_line(&mut self, byte: u8) -> Result<(), TooLong> {
        match byte {
            b'\n' => return self.line_ends(),
            b'-' if self.line.kind.is_some() => self.line.is_negative = true,
            b'0'..=b'9' => {
                let digit = usize::from(byte.wrapping_sub(b'0'));
                self.line.number = self.line.number.saturating_mul(10).saturating_add(digit);
            }
            _ => {}
        }
        self.line.kind.get_or_insert(byte);
        Ok(())
    }

    fn line_ends(&mut self) -> Result<(), TooLong> {
        let ReplyLine { kind, number, is_negative } = std::mem::take(&mut self.line);
        let number = if is_negative { 0 } else { number };
        match kind {
            // A bulk string, a verbatim string or a long error, with the end of its line. `$-1` is no string.
            Some(b'$' | b'=' | b'!') if !is_negative => {
                self.bytes = number.saturating_add(2);
                return self.add(self.bytes);
            }
            // An array, a set, or a push message.
            Some(b'*' | b'~' | b'>') => self.announce(number)?,
            Some(b'%') => self.announce(number.saturating_mul(2))?,
            // Attributes, and then the value that has them.
            Some(b'|') => self.announce(number.saturating_mul(2).saturating_add(1))?,
            Some(_) | None => {}
        }
        self.value_ends();
        Ok(())
    }

    /// More values follow. The library may make room for them at once.
    fn announce(&mut self, values: usize) -> Result<(), TooLong> {
        let shortest = values.saturating_mul(SHORTEST_VALUE);
        if self.size.saturating_add(shortest) > MAX_REPLY {
            return Err(TooLong);
        }
        self.values = self.values.saturating_add(values);
        Ok(())
    }

    const fn value_ends(&mut self) {
        match self.values.checked_sub(1) {
            Some(left) => self.values = left,
            None => self.size = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<ReplyMeter, TooLong> {
        let mut meter = ReplyMeter::default();
        meter.read(text).map(|()| meter)
    }

    #[test]
    fn a_reply_ends_where_it_ends() {
        for whole in [
            "+OK\r\n",
            ":-5\r\n",
            "$5\r\nhe\r\nl\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n$0\r\n\r\n*2\r\n+a\r\n-b 7\r\n",
            "%1\r\n+a\r\n,1.5e-7\r\n",
            "|1\r\n+a\r\n+b\r\n_\r\n",
            "=5\r\ntxt:x\r\n",
        ] {
            let meter = read(whole.as_bytes()).unwrap();
            assert_eq!((meter.size, meter.values, meter.bytes), (0, 0, 0), "{whole:?}");
            let cut = read(&whole.as_bytes()[..whole.len() - 1]).unwrap();
            assert_ne!(cut.size, 0, "{whole:?}");
        }
    }

    #[test]
    fn a_long_reply_is_refused_when_it_is_announced_and_many_short_ones_are_not() {
        for text in ["$67108864\r\n", "*3\r\n$67108864\r\n", "*400000\r\n", "%200000\r\n"] {
            assert_eq!(read(text.as_bytes()).unwrap_err(), TooLong, "{text:?}");
        }
        assert_eq!(read(&vec![b'x'; MAX_REPLY + 1]).unwrap_err(), TooLong);
        assert_eq!(read(b"$99999999999999999999999999\r\n").unwrap_err(), TooLong);
        assert!(read(format!("*2\r\n${}\r\n", MAX_REPLY / 2).as_bytes()).is_ok());
        assert!(read(&b"$3\r\nabc\r\n".repeat(MAX_REPLY)).is_ok());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(cuts in prop::collection::vec(1_usize..9, 1..60)) {
            let text = b"*3\r\n:12\r\n$6\r\na\r\nb\r\n\r\n*1\r\n$-1\r\n+OK\r\n$2\r\nhi".as_slice();
            let whole = read(text).unwrap();
            let (mut meter, mut rest) = (ReplyMeter::default(), text);
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                meter.read(now).unwrap();
                rest = later;
            }
            meter.read(rest).unwrap();
            prop_assert_eq!(format!("{meter:?}"), format!("{whole:?}"));
        }
    }
}
