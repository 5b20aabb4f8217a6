//! Text that is safe to print on a terminal. Files and requests are written by others, and a terminal acts on some
//! characters instead of showing them; each of these is replaced by `�` (U+FFFD).

/// A text without characters that a terminal acts on.
///
/// ```
/// assert_eq!(tidegate_policy::printable("a\u{1b}[31mb"), "a\u{fffd}[31mb");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_terminal_control(c) { '\u{fffd}' } else { c }).collect()
}

/// The first 40 characters of a text, for a quotation in an error message. Control characters of terminals are replaced.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(40).map(|c| if is_terminal_control(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a terminal acts on a character: control characters, and those that change the direction of writing.
pub(super) fn is_terminal_control(c: char) -> bool {
    let changes_direction = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || changes_direction
}
