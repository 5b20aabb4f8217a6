//! Colours of the command line. The handle of the standard output removes them if it is not a terminal, or if the
//! environment says so (`NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE`), so commands write them always.

use clap::builder::styling::{AnsiColor, Style};
use std::fmt;

/// A text in a style.
#[derive(Clone, Copy)]
pub(crate) struct Styled<T> {
    style: Style,
    text: T,
}

/// What went well.
pub(crate) const fn good<T>(text: T) -> Styled<T> {
    Styled { style: AnsiColor::Green.on_default(), text }
}

/// What did not: an error, a refusal, a step that differs.
pub(crate) const fn bad<T>(text: T) -> Styled<T> {
    Styled { style: AnsiColor::Red.on_default().bold(), text }
}

/// What deserves a look.
pub(crate) const fn notable<T>(text: T) -> Styled<T> {
    Styled { style: AnsiColor::Yellow.on_default(), text }
}

/// The first line of a table.
pub(crate) const fn heading<T>(text: T) -> Styled<T> {
    Styled { style: Style::new().bold(), text }
}

impl<T: fmt::Display> fmt::Display for Styled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { style, text } = self;
        write!(f, "{style}{text}{style:#}")
    }
}
