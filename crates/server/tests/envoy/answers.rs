//! What an answer says besides allow and deny, and the options that a call may have.

use super::mesh::{Mesh, Setup};
use super::stories::{does, number};
use std::thread;

fn mesh() -> Mesh {
    Setup::by_rules().start()
}

const DAY: u64 = 86_400;

// === header fields ===

#[test]
fn envoy_writes_what_is_left_and_when_to_come_back() {
    let mesh = mesh();
    for left in [2, 1, 0] {
        let reply = mesh.get("/shop", &does("alice", "order"));
        assert_eq!(reply.field("x-ratelimit-limit"), Some("3, 3;w=86400"));
        assert_eq!(number(&reply, "x-ratelimit-remaining"), left);
        assert!((1..=DAY).contains(&number(&reply, "x-ratelimit-reset")), "{reply:?}");
        assert_eq!(reply.field("retry-after"), None);
    }
    let refused = mesh.get("/shop", &does("alice", "order"));
    assert_eq!((refused.status, number(&refused, "x-ratelimit-remaining")), (429, 0));
    let (wait, reset) = (number(&refused, "retry-after"), number(&refused, "x-ratelimit-reset"));
    assert!(wait == reset && (1..=DAY).contains(&wait), "{refused:?}");
}

#[test]
fn a_limit_is_called_what_its_rule_calls_it() {
    let mesh = mesh();
    let desk = mesh.get("/desk", &[("desk", "a")]);
    assert_eq!(desk.field("x-ratelimit-limit"), Some("2, 2;w=86400;name=\"desks\""));
    // Of several descriptors, the one with the least left is reported, with the limits of all of them.
    let both = mesh.get("/quota", &[("first", "small"), ("second", "large")]);
    assert_eq!(both.field("x-ratelimit-limit"), Some("1, 1;w=86400, 2;w=86400"));
    assert_eq!(number(&both, "x-ratelimit-remaining"), 0);
    // A descriptor without a limit adds no header fields.
    for fields in [&[("user", "vip")][..], &[("tenant", "unknown")]] {
        let free = mesh.get("/each", fields);
        assert_eq!((free.status, free.field("x-ratelimit-limit")), (200, None));
    }
}

/// A limit of 0, or a request that costs more than its limit: waiting does not help. Envoy turns a missing reset into
/// one second, and clients that followed it came back every second.
#[test]
fn what_never_passes_is_not_told_to_come_back_at_once() {
    let mesh = mesh();
    let weight = [("user", "alice"), ("weight", "11")];
    for (path, fields) in [("/shop", &does("alice", "visit")[..]), ("/weight", &weight)] {
        let refused = mesh.get(path, fields);
        assert_eq!((refused.status, number(&refused, "retry-after")), (429, DAY), "{refused:?}");
    }
}

#[test]
fn tidegate_can_write_the_current_fields_itself() {
    let off = ("enable_x_ratelimit_headers: DRAFT_VERSION_03", "");
    let mesh = Setup::by_rules()
        .flags(&["--grpc-response-headers", "ratelimit"])
        .with(off.0, off.1)
        .with("enable_retry_after_header: true", "")
        .start();
    let told = |reply: &crate::support::Reply| {
        assert_eq!(
            reply.field("ratelimit-policy"),
            Some("\"shop/customer/does=order\";q=3;w=86400")
        );
        assert_eq!(reply.field("x-ratelimit-limit"), None);
        reply.field("ratelimit").unwrap().split(";t=").next().unwrap().to_owned()
    };
    for left in [2, 1, 0] {
        let reply = mesh.get("/shop", &does("alice", "order"));
        assert_eq!(told(&reply), format!("\"shop/customer/does=order\";r={left}"));
        assert_eq!(reply.field("retry-after"), None);
    }
    let refused = mesh.get("/shop", &does("alice", "order"));
    assert_eq!(told(&refused), "\"shop/customer/does=order\";r=0");
    assert!((1..=DAY).contains(&number(&refused, "retry-after")), "{refused:?}");
}

