//! Commands that differ from the one before only in their key, as in nearly every pipeline.
//!
//! ```text
//!   *5 ␍␊ $11 ␍␊ CL.THROTTLE ␍␊   $5 ␍␊ alice ␍␊   $2 ␍␊ 14 ␍␊ $2 ␍␊ 15 ␍␊ $1 ␍␊ 1 ␍␊
//!   └───────── head ─────────┘   └─── key ────┘   └───────────── tail ─────────────┘
//! ```
//!
//! Head and tail are compared with those of the previous command and not read again. That saves a third of the instructions of a
//! command.

use super::throttle::Throttle;
use super::wire::{self, CommandBound, Words};

/// A `CL.THROTTLE` command that was read, and where its key is.
pub(crate) struct Repeated<'b> {
    head: &'b [u8],
    tail: &'b [u8],
    throttle: Throttle,
}

impl<'b> Repeated<'b> {
    /// Remembers the command of this length at the beginning of the input. `None` for an inline command, and for a key of 100 bytes or
    /// more.
    pub(crate) fn new(
        input: &'b [u8],
        length: usize,
        words: &Words<'b>,
        throttle: &Throttle,
    ) -> Option<Self> {
        let command = input.get(..length).filter(|command| command.starts_with(b"*"))?;
        let key = words.get(1)?;
        let line = match key.len() {
            1..=9 => "$1\r\n".len(),
            10..=99 => "$12\r\n".len(),
            _ => return None,
        };
        // The key is a part of the command.
        let at = key.as_ptr().addr().wrapping_sub(command.as_ptr().addr());
        let head = command.get(..at.checked_sub(line)?)?;
        let tail = command.get(at.checked_add(key.len())?.checked_add("\r\n".len())?..)?;
        Some(Self { head, tail, throttle: throttle.clone() })
    }

    /// Reads the next command if it is the same apart from its key. Returns the key and the length of the command.
    #[inline]
    pub(crate) fn next(&self, input: &'b [u8]) -> Option<(&'b [u8], usize)> {
        let rest = input.strip_prefix(self.head)?;
        let (key, rest) = wire::short_word(rest)?;
        let rest = rest.strip_prefix(self.tail)?;
        let length = input.len().wrapping_sub(rest.len()); // `rest` is the end of `input`
        (length <= CommandBound::KNOWN.bytes).then_some((key, length))
    }

    pub(crate) const fn throttle(&self) -> &Throttle {
        &self.throttle
    }
}

#[cfg(test)]
mod tests {
    use super::super::throttle::Limits;
    use super::super::wire::Read;
    use super::*;
    use proptest::prelude::*;

    /// Reads a command in the usual way.
    fn read(input: &[u8]) -> Option<(usize, Words<'_>)> {
        let mut words = Words::new();
        match wire::read(input, CommandBound::KNOWN, &mut words) {
            Ok(Read::Command(length)) => Some((length, words)),
            Ok(Read::Nothing(_) | Read::More(_)) | Err(_) => None,
        }
    }

    fn command() -> impl Strategy<Value = Vec<u8>> {
        let name = prop::sample::select(vec!["CL.THROTTLE", "cl.throttle"]);
        let key = prop::collection::vec(prop::sample::select(b"ab$\r\n1*".to_vec()), 0..120);
        let numbers = prop::collection::vec(prop::sample::select(vec!["1", "15", "100"]), 3..=4);
        (name, key, numbers).prop_map(|(name, key, numbers)| {
            let numbers = numbers.into_iter().map(|number| number.as_bytes().to_vec());
            let words: Vec<_> =
                [name.as_bytes().to_vec(), key].into_iter().chain(numbers).collect();
            wire::encoded(&words)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// What is read as the same command is the same command, and a command that differs only in a short key is always seen.
        #[test]
        fn a_repeated_command_is_read_as_every_command_is(
            (first, next) in (command(), command()),
            cut in any::<prop::sample::Index>(),
        ) {
            let input = [&first[..], &next[..]].concat();
            let (length, words) = read(&input).unwrap();
            let throttle = Limits::default().read(&words[1..]).unwrap();
            let Some(repeated) = Repeated::new(&input, length, &words, &throttle) else {
                prop_assert!(!(1..100).contains(&words[1].len()));
                return Ok(());
            };
            let (length, second) = read(&next).unwrap();
            let same = second[0] == words[0] && second[2..] == words[2..];
            let found = repeated.next(&input[first.len()..]);
            let expected = (same && (1..100).contains(&second[1].len())).then_some((second[1], length));
            prop_assert_eq!(found, expected);
            prop_assert_eq!(repeated.next(&next[..cut.index(next.len())]), None);
        }
    }

    #[test]
    fn an_inline_command_is_not_remembered() {
        let input = b"CL.THROTTLE alice 14 15 1\r\n";
        let (length, words) = read(input).unwrap();
        let throttle = Limits::default().read(&words[1..]).unwrap();
        assert!(Repeated::new(input, length, &words, &throttle).is_none());
    }
}
