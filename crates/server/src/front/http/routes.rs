//! The endpoints of the HTTP API: their paths and methods.

use crate::web::Answer;
use http::{HeaderValue, StatusCode, header};

/// An endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpRoute {
    Check,
    Peek,
    Report,
    Take,
    Auth(Profile),
    Live,
    Ready,
    OpenApi,
    /// `/json` of Envoy's reference service.
    Json,
    /// `/healthcheck` of Envoy's reference service.
    HealthCheck,
}

/// The kind of proxy. It is part of the path and not of the query, because Caddy replaces the query by that of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Traefik, Caddy, and proxies that send the same headers.
    Forwarded,
    /// nginx: its `auth_request` understands 2xx, 401 and 403, and answers 500 for everything else.
    Nginx,
}

// === impl HttpRoute ===

impl HttpRoute {
    const ALL: [(&'static str, Self); 11] = [
        ("/v1/check", Self::Check),
        ("/v1/auth", Self::Auth(Profile::Forwarded)),
        ("/v1/auth/nginx", Self::Auth(Profile::Nginx)),
        ("/v1/peek", Self::Peek),
        ("/v1/report", Self::Report),
        ("/v1/take", Self::Take),
        ("/live", Self::Live),
        ("/ready", Self::Ready),
        ("/openapi.json", Self::OpenApi),
        ("/json", Self::Json),
        ("/healthcheck", Self::HealthCheck),
    ];

    pub(super) fn of(path: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == path).map(|(_, route)| *route)
    }

    /// The methods of this endpoint, as the header field `Allow` lists them.
    pub(super) const fn allowed(self) -> &'static str {
        match self {
            Self::Check | Self::Peek | Self::Report | Self::Take | Self::Json => "POST",
            Self::Auth(_) | Self::Live | Self::Ready | Self::OpenApi | Self::HealthCheck => {
                "GET, HEAD"
            }
        }
    }

    pub(super) fn wrong_method(self) -> Answer {
        let allowed = self.allowed();
        let detail = format!("Method not allowed; use {}", allowed.replace(", ", " or "));
        Answer::problem(StatusCode::METHOD_NOT_ALLOWED, &detail)
            .with(header::ALLOW, HeaderValue::from_static(allowed))
    }
}

/// The paths of all endpoints with their methods.
#[cfg(test)]
pub(crate) fn endpoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    HttpRoute::ALL.into_iter().map(|(path, route)| (path, route.allowed()))
}

pub(super) fn not_found(path: &str) -> Answer {
    let known = HttpRoute::ALL.iter().map(|(known, _)| *known);
    let near = known.min_by_key(|known| strsim::levenshtein(known, path)).unwrap_or("/v1/check");
    let near = if path.len() < 64 { near } else { "/v1/check" };
    let detail = format!("no such path; did you mean `{near}`?");
    Answer::problem(StatusCode::NOT_FOUND, &detail)
}
