//! The head of a request: parsed by `httparse`, with the checks that it does not make.
//!
//! Pure functions: bytes in, a head or an error out.

use crate::bounds;
use crate::metrics::Refused;
use http::StatusCode;
use httparse::{Header, Request, Status};
use std::mem::MaybeUninit;

/// A head that can be read in one way only. `'b` are its bytes, `'l` the lines that point into them.
pub(crate) struct RequestHead<'l, 'b> {
    pub(crate) method: &'b str,
    pub(crate) path: &'b str,
    pub(crate) query: Option<&'b str>,
    pub(crate) fields: &'l [Header<'b>],
    /// The length of its body.
    pub(crate) length: Length,
    /// Whether the connection is closed after this request.
    pub(crate) close: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects: bool,
    /// Whether the client asks for a websocket.
    pub(crate) websocket: bool,
    /// Whether it is HTTP/1.1, not 1.0.
    pub(crate) eleven: bool,
}

/// Room for the lines of a head.
pub(crate) struct HeadLines<'b>([MaybeUninit<Header<'b>>; bounds::HEADERS]);

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    None,
    Bytes(usize),
    Chunks,
}

/// Why a request is refused before its handler sees it. The connection is closed after each of these errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("this is not HTTP")]
    NoHttp,
    #[error("the request is not well formed: {0}")]
    Malformed(&'static str),
    #[error("the request line has more than {} bytes", bounds::REQUEST_LINE)]
    LineTooLong,
    #[error(
        "the header has more than {} fields or {} bytes",
        bounds::HEADERS,
        bounds::HEADER_BLOCK
    )]
    HeaderTooLarge,
    #[error("this version of HTTP is not supported; use HTTP/1.1")]
    Version,
    #[error("this transfer coding is not supported; use `chunked`")]
    Coding,
    #[error("the body has more than {0} bytes")]
    BodyTooLarge(usize),
    #[error("a chunk of the body is not well formed")]
    BadChunk,
    #[error("the request was not finished in time")]
    Late,
    #[error(
        "the server has no memory for a request of this size at the moment; try again later, or send less in one request"
    )]
    NoRoom,
    /// The client closed the connection in the middle of a request, so it gets no answer.
    #[error("the connection ended within a request")]
    CutShort,
}

/// Where the head ends. The first `seen` bytes were searched before.
pub(crate) fn end(input: &[u8], seen: usize) -> Option<usize> {
    // Up to three of the four bytes `\r\n\r\n` may be among those that were searched.
    let from = seen.saturating_sub(3);
    let rest = input.get(from..)?;
    let ends = memchr::memchr_iter(b'\n', rest).map(|at| at.saturating_add(from).saturating_add(1));
    // Some parsers accept a bare line feed as a line end. So it ends the head here, and the head is then refused.
    ends.into_iter().find(|end| {
        let lines = input.get(..*end).unwrap_or_default();
        lines.ends_with(b"\n\r\n") || lines.ends_with(b"\n\n")
    })
}

/// Checks that these bytes can be the beginning of a head.
pub(crate) fn plausible(input: &[u8]) -> Result<(), HeadError> {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let method = input.iter().take_while(|byte| **byte != b' ').take(LONGEST_METHOD);
    if !method.clone().all(token) || method.count() == LONGEST_METHOD {
        return Err(HeadError::NoHttp);
    }
    match memchr::memchr(b'\n', input).and_then(|end| input.get(..end)) {
        None if input.len() > bounds::REQUEST_LINE => return Err(HeadError::LineTooLong),
        // HTTP/0.9 and other line-based protocols: the end of a head would never come.
        Some(line) if !names_version(line) => return Err(HeadError::NoHttp),
        None | Some(_) => {}
    }
    if input.len() > bounds::REQUEST_LINE.saturating_add(bounds::HEADER_BLOCK) {
        return Err(HeadError::HeaderTooLarge);
    }
    Ok(())
}

/// The path of forward auth, where the header fields are those of another request: the one to be decided.
const FORWARD_AUTH: &str = "/v1/auth";

