//! The recipes of `docs/recipes`: stories with many threads, tasks that wait, or loops. Each recipe also has a timeline beside
//! it, which a test of the server plays.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails loudly, and its instants come from the paused clock of the runtime"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{
    Attributes, Check, Clock, Limiter, Memory, Outcome, Permit, Policy, Receipt, Renewal, Report,
    Request, Retry, Secret, Settled, Span, Timestamp, Verdict,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// When the stories begin: 29 March 2026, 00:00 UTC, in seconds. All windows begin at that time, so the numbers are round.
const MIDNIGHT: u64 = 1_774_742_400;

// === the folder ===

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/recipes"))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

#[test]
fn every_recipe_has_a_timeline_and_the_page_shows_it_verbatim() {
    let files = std::fs::read_dir(folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    let recipes = names.iter().filter(|name| name.ends_with(".yaml"));
    assert!(recipes.clone().count() >= 10, "{names:?}");
    let page = text("README.md");
    for name in recipes {
        let timeline = name.replace(".yaml", ".timeline");
        assert!(names.contains(&timeline), "{name} has no {timeline}");
        assert_eq!(Policy::parse(text(name)).unwrap().warnings(), [], "{name}");
        assert!(page.contains(&format!("[{name}]({name})")), "README.md does not name {name}");
        let shown = format!("```yaml\n{}```\n", text(name));
        assert!(page.contains(&shown), "README.md does not show {name} as it is in the file");
    }
}

/// The guides show policies to copy. Each must be valid, and free of probable mistakes.
#[test]
fn every_policy_in_the_guides_has_no_warnings() {
    let mut policies = 0;
    let root = folder().join("../..");
    let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|kind| kind == "md"));
    for page in pages.chain([root.join("README.md")]) {
        let page = std::fs::read_to_string(page).unwrap();
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for policy in blocks.filter(|block| block.starts_with("version: 1\n")) {
            assert_eq!(Policy::parse(policy).unwrap().warnings(), [], "{policy}");
            policies += 1;
        }
    }
    assert!(policies >= 7, "only {policies} policies");
}

// === the stage ===

/// A limiter with a recipe, and the clock that the story sets.
struct Stage {
    limiter: Limiter,
    clock: Clock,
}

fn recipe(name: &str) -> Stage {
    let clock = Clock::manual(seconds(MIDNIGHT));
    let limiter = built(name, clock.clone());
    Stage { limiter, clock }
}

fn built(name: &str, clock: Clock) -> Limiter {
    let policy = Policy::parse(text(name)).unwrap();
    Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock).unwrap()
}

fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

impl Stage {
    /// Moves the clock forward.
    fn pass(&self, span: Span) {
        self.clock.set(self.clock.now().steady.after(span).unwrap());
    }

    fn ask(&self, who: &Attributes<'_>) -> Verdict {
        self.limiter.check_now(&Check::new(who)).unwrap()
    }

    /// Asks, and reports this outcome if the request passed.
    fn ask_and_report(&self, who: &Attributes<'_>, report: Report) -> Verdict {
        let verdict = self.ask(who);
        if let Some(receipt) = verdict.receipt() {
            assert_eq!(self.limiter.report_now(receipt, report).unwrap(), Settled::Done);
        }
        verdict
    }

    /// How many of `times` requests pass.
    fn passed(&self, times: usize, who: &Attributes<'_>) -> usize {
        (0..times).filter(|_| self.ask(who).allowed()).count()
    }
}

