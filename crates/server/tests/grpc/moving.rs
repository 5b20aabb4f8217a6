//! What an operator who comes from Envoy's reference service looks for: its environment variables, its paths, the
//! rules in force, its statistics.

use crate::support::grpc::Grpc;
use crate::support::messages::{Descriptor, Request};
use crate::support::{Server, folder, request};
use serde_json::{Value, json};

const RULES: &str = "
domain: web
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 10 }
  - key: user
    value: banned
    rate_limit: { unit: day, requests_per_unit: 0, name: ban }
  - key: tried
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
";

fn server() -> Server {
    let rules = folder("rules");
    std::fs::write(rules.join("web.yaml"), RULES).unwrap();
    let path = rules.to_str().unwrap().to_owned();
    Server::start_in(folder("moving"), &["--envoy-config", &path])
}

fn admin(server: &Server, path: &str) -> Value {
    let reply = server.admin("GET", path, "", "");
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.json()
}

/// Operators were once shown only the built-in policy, with a version that stayed 1, while the rule files decided.
#[test]
fn operators_see_the_rules_that_decide() {
    let rules = folder("rules");
    std::fs::write(rules.join("web.yaml"), RULES).unwrap();
    let path = rules.to_str().unwrap().to_owned();
    let server = Server::start_in(folder("moving"), &["--envoy-config", &path]);
    assert!(!Grpc::to(server.grpc).asked(&Request::about(&[("user", "banned")])).passed());

    let listed = admin(&server, "/admin/v1/rules");
    let of_grpc: Vec<&Value> =
        listed.as_array().unwrap().iter().filter(|rule| rule["decides"] == "grpc").collect();
    let names: Vec<&str> = of_grpc.iter().map(|rule| rule["rule"].as_str().unwrap()).collect();
    assert_eq!(names, ["web/user", "web/user=banned", "web/tried"]);
    assert_eq!(of_grpc[1]["limits"][0]["rate"], "0/day");
    assert_eq!([&of_grpc[0]["shadow"], &of_grpc[2]["shadow"]], [false, true]);

    let status = &admin(&server, "/admin/v1/status")["envoy"];
    assert_eq!((&status["config"], &status["version"]), (&json!(path), &json!(1)));
    assert_eq!(status["rules"][1]["rule"], "web/user=banned");
    assert_eq!(status["rules"][1]["denied"], 1);

    for path in ["/admin/v1/policy?protocol=grpc", "/rlconfig"] {
        let text = server.admin("GET", path, "", "");
        assert!(text.body.contains("web.yaml\n") && text.body.contains(RULES), "{text:?}");
        assert_eq!(text.field("tidegate-policy-from"), Some("envoy_config"));
    }
    let policy = server.admin("GET", "/admin/v1/policy", "", "");
    assert_eq!(policy.field("tidegate-grpc-rules"), Some("/admin/v1/policy?protocol=grpc"));
    assert!(!policy.body.contains("banned"), "what is uploaded is still the policy: {policy:?}");

    let version = |server: &Server| {
        let metrics = server.admin("GET", "/metrics", "", "").body;
        let name = "tidegate_policy_version{rules=\"envoy_config\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok())
    };
    assert_eq!(version(&server), Some(1));
    std::fs::write(
        rules.join("web.yaml"),
        RULES.replace("requests_per_unit: 10", "requests_per_unit: 11"),
    )
    .unwrap();
    server.until("the new rules decide", |server| version(server) == Some(2));
    assert_eq!(admin(&server, "/admin/v1/rules").to_string().matches("11/day").count(), 1);

    let without = Server::start(&[]);
    assert_eq!(without.admin("GET", "/rlconfig", "", "").status, 404);
    assert_eq!(version(&without), None);
}

