//! Lines of nginx, by a format in nginx's own syntax.
//!
//! ```text
//!   $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent …
//!   203.0.113.7  - alice        [18/Nov/2026:22:41:35 +0000] "GET /a?b HTTP/1.1" 200 17 …
//! ```
//!
//! The text between two variables separates their values. nginx escapes quotes and control characters in values (`\x22`, or as
//! JSON if the format says `escape=json`), so a quoted value ends at the next quote that is not escaped.

use super::fields::{FieldUse, HOPS, IP, LineError, LoggedRequest, METHOD, PATH, WantedFields};
use super::log_time::{StampReader, decimal_nanos};
use memchr::memmem::Finder;
use std::borrow::Cow;

/// A compiled format.
#[derive(Debug)]
pub(super) struct NginxFormat {
    /// The text before the first variable.
    prefix: String,
    pieces: Vec<FormatPiece>,
    stamps: StampReader,
}

/// A variable, and the text after it.
#[derive(Debug)]
struct FormatPiece {
    name: String,
    becomes: FieldUse,
    /// `None` for the last variable if the format ends with it.
    until: Option<Finder<'static>>,
}

/// The format that nginx has unless its configuration sets another one. Apache's `combined` looks the same.
pub(super) const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Characters of a format. The longest ones in use have about two thousand.
const LONGEST_FORMAT: usize = 16 * 1024;
const TIMES: [&str; 3] = ["msec", "time_iso8601", "time_local"];

// === compiling ===

impl NginxFormat {
    /// Compiles a format: the text itself, or a whole `log_format` directive.
    pub(super) fn new(text: &str, wanted: &WantedFields) -> Result<Self, String> {
        if text.len() > LONGEST_FORMAT {
            return Err("the log format has more than 16 KiB".to_owned());
        }
        let text = text.trim();
        let text = match text.strip_prefix("log_format") {
            Some(rest) if rest.starts_with(char::is_whitespace) => of_directive(rest)?,
            Some(_) | None => text.to_owned(),
        };
        let (prefix, variables) = split(&text)?;
        let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
        let uses = uses(&names, wanted)?;
        let mut pieces = Vec::new();
        for (at, ((name, after), becomes)) in variables.iter().zip(uses).enumerate() {
            let is_last = at.saturating_add(1) == variables.len();
            if after.is_empty() && !is_last {
                return Err(format!(
                    "log format: nothing separates ${name} from the next variable"
                ));
            }
            let until = (!after.is_empty()).then(|| Finder::new(after.as_bytes()).into_owned());
            pieces.push(FormatPiece { name: (*name).to_owned(), becomes, until });
        }
        Ok(Self { prefix: prefix.to_owned(), pieces, stamps: StampReader::default() })
    }

    /// Whether the format has a variable that is used this way.
    pub(super) fn has(&self, becomes: FieldUse) -> bool {
        self.pieces.iter().any(|piece| piece.becomes == becomes)
    }
}

/// The text of a `log_format` directive: `name escape=json 'part' 'part';`.
fn of_directive(text: &str) -> Result<String, String> {
    let from = text.find(['\'', '"']).ok_or("log format: the directive has no quoted text")?;
    let mut rest = text.get(from..).unwrap_or_default();
    let mut format = String::new();
    while let Some(quote) = rest.chars().next().filter(|letter| ['\'', '"'].contains(letter)) {
        let body = rest.get(1..).unwrap_or_default();
        let mut letters = body.char_indices();
        let end = loop {
            match letters.next() {
                None => return Err(format!("log format: a part has no closing {quote}")),
                Some((at, letter)) if letter == quote => break at,
                Some((_, '\\')) => format.extend(letters.next().map(|(_, letter)| letter)),
                Some((_, letter)) => format.push(letter),
            }
        };
        rest = body.get(end.saturating_add(1)..).unwrap_or_default().trim_start();
    }
    match rest.trim_start_matches(';').trim() {
        "" => Ok(format),
        other => {
            Err(format!("log format: `{other}` after the quoted text is not part of a format"))
        }
    }
}

/// The text before the first variable, and each variable with the text after it.
type SplitFormat<'t> = (&'t str, Vec<(&'t str, &'t str)>);

fn split(text: &str) -> Result<SplitFormat<'_>, String> {
    let mut parts = text.split('$');
    let prefix = parts.next().unwrap_or_default();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let variable = |part| {
        let (name, after) = match str::strip_prefix(part, '{') {
            Some(braced) => braced.split_once('}').unwrap_or(("", braced)),
            None => part.split_at(part.find(|letter| !is_name(letter)).unwrap_or(part.len())),
        };
        match name {
            "" => Err("log format: `$` without the name of a variable".to_owned()),
            _ => Ok((name, after)),
        }
    };
    Ok((prefix, parts.map(variable).collect::<Result<_, _>>()?))
}

