//! The readings of a path: which paths different servers make of one spelling.
//!
//! ```text
//!   /login;%5c..%5c..%5cx    Tomcat cuts `;…` first             /login
//!                            others decode first                /x
//!   /x%2fy/../login          Node resolves `..` first           /login
//!                            nginx decodes first                /x/login
//!   //h/login                Node takes `h` for a host          /login
//! ```
//!
//! A rule applies to a request if it applies under any of the readings, so no spelling escapes it; a rule that says `stop`
//! stops only if it applies under all of them. What a browser or a library sends has one reading, and costs nothing here.
//!
//! A reading is one *way* through these choices. Only those that make a difference for a path are tried.
//!
//! | choice | ways |
//! |---|---|
//! | escapes | decoded; kept (axum, Express), where a letter was escaped that needs no escape |
//! | `;parameters` | cut after decoding; cut before it, up to the next `/` (Tomcat); kept |
//! | `%2F` | a separator; a letter |
//! | `\` and `%5C` | separators; only `\` is one (Node); letters |
//! | `.` and `..` | resolved after decoding (nginx); before it (Node); both; kept (axum, Express, Flask) |
//! | empty segments | dropped before dots are resolved (nginx, Tomcat); after it (Node) |
//! | `//host/…` | `host` is a segment; a host (Node) |
//! | `#…` | cut; letters |

use crate::path::{NormalPath, PathError, decode, without_fragment, without_query};
use std::borrow::Cow;

/// What servers make of a path: first the usual reading, then those that differ from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readings<'p> {
    first: NormalPath<'p>,
    others: Vec<NormalPath<'static>>,
}

/// A byte of a path, and whether an escape stood for it.
#[derive(Clone, Copy)]
pub(crate) struct Letter {
    pub(crate) byte: u8,
    pub(crate) escaped: bool,
}

/// A path that has more is refused: no client sends it by accident.
const MOST_READINGS: usize = 16;
/// Letters that are looked at to find all readings. The longest paths that browsers send need a third of it.
const MOST_WORK: usize = 64 * 1024;

// === impl Readings ===

impl<'p> Readings<'p> {
    /// All readings of a request's target.
    pub(crate) fn new(target: &'p str) -> Result<Self, PathError> {
        let whole = without_query(target);
        if let Some(normal) = NormalPath::normal(whole) {
            return Ok(normal.into());
        }
        let mut first = None;
        let mut others: Vec<NormalPath<'static>> = Vec::new();
        let fragment = Some(whole).filter(|whole| whole.contains('#'));
        for path in [Some(without_fragment(whole)), fragment].into_iter().flatten() {
            let letters = decode(path)?;
            for letters in [Some(letters.as_slice()), without_host(&letters)].into_iter().flatten()
            {
                for way in ways(letters)? {
                    let reading = NormalPath::read(letters, way);
                    match &first {
                        None => first = Some(reading),
                        Some(first) if *first == reading || others.contains(&reading) => {}
                        Some(_) => others.push(reading),
                    }
                }
            }
        }
        match first {
            Some(first) if others.len() < MOST_READINGS => Ok(Self { first, others }),
            Some(_) | None => Err(PathError::Ambiguous),
        }
    }

    pub(crate) const fn first(&self) -> &NormalPath<'p> {
        &self.first
    }

    /// Those beside the first.
    pub(crate) fn others(&self) -> &[NormalPath<'static>] {
        &self.others
    }

    pub(crate) fn into_owned(self) -> Readings<'static> {
        Readings { first: self.first.into_owned(), others: self.others }
    }
}

impl<'p> From<NormalPath<'p>> for Readings<'p> {
    fn from(first: NormalPath<'p>) -> Self {
        Self { first, others: Vec::new() }
    }
}

// === ways ===

/// How one server reads a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    escapes: Escapes,
    parameters: Parameters,
    slash: Slash,
    backslash: Backslash,
    dots: Dots,
    empty: Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escapes {
    Decoded,
    Kept,
}

/// What becomes of `;…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    CutDecoded,
    /// Up to the next `/` as it was sent.
    CutEarly,
    Kept,
}

/// What `%2F` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slash {
    Separator,
    Letter,
}

/// What `\` and `%5C` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backslash {
    Separator,
    /// `\` separates, `%5C` is a letter.
    SeparatorUnescaped,
    Letter,
}

/// When `.` and `..` are resolved. `%2e` is a dot at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dots {
    Decoded,
    Early,
    Twice,
    Kept,
}

/// When empty segments are dropped: `/a//../b` is `/b`, or `/a/b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Empty {
    BeforeDots,
    AfterDots,
}

