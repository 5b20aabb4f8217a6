//! Reads texts, numbers, times, lists and maps of the routes file, and collects everything that is wrong with them.
//!
//! A function that finds a problem records it with its position and returns `None`. The caller goes on with a default, so
//! that one reading reports all mistakes; the recorded problem makes sure that the default is never used.

use std::time::Duration;
use tidegate_policy::{Document, Entry, Place, Problem, Value, printable};

/// Collects the problems and warnings of a file.
#[derive(Debug, Default)]
pub(super) struct RoutesReader {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

/// A map with known keys.
#[derive(Debug)]
pub(super) struct Record {
    /// Its name in errors.
    pub(super) title: &'static str,
    pub(super) keys: &'static [&'static str],
    /// The keys that must be present.
    pub(super) required: &'static [&'static str],
    /// A valid record, for errors.
    pub(super) example: &'static str,
}

/// The entries of a map whose keys were checked.
#[derive(Debug)]
pub(super) struct MapFields<'d> {
    entries: &'d [Entry],
    record: &'static Record,
}

/// The times that a key accepts.
#[derive(Debug)]
pub(super) struct TimeRange {
    least: Duration,
    most: Duration,
    /// The range as errors write it.
    text: &'static str,
}

/// Problems of one file that are reported. A longer list usually repeats one mistake.
const MOST_PROBLEMS: usize = 100;
/// Characters of one message.
const LONGEST_TEXT: usize = 400;
/// Known words that one message lists.
const MOST_SHOWN: usize = 8;
/// Words up to this length are compared. Valid names are not longer.
const LONGEST_WORD: usize = 64;
/// Keys of one map that are checked. No map with known keys has more; further ones repeat a mistake.
const MOST_ENTRIES: usize = 200;

// === impl TimeRange ===

impl TimeRange {
    /// The times that all settings accept.
    pub(super) const ANY: Self = Self {
        least: Duration::from_millis(1),
        most: Duration::from_secs(86_400),
        text: "from 1ms to 1day",
    };

    /// Times between two health checks. More than ten checks per second would be a load of their own.
    pub(super) const INTERVAL: Self = Self {
        least: Duration::from_millis(100),
        most: Duration::from_secs(3_600),
        text: "from 100ms to 1h",
    };
}

// === impl MapFields ===

impl<'d> MapFields<'d> {
    pub(super) fn get(&self, name: &str) -> Option<&'d Document> {
        self.entries.iter().find(|entry| *entry.name == *name).map(|entry| &entry.node)
    }

    /// Whether a key is missing. A misspelt key is reported as unknown, so it does not count as missing too.
    pub(super) fn lacks(&self, name: &str) -> bool {
        let keys = self.record.keys;
        let is_meant = |entry: &Entry| {
            !keys.contains(&&*entry.name) && nearest(&entry.name, keys) == Some(name)
        };
        self.get(name).is_none() && !self.entries.iter().take(MOST_ENTRIES).any(is_meant)
    }
}

// === impl RoutesReader ===

impl RoutesReader {
    /// Records a problem.
    pub(super) fn note(&mut self, place: Place, text: impl AsRef<str>) {
        push(&mut self.problems, place, text.as_ref());
    }

    /// Records a problem, and returns `None` in place of the value.
    pub(super) fn wrong<T>(&mut self, place: Place, text: impl AsRef<str>) -> Option<T> {
        self.note(place, text);
        None
    }

    /// Records something that is valid but probably a mistake.
    pub(super) fn warn(&mut self, place: Place, text: impl AsRef<str>) {
        push(&mut self.warnings, place, text.as_ref());
    }

    /// The warnings if there are no problems, else the problems; both in the order of the file.
    pub(super) fn finish(self) -> Result<Vec<Problem>, Vec<Problem>> {
        if self.problems.is_empty() {
            Ok(in_order(self.warnings))
        } else {
            Err(in_order(self.problems))
        }
    }