fn request(method: &str, path: &str, more: &[(&'static str, &str)]) -> Attributes<'static> {
    let request = Attributes::new().with("method", method.to_owned()).unwrap();
    let request = request.with("path", path.to_owned()).unwrap();
    more.iter()
        .fold(request, |request, (name, value)| request.with(*name, (*value).to_owned()).unwrap())
}

/// The rules that deny, in the order of the policy.
fn refusing(verdict: &Verdict) -> Vec<&str> {
    verdict.refusing().map(|limit| limit.rule).collect()
}

fn flags(verdict: &Verdict) -> Vec<&str> {
    verdict.flags().collect()
}

fn remaining(verdict: &Verdict, rule: &str) -> u64 {
    verdict.limits().find(|limit| limit.rule == rule).unwrap().decision.remaining
}

const fn refused_for(seconds: u64) -> Outcome {
    Outcome::Deny(Retry::After(Span::from_secs(seconds)))
}

// === login.yaml ===

fn login(user: &str, ip: &str) -> Attributes<'static> {
    request("POST", "/login", &[("user", user), ("ip", ip)])
}

fn known(user: &str, ip: &str, device: &str) -> Attributes<'static> {
    login(user, ip).with("device", device.to_owned()).unwrap()
}

/// The owner of an attacked account is challenged on an unknown device, and not even that on her own device.
fn victim_logs_in(stage: &Stage, elsewhere: &str) {
    for _ in 0..100 {
        let unknown = stage.ask_and_report(&login("alice", elsewhere), Report::Success);
        assert_eq!((unknown.outcome, flags(&unknown)), (Outcome::Allow, vec!["challenge"]));
        let at_home = known("alice", elsewhere, "her-phone");
        let verdict = stage.ask_and_report(&at_home, Report::Success);
        assert_eq!((verdict.outcome, flags(&verdict)), (Outcome::Allow, vec![]));
    }
}

/// Sends ten thousand guesses in eight threads, and reports their failures only when all were sent. Returns how many passed,
/// and how many of these without a flag.
fn ten_thousand_guesses(stage: &Stage, from: impl Fn(usize) -> String + Sync) -> (usize, usize) {
    let guess = |thread: usize| -> Vec<(bool, Receipt)> {
        let asked = (0..1_250).map(|n| stage.ask(&login("alice", &from(thread * 1_250 + n))));
        let passed = asked.filter(Verdict::allowed);
        passed.map(|v| (v.flags().next().is_none(), v.receipt().unwrap().clone())).collect()
    };
    let passed: Vec<(bool, Receipt)> = std::thread::scope(|scope| {
        let guess = &guess;
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || guess(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for (_, receipt) in &passed {
        stage.limiter.report_now(receipt, Report::Failure).unwrap();
    }
    (passed.len(), passed.iter().filter(|(quiet, _)| *quiet).count())
}

#[test]
fn ten_thousand_parallel_guesses_from_one_address() {
    let stage = recipe("login.yaml");
    assert_eq!(ten_thousand_guesses(&stage, |_| "203.0.113.7".to_owned()), (5, 5));
    let elsewhere = stage.ask_and_report(&login("alice", "198.51.100.7"), Report::Success);
    assert_eq!((elsewhere.outcome, flags(&elsewhere)), (Outcome::Allow, vec![]));
}

#[test]
fn ten_thousand_parallel_guesses_from_as_many_addresses() {
    let stage = recipe("login.yaml");
    let from = |n: usize| format!("10.1.{}.{}", n / 256, n % 256);
    assert_eq!(ten_thousand_guesses(&stage, from), (10_000, 20));
    victim_logs_in(&stage, "198.51.100.7");
}

// === messages.yaml ===

fn message(user: &str) -> Attributes<'static> {
    request("POST", "/messages", &[("user", user), ("ip", "203.0.113.7")])
}

#[test]
fn a_noisy_neighbour_takes_nothing_from_the_others() {
    let stage = recipe("messages.yaml");
    // Fifty users behind one address, one of whom sends 100 messages per second.
    let mut passed = [0; 50];
    for _ in 0..60 {
        passed[0] += stage.passed(100, &message("user-0"));
        for (n, passed) in passed.iter_mut().enumerate().skip(1) {
            *passed += stage.passed(1, &message(&format!("user-{n}")));
        }
        stage.pass(Span::from_secs(1));
    }
    assert_eq!(passed, [60; 50]);
    // One host with a thousand users cannot send more than the limit of an address.
    let users: usize = (0..1_000).map(|n| stage.passed(1, &message(&format!("bot-{n}")))).sum();
    assert_eq!(users, 100);
}

// === url-shortener.yaml ===

fn create(user: &str, shard: &str) -> Attributes<'static> {
    request("POST", "/urls", &[("user", user), ("ip", "203.0.113.7"), ("shard", shard)])
}

#[test]
fn a_shard_and_the_hour_are_taken_together() {
    let stage = recipe("url-shortener.yaml");
    // The fourth request on a shard is denied by the limit of the shard, and does not count for the hour.
    assert_eq!(stage.passed(50, &create("alice", "7")), 3);
    let fourth = stage.ask(&create("alice", "7"));
    assert_eq!((fourth.outcome, refusing(&fourth)), (refused_for(60), vec!["create-url-shard"]));
    assert_eq!(remaining(&fourth, "create-url"), 97);
    assert!(stage.ask(&create("bob", "7")).allowed());
    // Over all shards together, 100 per hour.
    let minutes = (0..40).map(|_| {
        stage.pass(Span::from_secs(60));
        stage.passed(3, &create("alice", "7")) + stage.passed(1, &create("alice", "8"))
    });
    assert_eq!(minutes.sum::<usize>(), 97);
    let next = stage.ask(&create("alice", "9"));
    // The three of the first minute expire at the beginning of the 61st minute; this is the 40th.
    assert_eq!((next.outcome, refusing(&next)), (refused_for(21 * 60), vec!["create-url"]));
}

// === plans.yaml ===

fn customer(name: &str, plan: &str) -> Attributes<'static> {
    request("GET", "/", &[("customer", name), ("tier", plan), ("ip", "203.0.113.7")])
}

#[test]
fn every_plan_gets_what_it_paid_for() {
    let stage = recipe("plans.yaml");
    let over = |who: &Attributes<'_>| {
        let verdicts: Vec<Verdict> = (0..2_000).map(|_| stage.ask(who)).collect();
        let allowed = verdicts.iter().filter(|verdict| verdict.allowed());
        (allowed.clone().count(), allowed.filter(|verdict| verdict.over).count())
    };
    assert_eq!(over(&customer("hooli", "free")), (110, 10));
    assert_eq!(over(&customer("initech", "pro")), (1_100, 100));
    assert_eq!(over(&customer("acme", "enterprise")), (2_000, 0));
    assert_eq!(over(&customer("globex", "free")), (550, 50)); // an override: its contract
    assert_eq!(over(&customer("vandelay", "platinum")), (110, 10)); // an unknown plan counts as `free`
    assert_eq!(stage.limiter.stats().unknown_tiers, 2_000);
    // The free plan allows 2,200 per day, which are used up within the hour.
    let quiet_minutes = (0..30).map(|_| {
        stage.pass(Span::from_secs(120));
        stage.passed(200, &customer("hooli", "free"))
    });
    assert_eq!(quiet_minutes.sum::<usize>(), 2_200 - 110);
    // Headers that name a customer are believed only from the gateway, not from a client.
    let headers = |name: &str| match name {
        "x-customer" => vec![&b"acme"[..]],
        "x-plan" => vec![&b"enterprise"[..]],
        _ => vec![],
    };
    let from = |peer: &str| {
        let peer = peer.parse().ok();
        let request = Request { peer, method: "GET", target: "/", headers: &headers };
        stage.passed(200, &stage.limiter.attributes(&request).unwrap())
    };
    assert_eq!((from("198.51.100.7"), from("10.0.0.1")), (110, 200));
}

