//! A panic costs one reply: neither the connection nor the rest of a pipeline.

use super::handler::{Asking, AskingBatch, Batch, RespHandler};
use super::users::{UserRole, Users};
use super::wire::{self, CommandBound, Read, Words};
use crate::decision_logs::DecisionLogs;
use crate::desk::Desk;
use crate::front::testing::Panicking;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::net::LongWorkQueue;
use crate::rulebook::{Rulebook, RulebookContext, TokenKeys};
use std::sync::Arc;
use tidegate::{Clock, Limiter, Policy, Secret};
use tidegate_core::Timestamp;

const POLICY: &str = "{ version: 1, rules: [{ name: a, key: [ip], limits: [10/h] }] }";
/// A take of this many causes a panic.
const UNLUCKY: u64 = 13;

fn handler(data_dir: &std::path::Path) -> RespHandler<Panicking> {
    let (secret, clock) = (Secret::new([1; 32]), Clock::manual(Timestamp::from_nanos(1)));
    let store =
        Panicking::new(&clock, |plan| plan.takes().iter().any(|take| take.cost.get() == UNLUCKY));
    let policy = Policy::parse(POLICY).unwrap();
    let limiter = Limiter::new(policy, store, secret.clone(), clock.clone()).unwrap();
    let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
    let context = RulebookContext {
        secret,
        clock,
        metrics: Arc::clone(&metrics),
        health,
        data_dir: data_dir.to_owned(),
        file: None,
        token_keys: TokenKeys::Present,
    };
    let rulebook = Rulebook::open(limiter.clone(), context, POLICY.into()).unwrap();
    let users = Users::everybody(Secret::new([1; 32]), UserRole::Operator);
    let desk = Desk::new(limiter, "resp", metrics, DecisionLogs::default());
    RespHandler::new(desk, Arc::new(rulebook), Arc::new(users))
}

fn words(line: &str) -> Words<'_> {
    let mut words = Words::new();
    let read = wire::read(line.as_bytes(), CommandBound::KNOWN, &mut words);
    assert!(matches!(read, Ok(Read::Command(_))));
    words
}

#[tokio::test]
async fn a_panic_costs_one_reply_of_a_pipeline() {
    let data_dir = std::env::temp_dir().join(format!("tidegate-panics-{}", std::process::id()));
    std::fs::create_dir_all(&data_dir).unwrap();
    let handler = handler(&data_dir);
    let session = handler.session([127, 0, 0, 1].into());
    let lines: Vec<String> = (0..10)
        .map(|number| {
            let quantity = if number == 3 { UNLUCKY } else { 1 };
            format!("CL.THROTTLE user:{number} 99 100 3600 {quantity}\r\n")
        })
        .collect();
    let read = |line| handler.throttle(&words(line), &session).unwrap().unwrap();
    let batch: Batch<'_> = lines.iter().map(|line| read(line)).collect();
    let mut out = Vec::new();
    handler.decide(&batch, &mut out).await;
    let text = String::from_utf8(out).unwrap();
    let replies: Vec<&str> =
        text.split_inclusive('\n').filter(|line| line.starts_with(['*', '-'])).collect();
    assert_eq!(replies.len(), 10, "{text}");
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(reply.starts_with("-ERR internal error"), number == 3, "{number}: {text}");
    }
    // A command that asks the policy is decided by its rules, as over HTTP: 13 of at most 10.
    let mut out = Vec::new();
    let check = format!("TG.CHECK {UNLUCKY} ip 203.0.113.7\r\n");
    let asked: AskingBatch<'_> = std::iter::once((Asking::Check, words(&check))).collect();
    handler.answer_asked(&asked, &session, &LongWorkQueue::new(true), &mut out).await;
    assert!(out.starts_with(b"*10\r\n:0\r\n$4\r\ndeny\r\n"), "{}", String::from_utf8_lossy(&out));
    std::fs::remove_dir_all(&data_dir).unwrap();
}
