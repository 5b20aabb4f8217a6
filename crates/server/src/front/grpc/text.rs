//! Values as text: any bytes that a client sends, each spelled in one way and no two alike.
//!
//! ```text
//!   alice      alice            text is as it is
//!   bot\xff    bot U+10FFFF     a byte that is not UTF-8 becomes one of the last 128 characters for private use
//!   U+10FFFF   four of these    and so do the bytes of those characters themselves, so that nobody can write them
//! ```
//!
//! Envoy sends header values as they came, and a header may hold any bytes. Refusing them would let a client pass a proxy that
//! fails open. Replacing them by a question mark would give different values one counter. Hashing them would hide them from
//! patterns: `bot\xff` must still meet a rule about `bot*`.

use std::borrow::Cow;

/// The character that stands for the byte 0x80; those behind it stand for the bytes behind that.
const FIRST: u32 = 0x10_ff80;
/// With this byte begin U+100000 and all behind it. Hardly any text has them.
const PRIVATE: u8 = 0xf4;

/// A value as text.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&PRIVATE) => Cow::Borrowed(text),
        Ok(_) | Err(_) => Cow::Owned(spelled(bytes)),
    }
}

fn spelled(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if u32::from(c) >= FIRST {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push(stands_for(byte)));
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| stands_for(*byte)));
    }
    text
}

/// Bytes that are not ASCII have a character each.
fn stands_for(byte: u8) -> char {
    let number = FIRST.saturating_add(u32::from(byte).saturating_sub(0x80));
    char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The bytes that a text stands for.
    fn bytes(text: &str) -> Vec<u8> {
        let mut bytes = vec![];
        for c in text.chars() {
            match u32::from(c).checked_sub(FIRST) {
                Some(above) => bytes.push(u8::try_from(above + 0x80).unwrap()),
                None => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        bytes
    }

    #[test]
    fn text_stays_as_it_is() {
        for plain in ["", "alice", "ä€😀", "\u{10ff7f}", "\u{fffd}"] {
            assert_eq!(text(plain.as_bytes()), plain);
        }
        assert!(matches!(text(b"alice"), Cow::Borrowed(_)));
        assert_eq!(text(b"bot\xff"), "bot\u{10ffff}");
        assert_eq!(text("\u{10ffff}".as_bytes()).chars().count(), 4);
    }

    proptest! {
        /// Different bytes are different texts: every text can be read back.
        #[test]
        fn every_value_can_be_read_back(value in vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(bytes(&text(&value)), value);
        }

        #[test]
        fn private_characters_too(value in vec(0x10_ff00..=0x10_ffff_u32, 0..8), cut in 0..4_usize) {
            let value: String = value.into_iter().filter_map(char::from_u32).collect();
            let value = &value.as_bytes()[..value.len().saturating_sub(cut)];
            prop_assert_eq!(bytes(&text(value)), value);
        }
    }
}
