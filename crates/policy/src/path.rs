//! How a path is spelled: one form for all spellings of it, so that spelling never changes the rule.
//!
//! ```text
//!   /urls/42     /urls//42     /urls/./42     /x/../urls/42     /%75rls/42     \urls\42     /urls;v=1/42
//!        └──────────────┴────────────┴────────── all ──────────┴──────────────┴─────────────┘
//!                                          are /urls/42
//! ```
//!
//! Proxies and frameworks disagree on what a path means. A limiter that reads it more strictly than the
//! service behind it can be walked around, so it reads generously: whatever some server might take for a
//! slash is a slash, whatever some server might decode is decoded. What two servers would read differently
//! beyond that, such as a percent sign that was encoded twice, is refused: nobody types it by accident.

use std::borrow::Cow;

/// A path in the one form that rules are matched against.
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
}

/// Which paths a rule is about: `/urls/*` is one segment, `/urls/**` any number of them, none included.
///
/// ```
/// use tidegate_policy::{NormalPath, Pattern};
/// let pattern: Pattern = "/urls/**".parse().unwrap();
/// assert!(pattern.matches(&NormalPath::new("/urls").unwrap()));
/// assert!(pattern.matches(&NormalPath::new("/urls/42/clicks").unwrap()));
/// assert!(!pattern.matches(&NormalPath::new("/urlsx").unwrap()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Exactly(String),
    /// `*`
    One,
    /// `**`
    Any,
}

/// Why a pattern was refused.
///
/// ```
/// use tidegate_policy::{Pattern, PatternError};
/// assert_eq!("/a*".parse::<Pattern>(), Err(PatternError::PartOfSegment("a*".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A star that is only a part of a segment.
    #[error("`{0}`: a star stands for a whole segment; write `*` or `**` between slashes")]
    PartOfSegment(String),
    /// More than one `**`.
    #[error("`**` may stand in a pattern once")]
    AnyTwice,
    /// It is no path.
    #[error(transparent)]
    Path(#[from] PathError),
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
        let path = without_query(target);
        if path.len() > MOST_BYTES {
            return Err(PathError::TooLong);
        }
        if is_normal(path) {
            return Ok(Self(Cow::Borrowed(path)));
        }
        let decoded = decode(path)?;
        if !decoded.starts_with(['/', '\\']) {
            return Err(PathError::NoSlash);
        }
        let mut kept: Vec<&str> = Vec::new();
        for segment in decoded.split(['/', '\\']) {
            // Parameters of a segment (`;jsessionid=…`) are dropped by some servers before they look.
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => _ = kept.pop(),
                name => kept.push(name),
            }
        }
        Ok(Self(Cow::Owned(format!("/{}", kept.join("/")))))
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
        Segments { left: &self.0 }
    }
}

/// What stands between slashes. By hand, because segments are short, and to search them for a slash as one searches a book
/// takes longer than to read them.
#[derive(Clone)]
pub(crate) struct Segments<'p> {
    left: &'p str,
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

/// A target up to its query or fragment.
fn without_query(target: &str) -> &str {
    let end = target.bytes().position(|byte| matches!(byte, b'?' | b'#'));
    end.and_then(|end| target.get(..end)).unwrap_or(target)
}

/// Whether a path is in its one form already, as most are: plain characters, no empty segment, no dots
/// that could be meant as steps, no slash at the end.
fn is_normal(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'\\' | b';');
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

/// Decodes every escape once.
fn decode(path: &str) -> Result<String, PathError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        let byte = match (first, others) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                let byte = hex(*high).zip(hex(*low)).map(|(high, low)| (high << 4) | low);
                let byte = byte.ok_or(PathError::BadEscape)?;
                if byte == b'%' && matches!(after, [a, b, ..] if hex(*a).and(hex(*b)).is_some()) {
                    return Err(PathError::EncodedTwice);
                }
                byte
            }
            (b'%', _) => return Err(PathError::BadEscape),
            (byte, _) => *byte,
        };
        if byte.is_ascii_control() {
            return Err(PathError::Control);
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| PathError::NotUtf8)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

// === impl Pattern ===

impl std::str::FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let path = NormalPath::new(text)?;
        let segment = |segment: &str| match segment {
            "*" => Ok(Segment::One),
            "**" => Ok(Segment::Any),
            part if part.contains('*') => Err(PatternError::PartOfSegment(part.to_owned())),
            name => Ok(Segment::Exactly(name.to_owned())),
        };
        let segments: Vec<Segment> = path.segments().map(segment).collect::<Result<_, _>>()?;
        if segments.iter().filter(|segment| **segment == Segment::Any).count() > 1 {
            return Err(PatternError::AnyTwice);
        }
        Ok(Self { segments })
    }
}