// === ticket-sale.yaml ===

/// A limiter in virtual time: tokio's clock is paused, and jumps to the next timer whenever all tasks wait.
fn in_virtual_time(name: &str) -> Limiter {
    let start = Instant::now();
    let clock = Clock::borrowed(move || {
        let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
        let now = seconds(MIDNIGHT).after(Span::from_nanos(passed)).unwrap();
        tidegate_core::Now::at(now)
    });
    built(name, clock)
}

fn sale() -> Limiter {
    in_virtual_time("ticket-sale.yaml")
}

fn buyer(number: usize) -> Attributes<'static> {
    request("POST", "/orders", &[("user", &format!("buyer-{number}")), ("ip", "203.0.113.7")])
}

#[tokio::test(start_paused = true)]
async fn a_surge_is_served_in_order_at_the_rate() {
    let (limiter, start) = (sale(), Instant::now());
    let ended: Arc<Mutex<Vec<(usize, Outcome, Duration)>>> = Arc::default();
    let mut buyers = Vec::new();
    for number in 0..1_000 {
        let (limiter, ended) = (limiter.clone(), Arc::clone(&ended));
        buyers.push(tokio::spawn(async move {
            let who = buyer(number);
            let check = Check::new(&who).waiting(Span::from_secs(60)); // longer than the rule allows
            let verdict = limiter.acquire(&check).await.unwrap();
            ended.lock().unwrap().push((number, verdict.outcome, start.elapsed()));
        }));
        tokio::task::yield_now().await; // lets it ask before the next one starts
    }
    for buyer in buyers {
        buyer.await.unwrap();
    }
    let ended = ended.lock().unwrap();
    let served: Vec<(usize, Duration)> =
        ended.iter().filter(|(_, o, _)| o.passes()).map(|(n, _, at)| (*n, *at)).collect();
    // One is served every 20 ms, in the order of arrival, up to the longest wait that the rule allows.
    let turns = (0..=500).map(|n: u32| (n.try_into().unwrap(), Duration::from_millis(20) * n));
    assert_eq!(served, turns.collect::<Vec<_>>());
    // The others are denied immediately, so none waits in vain.
    let denied = ended.iter().filter(|(_, outcome, _)| !outcome.passes());
    assert!(denied.clone().all(|(_, _, at)| *at == Duration::ZERO));
    assert_eq!(denied.count(), 499);
}

