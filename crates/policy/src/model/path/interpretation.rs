//! How one kind of server reads a path: the choices that servers make differently, and the path that results from them.
//!
//! | choice | variants |
//! |---|---|
//! | escapes | decoded; kept (axum, Express), if a character was escaped that needs no escape |
//! | `;parameters` | removed after decoding; removed before it, up to the next `/` (Tomcat); kept |
//! | `%2F` | a separator; an ordinary character |
//! | `\` and `%5C` | separators; only `\` is one (Node); ordinary characters |
//! | `.` and `..` | resolved after decoding (nginx); before it (Node); both; kept (axum, Express, Flask) |
//! | empty segments | dropped before dots are resolved (nginx, Tomcat); after it (Node) |

use super::bytes::PathByte;
use std::borrow::Cow;

/// One variant of each choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interpretation {
    pub(super) escapes: Escapes,
    pub(super) parameters: Parameters,
    pub(super) slash: Slash,
    pub(super) backslash: Backslash,
    pub(super) dots: Dots,
    pub(super) empty: Empty,
}

/// What happens to `%41`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    Decoded,
    Kept,
}

/// What happens to `;…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameters {
    /// Removed after decoding, so that `%3B` begins parameters too.
    CutDecoded,
    /// Removed before decoding, up to the next `/` as it was sent.
    CutEarly,
    Kept,
}

/// What `%2F` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slash {
    Separator,
    Ordinary,
}

/// What `\` and `%5C` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backslash {
    Separator,
    /// `\` separates, `%5C` is an ordinary character.
    SeparatorUnescaped,
    Ordinary,
}

/// When `.` and `..` are resolved. `%2e` always counts as a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    /// After decoding.
    Decoded,
    /// Before decoding.
    Early,
    /// Before and after decoding.
    Twice,
    Kept,
}

/// When empty segments are dropped: `/a//../b` becomes `/b`, or `/a/b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Empty {
    BeforeDots,
    AfterDots,
}

/// The interpretation that keys and explanations show: everything that some server takes for a separator is one.
pub(super) const CANONICAL: Interpretation = Interpretation {
    escapes: Escapes::Decoded,
    parameters: Parameters::CutDecoded,
    slash: Slash::Separator,
    backslash: Backslash::Separator,
    dots: Dots::Decoded,
    empty: Empty::BeforeDots,
};

impl Interpretation {
    /// The path that a server with this interpretation sees. A `/` that is an ordinary character is written `%2F`.
    pub(super) fn read(self, path: &[PathByte]) -> String {
        let path = match self.parameters {
            Parameters::CutEarly => Cow::Owned(without_parameters(path)),
            Parameters::CutDecoded | Parameters::Kept => Cow::Borrowed(path),
        };
        let early = path.split(|next| self.separates_early(*next));
        let early: Vec<&[PathByte]> = match self.dots {
            Dots::Early | Dots::Twice => self.resolved(early),
            Dots::Decoded | Dots::Kept => early.collect(),
        };
        let parts = early.into_iter().flat_map(|s| s.split(|next| self.separates_decoded(*next)));
        let parts = parts.map(|part| match self.parameters {
            Parameters::CutDecoded => part.split(|next| next.byte == b';').next().unwrap_or(part),
            Parameters::CutEarly | Parameters::Kept => part,
        });
        let parts: Vec<&[PathByte]> = match self.dots {
            Dots::Decoded | Dots::Twice => self.resolved(parts),
            Dots::Early | Dots::Kept => parts.collect(),
        };
        self.written(&parts)
    }

    /// Whether a byte separates segments before escapes are decoded.
    fn separates_early(&self, next: PathByte) -> bool {
        !next.escaped
            && match next.byte {
                b'/' => true,
                b'\\' => self.backslash != Backslash::Ordinary,
                _ => false,
            }
    }

    /// Whether a byte separates segments only after escapes are decoded.
    fn separates_decoded(&self, next: PathByte) -> bool {
        next.escaped
            && match next.byte {
                b'/' => self.slash == Slash::Separator,
                b'\\' => self.backslash == Backslash::Separator,
                _ => false,
            }
    }

    /// The segments after `.` and `..` are resolved.
    fn resolved<'l>(&self, segments: impl Iterator<Item = &'l [PathByte]>) -> Vec<&'l [PathByte]> {
        let mut kept = Vec::new();
        for segment in segments {
            match segment {
                [] if self.empty == Empty::BeforeDots => {}
                [PathByte { byte: b'.', .. }] => {}
                [PathByte { byte: b'.', .. }, PathByte { byte: b'.', .. }] => _ = kept.pop(),
                segment => kept.push(segment),
            }
        }
        kept
    }

    /// The segments as text, without empty ones.
    fn written(&self, segments: &[&[PathByte]]) -> String {
        let mut bytes: Vec<u8> = Vec::new();
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            bytes.push(b'/');
            for next in *segment {
                let kept = next.escaped && self.escapes == Escapes::Kept;
                match next.byte {
                    b'/' => bytes.extend_from_slice(b"%2F"),
                    byte if kept => bytes.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                    byte => bytes.push(byte),
                }
            }
        }
        if bytes.is_empty() {
            return "/".to_owned();
        }
        // The whole path was valid UTF-8, and it was split at ASCII characters only.
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A path without the text from each `;` to the next `/`, both unescaped.
fn without_parameters(path: &[PathByte]) -> Vec<PathByte> {
    let mut cutting = false;
    let keep = |next: &&PathByte| {
        if !next.escaped {
            cutting = next.byte == b';' || (cutting && next.byte != b'/');
        }
        !cutting
    };
    path.iter().filter(keep).copied().collect()
}