impl Pattern {
    /// Whether a path is one of those; in time linear in the path.
    ///
    /// ```
    /// use tidegate_policy::{NormalPath, Pattern};
    /// let pattern: Pattern = "/users/*/messages".parse().unwrap();
    /// assert!(pattern.matches(&NormalPath::new("/users/alice/messages").unwrap()));
    /// ```
    #[must_use]
    pub fn matches(&self, path: &NormalPath<'_>) -> bool {
        let mut left = path.segments();
        let mut patterns = self.segments.iter();
        let fits = |pattern: &Segment, segment: Option<&str>| match pattern {
            Segment::Exactly(name) => segment == Some(name),
            Segment::One => segment.is_some(),
            Segment::Any => false, // handled by the loops
        };
        // From the front to `**`, then from the back to it: what lies between is any number of segments.
        while let Some(pattern) = patterns.next() {
            if *pattern == Segment::Any {
                return patterns.rev().all(|pattern| fits(pattern, left.next_back()));
            }
            if !fits(pattern, left.next()) {
                return false;
            }
        }
        left.next().is_none()
    }

    /// Whether every path of another pattern is one of this; false when in doubt.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        covers(&self.segments, &other.segments)
    }

    /// The segments before `**`; `None` is any one.
    pub(crate) fn start(&self) -> impl Iterator<Item = Option<&str>> {
        self.segments.iter().map_while(|segment| match segment {
            Segment::Exactly(name) => Some(Some(name.as_str())),
            Segment::One => Some(None),
            Segment::Any => None,
        })
    }

    /// The last segment of a pattern that begins with `**`, if it is a fixed one.
    pub(crate) fn fixed_end(&self) -> Option<&str> {
        match self.segments.as_slice() {
            [Segment::Any, .., Segment::Exactly(last)] => Some(last),
            _ => None,
        }
    }

    /// A segment that other languages would take for a variable: `:id`, `{id}`.
    pub(crate) fn variable(&self) -> Option<&str> {
        self.start().flatten().find(|segment| segment.starts_with([':', '{', '<']))
    }
}

/// `**` stands in each at most once, so this goes at most as deep as both are long.
fn covers(mine: &[Segment], theirs: &[Segment]) -> bool {
    match (mine, theirs) {
        ([], []) => true,
        ([Segment::Any, mine @ ..], []) => covers(mine, theirs),
        ([Segment::Any, rest @ ..], [_, others @ ..]) => {
            covers(rest, theirs) || covers(mine, others)
        }
        ([Segment::One, mine @ ..], [Segment::One | Segment::Exactly(_), theirs @ ..]) => {
            covers(mine, theirs)
        }
        ([Segment::Exactly(a), mine @ ..], [Segment::Exactly(b), theirs @ ..]) if a == b => {
            covers(mine, theirs)
        }
        _ => false,
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.segments.is_empty() {
            return f.write_str("/");
        }
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Exactly(name) => write!(f, "/{name}"),
            Segment::One => f.write_str("/*"),
            Segment::Any => f.write_str("/**"),
        })
    }
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

    #[test]
    fn patterns_match_whole_segments() {
        for (pattern, yes, no) in [
            (
                "/urls/**",
                &["/urls", "/urls/1", "/urls/1/2/3"][..],
                &["/", "/url", "/urlss", "/x/urls"][..],
            ),
            ("/urls/*", &["/urls/1"], &["/urls", "/urls/1/2"]),
            ("/**", &["/", "/a", "/a/b"], &[]),
            ("/a/**/z", &["/a/z", "/a/b/z", "/a/b/c/z"], &["/a", "/z", "/a/z/b"]),
            ("/a/*/**/z", &["/a/b/z", "/a/b/c/z"], &["/a/z"]),
            ("/", &["/"], &["/a"]),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            for (paths, expected) in [(yes, true), (no, false)] {
                for path in paths {
                    assert_eq!(
                        parsed.matches(&NormalPath::new(path).unwrap()),
                        expected,
                        "{pattern} {path}"
                    );
                }
            }
        }
        assert_eq!("/a/**/b/**".parse::<Pattern>(), Err(PatternError::AnyTwice));
        for (mine, theirs, expected) in [
            ("/**", "/a/*/b", true),
            ("/**", "/**", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/*/c", true),
            ("/a/**", "/a/**/c", true),
            ("/*", "/a", true),
            ("/*", "/**", false),
            ("/a/*", "/a/**", false),
            ("/a", "/a/**", false),
            ("/a/b", "/a/*", false),
            ("/**/z", "/a/z", true),
            ("/**/z", "/a/*", false),
            ("/", "/", true),
        ] {
            let [mine, theirs]: [Pattern; 2] = [mine, theirs].map(|text| text.parse().unwrap());
            assert_eq!(mine.covers(&theirs), expected, "{mine} {theirs}");
        }
        assert!(matches!("a".parse::<Pattern>(), Err(PatternError::Path(PathError::NoSlash))));
    }
}