#[tokio::test(start_paused = true)]
async fn a_buyer_has_one_place_in_the_queue() {
    let limiter = sale();
    // A bot asks a thousand times, then ten people arrive. Only one turn is before theirs.
    let ask = |number: usize| {
        let who = buyer(number);
        let check = Check::new(&who).waiting(Span::from_secs(5));
        limiter.check_now(&check).unwrap().outcome
    };
    let bot: Vec<Outcome> = (0..1_000).map(|_| ask(0)).collect();
    assert_eq!(bot.iter().filter(|outcome| outcome.passes()).count(), 1);
    let people: Vec<Outcome> = (1..=10).map(ask).collect();
    let turns = (1..=10).map(|n| Outcome::Delay(Span::from_millis(20 * n)));
    assert_eq!(people, turns.collect::<Vec<_>>());
    // The queue has 500 places besides the turn that passes immediately, however long a request can wait.
    let patient = |number: usize| {
        let who = buyer(number);
        limiter.check_now(&Check::new(&who).waiting(Span::from_secs(60))).unwrap()
    };
    assert_eq!((11..1_000).filter(|number| patient(*number).allowed()).count(), 501 - 11);
}

// === exports.yaml ===

/// A job is known by its number.
type Job = usize;

/// Does one job after another, each when its turn comes. Returns a job that got no turn, to be put back into the queue.
async fn work(
    limiter: &Limiter,
    mut jobs: mpsc::Receiver<Job>,
    mut run: impl AsyncFnMut(Job),
) -> Option<Job> {
    let export = Attributes::new();
    let check = Check::new(&export).waiting(Span::from_secs(24 * 3_600));
    while let Some(job) = jobs.recv().await {
        match limiter.acquire(&check).await {
            Ok(verdict) if verdict.allowed() => run(job).await,
            Ok(_) | Err(_) => return Some(job),
        }
    }
    None
}

/// A queue with this many jobs, to which no more are added.
fn queue(jobs: usize) -> mpsc::Receiver<Job> {
    let (sender, receiver) = mpsc::channel(jobs);
    (0..jobs).for_each(|job| sender.try_send(job).unwrap());
    receiver
}

#[tokio::test(start_paused = true)]
async fn three_hundred_jobs_are_done_in_order_at_the_rate() {
    let (limiter, start) = (in_virtual_time("exports.yaml"), Instant::now());
    let mut done = Vec::new();
    let left = work(&limiter, queue(300), async |job| done.push((job, start.elapsed()))).await;
    assert_eq!(left, None);
    let turns = (0..300).map(|job: u32| (job.try_into().unwrap(), Duration::from_secs(36) * job));
    assert_eq!(done, turns.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_gives_its_turn_back() {
    let (limiter, start) = (in_virtual_time("exports.yaml"), Instant::now());
    let mut done = Vec::new();
    // It does the first job at once, and is stopped while it waits for the turn of the second.
    let worker = work(&limiter, queue(2), async |job| done.push(job));
    assert!(tokio::time::timeout(Duration::from_secs(10), worker).await.is_err());
    assert_eq!(done, [0]);
    limiter.given_back().await;
    let mut at = None;
    assert_eq!(work(&limiter, queue(1), async |_| at = Some(start.elapsed())).await, None);
    assert_eq!(at, Some(Duration::from_secs(36)));
}

#[test]
fn the_page_shows_the_worker_that_is_tested() {
    let source = include_str!("recipes.rs");
    let from = source.find("/// Does one job after another").unwrap();
    let length = source[from..].find("\n}\n").unwrap() + 3;
    let shown = format!("```rust\n{}```\n", &source[from..from + length]);
    assert!(text("README.md").contains(&shown), "README.md does not show\n{shown}");
}

// === analytics.yaml ===

fn analytics(user: &str) -> Attributes<'static> {
    request("GET", "/analytics/visits", &[("user", user), ("ip", "203.0.113.7")])
}

fn pay(user: &str) -> Attributes<'static> {
    request("POST", "/payments/cards", &[("user", user), ("ip", "203.0.113.7")])
}

