//! With a policy: features that users of rule files have asked for.

use super::mesh::Setup;
use super::stories::number;
use crate::support::PATIENCE;
use std::time::{Duration, Instant};

#[test]
fn a_window_is_as_long_as_one_likes() {
    let mesh = Setup::by_policy(
        "  - name: half-a-minute
    match: { domain: shop }
    key: [user]
    limits: [{ rate: 3/30s, algorithm: sliding_log }]",
    )
    .start();
    let alice = [("user", "alice")];
    assert_eq!(mesh.statuses(3, "/each", &alice), [200, 200, 200]);
    let refused = mesh.get("/each", &alice);
    assert_eq!((refused.status, refused.field("x-ratelimit-limit")), (429, Some("3")));
    assert!((1..=30).contains(&number(&refused, "retry-after")), "{refused:?}");
    assert_eq!(mesh.get("/each", &[("user", "bob")]).status, 200);
    assert_eq!(mesh.decisions("half-a-minute", "deny"), 1);
}

/// Ten a second and twenty an hour on one key, taken together.
#[test]
#[expect(clippy::disallowed_methods, reason = "a second is a second")]
fn one_key_has_several_limits() {
    let mesh = Setup::by_policy(
        "  - name: per-user
    key: [user]
    limits: [{ rate: 10/s, algorithm: sliding_log }, 20/h]",
    )
    .start();
    let began = Instant::now();
    // A burst that took longer than its window proves nothing; then another user tries again.
    let user = (0..).find_map(|number| {
        assert!(began.elapsed() < PATIENCE, "no burst of eleven within a second");
        let (user, first) = (format!("user-{number}"), Instant::now());
        let burst = mesh.statuses(11, "/each", &[("user", &user)]);
        if first.elapsed() >= Duration::from_secs(1) {
            return None;
        }
        assert_eq!(burst.iter().filter(|status| **status == 200).count(), 10, "{burst:?}");
        Some(user)
    });
    let fields = [("user", &*user.unwrap())];
    let mut passed = 10;
    mesh.tidegate.until("the hour is used up", |_| {
        let reply = mesh.get("/each", &fields);
        passed += usize::from(reply.status == 200);
        // A second ends soon; of the limit per hour, one comes back every three minutes.
        reply.status == 429 && number(&reply, "retry-after") > 10
    });
    assert_eq!(passed, 20);
}

#[test]
fn a_bucket_lets_a_burst_pass_and_fills_up_again() {
    let mesh = Setup::by_policy(
        "  - { name: slow, match: { user: alice }, key: [user], limits: [{ rate: 3/h, burst: 2 }] }
  - { name: fast, match: { user: bob }, key: [user], limits: [{ rate: 4/s, burst: 1 }] }",
    )
    .start();
    let alice = [("user", "alice")];
    assert_eq!(mesh.statuses(2, "/each", &alice), [200, 200]);
    let refused = mesh.get("/each", &alice);
    // One comes back in twenty minutes, and not all of them at the full hour.
    assert_eq!(refused.status, 429);
    assert!((1_000..=1_200).contains(&number(&refused, "retry-after")), "{refused:?}");
    let bob = [("user", "bob")];
    mesh.tidegate.until("a refusal", |_| mesh.statuses(4, "/each", &bob).contains(&429));
    mesh.until("/each", &bob, |reply| reply.status == 200);
}

#[test]
fn a_refused_request_burns_nothing() {
    let mesh = Setup::by_policy(
        "  - { name: per-user, key: [user], limits: [2/day] }
  - { name: per-tenant, key: [tenant], limits: [5/day] }",
    )
    .start();
    let of = |user| [("user", user), ("tenant", "acme")];
    assert_eq!(mesh.statuses(8, "/each", &of("alice")), [200, 200, 429, 429, 429, 429, 429, 429]);
    assert_eq!(mesh.statuses(3, "/each", &of("bob")), [200, 200, 429]);
    assert_eq!(mesh.statuses(2, "/each", &of("carol")), [200, 429]);
    // Carol was refused because of her tenant, and has one left of her own.
    assert_eq!(mesh.statuses(2, "/each", &[("user", "carol")]), [200, 429]);
}

#[test]
fn an_address_is_an_address() {
    let mesh = Setup::by_policy("  - { name: per-client, key: [ip], limits: [1/day] }").start();
    let from = |address| mesh.statuses(2, "/address", &[("x-forwarded-for", address)]);
    assert_eq!(from("203.0.113.7"), [200, 429]);
    assert_eq!(from("203.0.113.8"), [200, 429]);
    assert_eq!(from("2001:db8:0:1::7"), [200, 429]);
    assert_eq!(from("2001:db8:0:1::8"), [429, 429], "one /64 is one client");
    assert_eq!(from("2001:db8:0:2::7"), [200, 429]);
}

/// Envoy gets its answer when it is the turn of the request.
#[test]
fn a_request_can_wait_for_its_turn() {
    let mesh = Setup::by_policy(
        "  - name: smooth
    key: [user]
    limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 10 }]
    on_limit: { delay: { max_wait: 4s, max_queue: 10 } }",
    )
    .start();
    let alice = [("user", "alice")];
    let waited = (0..10).any(|_| {
        assert_eq!(mesh.get("/each", &alice).status, 200);
        mesh.decisions("smooth", "delay") > 0
    });
    assert!(waited, "ten requests took longer than a second each");
    assert_eq!(mesh.decisions("smooth", "deny"), 0);
}

#[test]
fn operators_forget_what_was_counted() {
    let mesh = Setup::by_policy("  - { name: per-user, key: [user], limits: [1/day] }").start();
    let alice = [("user", "alice")];
    assert_eq!(mesh.statuses(2, "/each", &alice), [200, 429]);
    let who = r#"{"rule":"per-user","attributes":{"user":"alice"}}"#;
    let reset = mesh.tidegate.admin("POST", "/admin/v1/reset", "application/json", who);
    assert_eq!(reset.status, 200, "{reset:?}");
    assert_eq!(mesh.statuses(2, "/each", &alice), [200, 429]);
}

/// Rules can use the domain as an attribute, so an entry must not be called `domain`. A client decides whether there
/// is such an entry, because it can leave the header field out. So the call is refused. It is not answered with an
/// error, on which an Envoy that fails open would let it pass.
#[test]
fn what_cannot_be_asked_is_refused_and_told() {
    let mesh = Setup::by_policy("  - { name: all, key: [user], limits: [1/day] }")
        .with(
            "header_name: tenant, descriptor_key: tenant",
            "header_name: tenant, descriptor_key: domain",
        )
        .start();
    assert_eq!(mesh.get("/each", &[("tenant", "acme")]).status, 429);
    // The operator can read why.
    mesh.tidegate.until_logged("an entry is called `domain`");
    assert_eq!(mesh.get("/each", &[("user", "alice")]).status, 200);
}