/// `/json` and `/healthcheck` answer as in the reference service.
#[test]
fn its_http_paths_are_served() {
    let server = server();
    let healthy = server.get("/healthcheck");
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "OK"));
    let ask_as = |kind: &str, body: &str| {
        request(server.http, "POST", "/json", &[("content-type", kind)], body)
    };
    let ask = |body: &str| ask_as("application/json", body);
    let alice = r#"{"domain":"web","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    // In its documentation there is no media type for JSON. Any web page could make a browser send that.
    assert_eq!(ask_as("application/x-www-form-urlencoded", alice).status, 415);
    let reply = ask(alice);
    assert_eq!((reply.status, reply.field("content-type")), (200, Some("application/json")));
    let mut told = reply.json();
    let reset = told["statuses"][0]["durationUntilReset"].take();
    assert!(reset.as_str().unwrap().strip_suffix('s').unwrap().parse::<u64>().unwrap() <= 86_400);
    assert_eq!(
        told,
        json!({
            "overallCode": "OK",
            "statuses": [{
                "code": "OK",
                "currentLimit": { "requestsPerUnit": 10, "unit": "DAY" },
                "limitRemaining": 9,
                "durationUntilReset": null,
            }],
        })
    );
    // gRPC uses the same counter.
    let mut grpc = Grpc::to(server.grpc);
    assert_eq!(grpc.remaining(&[("user", "alice")]), 9);
    let both = [
        // Field names of the `.proto` file, and numbers as strings.
        r#"{"domain":"web","descriptors":[{"entries":[{"key":"user","value":"alice"}],"hits_addend":"2"}]}"#,
        r#"{"domain":"web","hitsAddend":2,"descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#,
    ];
    both.iter().for_each(|body| assert_eq!(ask(body).status, 200, "{body}"));
    assert_eq!(grpc.remaining(&[("user", "alice")]), 5);
    let banned = ask(&alice.replace("alice", "banned"));
    assert_eq!((banned.status, &banned.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
    assert_eq!(banned.json()["statuses"][0]["currentLimit"]["name"], "ban");
    let own = r#"{"domain":"web","descriptors":[{"entries":[{"key":"x"}],"limit":{"requestsPerUnit":0,"unit":"HOUR"}}]}"#;
    assert_eq!(ask(own).status, 429);
    for wrong in [
        "",
        "{}",
        "[]",
        r#"{"domain":"","descriptors":[{}]}"#,
        r#"{"domain":"web","descriptors":[]}"#,
        r#"{"domain":"web","descriptors":[{"entries":[{"key":""}]}]}"#,
        r#"{"domain":"web","descriptors":[{}],"hitsAddend":4294967296}"#,
        r#"{"domain":"web","descriptors":[{}],"other":1}"#,
        r#"{"domain":"web","descriptors":[{"limit":{"requestsPerUnit":1,"unit":"EON"}}]}"#,
    ] {
        assert_eq!(ask(wrong).status, 400, "{wrong}");
    }
    assert_eq!(request(server.http, "GET", "/json", &[], "").status, 405);
    // A call that is too large to be decided is refused, and not answered with an error.
    let many: Vec<&str> = std::iter::repeat_n("{}", 513).collect();
    let reply = ask(&format!(r#"{{"domain":"web","descriptors":[{}]}}"#, many.join(",")));
    assert_eq!((reply.status, &reply.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
}

/// Hits, and hits above four fifths of a limit, like `total_hits` and `near_limit` of the reference service.
#[test]
fn hits_are_counted_and_those_near_the_limit() {
    let server = server();
    let mut grpc = Grpc::to(server.grpc);
    let user = |hits| Request::of([Descriptor::of(&[("user", "alice")]).hits(hits)]);
    let counts = |server: &Server| {
        ["hits", "near_limit_hits"].map(|name| {
            server.metric(&format!("tidegate_{name}_total{{protocol=\"grpc\",rule=\"web/user\"}}"))
        })
    };
    for (hits, passes, all, near) in
        [(7, true, 7, 0), (2, true, 9, 1), (1, true, 10, 2), (1, false, 11, 2)]
    {
        assert_eq!(grpc.asked(&user(hits)).passed(), passes, "{hits}");
        assert_eq!(counts(&server), [all, near], "{hits}");
    }
}

/// Its environment variables, and files that it would read, were once ignored without a warning.
#[test]
fn what_is_not_read_is_told() {
    let rules = folder("rules");
    std::fs::create_dir(rules.join("more")).unwrap();
    for name in ["web.yaml", "other.conf", ".hidden.conf"] {
        std::fs::write(rules.join(name), RULES).unwrap();
    }
    let flags = ["--envoy-config", rules.to_str().unwrap()];
    let variables = [
        ("RUNTIME_ROOT", "/data"),
        ("SHADOW_MODE", "true"),
        ("REDIS_URL", "redis:6379"),
        ("PORT", "80"),
    ];
    let log = Server::start_with(folder("moving"), &flags, &variables).log();
    let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("other.conf") + lines(".hidden"), 1, "{log}");
    assert_eq!(lines("rules/more") + lines("/more,"), 1, "{log}");
    for told in [
        "RUNTIME_ROOT (here: --envoy-config",
        "SHADOW_MODE (here: `shadow_mode` in the rule files",
        "REDIS_URL (here: --store)",
        "PORT (here: --http-listen)",
    ] {
        assert_eq!(lines(told), 1, "{told}: {log}");
    }
    assert!(!log.contains("redis:6379"), "values may be secrets: {log}");
    let quiet =
        Server::start_with(folder("moving"), &[], &[("PORT", "80"), ("HOST", "here")]).log();
    assert!(!quiet.contains("reference service"), "{quiet}");
}
