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
    //! The `OpenAPI` document of the admin API.

    use super::{AdminAction, AdminRole, LIVE, ROUTES};
    use crate::control::Document;
    use crate::doc_pages::compare;
    use crate::front::admin::answers::{
        ExplanationBody, Leases, Nodes, Person, PolicyChange, RecentDenialsBody, ResetDone,
        RuleInForce, Status, Top, WhoAmI,
    };
    use crate::front::admin::playground::{PlaygroundBody, PlaygroundResult};
    use crate::front::admin::top::{DENIALS, TOP_KEYS};
    use crate::front::admin::upstreams::Upstreams;
    use crate::front::admin::views::AUDIT_LINES;
    use crate::front::admin::wire::{
        PeekBody, PutOverrideBody, PutRuleBody, PutTierBody, PutUpstreamBody, ResetBody,
        SignalsBody, WhoBody,
    };
    use crate::front::api_pages;
    use crate::front::http::VerdictBody;
    use crate::front::openapi::{ApiDocument, Operation, live};
    use crate::top_keys::TopBy;
    use schemars::JsonSchema;
    use serde_json::{Map, Value, json};

    const DESCRIPTION: &str = "Every request but /live carries a token: `authorization: Bearer …`. The data directory has two: that of a reader may inspect, that of an operator may also change. Users can have tokens of their own (`admin.users_file`). A change with `If-Match`, the `ETag` of /admin/v1/control, is made only if that version is still the current one.";

    /// What these statuses mean.
    const PROBLEMS: [(u16, &str); 14] = [
        (400, "The request is not valid; the error says where"),
        (401, "There is no valid token"),
        (403, "The token of a reader may not do this, or the request is of another origin"),
        (408, "The request did not arrive in time"),
        (409, "Another change is being written, or the policy drops changes of operators"),
        (412, "`If-Match` names a version that is not the current one"),
        (413, "The body is too large"),
        (415, "The media type of the body is not the one that this endpoint reads"),
        (421, "The `Host` is not a name of this listener"),
        (422, "The values are not possible here, such as a rule that does not exist"),
        (429, "This address sent too many wrong tokens"),
        (431, "The header fields are too large"),
        (500, "A file could not be written or read; nothing has changed"),
        (
            503,
            "The store, which keeps changes for all nodes, cannot be reached, or there is no room for the request",
        ),
    ];
    /// With which of them any request can be answered, and any that needs a token.
    const OF_ALL: [u16; 6] = [400, 403, 408, 413, 421, 431];
    const OF_TOKENS: [u16; 4] = [401, 415, 429, 503];
    /// A change of the control document, or of the policy.
    const OF_CHANGES: [u16; 4] = [409, 412, 422, 500];

    #[test]
    fn the_page_and_the_openapi_document_are_written_from_the_source() {
        let summary = "Inspects and changes a running server";
        let info = json!({ "title": "tidegate admin API", "summary": summary, "description": DESCRIPTION });
        let mut api = ApiDocument::new(info, &PROBLEMS);
        for token in ["reader", "operator"] {
            let file = format!("The token in the file {token}-token of the data directory");
            api.document["components"]["securitySchemes"][token] =
                json!({ "type": "http", "scheme": "bearer", "description": file });
        }
        let responses = &mut api.document["components"]["responses"];
        responses["Unauthorized"]["headers"] =
            json!({ "WWW-Authenticate": { "schema": { "const": "Bearer" } } });
        let seconds = json!({ "type": "integer", "minimum": 1 });
        responses["TooManyRequests"]["headers"] =
            json!({ "Retry-After": { "description": "Seconds, rounded up", "schema": seconds } });
        for route in &ROUTES {
            let tokens: &[&str] = match route.role {
                AdminRole::Reader => &["reader", "operator"],
                AdminRole::Operator => &["operator"],
            };
            let operation = operation(route.action, &mut api).needs(tokens);
            api.add(route.method, route.path, operation.fails(&OF_TOKENS).fails(&OF_ALL));
        }
        api.add("GET", LIVE, live().needs(&[]).fails(&OF_ALL));
        let document = api.text();
        compare("crates/server/src/front/admin/openapi.json", &document);
        compare("docs/reference/admin.md", &api_pages::page(api_pages::ADMIN, &document));
    }

    fn operation(action: AdminAction, api: &mut ApiDocument) -> Operation {
        match action {
            AdminAction::Metrics => Operation::new("metrics", "Metrics for Prometheus").answer_as(
                "application/openmetrics-text",
                200,
                "The metrics, in the OpenMetrics format",
                json!({ "type": "string" }),
            ),
            AdminAction::OpenApi => Operation::new("openapi", "This document").answer(
                200,
                "An OpenAPI document",
                json!({ "type": "object" }),
            ),
            AdminAction::Status => {
                Operation::new("status", "Health, versions, memory, and the decisions of each rule")
                    .answer(200, "The status of this server", api.written::<Status>())
            }
            AdminAction::Control => {
                let summary = "The changes that operators made and that are in force";
                controlled(Operation::new("control", summary), api)
            }
            AdminAction::Audit => {
                let lines = api.written::<Vec<Map<String, Value>>>();
                Operation::new(
                    "audit",
                    "Who changed what and when: the last lines of the audit log",
                )
                .parameter("query", "last", "How many lines, at most 1,000", count(AUDIT_LINES.0))
                .answer(200, "The lines, the oldest first", lines)
                .fails(&[500])
            }
            AdminAction::Rules => Operation::new("rules", "The rules in force, with their limits")
                .answer(
                    200,
                    "The rules, in the order of the policy",
                    api.written::<Vec<RuleInForce>>(),
                ),
            AdminAction::Leases => Operation::new(
                "leases",
                "What this node holds of leased limits",
            )
            .answer(200, "The leases of each rule", api.written::<Leases>()),
            AdminAction::Nodes => Operation::new("nodes", "The nodes that share the store").answer(
                200,
                "The nodes, each with the hash of its policy",
                api.written::<Nodes>(),
            ),
            AdminAction::Top => {
                let by = "`used`: the cost of requests that passed; `denied`: refused requests; `would_deny`: requests that a rule in shadow mode would have refused";
                let mut names = api.written::<TopBy>();
                names["default"] = json!("used");
                Operation::new("top", "The keys that use each rule most, or are refused most")
                    .parameter("query", "by", by, names)
                    .parameter("query", "rule", "Only this rule", json!({ "type": "string" }))
                    .parameter(
                        "query",
                        "last",
                        "How many keys of each rule, at most 100",
                        count(TOP_KEYS.0),
                    )
                    .answer(
                        200,
                        "The keys of each rule, over the last ten to twenty minutes",
                        api.written::<Top>(),
                    )
                    .fails_as(404, "Top keys are off")
            }
            AdminAction::Denials => {
                Operation::new("denials", "The keys that this node refused last, and since when")
                    .parameter("query", "last", "How many, at most 1,000", count(DENIALS.0))
                    .answer(
                        200,
                        "The keys, the last refused first",
                        api.written::<RecentDenialsBody>(),
                    )
                    .fails_as(404, "Top keys are off")
            }
            AdminAction::Policy => {
                let meaning =
                    "With `grpc`, the rule files of --envoy-config, where they decide over gRPC";
                let schema = json!({ "enum": ["http", "grpc", "proxy", "resp"] });
                rules_text(Operation::new("policy", "The policy in force"), "The policy")
                    .parameter("query", "protocol", meaning, schema)
            }
            AdminAction::RuleFiles => {
                let operation = Operation::new("ruleFiles", "The rule files of --envoy-config");
                rules_text(operation, "The rule files")
                    .fails_as(404, "This server has no rule files")
            }
            AdminAction::Peek => {
                let meaning = "The decision, as /v1/peek of the HTTP API answers it";
                reading::<PeekBody>("peek", "What a client has left, without counting", api).answer(
                    200,
                    meaning,
                    api.written::<VerdictBody>(),
                )
            }
            AdminAction::Explain => {
                let meaning = "The rules, each with its limits or the reason why it does not apply";
                reading::<PeekBody>("explain", "Which rules apply to a request, and why", api)
                    .answer(200, meaning, api.written::<ExplanationBody<'_>>())
            }
            AdminAction::Playground => {
                let summary = "One trace of requests under all six algorithms";
                reading::<PlaygroundBody>("playground", summary, api)
                    .about("The algorithms of the server decide; time is a number, nothing waits and nothing is counted.")
                    .answer(200, "What each algorithm makes of the trace", api.written::<PlaygroundResult>())
            }
            AdminAction::Who => {
                let summary = "What applies to a person, what is used and left, and since when requests are refused";
                reading::<WhoBody>("who", summary, api)
                    .about("Any attributes that are known of the person will do. The answer is exact for rules whose key is known; other rules are in `not_covered`, and their keys among recent denials in `seen`.")
                    .answer(200, "Every rule, with what it has counted for the person", api.written::<Person>())
            }
            AdminAction::WhoAmI => Operation::new("whoami", "Whose token the request carries")
                .answer(200, "The name and the role", api.written::<WhoAmI<'_>>()),
            AdminAction::Upstreams => {
                let operation =
                    Operation::new("upstreams", "The upstream servers of the reverse proxy");
                operation.answer(200, "The groups and their servers", api.written::<Upstreams>())
            }
            AdminAction::PutPolicy => {
                let example =
                    "{ version: 1, rules: [{ name: per-client, key: [ip], limits: [15/s] }] }";
                let body = json!({
                    "schema": { "type": "string" },
                    "examples": { "one": { "summary": "One rule", "value": example } },
                });
                Operation::new("putPolicy", "Replaces the policy")
                    .about("It is in force until the policy file changes.")
                    .parameter(
                        "query",
                        "dry_run",
                        "With `true`, the policy is checked and compared, but not put in force",
                        flag(),
                    )
                    .parameter(
                        "query",
                        "force",
                        "With `true`, a policy that drops changes of operators is accepted, too",
                        flag(),
                    )
                    .body_as("application/yaml", body)
                    .answer(200, "What the new policy changes", api.written::<PolicyChange>())
                    .fails(&OF_CHANGES)
            }
            AdminAction::DeletePolicy => {
                Operation::new("deletePolicy", "Returns to the policy file")
                    .answer(200, "What that changes", api.written::<PolicyChange>())
                    .fails(&OF_CHANGES)
            }
            AdminAction::Reset => {
                let summary = "Forgets what was counted for a person, under one rule or all";
                reading::<ResetBody>("reset", summary, api)
                    .about("Without `rule`, the answer names the rules that were reset, and those that could not be, because their key has attributes that are not given, or none at all.")
                    .answer(200, "How many counters were removed", api.written::<ResetDone>())
                    .fails(&[500])
            }
            AdminAction::PutRules => {
                let summary = "Turns a rule on or off, or puts it in shadow mode";
                entry(reading::<PutRuleBody>("putRule", summary, api), api)
                    .about("`*` means every rule without a change of its own. `null` returns to what the policy says.")
            }
            AdminAction::PutOverrides => {
                let summary = "Sets other limits for some customers of a rule";
                entry(reading::<PutOverrideBody>("putOverride", summary, api), api)
                    .about("`null` in `limits` removes the override.")
            }
            AdminAction::PutTiers => {
                entry(reading::<PutTierBody>("putTier", "Assigns a tier to a customer", api), api)
                    .about("`null` in `tier` removes the assignment.")
            }
            AdminAction::PutSignals => {
                reading::<SignalsBody>("putSignals", "Reports signals for elastic limits", api)
                    .about("A signal is used for ten seconds, only on the node that gets it.")
                    .answer(200, "The signals", api.written::<SignalsBody>())
            }
            AdminAction::PutUpstreams => reading::<PutUpstreamBody>(
                "putUpstream",
                "Drains an upstream server, or brings it back",
                api,
            )
            .about(
                "A server that is drained gets no new requests. It is drained on this node only.",
            )
            .answer(200, "The groups and their servers", api.written::<Upstreams>())
            .fails(&[500]),
        }
    }

    /// An endpoint that reads a body.
    fn reading<T: JsonSchema>(id: &str, summary: &str, api: &mut ApiDocument) -> Operation {
        Operation::new(id, summary).body(api.read::<T>()).fails(&[422])
    }

    /// A change of an entry of the control document.
    fn entry(operation: Operation, api: &mut ApiDocument) -> Operation {
        let operation = controlled(operation, api).fails(&OF_CHANGES);
        operation.parameter(
            "query",
            "dry_run",
            "With `true`, the change is checked, but not made",
            flag(),
        )
    }

    /// Answers with the control document.
    fn controlled(operation: Operation, api: &mut ApiDocument) -> Operation {
        let version = "The version of the control document, for `If-Match`";
        operation.answer(200, "All changes that are in force", api.written::<Document>()).field(
            200,
            "ETag",
            version,
            json!({ "type": "string" }),
        )
    }

    /// Answers with a policy, or with rule files.
    fn rules_text(operation: Operation, meaning: &str) -> Operation {
        let from = "`file`, `upload` or `envoy_config`";
        operation
            .answer_as("application/yaml", 200, meaning, json!({ "type": ["object", "string"] }))
            .field(200, "Tidegate-Policy-From", from, json!({ "type": "string" }))
    }

    /// The schema of a number of lines.
    fn count(default: usize) -> Value {
        json!({ "type": "integer", "minimum": 0, "default": default })
    }

    fn flag() -> Value {
        json!({ "type": "boolean" })
    }
}
