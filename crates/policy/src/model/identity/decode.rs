//! How a value of a header field, cookie or query parameter is decoded, and which of several counts.

use crate::model::path::decode_escape;
use std::borrow::Cow;

/// Which of several different values counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Duplicates {
    /// None of them: the request is refused.
    #[default]
    Reject,
    First,
    Last,
}

/// How a value is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decode {
    Nothing,
    /// `%41`.
    Percent,
    /// `%41`, and `+` is a space.
    Form,
}

/// Picks one of several values.
pub(super) struct ValuePicker {
    pub(super) duplicates: Duplicates,
    pub(super) chosen: Option<String>,
    pub(super) differ: bool,
}

impl ValuePicker {
    pub(super) fn add(&mut self, value: &str) {
        let value = value.trim();
        match (&self.chosen, self.duplicates) {
            (Some(chosen), Duplicates::Reject) => self.differ |= chosen != value,
            (Some(_), Duplicates::First) => {}
            (None, _) | (Some(_), Duplicates::Last) => self.chosen = Some(value.to_owned()),
        }
    }
}

/// A value of `Authorization` in its usual spelling. Servers ignore the case of a scheme, and how much white space of which kind is
/// around it, so a client could otherwise have a counter for each spelling of one token.
pub(super) fn credentials(value: &str) -> Cow<'_, str> {
    // Invalid UTF-8 stands for white space of another encoding.
    let is_blank =
        |c: char| c.is_whitespace() || c.is_control() || c == char::REPLACEMENT_CHARACTER;
    let value = value.trim_matches(is_blank);
    let (scheme, rest) = value.split_once(is_blank).unwrap_or((value, ""));
    let known = ["Basic", "Bearer"].into_iter().find(|known| known.eq_ignore_ascii_case(scheme));
    match known {
        Some(known) => format!("{known} {}", rest.trim_start_matches(is_blank)).into(),
        None => value.into(),
    }
}

impl Decode {
    /// Decodes a value once. Invalid escapes stay as they are.
    pub(super) fn of(self, text: &str) -> Cow<'_, str> {
        let decoded = match self {
            Self::Nothing => false,
            Self::Percent => text.contains('%'),
            Self::Form => text.contains(['%', '+']),
        };
        if decoded { self.decoded(text).into() } else { text.into() }
    }

    fn decoded(self, text: &str) -> String {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, others @ ..] = rest {
            let escaped = match (first, others) {
                (b'%', [high, low, ..]) => decode_escape(*high, *low),
                _ => None,
            };
            rest = if escaped.is_some() { others.get(2..).unwrap_or_default() } else { others };
            bytes.push(match (escaped, first, self) {
                (Some(byte), _, _) => byte,
                (None, b'+', Self::Form) => b' ',
                (None, byte, _) => *byte,
            });
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
