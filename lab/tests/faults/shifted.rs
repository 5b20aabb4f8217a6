//! One reply of the store is lost on a connection that stays open. Without a defence every later caller would
//! get the reply to the next caller's command. No caller may get the decision of another one.

use crate::support::load::{Http, Load};
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment};
use crate::support::{PATIENCE, pause, within};
use std::time::Duration;

const RULE: &str = "{ name: all, key: [user], limits: [{ rate: 1/day, algorithm: fixed_window }], on_store_error: deny }";
/// Longer than the denial cache keeps a refusal, so that the store decides.
const REMEMBERED: Duration = Duration::from_millis(1_500);

/// Every other request is from a user whose limit is used up, each time a different user.
fn spent(number: u32) -> String {
    format!("\"user\":\"spent-{number}\"")
}

#[test]
fn a_lost_reply_gives_no_caller_the_decision_of_another() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server(&proxy.url(), &[]);
    server.until_ready();
    let mut http = Http::connect(server.http);
    let mut asked = (0..3_000).step_by(2).map(|number| http.check(&spent(number)));
    assert!(asked.all(|verdict| verdict.is_admitted_by_store()));
    pause(REMEMBERED);
    let load = Load {
        servers: vec![server.http],
        per_second: 1_000,
        connections: 64,
        length: Duration::from_secs(3),
    };
    // The other requests are from new users, who may pass.
    let load = load.start(|number| match number % 2 {
        0 => spent(number),
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
        "shifted: {}; {admitted} passed although their limit was used up, {late} of them in the last tenth of a second",
        samples.summary()
    );
    samples.assert_all_answered();
    assert_eq!(before, 0, "requests passed before a reply was lost");
    assert!(samples.by(DecidedBy::Store) > 900, "{}", samples.summary());
    assert_eq!(admitted, 0, "callers got the decisions of others");
    server.assert_healthy();
}