/// The way that `path` has in keys and explanations: whatever some server might take for a separator is one.
pub(crate) const USUAL: Way = Way {
    escapes: Escapes::Decoded,
    parameters: Parameters::CutDecoded,
    slash: Slash::Separator,
    backslash: Backslash::Separator,
    dots: Dots::Decoded,
    empty: Empty::BeforeDots,
};

/// The ways that may differ for a path, the usual one first.
fn ways(letters: &[Letter]) -> Result<Vec<Way>, PathError> {
    let found = Found::in_path(letters);
    let mut ways = Vec::new();
    for &escapes in found.escapes() {
        for &parameters in found.parameters(escapes) {
            for &slash in found.slash(escapes) {
                for &backslash in found.backslash(escapes) {
                    for &(dots, empty) in found.dots(escapes) {
                        ways.push(Way { escapes, parameters, slash, backslash, dots, empty });
                    }
                }
            }
        }
    }
    let work = ways.len().saturating_mul(letters.len());
    if work > MOST_WORK { Err(PathError::Ambiguous) } else { Ok(ways) }
}

impl Way {
    /// Whether a letter separates segments before escapes are decoded.
    fn separates_early(&self, letter: Letter) -> bool {
        !letter.escaped
            && match letter.byte {
                b'/' => true,
                b'\\' => self.backslash != Backslash::Letter,
                _ => false,
            }
    }

    /// Whether it does so then.
    fn separates_decoded(&self, letter: Letter) -> bool {
        letter.escaped
            && match letter.byte {
                b'/' => self.slash == Slash::Separator,
                b'\\' => self.backslash == Backslash::Separator,
                _ => false,
            }
    }

    /// A path in this reading. A `/` that is a letter is written `%2F`.
    pub(crate) fn read(self, letters: &[Letter]) -> String {
        let letters = match self.parameters {
            Parameters::CutEarly => Cow::Owned(without_parameters(letters)),
            Parameters::CutDecoded | Parameters::Kept => Cow::Borrowed(letters),
        };
        let early = letters.split(|letter| self.separates_early(*letter));
        let early: Vec<&[Letter]> = match self.dots {
            Dots::Early | Dots::Twice => self.resolved(early),
            Dots::Decoded | Dots::Kept => early.collect(),
        };
        let parts = early.into_iter().flat_map(|s| s.split(|l| self.separates_decoded(*l)));
        let parts = parts.map(|part| match self.parameters {
            Parameters::CutDecoded => {
                part.split(|letter| letter.byte == b';').next().unwrap_or(part)
            }
            Parameters::CutEarly | Parameters::Kept => part,
        });
        let parts: Vec<&[Letter]> = match self.dots {
            Dots::Decoded | Dots::Twice => self.resolved(parts),
            Dots::Early | Dots::Kept => parts.collect(),
        };
        self.written(&parts)
    }

    fn resolved<'l>(&self, segments: impl Iterator<Item = &'l [Letter]>) -> Vec<&'l [Letter]> {
        let mut kept = Vec::new();
        for segment in segments {
            match segment {
                [] if self.empty == Empty::BeforeDots => {}
                [Letter { byte: b'.', .. }] => {}
                [Letter { byte: b'.', .. }, Letter { byte: b'.', .. }] => _ = kept.pop(),
                segment => kept.push(segment),
            }
        }
        kept
    }

    fn written(&self, segments: &[&[Letter]]) -> String {
        let mut bytes: Vec<u8> = Vec::new();
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            bytes.push(b'/');
            for letter in *segment {
                let kept = letter.escaped && self.escapes == Escapes::Kept;
                match letter.byte {
                    b'/' => bytes.extend_from_slice(b"%2F"),
                    byte if kept => bytes.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                    byte => bytes.push(byte),
                }
            }
        }
        if bytes.is_empty() {
            return "/".to_owned();
        }
        // It was UTF-8 as a whole, and was cut at ASCII only.
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A path without what stands between a `;` and the next `/`, both as they were sent.
fn without_parameters(letters: &[Letter]) -> Vec<Letter> {
    let mut cutting = false;
    let keep = |letter: &&Letter| {
        if !letter.escaped {
            cutting = letter.byte == b';' || (cutting && letter.byte != b'/');
        }
        !cutting
    };
    letters.iter().filter(keep).copied().collect()
}