    /// A map with known keys. Unknown and missing keys are reported.
    pub(super) fn record<'d>(
        &mut self,
        node: &'d Document,
        record: &'static Record,
    ) -> Option<MapFields<'d>> {
        let Value::Map(entries) = &node.value else {
            let (title, example, kind) = (record.title, record.example, kind(&node.value));
            let text = format!("{title} is a map such as `{example}`, not {kind}");
            return self.wrong(node.place, text);
        };
        let unknown = |entry: &&Entry| !record.keys.contains(&&*entry.name);
        for entry in entries.iter().take(MOST_ENTRIES).filter(unknown) {
            let hint = hint(&entry.name, record.keys);
            self.note(entry.place, format!("unknown key `{}`{hint}", shown(&entry.name)));
        }
        let fields = MapFields { entries, record };
        for name in record.required.iter().filter(|name| fields.lacks(name)) {
            let (title, example) = (record.title, record.example);
            let text = format!("{title} needs the key `{name}`, as in `{example}`");
            self.note(node.place, text);
        }
        Some(fields)
    }

    /// A list with at least one and at most `most` values.
    pub(super) fn list<'d>(
        &mut self,
        node: &'d Document,
        what: &str,
        most: usize,
    ) -> Option<&'d [Document]> {
        match &node.value {
            Value::List(list) if (1..=most).contains(&list.len()) => Some(list),
            Value::List(list) => {
                let text = format!("{what} has from 1 to {most} values, not {}", list.len());
                self.wrong(node.place, text)
            }
            // The text is not repeated: it may be a URL with a password.
            Value::Text(..) => {
                let text = format!("{what} is a list; put the value between `[` and `]`");
                self.wrong(node.place, text)
            }
            other @ (Value::Nothing | Value::Map(_)) => {
                self.wrong(node.place, format!("{what} is a list, not {}", kind(other)))
            }
        }
    }

    pub(super) fn text<'d>(&mut self, node: &'d Document, what: &str) -> Option<&'d str> {
        match &node.value {
            Value::Text(text, _) => Some(text),
            other @ (Value::Nothing | Value::List(_) | Value::Map(_)) => {
                self.wrong(node.place, format!("{what} is a text, not {}", kind(other)))
            }
        }
    }

    /// One of the given words.
    pub(super) fn word<T: Copy>(
        &mut self,
        node: &Document,
        what: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(node, what)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        found.or_else(|| {
            let known = words.iter().map(|(word, _)| format!("`{word}`"));
            let known = known.collect::<Vec<_>>().join(" or ");
            self.wrong(node.place, format!("{what} is {known}, not `{}`", shown(text)))
        })
    }

    /// A whole number from 1 to `most`.
    pub(super) fn count(&mut self, node: &Document, what: &str, most: usize) -> Option<usize> {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number = match &node.value {
            Value::Text(text, false) if is_number(text) => {
                text.parse().ok().filter(|number| (1..=most).contains(number))
            }
            Value::Text(text, true) if !text.is_empty() && is_number(text) => {
                let text = format!("{what} is a number; write {} without quotes", shown(text));
                return self.wrong(node.place, text);
            }
            Value::Text(..) | Value::Nothing | Value::List(_) | Value::Map(_) => None,
        };
        number.or_else(|| {
            let found = found(&node.value);
            self.wrong(
                node.place,
                format!("{what} is a whole number from 1 to {most}, not {found}"),
            )
        })
    }

    /// A time, such as `10s`.
    pub(super) fn time(
        &mut self,
        node: &Document,
        what: &str,
        range: &TimeRange,
    ) -> Option<Duration> {
        timed(&node.value, range).or_else(|| self.wrong(node.place, no_time(node, what, range, "")))
    }

    /// A time, or `off`, which is `Some(None)`.
    pub(super) fn time_or_off(
        &mut self,
        node: &Document,
        what: &str,
        range: &TimeRange,
    ) -> Option<Option<Duration>> {
        if matches!(&node.value, Value::Text(text, _) if text == "off") {
            return Some(None);
        }
        let time = timed(&node.value, range).map(Some);
        time.or_else(|| self.wrong(node.place, no_time(node, what, range, " or `off`,")))
    }
}

fn timed(value: &Value, range: &TimeRange) -> Option<Duration> {
    let Value::Text(text, _) = value else { return None };
    parse_time(text).filter(|time| (range.least..=range.most).contains(time))
}

fn no_time(node: &Document, what: &str, range: &TimeRange, or_off: &str) -> String {
    let (range, found) = (range.text, found(&node.value));
    format!("{what} is a time such as `10s`, `500ms` or `2min`, {range},{or_off} not {found}")
}

/// `10s`, `500ms`, `2min`: the spelling of all settings.
fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "day" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_millis)
}