/// The longest registered method has 17 letters.
const LONGEST_METHOD: usize = 32;

impl<'b> HeadLines<'b> {
    pub(crate) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; bounds::HEADERS])
    }

    /// Parses and checks a whole head.
    pub(crate) fn parse<'l>(
        &'l mut self,
        bytes: &'b [u8],
    ) -> Result<RequestHead<'l, 'b>, HeadError> {
        let mut request = Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(bytes, &mut self.0);
        sizes(bytes)?;
        match parsed {
            Ok(Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Err(HeadError::Malformed("its lines")),
            Err(error) => return Err(refused(error, bytes)),
        }
        let method = request.method.unwrap_or_default();
        // `plausible` has not seen a head that arrived at once.
        if method.len() >= LONGEST_METHOD {
            return Err(HeadError::NoHttp);
        }
        let eleven = request.version == Some(1);
        let found = FramingFields::of(request.headers)?;
        let (path, query) = target(&request, found.host, eleven)?;
        Ok(RequestHead {
            method,
            path,
            query,
            length: length(&found, eleven)?,
            // In HTTP/1.0 a connection stays open only if both sides ask for it, and this server does not.
            close: found.close || !eleven,
            expects: found.expects && eleven,
            websocket: found.websocket,
            eleven,
            fields: request.headers,
        })
    }
}

impl RequestHead<'_, '_> {
    /// Refuses a websocket. Caddy copies all fields of a websocket's first request into its forward auth request, and expects a
    /// normal answer.
    pub(crate) fn without_upgrade(self) -> Result<Self, HeadError> {
        if self.websocket && !self.path.starts_with(FORWARD_AUTH) {
            return Err(HeadError::Malformed("websockets are not supported"));
        }
        Ok(self)
    }
}

/// The error for a head that `httparse` refused.
fn refused(error: httparse::Error, bytes: &[u8]) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::HeaderTooLarge,
        httparse::Error::Version => {
            let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
            match line.split(|byte| *byte == b' ').count() {
                _ if !names_version(line) => HeadError::NoHttp,
                3 => HeadError::Version,
                _ => HeadError::Malformed("the request line"),
            }
        }
        httparse::Error::HeaderName => HeadError::Malformed("the name of a header field"),
        httparse::Error::HeaderValue => HeadError::Malformed("the value of a header field"),
        httparse::Error::NewLine => HeadError::Malformed("a line end"),
        httparse::Error::Token | httparse::Error::Status => {
            HeadError::Malformed("the request line")
        }
    }
}

/// Whether the last word of a request line is a version of HTTP, supported or not.
fn names_version(line: &[u8]) -> bool {
    let last = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
    last.is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Checks that all lines end in `\r\n`, and the sizes of the request line and the header.
fn sizes(bytes: &[u8]) -> Result<(), HeadError> {
    let mut first = None;
    for at in memchr::memchr_iter(b'\n', bytes) {
        if at.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b'\r') {
            return Err(HeadError::Malformed("a line end"));
        }
        first.get_or_insert(at);
    }
    let line = first.unwrap_or(bytes.len());
    if line > bounds::REQUEST_LINE {
        return Err(HeadError::LineTooLong);
    }
    if bytes.len().saturating_sub(line) > bounds::HEADER_BLOCK {
        return Err(HeadError::HeaderTooLarge);
    }
    Ok(())
}

/// The header fields that frame the request.
#[derive(Default)]
struct FramingFields<'h> {
    host: Option<&'h [u8]>,
    length: Option<&'h [u8]>,
    coding: Option<&'h [u8]>,
    close: bool,
    expects: bool,
    websocket: bool,
}