#[test]
fn tidegate_can_write_the_fields_of_others() {
    for (form, prefix) in [("legacy", "x-ratelimit"), ("reference", "ratelimit")] {
        let mesh = Setup::by_rules()
            .flags(&["--grpc-response-headers", form])
            .with("enable_x_ratelimit_headers: DRAFT_VERSION_03", "")
            .start();
        let reply = mesh.get("/shop", &does("alice", "order"));
        for (name, value) in [("limit", 3..=3), ("remaining", 2..=2), ("reset", 1..=DAY)] {
            let field = number(&reply, &format!("{prefix}-{name}"));
            assert!(value.contains(&field), "{form} {name} {reply:?}");
        }
    }
}

/// Envoy and tidegate both can write `Retry-After`, but it must be sent only once.
#[test]
fn there_is_one_retry_after() {
    let mesh = Setup::by_rules().flags(&["--grpc-response-headers", "ratelimit"]).start();
    let refused = mesh.get("/shop", &does("alice", "visit"));
    assert_eq!(refused.head.matches("retry-after: ").count(), 1, "{refused:?}");
    let refused = mesh.statuses(3, "/shop", &does("alice", "order"));
    assert_eq!(refused, [200, 200, 200]);
    let refused = mesh.get("/shop", &does("alice", "order"));
    assert_eq!(refused.head.matches("retry-after: ").count(), 1, "{refused:?}");
}

// === options of a call ===

#[test]
fn a_question_weighs_what_it_says() {
    let mesh = mesh();
    let weighs = |weight| {
        let reply = mesh.get("/weight", &[("user", "alice"), ("weight", weight)]);
        (reply.status, number(&reply, "x-ratelimit-remaining"))
    };
    assert_eq!(weighs("4"), (200, 6));
    // A cost of 0 only looks.
    assert_eq!(weighs("0"), (200, 6));
    assert_eq!(weighs("6"), (200, 0));
    assert_eq!(weighs("0"), (200, 0));
    assert_eq!(weighs("1"), (429, 0));
}

#[test]
fn a_question_can_bring_its_own_limit() {
    let mesh = mesh();
    for (path, user) in [("/own/here", "alice"), ("/own/contract", "bob")] {
        let reply = mesh.get(path, &[("user", user)]);
        assert_eq!(reply.field("x-ratelimit-limit"), Some("2, 2;w=86400"), "{path}");
        assert_eq!(mesh.statuses(2, path, &[("user", user)]), [200, 429], "{path}");
    }
    // Under a policy, a question can bring its own limit, too.
    let mesh = Setup::by_policy("  - { name: all, key: [], limits: [1000/h] }").start();
    assert_eq!(mesh.statuses(3, "/own/here", &[("user", "alice")]), [200, 200, 429]);
}

/// Giving hits back turns a limit into a maximum number of requests that are served at the same time.
#[test]
fn what_is_given_back_can_be_taken_again() {
    let mesh = mesh();
    let desk = [("desk", "a")];
    assert_eq!(mesh.statuses(6, "/desk", &desk), [200; 6]);
    assert_eq!(mesh.shop.saw().len(), 6);

    let hold = mesh.shop.hold();
    thread::scope(|scope| {
        let served: Vec<_> =
            (0..2).map(|_| scope.spawn(|| mesh.get("/desk", &desk).status)).collect();
        let mut here = 0;
        mesh.tidegate.until("both are being served", |_| {
            here += mesh.shop.saw().len();
            here == 2
        });
        assert_eq!(mesh.statuses(2, "/desk", &desk), [429, 429]);
        drop(hold);
        let served: Vec<u16> = served.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(served, [200, 200]);
    });
    mesh.until("/desk", &desk, |reply| reply.status == 200);
}