/// What follows a host, for a path that begins like `//host/…`. Escaped separators count too: a proxy may have decoded
/// them, or escaped them, before a server looks for a host.
fn without_host(letters: &[Letter]) -> Option<&[Letter]> {
    let separates = |letter: &&Letter| is_separator(letter.byte);
    let slashes = letters.iter().take_while(separates).count();
    let rest = letters.get(slashes..).filter(|_| slashes > 1)?;
    let host = rest.iter().take_while(|letter| !separates(letter)).count();
    rest.get(host..)
}

// === what makes a difference ===

/// What a path has that servers disagree on.
#[derive(Default)]
struct Found {
    needless_escape: bool,
    semicolon: bool,
    escaped_semicolon: bool,
    escaped_slash: bool,
    backslash: bool,
    escaped_backslash: bool,
    dots: bool,
    empty: bool,
}

impl Found {
    fn in_path(letters: &[Letter]) -> Self {
        let mut found = Self::default();
        let mut before = b' ';
        let mut rest = letters;
        while let [letter, after @ ..] = rest {
            rest = after;
            found.see(*letter);
            if is_separator(before) {
                found.empty |= is_separator(letter.byte) || letter.byte == b';';
                found.dots |= letter.byte == b'.' && is_dots(after);
            }
            before = letter.byte;
        }
        found
    }

    fn see(&mut self, letter: Letter) {
        match (letter.byte, letter.escaped) {
            (b';', false) => self.semicolon = true,
            (b';', true) => self.escaped_semicolon = true,
            (b'/', true) => self.escaped_slash = true,
            (b'\\', false) => self.backslash = true,
            (b'\\', true) => self.escaped_backslash = true,
            (byte, true) => self.needless_escape |= is_unreserved(byte),
            (_, false) => {}
        }
    }

    const fn escapes(&self) -> &'static [Escapes] {
        if self.needless_escape { &[Escapes::Decoded, Escapes::Kept] } else { &[Escapes::Decoded] }
    }

    const fn parameters(&self, escapes: Escapes) -> &'static [Parameters] {
        match (escapes, self.semicolon, self.escaped_semicolon) {
            (Escapes::Decoded, true, _) => {
                &[Parameters::CutDecoded, Parameters::CutEarly, Parameters::Kept]
            }
            (Escapes::Kept, true, _) => &[Parameters::CutEarly, Parameters::Kept],
            (Escapes::Decoded, false, true) => &[Parameters::CutDecoded, Parameters::Kept],
            (Escapes::Kept, false, true) | (_, false, false) => &[Parameters::Kept],
        }
    }

    const fn slash(&self, escapes: Escapes) -> &'static [Slash] {
        match (escapes, self.escaped_slash) {
            (Escapes::Decoded, true) => &[Slash::Separator, Slash::Letter],
            (Escapes::Decoded, false) => &[Slash::Separator],
            (Escapes::Kept, _) => &[Slash::Letter],
        }
    }

    const fn backslash(&self, escapes: Escapes) -> &'static [Backslash] {
        match (escapes, self.backslash, self.escaped_backslash) {
            (Escapes::Decoded, true, true) => {
                &[Backslash::Separator, Backslash::SeparatorUnescaped, Backslash::Letter]
            }
            (Escapes::Decoded, true, false) | (Escapes::Decoded, false, true) => {
                &[Backslash::Separator, Backslash::Letter]
            }
            (Escapes::Decoded, false, false) => &[Backslash::Separator],
            (Escapes::Kept, true, _) => &[Backslash::SeparatorUnescaped, Backslash::Letter],
            (Escapes::Kept, false, _) => &[Backslash::Letter],
        }
    }

    const fn dots(&self, escapes: Escapes) -> &'static [(Dots, Empty)] {
        match (escapes, self.dots, self.empty) {
            (Escapes::Decoded, false, _) => &[(Dots::Decoded, Empty::BeforeDots)],
            (Escapes::Decoded, true, false) => &[
                (Dots::Decoded, Empty::BeforeDots),
                (Dots::Early, Empty::BeforeDots),
                (Dots::Twice, Empty::BeforeDots),
                (Dots::Kept, Empty::BeforeDots),
            ],
            (Escapes::Decoded, true, true) => &[
                (Dots::Decoded, Empty::BeforeDots),
                (Dots::Decoded, Empty::AfterDots),
                (Dots::Early, Empty::BeforeDots),
                (Dots::Early, Empty::AfterDots),
                (Dots::Twice, Empty::BeforeDots),
                (Dots::Twice, Empty::AfterDots),
                (Dots::Kept, Empty::BeforeDots),
            ],
            (Escapes::Kept, false, _) => &[(Dots::Kept, Empty::BeforeDots)],
            (Escapes::Kept, true, false) => {
                &[(Dots::Early, Empty::BeforeDots), (Dots::Kept, Empty::BeforeDots)]
            }
            (Escapes::Kept, true, true) => &[
                (Dots::Early, Empty::BeforeDots),
                (Dots::Early, Empty::AfterDots),
                (Dots::Kept, Empty::BeforeDots),
            ],
        }
    }
}

