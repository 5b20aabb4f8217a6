//! Where the picture goes: a terminal, on which it is redrawn in place, or any other output, which gets a line a second.

use super::picture::{View, picture, summary};
use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal, Write, stdout};

/// The output of the demo. Dropping it sets the terminal right.
pub(crate) enum Screen {
    Terminal {
        colours: bool,
    },
    Lines {
        /// The second of the last line.
        last: Option<u64>,
    },
}

/// The terminal shows everything between these two at once, if it knows them (DEC mode 2026); others ignore them.
const FRAME_BEGINS: &str = "\x1b[?2026h";
const FRAME_ENDS: &str = "\x1b[?2026l";
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const CLEAR: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";
const CLEAR_TO_END_OF_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// If the terminal does not tell its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

impl Screen {
    /// The screen for the standard output.
    pub(crate) fn open() -> Self {
        if !stdout().is_terminal() {
            return Self::Lines { last: None };
        }
        // If the terminal is gone, the first picture fails too, and the demo ends.
        let _ = put(&format!("{HIDE_CURSOR}{CLEAR}"));
        // As no-color.org says: any value counts but the empty one.
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self::Terminal { colours }
    }

    /// Draws a picture. An error means that the output is closed.
    pub(crate) fn draw(&mut self, view: &View) -> io::Result<()> {
        match self {
            Self::Terminal { colours } => put(&frame(view, size(), *colours)),
            Self::Lines { last } => {
                let second = Some(view.passed.as_secs());
                if std::mem::replace(last, second) == second {
                    return Ok(());
                }
                put(&format!("{}\n", summary(view)))
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        match self {
            // The last picture stays, and the shell goes on below it.
            Self::Terminal { .. } => _ = put(&format!("{SHOW_CURSOR}\n")),
            Self::Lines { .. } => {}
        }
    }
}

/// The bytes of a picture. Each line is overwritten and then cleared to its end, so nothing flickers.
fn frame(view: &View, (columns, rows): (usize, usize), colours: bool) -> String {
    // The last column and the last row stay free: a terminal would scroll.
    let (columns, rows) = (columns.saturating_sub(1), rows.saturating_sub(1));
    let lines = picture(view);
    let lines: Vec<String> =
        lines.iter().take(rows).map(|line| line.text(columns, colours)).collect();
    let text = lines.join(&format!("{CLEAR_TO_END_OF_LINE}\r\n"));
    format!("{FRAME_BEGINS}{HOME}{text}{CLEAR_BELOW}{FRAME_ENDS}")
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    let told = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    told.map_or(USUAL_SIZE, |size| (size.ws_col.into(), size.ws_row.into()))
}

/// Writes everything at once.
fn put(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::board::{Recent, Sums};
    use std::net::SocketAddr;
    use std::time::Duration;

    #[test]
    fn a_frame_fits_the_terminal() {
        let view = View {
            proxy: SocketAddr::from(([127, 0, 0, 1], 8000)),
            passed: Duration::ZERO,
            end: Duration::from_secs(9),
            sums: Sums::default(),
            recent: Recent::default(),
        };
        for (columns, rows) in [(80, 24), (40, 10), (1, 1), (0, 0)] {
            let frame = frame(&view, (columns, rows), false);
            let body = frame.strip_prefix(&format!("{FRAME_BEGINS}{HOME}")).unwrap();
            let body = body.strip_suffix(&format!("{CLEAR_BELOW}{FRAME_ENDS}")).unwrap();
            let lines: Vec<&str> = body.split(&format!("{CLEAR_TO_END_OF_LINE}\r\n")).collect();
            assert!(lines.len() <= rows.max(1), "{} lines", lines.len());
            for line in lines {
                assert!(line.chars().count() <= columns, "{line}");
                assert!(!line.contains('\x1b'), "{line}");
            }
        }
    }
}
