//! The dashboard: a page for operators on the admin listener, below `/dashboard/`. Its files are part of the program.
//!
//! ```text
//!   browser ──► GET /dashboard/          the page: no token is needed, because it holds no data
//!           ──► GET /admin/v1/…          what it shows: `authorization: Bearer …`, as for every client of the admin API
//! ```
//!
//! The page keeps the token in memory and sends it in a header. There are no cookies, so a page of another origin cannot make the
//! browser send it. The content security policy allows only the page's own files: no inline script or style, no frames, no forms, and
//! no text that becomes markup (trusted types).

use crate::web::{Answer, Call};
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::read::GzEncoder;
use http::{HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::LazyLock;

/// Where the page is.
const PAGE: &str = "/dashboard/";
const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Fields of every answer. The browser asks each time whether a file is still current, so a new version of tidegate shows its own page.
const FIELDS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::CACHE_CONTROL, "no-cache"),
    (header::VARY, "accept-encoding"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

macro_rules! files {
    ($($kind:ident $name:literal),* $(,)?) => {
        &[$(($name, $kind, include_bytes!(concat!("../../dashboard/", $name)))),*]
    };
}

/// Name, media type and contents of each file; the page itself is the first.
const FILES: &[(&str, &str, &[u8])] = files![
    HTML "index.html",
    PICTURE "icon.svg",
    STYLE "style.css",
    SCRIPT "vendor/preact.js",
    SCRIPT "main.js",
    SCRIPT "api.js",
    SCRIPT "chart.js",
    SCRIPT "difference.js",
    SCRIPT "format.js",
    SCRIPT "history.js",
    SCRIPT "live.js",
    SCRIPT "metrics.js",
    SCRIPT "parts.js",
    SCRIPT "pages/audit.js",
    SCRIPT "pages/now.js",
    SCRIPT "pages/person.js",
    SCRIPT "pages/playground.js",
    SCRIPT "pages/policy.js",
    SCRIPT "pages/shadow.js",
    SCRIPT "pages/top.js",
];

/// A file as it is sent: plain or compressed.
struct Variant {
    bytes: Vec<u8>,
    tag: HeaderValue,
}

struct DashboardFile {
    path: String,
    kind: &'static str,
    plain: Variant,
    gzip: Variant,
}

/// Compressed once, when the first browser asks.
static SENT: LazyLock<Vec<DashboardFile>> =
    LazyLock::new(|| FILES.iter().map(|file| DashboardFile::of(file)).collect());

/// Whether this module answers the request: without a token.
pub(crate) fn serves(call: &Call<'_>) -> bool {
    matches!(call.method, "GET" | "HEAD") && (call.path == "/dashboard" || find(call.path).is_some())
}

/// Whether the user of a browser follows a link to the page. A link may be on a page of another origin, such as a runbook: the page
/// holds no data, and cannot be put into a frame.
pub(crate) fn follows_link(call: &Call<'_>) -> bool {
    let navigates = call.headers.one("sec-fetch-mode") == Some("navigate");
    navigates && call.headers.all("origin").next().is_none() && serves(call)
}

/// The answer to a request that this module [`serves`].
pub(crate) fn answer(call: &Call<'_>) -> Answer {
    let Some(file) = find(call.path) else {
        return Answer::new(StatusCode::PERMANENT_REDIRECT, "", "")
            .with(header::LOCATION, HeaderValue::from_static(PAGE));
    };
    let zipped = accepts_gzip(call);
    let variant = if zipped { &file.gzip } else { &file.plain };
    let mut answer = if has(call, &variant.tag) {
        Answer::new(StatusCode::NOT_MODIFIED, "", "")
    } else {
        Answer { body: variant.bytes.as_slice().into(), ..Answer::fixed(file.kind, "") }
    };
    if zipped && answer.status == StatusCode::OK {
        answer = answer.with(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    for (name, value) in FIELDS {
        answer = answer.with(name, HeaderValue::from_static(value));
    }
    answer.with(header::ETAG, variant.tag.clone())
}

fn find(path: &str) -> Option<&'static DashboardFile> {
    path.starts_with(PAGE).then(|| SENT.iter().find(|file| file.path == path))?
}

/// Whether the client has this variant already. Tags are compared weakly (RFC 9110, 13.1.2), because a proxy may add `W/`.
fn has(call: &Call<'_>, tag: &HeaderValue) -> bool {
    let mut tags = call.headers.all("if-none-match").flat_map(|tags| tags.split(|byte| *byte == b','));
    tags.any(|known| {
        let known = known.trim_ascii();
        known.strip_prefix(b"W/").unwrap_or(known) == tag.as_bytes()
    })
}

/// Whether `Accept-Encoding` names gzip, and not with the quality 0.
fn accepts_gzip(call: &Call<'_>) -> bool {
    let mut codings = call.headers.all("accept-encoding").flat_map(|all| all.split(|byte| *byte == b','));
    codings.any(|coding| {
        let mut parts = coding.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(b"gzip"));
        let refused = |part: &[u8]| {
            let quality = part.strip_prefix(b"q=").or(part.strip_prefix(b"Q="));
            quality.is_some_and(|quality| quality.iter().all(|byte| matches!(byte, b'0' | b'.')))
        };
        gzip && !parts.any(refused)
    })
}

// === impl DashboardFile ===

impl DashboardFile {
    fn of((name, kind, bytes): &(&str, &'static str, &'static [u8])) -> Self {
        let path = if *name == "index.html" { PAGE.to_owned() } else { format!("{PAGE}{name}") };
        let mut zipped = Vec::new();
        // Reading from memory into memory does not fail.
        let whole = GzEncoder::new(*bytes, Compression::best()).read_to_end(&mut zipped);
        debug_assert!(whole.is_ok(), "{name} is compressed");
        Self { path, kind, plain: Variant::of(bytes.to_vec()), gzip: Variant::of(zipped) }
    }
}

impl Variant {
    fn of(bytes: Vec<u8>) -> Self {
        let hash = HEXLOWER.encode(&Sha256::digest(&bytes));
        let tag = HeaderValue::try_from(format!("\"{hash}\""));
        Self { bytes, tag: tag.unwrap_or(HeaderValue::from_static("\"\"")) }
    }
}
