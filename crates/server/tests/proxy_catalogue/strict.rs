//! A strict reader of HTTP/1.1 requests. It accepts only what every server reads in the same way, and only what a proxy has a
//! reason to send: no chunk extensions, no connection-specific fields besides `connection: upgrade`.

#![allow(dead_code, reason = "the tests with real proxies use another part of this")]

/// A request as the upstream server got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

/// What the bytes are so far.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A request, and how many bytes it has.
    Whole(SeenRequest, usize),
    /// The beginning of a request.
    Part,
}

impl SeenRequest {
    /// The values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        values(&self.fields, name)
    }

    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }
}

/// Reads the first request of these bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(Parsed::Part) };
    let head = text(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let (method, target) = request_line(lines.next().unwrap())?;
    let fields = lines.map(field).collect::<Result<Vec<_>, _>>()?;
    check(&fields)?;
    let (body_at, mut trailers) = (end + 4, Vec::new());
    let rest = &bytes[body_at..];
    let body = if !values(&fields, "transfer-encoding").is_empty() {
        chunks(rest, &mut trailers)?
    } else {
        let length =
            values(&fields, "content-length").first().map_or(Ok(0), |text| length(text))?;
        rest.get(..length).map(|body| (body.to_vec(), length))
    };
    let Some((body, length)) = body else { return Ok(Parsed::Part) };
    Ok(Parsed::Whole(SeenRequest { method, target, fields, body, trailers }, body_at + length))
}

fn request_line(line: &str) -> Result<(String, String), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else { return Err(format!("the line {line:?}")) };
    if !is_token(method) || !target.starts_with('/') || target.contains('#') {
        return Err(format!("the line {line:?}"));
    }
    Ok((method.to_owned(), target.to_owned()))
}

fn field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(": ").ok_or_else(|| format!("the field {line:?}"))?;
    if !is_token(name) || value != value.trim_matches([' ', '\t']) {
        return Err(format!("the field {line:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

/// Checks the fields that frame a request, and that those are gone that concern the client's connection only.
fn check(fields: &[(String, String)]) -> Result<(), String> {
    let count = |name: &str| values(fields, name).len();
    let codings = values(fields, "transfer-encoding");
    let known = matches!(values(fields, "connection")[..], [] | ["upgrade"])
        && matches!(values(fields, "te")[..], [] | ["trailers"])
        && matches!(codings[..], [] | ["chunked"]);
    let is_framed_once = count("content-length") + codings.len() <= 1 && count("host") == 1;
    let foreign = |(name, _): &&(String, String)| {
        let hyphened = name.replace('_', "-");
        let framing = ["content-length", "transfer-encoding", "host", "connection", "upgrade"];
        let misspelled = *name != hyphened && framing.contains(&hyphened.as_str());
        let gone = ["keep-alive", "proxy-connection", "proxy-authorization", "http2-settings"];
        misspelled || gone.contains(&hyphened.as_str()) || hyphened.starts_with("tidegate-")
    };
    match fields.iter().find(foreign) {
        Some(field) => Err(format!("the field {field:?}")),
        None if known && is_framed_once => Ok(()),
        None => Err(format!("the fields {fields:?}")),
    }
}

/// The data of all chunks and their length in bytes; `None` if they are not complete.
fn chunks(
    bytes: &[u8],
    trailers: &mut Vec<(String, String)>,
) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(end) = find(&bytes[at..], b"\r\n") else { return Ok(None) };
        let line = text(&bytes[at..at + end])?;
        let digits = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(&line, 16).ok().filter(|_| digits && line.len() <= 8);
        let size = size.ok_or_else(|| format!("a chunk of {line:?}"))?;
        at += end + 2;
        if size == 0 {
            let ended = trailers_end(&bytes[at..], trailers)?;
            return Ok(ended.map(|end| (body, at + end)));
        }
        let Some(chunk) = bytes.get(at..at + size + 2) else { return Ok(None) };
        let data = chunk.strip_suffix(b"\r\n").ok_or("a chunk without its line end")?;
        body.extend_from_slice(data);
        at += size + 2;
    }
}

/// Reads what follows the last chunk, and returns where it ends.
fn trailers_end(
    bytes: &[u8],
    trailers: &mut Vec<(String, String)>,
) -> Result<Option<usize>, String> {
    let mut at = 0;
    while let Some(end) = find(&bytes[at..], b"\r\n") {
        if end == 0 {
            return Ok(Some(at + 2));
        }
        let (name, value) = field(&text(&bytes[at..at + end])?)?;
        let framing = ["content-length", "transfer-encoding", "host", "trailer", "connection"];
        if framing.contains(&name.as_str()) {
            return Err(format!("the trailer {name}"));
        }
        trailers.push((name, value));
        at += end + 2;
    }
    Ok(None)
}

/// Text without control characters; `\r\n` is a line end. Bytes above 127 become characters.
fn text(bytes: &[u8]) -> Result<String, String> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let bad = |sign: char| sign.is_ascii_control() && sign != '\t';
    match text.split("\r\n").find(|line| line.contains(bad)) {
        Some(line) => Err(format!("a control character in {line:?}")),
        None => Ok(text),
    }
}

fn length(text: &str) -> Result<usize, String> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    let length = text.parse().ok().filter(|_| plain);
    length.ok_or_else(|| format!("the length {text:?}"))
}

fn is_token(text: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(token)
}

fn values<'f>(fields: &'f [(String, String)], name: &str) -> Vec<&'f str> {
    fields.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The judge must not be blind: it refuses what a proxy must not send.
#[test]
fn the_strict_reader_is_strict() {
    let whole = |text: &str| match parse(text.as_bytes()) {
        Ok(Parsed::Whole(request, length)) => Ok((request.line(), request.body, length)),
        Ok(Parsed::Part) => Err("a part".to_owned()),
        Err(error) => Err(error),
    };
    let get = "GET /x HTTP/1.1\r\nhost: t\r\n";
    let chunked = format!("{get}transfer-encoding: chunked\r\n\r\n");
    let line = "GET /x".to_owned();
    assert_eq!(whole(&format!("{get}\r\nGET")), Ok((line.clone(), vec![], get.len() + 2)));
    let two = format!("{chunked}2\r\nab\r\n0\r\nsum: 2\r\n\r\nrest");
    assert_eq!(whole(&two), Ok((line, b"ab".to_vec(), two.len() - 4)));
    for part in ["", "GET /x HTTP/1.1\r\n", &format!("{get}content-length: 2\r\n\r\na")] {
        assert_eq!(whole(part), Err("a part".to_owned()), "{part}");
    }
    for wrong in [
        "GET /x HTTP/1.0\r\nhost: t\r\n\r\n",
        "GET  /x HTTP/1.1\r\nhost: t\r\n\r\n",
        "GET /x HTTP/1.1\r\n\r\n",
        &format!("{get}x: a\nb: c\r\n\r\n"),
        &format!("{get}x : a\r\n\r\n"),
        &format!("{get}content-length: 05\r\n\r\n"),
        &format!("{get}content_length: 5\r\n\r\n"),
        &format!("{get}content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n"),
        &format!("{get}connection: close\r\n\r\n"),
        &format!("{chunked}2;x\r\nab\r\n"),
        &format!("{chunked}2\r\nabc\r\n"),
        &format!("{chunked}0\r\ncontent-length: 1\r\n\r\n"),
    ] {
        let error = whole(wrong).unwrap_err();
        assert_ne!(error, "a part", "{wrong:?}");
    }
}
