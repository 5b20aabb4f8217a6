//! The store counts a request, but its reply arrives after the caller was answered without it.
//!
//! The bug this guards against: such a request stayed counted until the end of its window although its caller
//! was refused. Of 400 requests with `timeout_ms: 10` and replies late by 20 ms none passed, and 47 were
//! counted. Now the server gives back what a late reply took, or sets it off against what it granted. In the
//! end the store has counted exactly what passed.

use crate::support::crowd::{about, ask, hurried};
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment};
use crate::support::{PATIENCE, within};
use std::ops::Range;
use std::slice;
use std::time::Duration;

const USER: &str = "203.0.113.7";

/// What the rule does without an answer in time. With `deny` the take of a late reply is given back; with
/// `local` it may be set off against a local grant.
#[derive(Clone, Copy, Debug)]
enum OnStoreError {
    Deny,
    Local,
}

/// Replies take 40 to 60 ms and the timeout is 50 ms: some replies are in time, others are not.
#[test]
fn replies_around_the_timeout_leave_nothing_counted() {
    for on_error in [OnStoreError::Deny, OnStoreError::Local] {
        play(on_error, "50ms", 40..60, &about(USER));
    }
}

/// All replies are too late for their callers, but not for the store's timeout. So the store counts as
/// healthy, and every request still goes to it.
#[test]
fn replies_after_a_short_deadline_leave_nothing_counted() {
    for on_error in [OnStoreError::Deny, OnStoreError::Local] {
        play(on_error, "10s", 20..20, &hurried(USER, 10));
    }
}

fn play(on_error: OnStoreError, timeout: &str, late_ms: Range<u64>, body: &str) {
    let on_store_error = match on_error {
        OnStoreError::Deny => "deny",
        OnStoreError::Local => "local",
    };
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(&format!(
        "{{ name: all, key: [ip], limits: [{{ rate: 1000/week, algorithm: fixed_window }}], on_store_error: {on_store_error} }}"
    ));
    let mut server = deployment.server(&proxy.url(), &["--redis-timeout", timeout]);
    server.until_ready();
    server.until_nodes(1);
    let delay = Duration::from_millis(late_ms.start);
    let jitter = Duration::from_millis(late_ms.end - late_ms.start);
    proxy.replies(Conditions { delay, jitter, ..Conditions::default() });
    let samples = ask(slice::from_ref(&server), 400, |_| body.to_owned());
    let counted_then = redis.counted();
    proxy.replies(Conditions::default());
    server.until_ready();
    let (admitted, unanswered) = (samples.admitted(), samples.by(DecidedBy::Fallback));
    println!("late by {late_ms:?} ms, {on_error:?}: {}", samples.summary());
    println!(
        "  {admitted} passed, {counted_then} counted when the last request was answered, {unanswered} decided without the store"
    );
    within(PATIENCE, "takes of late replies are given back", || redis.counted() == admitted);
    assert!(unanswered > 0, "no reply was late");
    server.assert_healthy();
}
