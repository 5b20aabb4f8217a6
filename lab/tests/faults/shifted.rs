//! One reply of the store gets lost on a wire that stays: from then on every caller would be told what was said to the next.
//! Nobody may be told somebody else's decision.

use crate::support::load::Load;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::tidegate::{By, Deployment};
use crate::support::{PATIENCE, within};
use std::time::Duration;

const RULE: &str = "{ name: all, key: [user], limits: [{ rate: 5/day, algorithm: fixed_window }], on_store_error: deny }";
const SPENT: &str = r#""user":"spent""#;

#[test]
fn a_reply_that_is_lost_tells_nobody_what_another_was_told() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server(&proxy.url(), &[]);
    server.until_ready();
    let passed = (0..10).filter(|_| server.check(SPENT).is_admitted_by_store()).count();
    assert_eq!(passed, 5);
    let load = Load {
        servers: vec![server.http],
        per_second: 1_000,
        connections: 64,
        length: Duration::from_secs(3),
    };
    // Every other request is of somebody new, who may pass; the others are of somebody who may not.
    let load = load.start(|number| match number % 2 {
        0 => SPENT.to_owned(),
        _ => format!("\"user\":\"new-{number}\""),
    });
    let lost = load.reaches(Duration::from_secs(1));
    proxy.drop_replies(1);
    within(PATIENCE, "a reply is lost", || proxy.is_done());
    let samples = load.finish();
    let wrong =
        samples.filter(|sample| sample.number % 2 == 0 && sample.verdict.is_admitted_by_store());
    let before = wrong.filter(|sample| sample.answered() < lost).len();
    let late = wrong.filter(|sample| sample.due > lost + Duration::from_millis(1_900)).len();
    let admitted = wrong.len();
    println!(
        "shifted: {}; {admitted} passed who may not, {late} of them in the last tenth of a second",
        samples.told()
    );
    samples.are_all_answers();
    assert_eq!(before, 0, "before anything was lost");
    assert!(samples.by(By::Store) > 900, "{}", samples.told());
    assert_eq!(admitted, 0, "were told what others were told");
    server.is_sound();
}
