//! Parses a JSON list entry by entry. `serde_json` would parse a body of a megabyte in one go, and no other connection of the
//! worker would have a turn meanwhile.

use super::wire::{WireError, explain};
use http::StatusCode;
use serde::Deserialize;
use std::marker::PhantomData;

/// The unread entries of a list.
pub(super) struct JsonList<'b, T> {
    body: &'b [u8],
    /// Bytes that have been read.
    at: usize,
    /// Entries that have been read.
    count: usize,
    entries: PhantomData<T>,
}

impl<'b, T: Deserialize<'b>> JsonList<'b, T> {
    pub(super) const fn new(body: &'b [u8]) -> Self {
        Self { body, at: 0, count: 0, entries: PhantomData }
    }

    /// The next entry and its length in bytes; `None` at the end of the list.
    pub(super) fn next(&mut self) -> Result<Option<(T, usize)>, WireError> {
        let begins = self.count == 0;
        match self.next_token() {
            Some(b'[') if begins => self.skip(1),
            Some(b',') if !begins => self.skip(1),
            Some(b']') if !begins => return self.end(),
            Some(_) if begins => return Err(self.wrong("expected value")),
            Some(_) => return Err(self.wrong("expected `,` or `]`")),
            None => return Err(self.wrong("EOF while parsing a list")),
        }
        match self.next_token() {
            Some(b']') if begins => return self.end(),
            Some(b']') => return Err(self.wrong("trailing comma")),
            None if begins => return Err(self.wrong("EOF while parsing a list")),
            None => return Err(self.wrong("EOF while parsing a value")),
            Some(_) => {}
        }
        let mut entries = serde_json::Deserializer::from_slice(self.rest()).into_iter::<T>();
        let Some(Ok(entry)) = entries.next() else { return Err(self.wrong_entry()) };
        let length = entries.byte_offset();
        self.skip(length);
        self.count = self.count.saturating_add(1);
        Ok(Some((entry, length)))
    }

    /// Checks that nothing follows the list.
    fn end(&mut self) -> Result<Option<(T, usize)>, WireError> {
        self.skip(1);
        match self.next_token() {
            Some(_) => Err(self.wrong("trailing characters")),
            None => Ok(None),
        }
    }

    fn rest(&self) -> &'b [u8] {
        self.body.get(self.at..).unwrap_or_default()
    }

    fn skip(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes);
    }

    /// The next byte that is not whitespace.
    fn next_token(&mut self) -> Option<u8> {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\t' | b'\r');
        self.skip(self.rest().iter().take_while(blank).count());
        self.rest().first().copied()
    }

    // === errors ===

    /// An error in the list itself, in the words of `serde_json`.
    fn wrong(&self, text: &str) -> WireError {
        let behind = self.at.saturating_add(1).min(self.body.len());
        let (line, column) = self.place(behind);
        let text = format!("{text} at line {line} column {column}");
        WireError::new(StatusCode::BAD_REQUEST, &format!("/{}", self.count), text)
    }

    /// An error in the next entry. `serde_json` counts lines and columns from the beginning of the entry.
    fn wrong_entry(&self) -> WireError {
        let (lines, columns) = self.place(self.at);
        let moved = |line: usize, column: usize| match line {
            1 => (lines, columns.saturating_add(column)),
            _ => (lines.saturating_add(line).saturating_sub(1), column),
        };
        explain::<T>(self.rest(), moved).within(self.count)
    }

    /// The line of a byte, and the number of bytes before it in that line.
    fn place(&self, at: usize) -> (usize, usize) {
        let before = self.body.get(..at).unwrap_or_default();
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |end| end.saturating_add(1));
        let lines = memchr::memchr_iter(b'\n', before).count().saturating_add(1);
        (lines, at.saturating_sub(line_start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::http::wire::Take;

    /// The number of entries of a list, or the error.
    fn read(body: &str) -> Result<usize, String> {
        let mut list = JsonList::<Take<'_>>::new(body.as_bytes());
        let mut count = 0;
        while let Some((_, length)) = list.next().map_err(|error| error.entry())? {
            assert!(length > 0);
            count += 1;
        }
        Ok(count)
    }

    /// Reading entry by entry accepts the same lists as `serde_json`, and gives the same errors at the same places.
    #[test]
    fn lists_are_read_as_serde_json_reads_them() {
        let one = r#"{"key":"a","limit":1,"per":"1s"}"#;
        let bodies = [
            "[]".to_owned(),
            " [ ] ".to_owned(),
            format!("[{one}]"),
            format!("\n[\n{one} ,\n\t{one}\r\n]\n"),
            "[".to_owned(),
            "[ ".to_owned(),
            "[]]".to_owned(),
            "[] \n x".to_owned(),
            format!("[{one}"),
            format!("[{one}\n"),
            format!("[{one},"),
            format!("[{one},]"),
            format!("[{one}\n,\n]"),
            format!("[{one} {one}]"),
            format!("[{one}]["),
            format!("[{one},{{}}]"),
            format!("[{one},\n {{\"key\":\"b\",\n\"limit\":-1}}]"),
            format!("[{one},\n  {{\"key\":\"b\",\"limit\":-1}}]"),
            format!("[{one},null]"),
            format!("[{one},1 2]"),
            format!("[{one},\"\u{fc}"),
            format!("[,{one}]"),
            format!("[{one},,{one}]"),
            format!("[{one},{{\"key\":"),
            format!("[{one},{{\"unknown\":1}}]"),
            "\u{c}[]".to_owned(),
        ];
        for body in bodies {
            let whole = serde_json::from_str::<Vec<Take<'_>>>(&body);
            let whole = whole.map(|all| all.len()).map_err(|error| error.to_string());
            match (read(&body), whole) {
                (Ok(count), Ok(all)) => assert_eq!(count, all, "{body}"),
                (Err(found), Err(text)) => {
                    let detail = serde_json::to_string(&text).unwrap();
                    assert!(found.contains(&detail), "{body}: {found}\n{text}");
                }
                (found, whole) => panic!("{body}: {found:?}, {whole:?}"),
            }
        }
    }
}
