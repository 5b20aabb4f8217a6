//! The store counts a request, and its reply comes after the caller was answered without it.
//!
//! Once, such a request stayed counted until the end of its window although its caller was refused: of 400 requests with
//! `timeout_ms: 10` and replies late by 20 ms none passed and 47 were counted. Now what a late reply took is given back, or set off
//! against what was granted: in the end the store has counted what passed, and no more.

use crate::support::crowd::{about, ask, hurried};
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment};
use crate::support::{PATIENCE, within};
use std::ops::Range;
use std::slice;
use std::time::Duration;

const USER: &str = "203.0.113.7";

/// What happens when there is no answer in time; under it, what a late reply took is given back or set off.
#[derive(Clone, Copy, Debug)]
enum OnStoreError {
    Deny,
    Local,
}

/// Replies take 40 to 60 ms and the deadline is 50 ms: some replies are in time, others are not.
#[test]
fn replies_around_the_deadline_leave_nothing_behind() {
    for on_error in [OnStoreError::Deny, OnStoreError::Local] {
        play(on_error, "50ms", 40..60, &about(USER));
    }
}

/// All of them are too late for their callers, and the store is not to blame: it is asked on and on.
#[test]
fn replies_that_are_late_for_a_hurried_caller_leave_nothing_behind() {
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
        "  {admitted} passed, {counted_then} counted when the last was answered, {unanswered} without the store"
    );
    within(PATIENCE, "what was taken in vain is given back", || redis.counted() == admitted);
    assert!(unanswered > 0, "no reply was late");
    server.assert_healthy();
}
