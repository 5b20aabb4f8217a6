//! Replies are cut in the middle, again and again, after the store has counted. Callers get a decision. The
//! store's count covers what it admitted and what the server granted during the gaps, and at most the
//! requests in flight in addition.

use crate::support::load::Load;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment};
use crate::support::{PATIENCE, within};
use std::time::Duration;

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const CUTS: u32 = 20;
const APART: Duration = Duration::from_millis(400);

#[test]
fn requests_whose_replies_are_cut_count_at_most_twice() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server(&proxy.url(), &[]);
    server.until_ready();
    let load = Load {
        servers: vec![server.http],
        per_second: 500,
        connections: 48,
        length: APART * (CUTS + 2),
    };
    let load = load.start(|number| format!("\"ip\":\"203.0.113.{}\"", number % 200));
    for (cut, bytes) in (1..=CUTS).zip((0..40).step_by(2)) {
        load.reaches(APART * cut);
        proxy.cut_next_reply_after(bytes);
        within(PATIENCE, "a reply is cut", || proxy.is_done());
    }
    let samples = load.finish();
    let (counted, admitted) = (redis.counted(), samples.admitted_by_store());
    println!("cut: {}; {counted} counted, {admitted} admitted", samples.summary());
    samples.assert_all_answered();
    // A request in flight when its connection broke may have been counted. The server cannot know, so it
    // charges what it granted instead. Such a request may count twice; no other request does.
    let unknown = u64::try_from(samples.by(DecidedBy::Fallback)).unwrap();
    assert!((admitted..=admitted + 2 * unknown).contains(&counted), "{counted} of {admitted}");
    // A broken connection affects the callers of a moment, not those of the whole time until the next break.
    assert!(samples.by(DecidedBy::Store) * 2 > samples.len(), "{}", samples.summary());
    server.assert_healthy();
}
