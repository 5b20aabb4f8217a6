//! The bytes of a path after its escapes (`%41`) are decoded once, each with a note whether it was escaped.
//!
//! Paths that cannot be read reliably, such as one with a percent sign that was encoded twice, are refused: no client sends
//! them by accident.

/// Why a path was refused. The HTTP front ends answer such a request with status 400.
///
/// ```
/// use tidegate_policy::{NormalPath, PathError};
/// assert_eq!(NormalPath::new("/a%2541"), Err(PathError::EncodedTwice));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("a path begins with a slash")]
    NoSlash,
    /// A percent sign without two hexadecimal digits.
    #[error("a percent sign needs two hexadecimal digits")]
    BadEscape,
    /// An encoded percent sign before two hexadecimal digits: some servers would decode it again.
    #[error("a percent sign was encoded twice")]
    EncodedTwice,
    /// A control character, encoded or not.
    #[error("a path must not contain control characters")]
    Control,
    /// Bytes that are not valid UTF-8.
    #[error("a path must be valid UTF-8")]
    NotUtf8,
    /// More than 8 KiB.
    #[error("a path has at most 8192 bytes")]
    TooLong,
    /// Servers could read it in more ways than are tried here.
    #[error(
        "servers read this path in too many different ways; send it without `..`, `//`, `\\`, `;` and needless escapes"
    )]
    Ambiguous,
    /// Servers read it in several ways, and the policy refuses such paths.
    #[error(
        "servers read this path in different ways; send it without `..`, `//`, `\\`, `;` and needless escapes"
    )]
    SeveralReadings,
}

/// A decoded byte of a path, and whether it was written as an escape.
#[derive(Clone, Copy)]
pub(crate) struct PathByte {
    pub(crate) byte: u8,
    pub(crate) escaped: bool,
}

pub(super) const MOST_BYTES: usize = 8 * 1024;

/// The bytes of a path, with every escape decoded once.
pub(super) fn decode(path: &str) -> Result<Vec<PathByte>, PathError> {
    if path.len() > MOST_BYTES {
        return Err(PathError::TooLong);
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((next, after)) = split_first(rest)? {
        if next.byte.is_ascii_control() {
            return Err(PathError::Control);
        }
        decoded.push(next);
        rest = after;
    }
    let bytes: Vec<u8> = decoded.iter().map(|next| next.byte).collect();
    str::from_utf8(&bytes).map_err(|_| PathError::NotUtf8)?;
    match bytes.first() {
        Some(b'/' | b'\\') => Ok(decoded),
        Some(_) | None => Err(PathError::NoSlash),
    }
}

/// The first byte, decoded, and the rest of the path.
fn split_first(path: &[u8]) -> Result<Option<(PathByte, &[u8])>, PathError> {
    Ok(match path {
        [] => None,
        [b'%', high, low, after @ ..] => {
            let byte = decode_escape(*high, *low).ok_or(PathError::BadEscape)?;
            if byte == b'%' && matches!(after, [a, b, ..] if decode_escape(*a, *b).is_some()) {
                return Err(PathError::EncodedTwice);
            }
            Some((PathByte { byte, escaped: true }, after))
        }
        [b'%', ..] => return Err(PathError::BadEscape),
        [byte, after @ ..] => Some((PathByte { byte: *byte, escaped: false }, after)),
    })
}

/// The byte that two hexadecimal digits after a percent sign stand for.
pub(crate) fn decode_escape(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from((digit(high)? << 4) | digit(low)?).ok()
}
