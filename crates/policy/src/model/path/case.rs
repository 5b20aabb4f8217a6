//! Whether `/LOGIN` and `/login` are the same path.
//!
//! Case counts by default. With `case_insensitive: true`, both sides are compared in lower case, by Unicode and character
//! by character. Express and IIS route `/LOGIN` to `/login`.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    #[default]
    Sensitive,
    /// Both sides are compared in lower case.
    Insensitive,
}

impl Case {
    /// A text in the form in which it is compared.
    pub(crate) fn fold(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Insensitive if text.chars().any(|c| c.to_lowercase().next() != Some(c)) => {
                text.chars().flat_map(char::to_lowercase).collect::<String>().into()
            }
            Self::Sensitive | Self::Insensitive => text.into(),
        }
    }

    /// Whether a text equals `folded`, which [`Case::fold`] was applied to already.
    pub(crate) fn same(self, folded: &str, text: &str) -> bool {
        match self {
            Self::Sensitive => folded == text,
            Self::Insensitive => folded.chars().eq(text.chars().flat_map(char::to_lowercase)),
        }
    }
}
