//! Forward auth: a proxy asks about each request before it forwards it.
//!
//! ```text
//!   client ──► proxy ──GET /v1/auth, X-Forwarded-Method, -Uri, -For──► tidegate
//!                └── 200: forward to the service      429: return to the client, with the RateLimit header fields
//! ```
//!
//! What the proxy says about a request is trusted only from the peers that the policy names as `trusted`, and only in the header
//! fields of its profile. A proxy forwards the headers of its client, so a client could forge any field that the proxy does not
//! set itself.

use super::handler::HttpHandler;
use super::routes::Profile;
use crate::backend::Backend;
use crate::desk::{Desk, tell_upstream};
use crate::web;
use crate::web::{Answer, Call};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate::http::{HeaderStyle, refusal};
use tidegate::{Check, Limiter, Request, Verdict};

const DENIED: HeaderName = HeaderName::from_static("x-ratelimit-denied");
const RECEIPT: HeaderName = HeaderName::from_static("tidegate-receipt");

impl<S: Backend> HttpHandler<S> {
    /// `GET /v1/auth` and `/v1/auth/nginx`
    pub(super) async fn forward_auth(&self, call: &Call<'_>, profile: Profile) -> Answer {
        match decide(self, call, profile).await {
            Ok(answer) | Err(answer) => answer,
        }
    }
}

async fn decide<S: Backend>(
    handler: &HttpHandler<S>,
    call: &Call<'_>,
    profile: Profile,
) -> Result<Answer, Answer> {
    let bad = |detail: &str| Answer::problem(StatusCode::BAD_REQUEST, detail);
    let Desk { limiter, .. } = &handler.auth;
    if !limiter.trusts(call.peer) {
        return Err(bad(&format!(
            "{} is not a trusted proxy; add its address to `identity.trusted` of the policy",
            call.peer
        )));
    }
    let (method, target) = profile.request_line(call).ok_or_else(|| bad(profile.missing()))?;
    if has_fragment(target) {
        return Err(bad("the path contains a `#`, which servers interpret differently"));
    }
    let values = |name: &str| call.headers.all(name).collect();
    let request = Request { peer: Some(call.peer), method, target, headers: &values };
    let attributes = limiter.attributes(&request).map_err(|error| bad(&error.to_string()))?;
    let verdict =
        handler.auth.check(&Check::new(&attributes)).await.map_err(|error| {
            Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
        })?;
    Ok(if verdict.allowed() {
        passed(&verdict, &handler.style, limiter)
    } else {
        refused(&verdict, &handler.style, profile)
    })
}

fn passed<S: Backend>(verdict: &Verdict, style: &HeaderStyle, limiter: &Limiter<S>) -> Answer {
    let mut fields = HeaderMap::new();
    style.write(verdict, &mut fields);
    tell_upstream(verdict, &mut fields);
    let receipt = verdict.receipt().map(|receipt| limiter.sealed(receipt));
    if let Some(Ok(receipt)) = receipt.map(HeaderValue::try_from) {
        fields.insert(RECEIPT, receipt);
    }
    Answer::new(StatusCode::OK, "", "").with_all(&fields)
}

fn refused(verdict: &Verdict, style: &HeaderStyle, profile: Profile) -> Answer {
    let (mut parts, body) = refusal(verdict, style).into_parts();
    // `Answer` sets the media type itself.
    parts.headers.remove(http::header::CONTENT_TYPE);
    let status = match profile {
        Profile::Forwarded => parts.status,
        Profile::Nginx => {
            parts.headers.insert(DENIED, HeaderValue::from_static("1"));
            StatusCode::FORBIDDEN
        }
    };
    Answer::new(status, web::PROBLEM, body).with_all(&parts.headers)
}

// === impl Profile ===

