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
    LazyLock::new(|| FILES.iter().map(DashboardFile::of).collect());

/// Whether this module answers the request: without a token.
pub(crate) fn serves(call: &Call<'_>) -> bool {
    matches!(call.method, "GET" | "HEAD")
        && (call.path == "/dashboard" || find(call.path).is_some())
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
    let mut tags =
        call.headers.all("if-none-match").flat_map(|tags| tags.split(|byte| *byte == b','));
    tags.any(|known| {
        let known = known.trim_ascii();
        known.strip_prefix(b"W/").unwrap_or(known) == tag.as_bytes()
    })
}

/// Whether `Accept-Encoding` names gzip, and not with the quality 0.
fn accepts_gzip(call: &Call<'_>) -> bool {
    let mut codings =
        call.headers.all("accept-encoding").flat_map(|all| all.split(|byte| *byte == b','));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Reservation;
    use crate::web::Headers;
    use std::collections::BTreeSet;
    use std::path::Path;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");

    fn asked(method: &str, path: &str, lines: &[(&str, &str)]) -> Option<Answer> {
        let lines: Vec<httparse::Header<'_>> = lines
            .iter()
            .map(|(name, value)| httparse::Header { name, value: value.as_bytes() })
            .collect();
        let call = Call {
            peer: [127, 0, 0, 1].into(),
            method,
            path,
            query: None,
            headers: Headers::Lines(&lines),
            body: b"",
            room: &Reservation::default(),
        };
        serves(&call).then(|| answer(&call))
    }

    fn field(answer: &Answer, wanted: &HeaderName) -> Option<String> {
        let found = answer.fields.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.to_str().unwrap().to_owned())
    }

    fn files_below(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                files_below(&entry.path(), found);
            } else {
                let path = entry.path();
                let name = path.strip_prefix(FOLDER).unwrap().to_str().unwrap();
                found.insert(name.to_owned());
            }
        }
    }

    /// The files that the project wrote, as text.
    fn own() -> impl Iterator<Item = (&'static str, &'static str)> {
        let own = FILES.iter().filter(|(name, ..)| !name.starts_with("vendor/"));
        own.map(|(name, _, bytes)| (*name, str::from_utf8(bytes).unwrap()))
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let mut found = BTreeSet::new();
        files_below(Path::new(FOLDER), &mut found);
        found.retain(|name| !name.starts_with("vendor/LICENSE") && name != "vendor/README.md");
        let served: BTreeSet<String> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(served, found);
    }

    #[test]
    fn the_compressed_files_have_at_most_60_kilobytes() {
        let all: usize = SENT.iter().map(|file| file.gzip.bytes.len()).sum();
        assert!(all <= 60_000, "{all} bytes");
    }

    #[test]
    fn code_of_others_is_as_it_was_published() {
        let page = std::fs::read_to_string(format!("{FOLDER}/vendor/README.md")).unwrap();
        let vendored = FILES.iter().filter(|(name, ..)| name.starts_with("vendor/"));
        for (name, _, bytes) in vendored {
            let hash = HEXLOWER.encode(&Sha256::digest(bytes));
            let row = page.lines().find(|line| line.contains(&name.replace("vendor/", "| `")));
            assert!(row.unwrap().contains(&hash), "{name} has the hash {hash}");
        }
    }

    #[test]
    fn nothing_is_inline_and_no_text_becomes_markup_or_code() {
        let words = [
            "<style",
            "style=",
            "onclick=",
            "javascript:",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "dangerously",
            "document.write",
            "eval(",
            "new Function",
            "localStorage",
            "sessionStorage",
            "document.cookie",
            "http://",
            "https://",
        ];
        for (name, text) in own().filter(|(name, _)| *name != "icon.svg") {
            for word in words {
                assert!(!text.contains(word), "{name} has {word}");
            }
        }
        let (_, page) = own().next().unwrap();
        assert!(page.matches("<script").count() == page.matches("<script src=").count(), "{page}");
    }

    #[test]
    fn the_files_that_scripts_import_are_served() {
        for (name, text) in own().filter(|(name, _)| name.ends_with(".js")) {
            let folder = Path::new(name).parent().unwrap();
            for import in text.lines().filter_map(|line| line.split(" from \"").nth(1)) {
                let target = folder.join(import.trim_end_matches("\";"));
                let target = target.to_str().unwrap().replace("pages/../", "").replace("./", "");
                assert!(FILES.iter().any(|(name, ..)| *name == target), "{name} imports {target}");
            }
        }
    }

    #[test]
    fn the_page_is_compressed_for_those_who_can_read_it() {
        for (accepted, zipped) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("br", false),
            ("", false),
        ] {
            let answer = asked("GET", PAGE, &[("accept-encoding", accepted)]).unwrap();
            let coding = field(&answer, &header::CONTENT_ENCODING);
            assert_eq!(coding.as_deref(), zipped.then_some("gzip"), "{accepted}");
            assert_eq!(answer.body.starts_with(b"<!doctype html>"), !zipped, "{accepted}");
        }
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let gzip = ("accept-encoding", "gzip");
        for lines in [vec![], vec![gzip]] {
            let first = asked("GET", "/dashboard/main.js", &lines).unwrap();
            assert_eq!(first.status, StatusCode::OK);
            let tag = field(&first, &header::ETAG).unwrap();
            for known in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}")] {
                let again = [&lines[..], &[("if-none-match", known.as_str())]].concat();
                let again = asked("GET", "/dashboard/main.js", &again).unwrap();
                assert_eq!((again.status, again.body.len()), (StatusCode::NOT_MODIFIED, 0));
                assert_eq!(field(&again, &header::ETAG), Some(tag.clone()));
            }
        }
        let plain = field(&asked("GET", PAGE, &[]).unwrap(), &header::ETAG);
        assert_ne!(plain, field(&asked("GET", PAGE, &[gzip]).unwrap(), &header::ETAG));
    }

    #[test]
    fn only_the_files_are_served_and_only_for_reading() {
        for path in [
            "/dashboard/x",
            "/dashboard/../x",
            "/dashboard//",
            "/dashboard/vendor/",
            "/",
            "/admin/v1/status",
        ] {
            assert!(asked("GET", path, &[]).is_none(), "{path}");
        }
        assert!(asked("POST", PAGE, &[]).is_none());
        assert_eq!(asked("HEAD", PAGE, &[]).unwrap().status, StatusCode::OK);
        let moved = asked("GET", "/dashboard", &[]).unwrap();
        assert_eq!(field(&moved, &header::LOCATION).as_deref(), Some(PAGE));
    }
}