/// What becomes of each variable, or which one is missing.
fn uses(names: &[&str], wanted: &WantedFields) -> Result<Vec<FieldUse>, String> {
    let has = |name: &str| names.contains(&name);
    let chosen = |chosen: &Option<String>, usual: &[&'static str]| -> Result<String, String> {
        match chosen.as_deref().map(|name| name.trim_start_matches('$')) {
            Some(name) if has(name) => Ok(name.to_owned()),
            Some(name) => Err(format!("the log format has no ${name}")),
            None => Ok((*usual.iter().find(|name| has(name)).unwrap_or(&"")).to_owned()),
        }
    };
    let time = chosen(&wanted.time, &TIMES)?;
    if time.is_empty() {
        return Err("the log format has no time; it needs $msec, $time_iso8601 or $time_local, or name its variable with --time-field".to_owned());
    }
    let duration = chosen(&wanted.duration, &["request_time"])?;
    let ip = chosen(&wanted.ip, &["remote_addr", "realip_remote_addr"])?;
    let method = chosen(&wanted.method, &["request_method"])?;
    let path = chosen(&wanted.path, &["request_uri", "uri", "document_uri"])?;
    if let Some(missing) = wanted.named.iter().find(|named| named.required && !has(&named.field)) {
        return Err(format!(
            "the log format has no ${} for `{}`",
            missing.field, missing.attribute
        ));
    }
    let becomes = |name: &&str| match *name {
        name if name == time => FieldUse::Time,
        name if name == duration => FieldUse::Duration,
        name if name == ip => FieldUse::Value(IP),
        name if name == method => FieldUse::Value(METHOD),
        name if name == path => FieldUse::Value(PATH),
        "request" if method.is_empty() || path.is_empty() => FieldUse::RequestLine,
        name if name == wanted.hops => FieldUse::Value(HOPS),
        name => wanted.number_of(name).map_or(FieldUse::Skip, FieldUse::Value),
    };
    Ok(names.iter().map(becomes).collect())
}

// === reading ===

impl NginxFormat {
    /// Reads a line into a request.
    pub(super) fn read<'l>(
        &mut self,
        line: &'l str,
        request: &mut LoggedRequest<'l>,
    ) -> Result<(), LineError> {
        let mut rest = line
            .strip_prefix(&*self.prefix)
            .ok_or_else(|| LineError(format!("it does not begin with `{}`", self.prefix).into()))?;
        let stamps = &mut self.stamps;
        for FormatPiece { name, becomes, until } in &self.pieces {
            let value = match until {
                None => std::mem::take(&mut rest),
                Some(until) => {
                    let (value, after) = cut(rest, until).ok_or_else(|| missing(name, until))?;
                    rest = after;
                    value
                }
            };
            put(*becomes, value, (name, stamps), request)?;
        }
        Ok(())
    }
}

/// Puts the value of a variable where it belongs.
fn put<'l>(
    becomes: FieldUse,
    value: &'l str,
    (name, stamps): (&str, &mut StampReader),
    request: &mut LoggedRequest<'l>,
) -> Result<(), LineError> {
    match becomes {
        FieldUse::Skip => {}
        FieldUse::Time => {
            let stamp =
                stamps.read(value).ok_or_else(|| LineError::value(name, value, "a time"))?;
            request.stamp = Some(stamp);
        }
        FieldUse::Duration if value == "-" => {}
        FieldUse::Duration => {
            let took = decimal_nanos(value);
            request.took =
                took.ok_or_else(|| LineError::value(name, value, "a duration in seconds"))?;
        }
        FieldUse::RequestLine => request.push_request_line(unescaped(value))?,
        FieldUse::Value(PATH) => request.push_target(unescaped(value)),
        FieldUse::Value(number) => request.push(number, unescaped(value)),
    }
    Ok(())
}

fn missing(name: &str, until: &Finder<'_>) -> LineError {
    let text = String::from_utf8_lossy(until.needle()).into_owned();
    LineError(format!("after ${name}, `{text}` is missing").into())
}

/// The text before a separator and the text after it. A quote that is escaped does not separate.
fn cut<'l>(text: &'l str, until: &Finder<'_>) -> Option<(&'l str, &'l str)> {
    let mut from = 0_usize;
    loop {
        let found = until.find(text.as_bytes().get(from..)?)?;
        let at = from.saturating_add(found);
        let before = text.get(..at)?;
        let escapes = before.bytes().rev().take_while(|byte| *byte == b'\\').count();
        if escapes % 2 == 0 || !until.needle().starts_with(b"\"") {
            return Some((before, text.get(at.saturating_add(until.needle().len())..)?));
        }
        from = at.saturating_add(1);
    }
}

/// A value without nginx's escapes: `\x22`, or those of JSON.
fn unescaped(value: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', value.as_bytes()).is_none() {
        return Cow::Borrowed(value);
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => match hex(*high, *low) {
                Some(byte) => (byte, after),
                None => (b'\\', rest.get(1..).unwrap_or_default()),
            },
            (b'\\', [b'u', b'0', b'0', high, low, after @ ..]) => match hex(*high, *low) {
                Some(byte) => (byte, after),
                None => (b'\\', rest.get(1..).unwrap_or_default()),
            },
            (b'\\', [letter, after @ ..]) => (control(*letter), after),
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digit(high)?.checked_mul(16)?.checked_add(digit(low)?)
}

