//! Path patterns: `/urls/*`, `/urls/**`.
//!
//! ```text
//!   /urls/*         any one segment          /urls/7
//!   /urls/**        any number of segments   /urls   /urls/7   /urls/7/clicks
//!   /**/clicks      also at the beginning    /clicks   /urls/7/clicks
//! ```
//!
//! Case counts, unless the rule or the policy says `case_insensitive: true`. Then pattern and path are compared in lower
//! case, by Unicode and character by character: Express and IIS route `/LOGIN` to `/login`.

use crate::model::path::{Case, NormalPath, PathError};

/// A set of paths: in `/urls/*` the star is any one segment, in `/urls/**` any number of segments, including none.
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
    case: Case,
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
    /// A star that is only part of a segment.
    #[error("`{0}`: a star stands for a whole segment; write `*` or `**` between slashes")]
    PartOfSegment(String),
    /// More than one `**`.
    #[error("a pattern may contain `**` only once")]
    AnyTwice,
    /// It is not a valid path.
    #[error(transparent)]
    Path(#[from] PathError),
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
        Ok(Self { segments, case: Case::Sensitive })
    }
}

impl Pattern {
    /// Whether a path matches, in time linear in its length.
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
            Segment::Exactly(name) => segment.is_some_and(|found| self.case.same(name, found)),
            Segment::One => segment.is_some(),
            Segment::Any => false, // handled by the loops
        };
        // Match from the front up to `**`, then from the back down to it. Any number of segments may be in between.
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

    /// This pattern for servers that take `/LOGIN` for `/login`.
    ///
    /// ```
    /// use tidegate_policy::{NormalPath, Pattern};
    /// let pattern = "/login".parse::<Pattern>().unwrap().in_any_case();
    /// assert!(pattern.matches(&NormalPath::new("/LOGIN").unwrap()));
    /// ```
    #[must_use]
    pub fn in_any_case(self) -> Self {
        self.with_case(Case::Insensitive)
    }

    /// This pattern, case-sensitive or not.
    pub(crate) fn with_case(mut self, case: Case) -> Self {
        self.case = case;
        for segment in &mut self.segments {
            if let Segment::Exactly(name) = segment {
                *name = case.fold(name).into_owned();
            }
        }
        self
    }

    pub(crate) const fn case(&self) -> Case {
        self.case
    }

    /// Whether every path that `other` matches is matched by this pattern too; false when in doubt.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let narrower = self.case == Case::Sensitive && other.case == Case::Insensitive;
        let same = |mine: &str, theirs: &str| !narrower && self.case.same(mine, theirs);
        covers(&self.segments, &other.segments, &same)
    }

    /// The segments before `**`; `None` stands for `*`.
    pub(crate) fn start(&self) -> impl Iterator<Item = Option<&str>> {
        self.segments.iter().map_while(|segment| match segment {
            Segment::Exactly(name) => Some(Some(name.as_str())),
            Segment::One => Some(None),
            Segment::Any => None,
        })
    }

    /// The last segment of a pattern that begins with `**`, if it is not a wildcard.
    pub(crate) fn fixed_end(&self) -> Option<&str> {
        match self.segments.as_slice() {
            [Segment::Any, .., Segment::Exactly(last)] => Some(last),
            _ => None,
        }
    }

    /// A segment that would be a variable in other languages: `:id`, `{id}`.
    pub(crate) fn variable(&self) -> Option<&str> {
        self.start().flatten().find(|segment| segment.starts_with([':', '{', '<']))
    }
}

/// Each list contains `**` at most once, so the recursion is at most as deep as both lists are long.
fn covers(mine: &[Segment], theirs: &[Segment], same: &impl Fn(&str, &str) -> bool) -> bool {
    match (mine, theirs) {
        ([], []) => true,
        ([Segment::Any, mine @ ..], []) => covers(mine, theirs, same),
        ([Segment::Any, rest @ ..], [_, others @ ..]) => {
            covers(rest, theirs, same) || covers(mine, others, same)
        }
        ([Segment::One, mine @ ..], [Segment::One | Segment::Exactly(_), theirs @ ..]) => {
            covers(mine, theirs, same)
        }
        ([Segment::Exactly(a), mine @ ..], [Segment::Exactly(b), theirs @ ..]) if same(a, b) => {
            covers(mine, theirs, same)
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