const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\')
}

/// Whether a dot that is followed by these is `.` or `..`, and not the beginning of a name.
fn is_dots(after: &[Letter]) -> bool {
    let ends = |letter: &Letter| is_separator(letter.byte) || letter.byte == b';';
    let after = match after {
        [Letter { byte: b'.', .. }, after @ ..] => after,
        after => after,
    };
    after.first().is_none_or(ends)
}

/// Letters that need no escape, by RFC 3986.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        let readings = Readings::new(path).unwrap();
        let others = readings.others().iter().map(|path| path.as_str().to_owned());
        [readings.first().as_str().to_owned()].into_iter().chain(others).collect()
    }

    /// Each line by hand; the first reading is the usual one.
    #[test]
    fn every_choice_is_a_reading() {
        for (path, expected) in [
            ("/login", &["/login"][..]),
            ("/login/?x=/../y", &["/login"]),
            ("/%6cogin", &["/login", "/%6Cogin"]),
            ("/a%20b", &["/a b"]),
            ("/a%2fb", &["/a/b", "/a%2Fb"]),
            ("/a%5cb", &["/a/b", "/a\\b"]),
            ("/a\\b", &["/a/b", "/a\\b"]),
            ("/a;v=1/b", &["/a/b", "/a;v=1/b"]),
            ("/a%3bv/b", &["/a/b", "/a;v/b"]),
            ("/a/../b", &["/b", "/a/../b"]),
            ("/a/%2e./b", &["/b", "/a/../b", "/a/%2E./b"]),
            ("/a//../b", &["/b", "/a/b", "/a/../b"]),
            ("//h/b", &["/h/b", "/b"]),
            ("/\\h\\b", &["/h/b", "/\\h\\b", "/b", "/\\b"]),
            ("//h", &["/h", "/"]),
            ("/%5ch/b", &["/h/b", "/\\h/b", "/b"]),
            ("/a#b", &["/a", "/a#b"]),
            ("/x%2fy/../b", &["/x/b", "/b", "/x/y/../b", "/x%2Fy/../b"]),
            (
                "/login;%5c..%5c..%5cx",
                &["/x", "/login/../../x", "/login", "/login;/../../x", "/login;\\..\\..\\x"],
            ),
            // Tomcat cuts parameters up to the next `/`, and then takes `\` for one.
            (
                "/a\\..\\login;\\x",
                &[
                    "/login/x",
                    "/a/../login/x",
                    "/a\\..\\login",
                    "/login",
                    "/a/../login",
                    "/login;/x",
                    "/a/../login;/x",
                    "/a\\..\\login;\\x",
                ],
            ),
        ] {
            let found = readings(path);
            assert_eq!(found.first().map(String::as_str), expected.first().copied(), "{path}");
            let [mut found, mut expected] =
                [found, expected.iter().map(|e| (*e).to_owned()).collect()];
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn the_first_reading_is_the_normal_path() {
        for path in
            ["/x/..;/a%2f%5cb\\.//../c#d", "//h/../a", "/%61/%2e%2E/b;c", "/a%2541", "x", "/a%"]
        {
            let usual = NormalPath::new(path).map(NormalPath::into_owned);
            match Readings::new(path) {
                Ok(readings) => {
                    assert_eq!(Ok(readings.into_owned().first()), usual.as_ref(), "{path}");
                }
                Err(PathError::Ambiguous) => {}
                Err(error) => assert_eq!(usual, Err(error), "{path}"),
            }
        }
    }

    /// Neither what is kept of a path nor the time to find it grows with what a client writes.
    #[test]
    fn readings_are_bounded() {
        let many = "/a;b%2f..%5c..\\..//%2e%2e;c/../d#%3b/..%2f/e\\;%2f..";
        assert_eq!(Readings::new(many), Err(PathError::Ambiguous));
        // Two ways to read eight kilobytes are fine, a hundred are not.
        let long = format!("/{}%2fb", "a".repeat(8_000));
        assert_eq!(Readings::new(&long).unwrap().others().len(), 1);
        let long = format!("/{}%2f..%5c;//b", "a".repeat(8_000));
        assert_eq!(Readings::new(&long), Err(PathError::Ambiguous));
        let deep = format!("{}/b", "/..".repeat(1_000));
        assert_eq!(Readings::new(&deep).unwrap().others().len(), 1);
    }
}
