//! Pipelines while the store is slow: commands share round trips, and replies come in order.

use super::connection::tests::answered;
use super::handler::RespHandler;
use super::users::{UserRole, Users};
use crate::bounds;
use crate::decision_logs::DecisionLogs;
use crate::desk::Desk;
use crate::front::testing::Slow;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::rulebook::{Rulebook, RulebookContext, TokenKeys};
use crate::timers;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Clock, Limiter, Policy, Secret};
use tidegate_core::Timestamp;

const POLICY: &str = "{ version: 1, rules: [{ name: a, key: [user], limits: [{ rate: 1000/h, algorithm: fixed_window }], count: failures }] }";
const ROUND_TRIP: Duration = Duration::from_millis(15);

fn handler(data_dir: &Path) -> RespHandler<Slow> {
    let (secret, clock) = (Secret::new([1; 32]), Clock::manual(Timestamp::from_nanos(1)));
    let store = Slow::new(&clock, ROUND_TRIP);
    let policy = Policy::parse(POLICY).unwrap();
    let limiter = Limiter::new(policy, store, secret.clone(), clock.clone()).unwrap();
    let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
    let context = RulebookContext {
        secret: secret.clone(),
        clock,
        metrics: Arc::clone(&metrics),
        health,
        data_dir: data_dir.to_owned(),
        file: None,
        token_keys: TokenKeys::Present,
    };
    let rulebook = Rulebook::open(limiter.clone(), context, POLICY.into()).unwrap();
    let users = Users::everybody(secret, UserRole::Operator);
    let desk = Desk::new(limiter, "resp", metrics, DecisionLogs::default());
    RespHandler::new(desk, Arc::new(rulebook), Arc::new(users))
}

/// The first words of the replies to a pipeline, and the receipts among them; and how many round trips it took.
async fn pipeline(handler: &RespHandler<Slow>, commands: &[String]) -> (Vec<String>, u32) {
    let began = timers::now();
    let out = answered(handler, commands.concat().as_bytes()).await;
    let trips = timers::since(began).as_millis() / ROUND_TRIP.as_millis();
    let text = String::from_utf8(out).unwrap();
    (text.split("\r\n").map(str::to_owned).collect(), u32::try_from(trips).unwrap())
}

/// Each command of a pipeline once waited for the reply to the one before: 64 checks took a second, and 1,000 reports 46.
#[tokio::test(start_paused = true)]
async fn commands_of_a_pipeline_share_round_trips() {
    let data_dir = std::env::temp_dir().join(format!("tidegate-slow-{}", std::process::id()));
    std::fs::create_dir_all(&data_dir).unwrap();
    let handler = handler(&data_dir);
    let check = |_| "TG.CHECK 1 RECEIPT user u\r\n".to_owned();
    let (words, trips) = pipeline(&handler, &(0..64).map(check).collect::<Vec<_>>()).await;
    assert_eq!(trips, 1);
    // In order: what remains falls from check to check.
    let left: Vec<&String> = words.iter().filter(|word| word.starts_with(":9")).collect();
    let expected: Vec<String> = (936..1_000).rev().map(|left| format!(":{left}")).collect();
    assert!(left.iter().copied().eq(&expected), "{left:?}");
    let report = |word: &String| format!("TG.REPORT {word} success\r\n");
    let reports: Vec<String> = words.iter().filter(|word| word.len() > 60).map(report).collect();
    assert_eq!(reports.len(), 64);
    // A check behind reports finds what they gave back.
    let both = [reports, vec![check(0), "PING\r\n".to_owned()]].concat();
    let (words, trips) = pipeline(&handler, &both).await;
    assert_eq!(trips, 2);
    assert!(words.iter().take(64).all(|word| word == "+OK"), "{words:?}");
    assert!(
        words.contains(&":999".to_owned()) && words.ends_with(&["+PONG".into(), String::new()])
    );
    let (_, trips) = pipeline(&handler, &(0..1_000).map(check).collect::<Vec<_>>()).await;
    assert_eq!(trips, u32::try_from(1_000_usize.div_ceil(bounds::RESP_TOGETHER)).unwrap());
    std::fs::remove_dir_all(&data_dir).unwrap();
}