const fn control(letter: u8) -> u8 {
    match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FIRST_NAMED;
    use super::super::log_time::SECOND;
    use super::*;

    fn wanting(attributes: &[(&str, &str)]) -> WantedFields {
        let mut wanted =
            WantedFields { hops: "http_x_forwarded_for".to_owned(), ..WantedFields::default() };
        attributes.iter().for_each(|(attribute, field)| wanted.name(attribute, field, true));
        wanted
    }

    fn read(format: &str, wanted: &WantedFields, line: &str) -> Result<Vec<(u16, String)>, String> {
        let mut format = NginxFormat::new(format, wanted)?;
        let mut request = LoggedRequest::default();
        format.read(line, &mut request).map_err(|error| error.to_string())?;
        assert!(request.stamp.is_some());
        Ok(request.values.into_iter().map(|(number, value)| (number, value.into_owned())).collect())
    }

    const LINE: &str = "203.0.113.7 - alice [18/Nov/2026:22:41:35 +0000] \"GET /a?b HTTP/1.1\" 200 17 \"-\" \"curl \\x22x\\x22\"";

    #[test]
    fn the_combined_format_is_read() {
        let wanted = wanting(&[("user", "remote_user"), ("agent", "http_user_agent")]);
        let expected = [(IP, "203.0.113.7"), (FIRST_NAMED, "alice"), (METHOD, "GET"), (PATH, "/a")];
        let expected = expected.into_iter().chain([(FIRST_NAMED + 1, "curl \"x\"")]);
        let expected: Vec<_> = expected.map(|(number, text)| (number, text.to_owned())).collect();
        assert_eq!(read(COMBINED, &wanted, LINE).unwrap(), expected);
    }

    #[test]
    fn a_whole_directive_is_a_format_too() {
        let directive = "log_format timed '$msec $request_time '\n  '$remote_addr \"$request\"';";
        let mut format = NginxFormat::new(directive, &wanting(&[])).unwrap();
        let mut request = LoggedRequest::default();
        format.read("1795041695.250 0.004 ::1 \"GET / HTTP/2.0\"", &mut request).unwrap();
        assert_eq!(request.stamp.unwrap().nanos, 1_795_041_695 * SECOND + SECOND / 4);
        assert_eq!((request.took, request.values.len()), (4_000_000, 3));
        assert!(format.has(FieldUse::Duration));
    }

    #[test]
    fn a_format_with_escaped_json_is_read() {
        let format = "log_format j escape=json '{\"t\":\"$time_iso8601\",\"ip\":\"$remote_addr\",\"user\":\"$remote_user\",\"uri\":\"${request_uri}\",\"m\":\"$request_method\"}';";
        let line =
            r#"{"t":"2026-11-18T22:41:35+00:00","ip":"::1","user":"a\"b","uri":"/x?y","m":"GET"}"#;
        let wanted = wanting(&[("user", "remote_user")]);
        let expected = [(IP, "::1"), (FIRST_NAMED, "a\"b"), (PATH, "/x"), (METHOD, "GET")];
        let expected: Vec<_> =
            expected.into_iter().map(|(number, text)| (number, text.to_owned())).collect();
        assert_eq!(read(format, &wanted, line).unwrap(), expected);
    }

    #[test]
    fn a_bad_line_says_what_is_missing() {
        for (line, said) in [
            ("", "after $remote_addr, ` - ` is missing"),
            (
                "::1 - - [never] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"",
                "time_local `never` is not a time",
            ),
            (
                "::1 - - [18/Nov/2026:22:41:35 +0000] \"\\x16\\x03\" 400 0 \"-\" \"-\"",
                "the request line has no path",
            ),
        ] {
            assert_eq!(read(COMBINED, &wanting(&[]), line), Err(said.to_owned()));
        }
    }

    #[test]
    fn a_format_that_cannot_be_read_is_refused_with_advice() {
        for (format, said) in [
            ("$remote_addr", "--time-field"),
            ("$msec$remote_addr", "nothing separates $msec"),
            ("$msec $", "`$` without the name"),
            ("log_format x 'open", "no closing '"),
            ("log_format x;", "no quoted text"),
            ("log_format x '$msec' if=$y;", "is not part of a format"),
        ] {
            let error = NginxFormat::new(format, &wanting(&[])).unwrap_err();
            assert!(error.contains(said), "{format}: {error}");
        }
        let wanted = wanting(&[("tenant", "http_x_tenant")]);
        let error = NginxFormat::new(COMBINED, &wanted).unwrap_err();
        assert_eq!(error, "the log format has no $http_x_tenant for `tenant`");
    }
}