#[test]
fn a_flood_of_analytics_leaves_every_payment_untouched() {
    let (flooded, quiet) = (recipe("analytics.yaml"), recipe("analytics.yaml"));
    let (mut served, mut low) = (0, 0);
    for second in 0..10 {
        for n in 0..1_000 {
            let verdict = flooded.ask(&analytics("flooder"));
            served += usize::from(verdict.allowed());
            low += usize::from(verdict.allowed() && verdict.class().name() == "low");
            if n % 100 == 0 {
                // Payments, also those of the flooder, are decided as if there were no flood.
                for payer in ["alice", "bob", "flooder"] {
                    let pays = |stage: &Stage| {
                        let verdict = stage.ask(&pay(payer));
                        let decision = verdict.limits().next().unwrap().decision;
                        (verdict.outcome, verdict.priority, verdict.limits().count(), decision)
                    };
                    assert_eq!(pays(&flooded), pays(&quiet), "{payer} in second {second}");
                }
            }
        }
        flooded.pass(Span::from_secs(1));
        quiet.pass(Span::from_secs(1));
    }
    // The limit of payments: a burst of 10, and 5 for each of the following nine seconds.
    let payments = |stage: &Stage| stage.limiter.stats().rules[0].1.allowed;
    assert_eq!((payments(&flooded), payments(&quiet)), (3 * 55, 3 * 55));
    // The flood: 100 per second pass; only 60 and 1 per second of these with normal priority.
    assert_eq!((served, low), (1_000, 1_000 - 69));
}

// === slow-reports.yaml ===

fn slow_report(customer: &str) -> Attributes<'static> {
    request("POST", "/reports", &[("customer", customer)])
}

#[tokio::test(start_paused = true)]
async fn a_customer_runs_two_reports_and_the_third_waits() {
    let start = Instant::now();
    let clock = Clock::borrowed(move || {
        let passed = Span::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap());
        tidegate_core::Now::at(seconds(MIDNIGHT).after(passed).unwrap())
    });
    let limiter = built("slow-reports.yaml", clock);
    let run = async |customer: &'static str| -> (Verdict, Option<Permit>) {
        let report = slow_report(customer);
        let check = Check::new(&report).waiting_by_rule(Span::from_secs(10));
        let mut verdict = limiter.admit(&check).await.unwrap();
        let permit = limiter.hold(&mut verdict);
        (verdict, permit)
    };
    let (_first, mut first) = run("acme").await;
    let (_second, _permit) = run("acme").await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    // The third one waits until the first has ended, after 3 s; the fourth gives up after 5 s.
    let ends = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        first.take();
    };
    let ((third, third_permit), ()) = tokio::join!(run("acme"), ends);
    assert!(third.allowed() && third_permit.is_some());
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    let (fourth, _) = run("acme").await;
    assert!(!fourth.allowed());
    assert_eq!(start.elapsed(), Duration::from_secs(8));
    // A report may run for longer than its lease.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!run("acme").await.0.allowed());
}

#[test]
fn a_crash_frees_its_places_after_a_minute() {
    let stage = recipe("slow-reports.yaml");
    let customers = ["a", "b", "c", "d", "e", "f", "g"];
    let start = |customer| {
        let verdict = stage.ask(&slow_report(customer));
        (verdict.allowed(), verdict.receipt().cloned())
    };
    let receipts: Vec<Receipt> =
        customers.iter().flat_map(|name| [start(name).1, start(name).1]).flatten().collect();
    assert_eq!(receipts.len(), 12);
    // The database is full. The refusal counts for neither rule, and is not told to wait for a lease.
    let refused = stage.ask(&slow_report("g"));
    assert_eq!(refused.outcome, Outcome::Deny(Retry::After(Span::from_secs(1))));
    assert!(refused.refusing().all(|limit| limit.rule == "reports-total"));
    // One of the reports goes on and is renewed, one ends, and the machine with the other ten crashes.
    stage.pass(Span::from_secs(20));
    let renewal = stage.limiter.renew_now(&receipts[0]).unwrap();
    let Renewal::Renewed(renewed) = renewal else { unreachable!("{renewal:?}") };
    assert_eq!(stage.limiter.report_now(&receipts[11], Report::Failure).unwrap(), Settled::Done);
    assert_eq!((start("g").0, start("g").0), (true, false));
    stage.pass(Span::from_secs(40));
    let passed = customers.iter().filter(|name| start(name).0).count();
    assert_eq!(passed, 7);
    assert_eq!(stage.limiter.report_now(&renewed, Report::Success).unwrap(), Settled::Done);
}