/// Adds a message that is short enough to read and safe to print on a terminal.
fn push(list: &mut Vec<Problem>, place: Place, text: &str) {
    // One more than are reported, to know that there are more.
    if list.len() <= MOST_PROBLEMS {
        let short: String = text.chars().take(LONGEST_TEXT).collect();
        list.push(Problem { place, text: printable(&short) });
    }
}

/// The first messages in the order of the file, with a note if there are more.
fn in_order(mut list: Vec<Problem>) -> Vec<Problem> {
    let more = list.len() > MOST_PROBLEMS;
    list.truncate(MOST_PROBLEMS);
    list.sort_by_key(|problem| problem.place);
    if let Some(last) = list.last_mut().filter(|_| more) {
        last.text.push_str(" (more problems follow; fix these first)");
    }
    list
}

/// A quotation in a message: at most 40 characters, safe to print on a terminal.
pub(super) fn shown(text: &str) -> String {
    printable(&text.chars().take(40).collect::<String>())
}

/// The known word that was probably meant, or else the first known words.
pub(super) fn hint(found: &str, known: &[&str]) -> String {
    if let Some(near) = nearest(found, known) {
        return format!(", did you mean `{near}`?");
    }
    let first: Vec<_> = known.iter().take(MOST_SHOWN).map(|word| shown(word)).collect();
    let more = if known.len() > MOST_SHOWN { ", …" } else { "" };
    format!("; use one of `{}`{more}", first.join("`, `"))
}

/// The known word with the smallest edit distance; `None` when all of them differ in more than a third of their letters.
fn nearest<'n>(found: &str, known: &[&'n str]) -> Option<&'n str> {
    // A word of a megabyte is not a typing error, and comparing it would take long.
    if found.len() > LONGEST_WORD {
        return None;
    }
    let known = known.iter().filter(|name| name.len() <= LONGEST_WORD);
    let plain = found.to_ascii_lowercase().replace(['-', ' '], "_");
    let distances = known.map(|name| (strsim::osa_distance(&plain, name), *name));
    let (distance, near) = distances.min_by_key(|(distance, _)| *distance)?;
    let allowed = (found.len().max(near.len()) / 3).max(1);
    (distance <= allowed).then_some(near)
}

/// The kind of a value, for an error.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nothing => "nothing",
        Value::Text(..) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
    }
}

/// A text itself, or the kind of any other value, for an error.
pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Text(text, _) => format!("`{}`", shown(text)),
        Value::Nothing | Value::List(_) | Value::Map(_) => kind(value).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_the_settings() {
        for (text, millis) in [
            ("1ms", Some(1)),
            ("010s", Some(10_000)),
            ("2min", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("1day", Some(86_400_000)),
            ("", None),
            ("5", None),
            ("s", None),
            ("5 s", None),
            ("-5s", None),
            ("1.5s", None),
            ("5S", None),
            ("99999999999999999999s", None),
            ("9999999999999999999h", None),
        ] {
            assert_eq!(parse_time(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn only_short_words_are_compared() {
        let [short, long] = [64, 65].map(|length| "a".repeat(length));
        assert_eq!(nearest(&short, &[&short]), Some(&*short));
        assert_eq!(nearest(&long, &[&short]), None);
        assert_eq!(nearest(&short, &[&long]), None);
    }

    #[test]
    fn ranges_include_their_ends() {
        let within = |text: &str, range: &TimeRange| {
            timed(&Value::Text(text.to_owned(), false), range).is_some()
        };
        for (text, any, interval) in [
            ("0ms", false, false),
            ("1ms", true, false),
            ("99ms", true, false),
            ("100ms", true, true),
            ("1h", true, true),
            ("61min", true, false),
            ("1day", true, false),
            ("25h", false, false),
        ] {
            let found = [&TimeRange::ANY, &TimeRange::INTERVAL].map(|range| within(text, range));
            assert_eq!(found, [any, interval], "{text}");
        }
    }

    #[test]
    fn messages_are_bounded_ordered_and_safe_to_print() {
        let mut reader = RoutesReader::default();
        for line in (1..=200).rev() {
            reader.note(Place { line, column: 1 }, format!("\u{1b}{}", "x".repeat(1_000)));
        }
        let problems = reader.finish().unwrap_err();
        assert_eq!(problems.len(), 100);
        assert_eq!(problems[0].place.line, 101);
        assert_eq!(problems[0].text.chars().count(), 400);
        assert!(problems[0].text.starts_with('\u{fffd}'));
        assert!(problems[99].text.ends_with("(more problems follow; fix these first)"));
    }
}
