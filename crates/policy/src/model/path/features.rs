//! Which interpretations can differ for a path. Nearly all paths contain nothing that servers disagree on; for the others,
//! only the choices that make a difference are combined.

use super::bytes::PathByte;
use super::interpretation::{Backslash, Dots, Empty, Escapes, Interpretation, Parameters, Slash};

/// The interpretations of a path that may differ, the canonical one first.
pub(super) fn interpretations(path: &[PathByte]) -> Vec<Interpretation> {
    let found = Features::in_path(path);
    let mut all = Vec::new();
    for &escapes in found.escapes() {
        for &parameters in found.parameters(escapes) {
            for &slash in found.slash(escapes) {
                for &backslash in found.backslash(escapes) {
                    for &(dots, empty) in found.dots(escapes) {
                        let choices =
                            Interpretation { escapes, parameters, slash, backslash, dots, empty };
                        all.push(choices);
                    }
                }
            }
        }
    }
    all
}

/// The parts of a path that servers disagree on.
#[derive(Default)]
struct Features {
    needless_escape: bool,
    semicolon: bool,
    escaped_semicolon: bool,
    escaped_slash: bool,
    backslash: bool,
    escaped_backslash: bool,
    dots: bool,
    empty: bool,
}

impl Features {
    fn in_path(path: &[PathByte]) -> Self {
        let mut found = Self::default();
        let mut before = b' ';
        let mut rest = path;
        while let [next, after @ ..] = rest {
            rest = after;
            found.see(*next);
            if is_separator(before) {
                found.empty |= is_separator(next.byte) || next.byte == b';';
                found.dots |= next.byte == b'.' && is_dots(after);
            }
            before = next.byte;
        }
        found
    }

    fn see(&mut self, next: PathByte) {
        match (next.byte, next.escaped) {
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
            (Escapes::Decoded, true) => &[Slash::Separator, Slash::Ordinary],
            (Escapes::Decoded, false) => &[Slash::Separator],
            (Escapes::Kept, _) => &[Slash::Ordinary],
        }
    }

    const fn backslash(&self, escapes: Escapes) -> &'static [Backslash] {
        match (escapes, self.backslash, self.escaped_backslash) {
            (Escapes::Decoded, true, true) => {
                &[Backslash::Separator, Backslash::SeparatorUnescaped, Backslash::Ordinary]
            }
            (Escapes::Decoded, true, false) | (Escapes::Decoded, false, true) => {
                &[Backslash::Separator, Backslash::Ordinary]
            }
            (Escapes::Decoded, false, false) => &[Backslash::Separator],
            (Escapes::Kept, true, _) => &[Backslash::SeparatorUnescaped, Backslash::Ordinary],
            (Escapes::Kept, false, _) => &[Backslash::Ordinary],
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

pub(super) const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\')
}

/// Whether a dot before these bytes is the segment `.` or `..`, not the beginning of a name.
fn is_dots(after: &[PathByte]) -> bool {
    let ends = |next: &PathByte| is_separator(next.byte) || next.byte == b';';
    let after = match after {
        [PathByte { byte: b'.', .. }, after @ ..] => after,
        after => after,
    };
    after.first().is_none_or(ends)
}

/// Characters that need no escape, by RFC 3986.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