impl<'h> FramingFields<'h> {
    fn of(headers: &[Header<'h>]) -> Result<Self, HeadError> {
        let mut fields = Self::default();
        for header in headers {
            fields.read(header)?;
        }
        Ok(fields)
    }

    fn read(&mut self, header: &Header<'h>) -> Result<(), HeadError> {
        let value = header.value;
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // Comparing the length first is faster.
        match header.name.len() {
            4 if is("host") => once(&mut self.host, value, "two `host` fields")?,
            6 if is("expect") => self.expects = value.eq_ignore_ascii_case(b"100-continue"),
            7 if is("upgrade") => self.websocket |= value.eq_ignore_ascii_case(b"websocket"),
            10 if is("connection") => {
                let mut words = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                self.close |= words.any(|word| word.eq_ignore_ascii_case(b"close"));
            }
            14 if is("content-length") => once(&mut self.length, value, "two lengths")?,
            17 if is("transfer-encoding") => {
                once(&mut self.coding, value, "two transfer codings")?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Keeps the value of a field that must not be repeated.
fn once<'h>(
    field: &mut Option<&'h [u8]>,
    value: &'h [u8],
    repeated: &'static str,
) -> Result<(), HeadError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(HeadError::Malformed(repeated)),
    }
}

/// The path and the query. If both the target and the `host` field name a host, they must agree.
fn target<'h>(
    request: &Request<'_, 'h>,
    host: Option<&[u8]>,
    eleven: bool,
) -> Result<(&'h str, Option<&'h str>), HeadError> {
    if eleven && host.is_none() {
        return Err(HeadError::Malformed("no `host` field"));
    }
    if host.is_some_and(|host| !host.iter().all(u8::is_ascii_graphic)) {
        return Err(HeadError::Malformed("the `host` field"));
    }
    let target = request.path.unwrap_or_default();
    let origin = if target.starts_with('/') || target == "*" {
        target
    } else {
        let rest = ["http://", "https://"].iter().find_map(|scheme| target.strip_prefix(scheme));
        let rest = rest.ok_or(HeadError::Malformed("its target"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if host.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_bytes())) {
            return Err(HeadError::Malformed("it names two hosts"));
        }
        if path.is_empty() { "/" } else { path }
    };
    Ok(match origin.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (origin, None),
    })
}

/// How long the body is. Contradicting fields are an error (request smuggling).
fn length(fields: &FramingFields<'_>, eleven: bool) -> Result<Length, HeadError> {
    match (fields.length, fields.coding) {
        (None, None) => Ok(Length::None),
        (Some(_), Some(_)) => Err(HeadError::Malformed("a length beside a transfer coding")),
        (None, Some(_)) if !eleven => Err(HeadError::Malformed("chunks in HTTP/1.0")),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Length::Chunks),
        (None, Some(coding)) => {
            let words = coding.to_ascii_lowercase();
            let chunked = words.windows(7).any(|word| word == b"chunked");
            Err(if chunked {
                HeadError::Malformed("its transfer coding")
            } else {
                HeadError::Coding
            })
        }
        (Some(digits), None) => {
            let digits = Some(digits).filter(|digits| {
                !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit)
            });
            let text = digits.and_then(|digits| str::from_utf8(digits).ok());
            let length = text.and_then(|text| text.parse().ok());
            length.map(Length::Bytes).ok_or(HeadError::Malformed("its length"))
        }
    }
}

// === impl HeadError ===

impl HeadError {
    pub(crate) const fn status(self) -> Option<StatusCode> {
        Some(match self {
            Self::NoHttp | Self::Malformed(_) | Self::BadChunk => StatusCode::BAD_REQUEST,
            Self::LineTooLong => StatusCode::URI_TOO_LONG,
            Self::HeaderTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Self::CutShort => return None,
        })
    }

    pub(crate) const fn kind(self) -> Refused {
        match self {
            Self::NoHttp => Refused::NoHttp,
            Self::Malformed(_) | Self::Version | Self::Coding | Self::BadChunk => {
                Refused::Malformed
            }
            Self::LineTooLong | Self::HeaderTooLarge | Self::BodyTooLarge(_) => Refused::TooLarge,
            Self::Late => Refused::Late,
            Self::NoRoom => Refused::NoRoom,
            Self::CutShort => Refused::CutShort,
        }
    }
}
