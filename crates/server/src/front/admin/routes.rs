//! The table of admin endpoints: method, path, required role and the action behind them.

use super::auth::AdminRole;
use super::request::accepts_policy;
use crate::bounds;
use crate::web::{Answer, BodyBound, Call};
use http::{HeaderValue, StatusCode, header};

/// One endpoint.
pub(super) struct AdminRoute {
    method: &'static str,
    pub(super) path: &'static str,
    /// The least role that may use it.
    pub(super) role: AdminRole,
    pub(super) action: AdminAction,
}

/// What an endpoint does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AdminAction {
    Metrics,
    OpenApi,
    Status,
    Control,
    Audit,
    Rules,
    Leases,
    Nodes,
    Top,
    Denials,
    Policy,
    PutPolicy,
    DeletePolicy,
    Peek,
    Explain,
    Playground,
    /// Shows what is known about a person.
    Who,
    /// Shows whose token the request carries.
    WhoAmI,
    Reset,
    PutRules,
    PutOverrides,
    PutTiers,
    PutSignals,
    Upstreams,
    PutUpstreams,
    /// Shows the rule files, at the path that Envoy's reference service uses for them.
    RuleFiles,
}

const fn route(
    method: &'static str,
    path: &'static str,
    role: AdminRole,
    action: AdminAction,
) -> AdminRoute {
    AdminRoute { method, path, role, action }
}

/// All endpoints that need a token; every other path is answered with 404.
const ROUTES: [AdminRoute; 26] = [
    route("GET", "/metrics", AdminRole::Reader, AdminAction::Metrics),
    route("GET", "/admin/v1/openapi.json", AdminRole::Reader, AdminAction::OpenApi),
    route("GET", "/admin/v1/status", AdminRole::Reader, AdminAction::Status),
    route("GET", "/admin/v1/control", AdminRole::Reader, AdminAction::Control),
    route("GET", "/admin/v1/audit", AdminRole::Reader, AdminAction::Audit),
    route("GET", "/admin/v1/rules", AdminRole::Reader, AdminAction::Rules),
    route("GET", "/admin/v1/leases", AdminRole::Reader, AdminAction::Leases),
    route("GET", "/admin/v1/nodes", AdminRole::Reader, AdminAction::Nodes),
    route("GET", "/admin/v1/top", AdminRole::Reader, AdminAction::Top),
    route("GET", "/admin/v1/denials", AdminRole::Reader, AdminAction::Denials),
    route("GET", "/admin/v1/policy", AdminRole::Reader, AdminAction::Policy),
    route("GET", "/rlconfig", AdminRole::Reader, AdminAction::RuleFiles),
    route("PUT", "/admin/v1/policy", AdminRole::Operator, AdminAction::PutPolicy),
    route("DELETE", "/admin/v1/policy", AdminRole::Operator, AdminAction::DeletePolicy),
    route("POST", "/admin/v1/peek", AdminRole::Reader, AdminAction::Peek),
    route("POST", "/admin/v1/explain", AdminRole::Reader, AdminAction::Explain),
    route("POST", "/admin/v1/playground", AdminRole::Reader, AdminAction::Playground),
    route("POST", "/admin/v1/who", AdminRole::Reader, AdminAction::Who),
    route("GET", "/admin/v1/whoami", AdminRole::Reader, AdminAction::WhoAmI),
    route("POST", "/admin/v1/reset", AdminRole::Operator, AdminAction::Reset),
    route("PUT", "/admin/v1/rules", AdminRole::Operator, AdminAction::PutRules),
    route("PUT", "/admin/v1/overrides", AdminRole::Operator, AdminAction::PutOverrides),
    route("PUT", "/admin/v1/tiers", AdminRole::Operator, AdminAction::PutTiers),
    route("PUT", "/admin/v1/signals", AdminRole::Operator, AdminAction::PutSignals),
    route("GET", "/admin/v1/upstreams", AdminRole::Reader, AdminAction::Upstreams),
    route("PUT", "/admin/v1/upstreams", AdminRole::Operator, AdminAction::PutUpstreams),
];

