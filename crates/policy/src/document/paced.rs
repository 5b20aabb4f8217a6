//! Bounds how far the YAML parser may read ahead.
//!
//! The parser buffers everything that it has read and not yet turned into an event, because something in brackets may turn
//! out to be the key of a map. It takes a hundred bytes and more for each buffered token, so a file of a few megabytes
//! could take gigabytes. [`PacedChars`] therefore ends the input when the parser reads too far past its last event.

use std::cell::Cell;
use std::rc::Rc;

/// How many characters the parser may read past its last event.
pub(super) const MOST_LOOKAHEAD: usize = 128 * 1024;

/// The characters of a file, up to the allowed lookahead.
pub(super) struct PacedChars<'t> {
    chars: std::str::Chars<'t>,
    pace: Rc<Pace>,
}

/// Shared by the input, which counts, and by the caller of the parser, which allows more after each event.
#[derive(Default)]
pub(super) struct Pace {
    read: Cell<usize>,
    allowed: Cell<usize>,
    exceeded: Cell<bool>,
}

impl<'t> PacedChars<'t> {
    pub(super) fn new(text: &'t str) -> (Self, Rc<Pace>) {
        let pace = Rc::new(Pace::default());
        pace.event_received();
        (Self { chars: text.chars(), pace: Rc::clone(&pace) }, pace)
    }
}

impl Iterator for PacedChars<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let read = self.pace.read.get();
        if read >= self.pace.allowed.get() {
            self.pace.exceeded.set(true);
            return None;
        }
        self.pace.read.set(read.saturating_add(1));
        self.chars.next()
    }
}

impl Pace {
    /// The parser may read on from here.
    pub(super) fn event_received(&self) {
        self.allowed.set(self.read.get().saturating_add(MOST_LOOKAHEAD));
    }

    /// Whether the input ended because the parser read too far ahead.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }
}
