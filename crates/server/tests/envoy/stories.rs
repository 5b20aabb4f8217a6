//! Scenarios of the reference service's own tests, with other rules: the same results are expected.

use super::mesh::{Mesh, Setup};
use crate::support::Reply;

fn mesh() -> Mesh {
    Setup::by_rules().start()
}

pub(crate) fn does<'f>(customer: &'f str, what: &'f str) -> [(&'f str, &'f str); 2] {
    [("customer", customer), ("does", what)]
}

/// A header field of an answer, as a number.
pub(crate) fn number(reply: &Reply, name: &str) -> u64 {
    let field = reply.field(name).unwrap_or_else(|| panic!("no {name} in {reply:?}"));
    field.parse().unwrap()
}

#[test]
fn what_is_within_its_limit_or_has_none_passes() {
    let mesh = mesh();
    for (path, fields) in [("/shop", &does("alice", "look")[..]), ("/shop", &[]), ("/open", &[])] {
        let reply = mesh.get(path, fields);
        assert_eq!((reply.status, reply.body), (200, format!("the shop saw GET {path}")));
    }
    assert_eq!(mesh.envoy.stat("cluster.shop.ratelimit.ok"), 1);
}

#[test]
fn what_is_over_its_limit_gets_429_and_is_counted() {
    let mesh = mesh();
    assert_eq!(mesh.statuses(5, "/shop", &does("alice", "order")), [200, 200, 200, 429, 429]);
    let refused = mesh.get("/shop", &does("alice", "order"));
    assert!(refused.head.starts_with("HTTP/1.1 429 Too Many Requests"), "{refused:?}");
    assert_eq!(refused.field("x-envoy-ratelimited"), Some("true"));
    assert_eq!(mesh.shop.saw().len(), 3);
    // Other customers have their own limits.
    assert_eq!(mesh.get("/shop", &does("bob", "order")).status, 200);

    let rule = "shop/customer/does=order";
    assert_eq!((mesh.decisions(rule, "allow"), mesh.decisions(rule, "deny")), (4, 3));
}

#[test]
fn a_rule_in_shadow_counts_and_never_refuses() {
    let mesh = mesh();
    let left: Vec<u64> = (0..6)
        .map(|_| {
            let reply = mesh.get("/shop", &does("alice", "search"));
            assert_eq!(reply.status, 200);
            number(&reply, "x-ratelimit-remaining")
        })
        .collect();
    assert_eq!(left, [2, 1, 0, 0, 0, 0]);
}

// === one rule replaces another ===

#[test]
fn a_rule_that_replaces_another_can_allow_more() {
    let mesh = mesh();
    let [customer, visit] = does("alice", "visit");
    assert_eq!(mesh.statuses(2, "/shop", &[customer, visit]), [429, 429]);
    // A partner whose rule replaces nothing changes nothing.
    assert_eq!(mesh.get("/shop", &[customer, visit, ("partner", "bank")]).status, 429);
    let guided = [customer, visit, ("partner", "guide")];
    assert_eq!(mesh.statuses(3, "/shop", &guided), [200, 200, 429]);
}

#[test]
fn a_rule_that_is_replaced_counts_for_the_others() {
    let mesh = mesh();
    let [customer, haggle] = does("alice", "haggle");
    let brokered = [customer, haggle, ("partner", "broker")];
    assert_eq!(mesh.statuses(3, "/shop", &brokered), [200, 200, 429]);
    // None of it was counted for Alice herself.
    assert_eq!(mesh.statuses(2, "/shop", &[customer, haggle]), [200, 429]);
    assert_eq!(mesh.get("/shop", &brokered).status, 429);
}

#[test]
fn one_rule_replaces_several() {
    let mesh = mesh();
    let [customer, haggle] = does("alice", "haggle");
    let bank = ("partner", "bank");
    let all = [customer, haggle, bank, ("campaign", "spring")];
    assert_eq!(mesh.statuses(5, "/shop", &all), [200, 200, 200, 200, 429]);
    // Both still have everything they had.
    assert_eq!(mesh.statuses(2, "/shop", &[customer, haggle]), [200, 429]);
    let [customer, look] = does("bob", "look");
    assert_eq!(mesh.statuses(3, "/shop", &[customer, look, bank]), [200, 200, 429]);
    assert_eq!(mesh.get("/shop", &all).status, 429);
}

// === quota ===

#[test]
fn rules_of_quota_refuse_only_together() {
    let mesh = mesh();
    let both = [("first", "small"), ("second", "large")];
    assert_eq!(mesh.statuses(4, "/quota", &both), [200, 200, 429, 429]);
}

/// Every request is charged after its answer, so one more passes when nothing is left.
#[test]
fn quota_that_is_charged_behind_lets_one_more_pass() {
    let mesh = mesh();
    let large = [("store", "large")];
    assert_eq!(mesh.statuses(5, "/tokens", &large), [200, 200, 200, 429, 429]);
    assert_eq!(mesh.shop.saw().len(), 3);
}

/// The answer names the pool that has quota left, and Envoy sends the request there.
#[test]
fn a_request_goes_where_quota_is_left() {
    let mesh = mesh();
    let served: Vec<String> = (0..5)
        .map(|_| {
            let reply = mesh.get("/pools", &[]);
            assert_eq!(reply.status, 200, "{reply:?}");
            reply.body.split(' ').next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(served, ["north", "north", "south", "south", "south"]);
    assert_eq!(mesh.statuses(2, "/pools", &[]), [429, 429]);
}

// === windows ===

#[test]
fn what_was_refused_passes_in_the_next_window() {
    let mesh = mesh();
    let knock = does("alice", "knock");
    let both = [("first", "small-a-second"), ("second", "large-a-second")];
    let tokens = [("store", "large-a-second")];
    for (path, fields) in [("/shop", &knock[..]), ("/quota", &both), ("/tokens", &tokens)] {
        // Requests come faster than one a second; the test does not depend on how fast.
        mesh.tidegate.until("a refusal", |_| mesh.statuses(8, path, fields).contains(&429));
        mesh.until(path, fields, |reply| reply.status == 200);
    }
}

/// As in the reference service, a refused request counts in all its rules. Unlike there, a cost above the limit counts
/// nothing.
#[test]
fn a_refused_request_counts() {
    let mesh = mesh();
    let [customer, order] = does("alice", "order");
    let banked = [customer, order, ("partner", "bank")];
    assert_eq!(mesh.statuses(3, "/shop", &banked), [200, 200, 429]);
    assert_eq!(mesh.get("/shop", &[customer, order]).status, 429);
    let weighs = |weight| mesh.get("/weight", &[("user", "alice"), ("weight", weight)]).status;
    assert_eq!([weighs("11"), weighs("7"), weighs("7"), weighs("3")], [429, 200, 429, 429]);
}
