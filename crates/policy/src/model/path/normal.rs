//! The canonical form of a path, in which most spellings of it are equal.

use super::bytes::{MOST_BYTES, PathByte, PathError, decode};
use super::interpretation::{CANONICAL, Interpretation};
use std::borrow::Cow;

/// A path in canonical form: without escapes, parameters, dots and empty segments.
///
/// ```
/// use tidegate_policy::NormalPath;
/// let path = NormalPath::new("/x/..//urls/%34%32?page=2").unwrap();
/// assert_eq!(path.as_str(), "/urls/42");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormalPath<'p>(Cow<'p, str>);

// === impl NormalPath ===

impl<'p> NormalPath<'p> {
    /// The canonical form of a request's target, without its query and fragment.
    ///
    /// ```
    /// use tidegate_policy::NormalPath;
    /// assert_eq!(NormalPath::new("/").unwrap().as_str(), "/");
    /// ```
    pub fn new(target: &'p str) -> Result<Self, PathError> {
        let path = without_fragment(without_query(target));
        match Self::already_canonical(path) {
            Some(normal) => Ok(normal),
            None => Ok(Self::read(&decode(path)?, CANONICAL)),
        }
    }

    /// The fast path, for a path that is in canonical form already. It borrows the path.
    pub(super) fn already_canonical(path: &'p str) -> Option<Self> {
        let canonical = path.len() <= MOST_BYTES && is_canonical(path);
        canonical.then_some(Self(Cow::Borrowed(path)))
    }

    /// The path that a server with this interpretation sees.
    pub(super) fn read(path: &[PathByte], interpretation: Interpretation) -> NormalPath<'static> {
        NormalPath(Cow::Owned(interpretation.read(path)))
    }

    /// The path as text.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::NormalPath::new("/a/").unwrap().as_str(), "/a");
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn into_owned(self) -> NormalPath<'static> {
        NormalPath(Cow::Owned(self.0.into_owned()))
    }

    pub(crate) fn segments(&self) -> Segments<'_> {
        Segments::of(&self.0)
    }
}

/// The segments between the slashes of a path. Segments are short, so a loop over their bytes is faster than `str::split`,
/// whose search is made for long texts.
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
pub(super) fn without_query(target: &str) -> &str {
    up_to(target, b'?')
}

/// A path up to its fragment, which no client should send.
pub(super) fn without_fragment(path: &str) -> &str {
    up_to(path, b'#')
}

fn up_to(text: &str, end: u8) -> &str {
    let end = text.bytes().position(|byte| byte == end);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Whether a path is in canonical form already, as most are: plain characters, no empty segment, no segment that begins
/// with a dot, no slash at the end.
fn is_canonical(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'\\' | b';' | b'#');
    let mut before = b' ';
    for byte in path.bytes() {
        // `//` and every segment that begins with a dot take the slow path.
        if !plain(byte) || (before == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        before = byte;
    }
    path.starts_with('/') && (before != b'/' || path.len() == 1)
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
    fn sixty_spellings_have_one_canonical_form() {
        let mut same = 0;
        for spelling in SPELLINGS {
            match NormalPath::new(spelling) {
                Ok(path) if path.as_str() == "/api/urls" => same += 1,
                // An encoded question mark is part of the name, so this is a different path.
                Ok(path) => assert_eq!((spelling, path.as_str()), ("/api/urls%3F", "/api/urls?")),
                Err(error) => panic!("{spelling}: {error}"),
            }
        }
        assert_eq!(same, 59);
    }

    #[test]
    fn unreadable_paths_are_refused() {
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
    fn a_canonical_path_stays_as_it_is() {
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
