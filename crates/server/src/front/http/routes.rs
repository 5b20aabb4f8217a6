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

pub(super) fn not_found(path: &str) -> Answer {
    let known = HttpRoute::ALL.iter().map(|(known, _)| *known);
    let near = known.min_by_key(|known| strsim::levenshtein(known, path)).unwrap_or("/v1/check");
    let near = if path.len() < 64 { near } else { "/v1/check" };
    let detail = format!("no such path; did you mean `{near}`?");
    Answer::problem(StatusCode::NOT_FOUND, &detail)
}

#[cfg(test)]
mod tests {
    //! The `OpenAPI` document of the HTTP API.

    use super::{HttpRoute, Profile};
    use crate::bounds;
    use crate::doc_pages::compare;
    use crate::front::api_pages;
    use crate::front::http::wire::{
        Check, Refusal, Renewed, Report, ReportResult, Settled, Take, Undecided, VerdictBody,
    };
    use crate::front::openapi::{ApiDocument, Operation, live};
    use crate::health::HealthReport;
    use crate::web::PROBLEM;
    use schemars::JsonSchema;
    use serde_json::{Value, json};

    /// What these statuses mean for most endpoints.
    const PROBLEMS: [(u16, &str); 7] = [
        (400, "The request is not valid; the error says where"),
        (408, "The request did not arrive in time"),
        (409, "The receipt has already been settled, or it has expired"),
        (413, "The request is too large"),
        (415, "The body is not JSON, or it is compressed"),
        (422, "The request cannot be decided, for example because more than 16 limits apply to it"),
        (431, "The header fields are too large"),
    ];

    #[test]
    fn the_page_and_the_openapi_document_are_written_from_the_source() {
        let info = json!({
            "title": "tidegate",
            "summary": "Decides whether a request may pass now, later, or not at all",
            "description": "The body holds everything about the request to decide. A body may also be a list of requests (a batch): the answer is then a list, always with status 200. A list is refused as a whole if one of its entries is invalid.",
        });
        let mut api = ApiDocument::new(info, &PROBLEMS);
        for (path, route) in HttpRoute::ALL {
            let method = if route.allowed() == "POST" { "POST" } else { "GET" };
            if let Some(operation) = operation(route, &mut api) {
                api.add(method, path, operation.fails(&[400]));
            }
        }
        let document = api.text();
        compare("crates/server/src/front/http/openapi.json", &document);
        compare("docs/reference/http.md", &api_pages::page(api_pages::HTTP, &document));
    }

    /// What an endpoint does; `None` for those of the interface of another program, which has no such document.
    fn operation(route: HttpRoute, api: &mut ApiDocument) -> Option<Operation> {
        Some(match route {
            HttpRoute::Check => {
                let summary = "Decide a request, and count it if it passes";
                let operation = post::<Check<'_>>("check", summary, api);
                decided(operation, "The request may pass; for a list, the answers", api)
            }
            HttpRoute::Peek => {
                let operation =
                    post::<Check<'_>>("peek", "Decide a request without counting it", api);
                decided(operation, "The request could pass; for a list, the answers", api)
            }
            HttpRoute::Take => {
                let summary =
                    "Decide under a limit that the caller defines, independent of all rules";
                let operation = post::<Take<'_>>("take", summary, api);
                decided(operation, "The request may pass; for a list, the answers", api).fails_as(
                    503,
                    "Too many different limits are in use; use one of them, or try again later. Nothing was counted",
                )
            }
            HttpRoute::Report => reported(api),
            HttpRoute::Auth(profile) => forward_auth(profile, api),
            HttpRoute::Live => live(),
            HttpRoute::Ready => {
                let health = api.written::<HealthReport>();
                Operation::new("ready", "Readiness: whether clients should send requests here")
                    .answer(
                        200,
                        "Ready; `reasons` lists problems that do not prevent decisions",
                        health.clone(),
                    )
                    .answer(503, "The server is starting or stopping", health)
            }
            HttpRoute::OpenApi => Operation::new("openapi", "This document").answer(
                200,
                "The OpenAPI document",
                json!({ "type": "object" }),
            ),
            HttpRoute::Json | HttpRoute::HealthCheck => return None,
        })
    }

    /// An endpoint that reads one request or a list of them.
    fn post<T: JsonSchema>(id: &str, summary: &str, api: &mut ApiDocument) -> Operation {
        let one = api.read::<T>();
        let body = json!({ "oneOf": [one, list(&one)] });
        Operation::new(id, summary).body(body).fails(&[408, 413, 415, 431])
    }

    fn list(entry: &Value) -> Value {
        json!({ "type": "array", "maxItems": bounds::BATCH, "items": entry })
    }

    /// Answers with a verdict, or a list of verdicts.
    fn decided(operation: Operation, passes: &str, api: &mut ApiDocument) -> Operation {
        let verdict = api.written::<VerdictBody>();
        let entry = json!({ "oneOf": [verdict, api.written::<Undecided>()] });
        operation
            .answer(200, passes, json!({ "oneOf": [verdict, list(&entry)] }))
            .answer(429, "The request is denied", verdict)
            .field(
                429,
                "Retry-After",
                "Seconds, rounded up; absent if the request can never pass",
                json!({ "type": "integer", "minimum": 1 }),
            )
            .fails(&[422])
    }

    fn reported(api: &mut ApiDocument) -> Operation {
        let results = list(&api.written::<ReportResult>());
        let schema =
            json!({ "oneOf": [api.written::<Settled>(), api.written::<Renewed>(), results] });
        let summary = "Report the outcome or the true cost of a request, or renew its permits";
        post::<Report<'_>>("report", summary, api)
            .answer(
                200,
                "The receipt is settled, or the permits are renewed; for a list, the result of each report",
                schema,
            )
            .fails(&[409])
            .fails_as(
                503,
                "The store is unavailable, and it is unknown whether the report was counted; or there is no memory to record that the receipt is settled: then it was not settled, and the client can try again",
            )
    }

    fn forward_auth(profile: Profile, api: &mut ApiDocument) -> Operation {
        let refusal = api.written::<Refusal>();
        match profile {
            Profile::Forwarded => {
                let summary = "Forward auth: a proxy asks about a request before it forwards it";
                of_proxy("auth", summary, ["X-Forwarded-Method", "X-Forwarded-Uri"])
                    .about("For Traefik, Caddy and HAProxy. The headers are trusted only from peers that the policy trusts. Any query is accepted, because Caddy sends the query of its client.")
                    .answer_as(PROBLEM, 429, "The request is denied", refusal)
            }
            Profile::Nginx => {
                let summary =
                    "Forward auth for nginx, whose `auth_request` supports 403 but not 429";
                let meaning = "The request is denied; `X-RateLimit-Denied: 1` distinguishes this from other refusals";
                of_proxy("authNginx", summary, ["X-Original-Method", "X-Original-URI"])
                    .about("The headers are trusted only from peers that the policy trusts.")
                    .answer_as(PROBLEM, 403, meaning, refusal)
            }
        }
    }

    /// Forward auth, with the fields that have the method and the path of the client's request.
    fn of_proxy(id: &str, summary: &str, [method, target]: [&str; 2]) -> Operation {
        let text = json!({ "type": "string" });
        let address = "The address of the client, read as `identity` of the policy says";
        Operation::new(id, summary)
            .parameter("header", method, "The method of the client's request", text.clone())
            .parameter("header", target, "The path and query of the client's request", text.clone())
            .parameter("header", "X-Forwarded-For", address, text)
            .empty(200, "The request may pass; the RateLimit header fields are for the client")
            .fails(&[408, 413, 422, 431])
    }
}
