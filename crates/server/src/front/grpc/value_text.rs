//! Encodes the value of a descriptor, which may be any bytes, as text. The encoding is injective: different values never become
//! the same text.
//!
//! ```text
//!   alice      alice            text stays as it is
//!   bot\xff    bot U+10FFFF     a byte that is not UTF-8 becomes one of the last 128 characters for private use
//!   U+10FFFF   four of these    so do the bytes of those characters themselves, so that a client cannot forge them
//! ```
//!
//! Envoy passes header values on unchanged, and a header may hold any bytes. Rejected ideas: an error would let a client pass a
//! proxy that fails open; a replacement character would give different values the same counter; a hash would hide them from
//! patterns, but `bot\xff` must still match a rule about `bot*`.

use std::borrow::Cow;

/// The character for the byte 0x80; the 127 characters after it are for the bytes after that.
const FIRST: u32 = 0x10_ff80;
/// The first byte, in UTF-8, of U+100000 and all later characters. Hardly any text has them.
const PRIVATE_LEAD: u8 = 0xf4;

/// A value as text; borrowed where nothing needs to be encoded.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&PRIVATE_LEAD) => Cow::Borrowed(text),
        Ok(_) | Err(_) => Cow::Owned(encoded(bytes)),
    }
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if u32::from(c) >= FIRST {
                c.encode_utf8(&mut [0; 4])
                    .bytes()
                    .for_each(|byte| text.push(private_character(byte)));
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| private_character(*byte)));
    }
    text
}

/// The character for a byte that is not ASCII.
fn private_character(byte: u8) -> char {
    let number = FIRST.saturating_add(u32::from(byte).saturating_sub(0x80));
    char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Decodes a text.
    fn decoded(text: &str) -> Vec<u8> {
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
    fn ordinary_text_is_not_changed() {
        for plain in ["", "alice", "ä€😀", "\u{10ff7f}", "\u{fffd}"] {
            assert_eq!(text(plain.as_bytes()), plain);
        }
        assert!(matches!(text(b"alice"), Cow::Borrowed(_)));
        assert_eq!(text(b"bot\xff"), "bot\u{10ffff}");
        assert_eq!(text("\u{10ffff}".as_bytes()).chars().count(), 4);
    }

    proptest! {
        /// Every text can be decoded, so different values have different texts.
        #[test]
        fn every_value_can_be_decoded(value in vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decoded(&text(&value)), value);
        }

        #[test]
        fn private_characters_can_be_decoded(value in vec(0x10_ff00..=0x10_ffff_u32, 0..8), cut in 0..4_usize) {
            let value: String = value.into_iter().filter_map(char::from_u32).collect();
            let value = &value.as_bytes()[..value.len().saturating_sub(cut)];
            prop_assert_eq!(decoded(&text(value)), value);
        }
    }
}
