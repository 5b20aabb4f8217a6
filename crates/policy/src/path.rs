//! How a path is spelled: the usual form of it, in which most spellings are one path.
//!
//! ```text
//!   /urls/42     /urls//42     /urls/./42     /x/../urls/42     /%75rls/42     \urls\42     /urls;v=1/42
//!        └──────────────┴────────────┴────────── all ──────────┴──────────────┴─────────────┘
//!                                          are /urls/42
//! ```
//!
//! Proxies and frameworks disagree on what a path means. The usual form reads generously: whatever some server might
//! take for a slash is a slash, whatever some server might decode is decoded. The other forms that servers may make of a
//! spelling are in `readings.rs`. What cannot be read at all, such as a percent sign that was encoded twice, is refused:
//! no client sends it by accident.

use crate::readings::{Letter, USUAL, Way};
use std::borrow::Cow;

/// A path in one form, without escapes, parameters, dots and empty segments.
///
/// ```
/// use tidegate_policy::NormalPath;
/// let path = NormalPath::new("/x/..//urls/%34%32?page=2").unwrap();
/// assert_eq!(path.as_str(), "/urls/42");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormalPath<'p>(Cow<'p, str>);

/// Why a path was refused. A front answers such a request 400.
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
    #[error("a path holds no control characters")]
    Control,
    /// Bytes that are no UTF-8.
    #[error("a path is UTF-8")]
    NotUtf8,
    /// More than 8 KiB.
    #[error("a path has at most 8192 bytes")]
    TooLong,
    /// Servers could read it in more ways than are looked at.
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

const MOST_BYTES: usize = 8 * 1024;

// === impl NormalPath ===

impl<'p> NormalPath<'p> {
    /// The one form of a request's target; its query and fragment are no part of it.
    ///
    /// ```
    /// use tidegate_policy::NormalPath;
    /// assert_eq!(NormalPath::new("/").unwrap().as_str(), "/");
    /// ```
    pub fn new(target: &'p str) -> Result<Self, PathError> {
        let path = without_fragment(without_query(target));
        match Self::normal(path) {
            Some(normal) => Ok(normal),
            None => Ok(Self::read(&decode(path)?, USUAL)),
        }
    }

    /// A path that is in its one form already.
    pub(crate) fn normal(path: &'p str) -> Option<Self> {
        let normal = path.len() <= MOST_BYTES && is_normal(path);
        normal.then_some(Self(Cow::Borrowed(path)))
    }

    /// A path as one way to read it has it.
    pub(crate) fn read(letters: &[Letter], way: Way) -> NormalPath<'static> {
        NormalPath(Cow::Owned(way.read(letters)))
    }

    /// The path.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::NormalPath::new("/a/").unwrap().as_str(), "/a");
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same, owned by nobody else.
    pub(crate) fn into_owned(self) -> NormalPath<'static> {
        NormalPath(Cow::Owned(self.0.into_owned()))
    }

    pub(crate) fn segments(&self) -> Segments<'_> {
        Segments::of(&self.0)
    }
}

/// What stands between slashes. By hand, because segments are short, and to search them for a slash as one searches a book
/// takes longer than to read them.
#[derive(Clone)]
pub(crate) struct Segments<'p> {
    left: &'p str,
}

impl<'p> Segments<'p> {
    pub(crate) const fn of(path: &'p str) -> Self {
        Self { left: path }
    }
}

impl<'p> Iterator for Segments<'p> {
    type Item = &'p str;

    fn next(&mut self) -> Option<&'p str> {
        let left = self.left.trim_start_matches('/');
        let end = left.bytes().position(|byte| byte == b'/').unwrap_or(left.len());
        let (segment, left) = left.split_at_checked(end)?;
        self.left = left;
        (!segment.is_empty()).then_some(segment)
    }
}

impl DoubleEndedIterator for Segments<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let left = self.left.trim_end_matches('/');
        let slash = left.bytes().rposition(|byte| byte == b'/');
        let (left, segment) =
            left.split_at_checked(slash.map_or(0, |slash| slash.saturating_add(1)))?;
        self.left = left;
        (!segment.is_empty()).then_some(segment)
    }
}

/// A target up to its query.
pub(crate) fn without_query(target: &str) -> &str {
    up_to(target, b'?')
}

/// A path up to its fragment, which no client should send.
pub(crate) fn without_fragment(path: &str) -> &str {
    up_to(path, b'#')
}

