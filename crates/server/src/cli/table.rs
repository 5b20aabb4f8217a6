//! Tables of text with aligned columns.
//!
//! ```text
//!   rule        limit     left  full again in
//!   per-client  15 per s    14  67 ms
//! ```

use super::style;
use std::io::{self, Write};

/// A column: its heading, and on which side its texts are aligned.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    Left(&'static str),
    Right(&'static str),
}

/// Prints rows below the headings of their columns, indented by two spaces. Columns without any text are left out.
pub(crate) fn write<const N: usize>(
    columns: [Column; N],
    rows: &[[String; N]],
    out: &mut impl Write,
) -> io::Result<()> {
    let widths = columns.map(|_| 0_usize);
    let widths = rows.iter().fold(widths, |mut widths, row| {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
        widths
    });
    let wide = |(column, width): (Column, usize)| match width {
        0 => None,
        _ => Some(width.max(column.heading().chars().count())),
    };
    let widths: Vec<Option<usize>> = columns.into_iter().zip(widths).map(wide).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(columns).zip(&widths);
        let cells =
            cells.filter_map(|((cell, column), width)| Some(column.padded(cell, (*width)?)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let headings = columns.map(Column::heading);
    writeln!(out, "  {}", style::heading(line(&mut headings.into_iter())))?;
    rows.iter().try_for_each(|row| writeln!(out, "  {}", line(&mut row.iter().map(String::as_str))))
}

impl Column {
    const fn heading(self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }

    fn padded(self, cell: &str, width: usize) -> String {
        match self {
            Self::Left(_) => format!("{cell:<width$}"),
            Self::Right(_) => format!("{cell:>width$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text_and_empty_ones_are_left_out() {
        let columns = [
            Column::Left("rule"),
            Column::Left("empty"),
            Column::Right("left"),
            Column::Left("note"),
        ];
        let rows = [["a", "", "10000", ""], ["café", "", "7", "refuses"]];
        let mut out = Vec::new();
        write(columns, &rows.map(|row| row.map(str::to_owned)), &mut out).unwrap();
        let out = anstream::adapter::strip_bytes(&out).into_vec();
        let expected = "  rule   left  note\n  a     10000\n  café      7  refuses\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