impl Profile {
    /// The method and target of the request to decide.
    fn request_line<'c>(self, call: &Call<'c>) -> Option<(&'c str, &'c str)> {
        let one = |name| call.headers.one(name).filter(|value| !value.is_empty());
        match self {
            Self::Forwarded => Some((one("x-forwarded-method")?, one("x-forwarded-uri")?)),
            Self::Nginx => {
                // The nginx ingress of Kubernetes sends the whole URL.
                let url = || one("x-original-url").and_then(path_of);
                let target = if call.headers.all("x-original-uri").next().is_some() {
                    one("x-original-uri")?
                } else {
                    url()?
                };
                Some((one("x-original-method")?, target))
            }
        }
        .filter(|(_, target)| target.starts_with('/'))
    }

    const fn missing(self) -> &'static str {
        match self {
            Self::Forwarded => {
                "the proxy must send `X-Forwarded-Method` and `X-Forwarded-Uri`, each once; nginx must use `/v1/auth/nginx`"
            }
            Self::Nginx => {
                "the proxy must send `X-Original-Method` and `X-Original-URI` (or `X-Original-URL`), each once"
            }
        }
    }
}

/// Whether there is a `#` in the path. Some servers end the path there and others take it as an ordinary character, so
/// `/#/../login` is `/` for some and `/login` for others. No client that follows the standard sends it.
fn has_fragment(target: &str) -> bool {
    target.split('?').next().is_some_and(|path| path.contains('#'))
}

/// The path and query of a URL.
fn path_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    rest.find('/').and_then(|at| rest.get(at..)).or(Some("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Reservation;
    use crate::web::Headers;

    use Profile::{Forwarded, Nginx};

    fn request_line(profile: Profile, lines: &[(&str, &str)]) -> Option<(String, String)> {
        let lines: Vec<httparse::Header<'_>> = lines
            .iter()
            .map(|(name, value)| httparse::Header { name, value: value.as_bytes() })
            .collect();
        let call = Call {
            peer: [127, 0, 0, 1].into(),
            method: "GET",
            path: "",
            query: None,
            headers: Headers::Lines(&lines),
            body: b"",
            room: &Reservation::default(),
        };
        let (method, target) = profile.request_line(&call)?;
        Some((method.to_owned(), target.to_owned()))
    }

    #[test]
    fn a_profile_reads_only_its_own_fields() {
        let forwarded = [("X-Forwarded-Method", "POST"), ("X-Forwarded-Uri", "/urls?a=b")];
        let original = [("X-Original-Method", "PUT"), ("X-Original-URI", "/login")];
        let both = [forwarded[0], original[0], forwarded[1], original[1]];
        let is = |method: &str, target: &str| Some((method.to_owned(), target.to_owned()));
        assert_eq!(request_line(Forwarded, &both), is("POST", "/urls?a=b"));
        assert_eq!(request_line(Nginx, &both), is("PUT", "/login"));
        assert_eq!(request_line(Nginx, &forwarded), None);
        assert_eq!(request_line(Forwarded, &original), None);
    }

    #[test]
    fn repeated_fields_and_invalid_paths_are_refused() {
        let twice =
            [("X-Forwarded-Method", "GET"), ("X-Forwarded-Uri", "/a"), ("x-forwarded-uri", "/b")];
        assert_eq!(request_line(Forwarded, &twice), None);
        for target in ["", "login", "http://x/login"] {
            let lines = [("X-Forwarded-Method", "GET"), ("X-Forwarded-Uri", target)];
            assert_eq!(request_line(Forwarded, &lines), None, "{target}");
        }
        let url = [("X-Original-Method", "GET"), ("X-Original-URL", "https://a.example/x?y")];
        assert_eq!(request_line(Nginx, &url), Some(("GET".into(), "/x?y".into())));
    }

    #[test]
    fn a_fragment_is_found_only_in_the_path() {
        for (target, has) in
            [("/#/../login", true), ("/login#", true), ("/login?a#b", false), ("/%23", false)]
        {
            assert_eq!(has_fragment(target), has, "{target}");
        }
    }
}