fn up_to(text: &str, end: u8) -> &str {
    let end = text.bytes().position(|byte| byte == end);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Whether a path is in its one form already, as most are: plain characters, no empty segment, no dots
/// that could be meant as steps, no slash at the end.
fn is_normal(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'\\' | b';' | b'#');
    let mut before = b' ';
    for byte in path.bytes() {
        // `//` and every segment that begins with a dot are left to the long way.
        if !plain(byte) || (before == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        before = byte;
    }
    path.starts_with('/') && (before != b'/' || path.len() == 1)
}

/// The letters of a path, with every escape decoded once.
pub(crate) fn decode(path: &str) -> Result<Vec<Letter>, PathError> {
    if path.len() > MOST_BYTES {
        return Err(PathError::TooLong);
    }
    let mut letters = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        let letter = match (first, others) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                let byte = escaped(*high, *low).ok_or(PathError::BadEscape)?;
                if byte == b'%' && matches!(after, [a, b, ..] if escaped(*a, *b).is_some()) {
                    return Err(PathError::EncodedTwice);
                }
                Letter { byte, escaped: true }
            }
            (b'%', _) => return Err(PathError::BadEscape),
            (byte, _) => Letter { byte: *byte, escaped: false },
        };
        if letter.byte.is_ascii_control() {
            return Err(PathError::Control);
        }
        letters.push(letter);
    }
    let bytes: Vec<u8> = letters.iter().map(|letter| letter.byte).collect();
    str::from_utf8(&bytes).map_err(|_| PathError::NotUtf8)?;
    match bytes.first() {
        Some(b'/' | b'\\') => Ok(letters),
        Some(_) | None => Err(PathError::NoSlash),
    }
}

/// What two hexadecimal digits behind a percent sign stand for.
pub(crate) fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from((digit(high)? << 4) | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixty spellings of `/api/urls`, as browsers, proxies and attackers write them.
    const SPELLINGS: [&str; 60] = [
        "/api/urls",
        "/api/urls/",
        "//api/urls",
        "/api//urls",
        "/api/urls//",
        "///api///urls///",
        "/./api/urls",
        "/api/./urls",
        "/api/urls/.",
        "/api/urls/./",
        "/x/../api/urls",
        "/api/x/../urls",
        "/api/urls/x/..",
        "/../api/urls",
        "/../../api/urls",
        "/api/../api/urls",
        "/api/urls?",
        "/api/urls?a=b",
        "/api/urls#top",
        "/api/urls?x=/../y",
        "/%61pi/urls",
        "/%61%70%69/urls",
        "/api/%75rls",
        "/api/url%73",
        "/%61%70%69%2furls",
        "/api%2Furls",
        "/api%2furls",
        "/api/%2e/urls",
        "/api/%2E/urls",
        "/api/x/%2e%2e/urls",
        "/api/x/%2E%2e/urls",
        "/api/x/.%2e/urls",
        "/api/x/%2e./urls",
        "/x/%2e%2e/api/urls",
        "/%2e%2e/api/urls",
        "/api%2F%2Furls",
        "\\api\\urls",
        "/api\\urls",
        "/api/\\urls",
        "/api%5Curls",
        "/api%5curls",
        "/api/x/..\\urls",
        "/api/x\\..\\urls",
        "/api;v=1/urls",
        "/api/urls;jsessionid=1",
        "/api;/urls",
        "/api/urls;",
        "/;x/api/urls",
        "/api/;/urls",
        "/api/.;x/urls",
        "/api/x/..;/urls",
        "/api/x/..;a=b/urls",
        "/api%3Bv=1/urls",
        "/api/urls%3bx",
        "/api/urls%3F",
        "/api//./urls",
        "/api/.//urls",
        "/./././api/urls",
        "/api/urls/%2e",
        "/api/urls/x/%2e%2e/",
    ];

    #[test]
    fn sixty_spellings_are_one_path_or_refused() {
        let mut same = 0;
        for spelling in SPELLINGS {
            match NormalPath::new(spelling) {
                Ok(path) if path.as_str() == "/api/urls" => same += 1,
                // An encoded question mark is a letter of the name, and the name is another.
                Ok(path) => assert_eq!((spelling, path.as_str()), ("/api/urls%3F", "/api/urls?")),
                Err(error) => panic!("{spelling}: {error}"),
            }
        }
        assert_eq!(same, 59);
    }

    #[test]
    fn what_servers_would_read_differently_is_refused() {
        for (path, error) in [
            ("/a%2541", PathError::EncodedTwice),
            ("/api%252Furls", PathError::EncodedTwice),
            ("/a%", PathError::BadEscape),
            ("/a%4", PathError::BadEscape),
            ("/a%zz", PathError::BadEscape),
            ("/a%00b", PathError::Control),
            ("/a%0d%0aX: y", PathError::Control),
            ("/a\u{7f}", PathError::Control),
            ("/%c0%af", PathError::NotUtf8), // an overlong slash
            ("/%ff", PathError::NotUtf8),
            ("api/urls", PathError::NoSlash),
            ("", PathError::NoSlash),
            ("*", PathError::NoSlash),
        ] {
            assert_eq!(NormalPath::new(path), Err(error), "{path}");
        }
        assert_eq!(NormalPath::new(&format!("/{}", "a".repeat(9_000))), Err(PathError::TooLong));
    }

    #[test]
    fn a_normal_path_stays_as_it_is() {
        for spelling in SPELLINGS.into_iter().filter(|spelling| *spelling != "/api/urls%3F") {
            let once = NormalPath::new(spelling).unwrap();
            assert_eq!(NormalPath::new(once.as_str()).unwrap(), once);
        }
        assert_eq!(
            NormalPath::new("/größe/a b").unwrap(),
            NormalPath::new("/gr%C3%B6%C3%9Fe/a%20b").unwrap()
        );
    }
}
