//! A list in a body, read entry by entry: a library reads a megabyte in one go, and nobody else has a turn meanwhile.

use super::wire::{WireError, explain};
use http::StatusCode;
use serde::Deserialize;
use std::marker::PhantomData;

/// The entries of a list that have not been read.
pub(super) struct List<'b, T> {
    body: &'b [u8],
    /// How many bytes of it have been read,
    at: usize,
    /// and how many entries.
    count: usize,
    entries: PhantomData<T>,
}

impl<'b, T: Deserialize<'b>> List<'b, T> {
    pub(super) const fn new(body: &'b [u8]) -> Self {
        Self { body, at: 0, count: 0, entries: PhantomData }
    }

    /// The next entry, and how many bytes it has; `None` at the end of the body.
    pub(super) fn next(&mut self) -> Result<Option<(T, usize)>, WireError> {
        let begins = self.count == 0;
        match self.sign() {
            Some(b'[') if begins => self.skip(1),
            Some(b',') if !begins => self.skip(1),
            Some(b']') if !begins => return self.end(),
            Some(_) if begins => return Err(self.wrong("expected value")),
            Some(_) => return Err(self.wrong("expected `,` or `]`")),
            None => return Err(self.wrong("EOF while parsing a list")),
        }
        match self.sign() {
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

    /// Behind the last entry there is nothing.
    fn end(&mut self) -> Result<Option<(T, usize)>, WireError> {
        self.skip(1);
        match self.sign() {
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

    /// The next byte that is no blank.
    fn sign(&mut self) -> Option<u8> {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\t' | b'\r');
        self.skip(self.rest().iter().take_while(blank).count());
        self.rest().first().copied()
    }

    // === what is wrong ===

    /// The list itself is wrong here. The words are the library's.
    fn wrong(&self, text: &str) -> WireError {
        let behind = self.at.saturating_add(1).min(self.body.len());
        let (line, column) = self.place(behind);
        let text = format!("{text} at line {line} column {column}");
        WireError::new(StatusCode::BAD_REQUEST, &format!("/{}", self.count), text)
    }

    /// The next entry is wrong; the library counts lines and columns from its beginning.
    fn wrong_entry(&self) -> WireError {
        let (lines, columns) = self.place(self.at);
        let moved = |line: usize, column: usize| match line {
            1 => (lines, columns.saturating_add(column)),
            _ => (lines.saturating_add(line).saturating_sub(1), column),
        };
        explain::<T>(self.rest(), moved).within(self.count)
    }

    /// The line of a byte, and how many bytes of that line are before it.
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

    /// What a list is answered, read entry by entry.
    fn read(body: &str) -> Result<usize, String> {
        let mut list = List::<Take<'_>>::new(body.as_bytes());
        let mut count = 0;
        while let Some((_, length)) = list.next().map_err(|error| error.entry())? {
            assert!(length > 0);
            count += 1;
        }
        Ok(count)
    }

    /// Read entry by entry, a list is right or wrong as the library says that it is, in the same words, at the same place.
    #[test]
    fn a_list_is_read_as_the_library_reads_it() {
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