/// Describes the endpoints for programs. A test compares it with the table.
pub(super) const OPENAPI: &str = include_str!("openapi.json");

/// The path that needs no token: [`super::handler`] answers it. With another method, a client with a token learns that.
pub(super) const LIVE: &str = "/live";
const LIVE_METHOD: &[&str] = &["GET"];

/// The route of a request. A path must match exactly: it has only one spelling.
pub(super) fn find(call: &Call<'_>) -> Result<&'static AdminRoute, Answer> {
    let method = if call.method == "HEAD" { "GET" } else { call.method };
    let mut here = ROUTES.iter().filter(|route| route.path == call.path).peekable();
    if call.path == LIVE {
        return Err(only(LIVE_METHOD));
    }
    if here.peek().is_none() {
        return Err(Answer::problem(StatusCode::NOT_FOUND, "no such path"));
    }
    here.find(|route| route.method == method).ok_or_else(|| wrong_method(call.path))
}

fn wrong_method(path: &str) -> Answer {
    let methods = ROUTES.iter().filter(|route| route.path == path);
    only(&methods.map(|route| route.method).collect::<Vec<_>>())
}

/// The answer to a request with another method than these.
fn only(methods: &[&str]) -> Answer {
    let detail = format!("Method not allowed; use {}", methods.join(" or "));
    let answer = Answer::problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    match HeaderValue::try_from(methods.join(", ")) {
        Ok(methods) => answer.with(header::ALLOW, methods),
        Err(_) => answer,
    }
}

impl AdminRoute {
    /// How large the body of a request may be, once its media type is accepted.
    pub(super) fn body(&self, call: &Call<'_>) -> Result<BodyBound, Answer> {
        match (self.method, self.action) {
            ("GET" | "DELETE", _) => Ok(BodyBound::bytes(0)),
            (_, AdminAction::PutPolicy) if accepts_policy(call) => {
                Ok(BodyBound::bytes(bounds::POLICY_BODY))
            }
            (_, AdminAction::PutPolicy) => {
                Err(unsupported("send a policy with `content-type: application/yaml`"))
            }
            (_, _) if call.is_json() => Ok(BodyBound::bytes(bounds::BODY)),
            (_, _) => Err(unsupported("send JSON with `content-type: application/json`")),
        }
    }
}

fn unsupported(detail: &str) -> Answer {
    Answer::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc_pages::compare;
    use crate::front::api_pages;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_is_written_from_the_openapi_document() {
        compare("docs/reference/admin.md", &api_pages::page(api_pages::ADMIN, OPENAPI));
    }

    /// The endpoints of the document: method, path, and whether a reader may use it. `/live` needs no token.
    fn described() -> BTreeSet<(String, String, bool)> {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut found = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let security = operation["security"].as_array().unwrap();
                let reader = security.iter().any(|scheme| scheme.get("reader").is_some());
                assert!(path == "/live" || !security.is_empty(), "{method} {path} needs a token");
                found.insert((method.to_uppercase(), path.clone(), reader));
            }
        }
        found.remove(&("GET".to_owned(), "/live".to_owned(), false));
        found
    }

    #[test]
    fn the_openapi_document_has_the_endpoints_of_the_table_and_their_roles() {
        let route = |route: &AdminRoute| {
            (route.method.to_owned(), route.path.to_owned(), route.role == AdminRole::Reader)
        };
        let (described, routes) = (described(), ROUTES.iter().map(route).collect());
        let missing: Vec<_> = BTreeSet::difference(&routes, &described).collect();
        let more: Vec<_> = described.difference(&routes).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "crates/server/src/front/admin/openapi.json lacks (method, path, for readers): {missing:?}; it has no route for: {more:?}"
        );
    }
}
