//! Ten thousand requests that wait in the proxy at the same time: their memory, what happens when half of the clients leave,
//! and how a shutdown answers the rest.
//!
//! ```text
//!   1  connect, one request each that is not limited      memory of idle connections
//!   2  a request each that must wait                      memory of waiting requests; one more is refused
//!   3  every second client leaves                         connections closed, places free
//!   4  as many new clients, a request each                no place was lost; memory as in step 2
//!   5  SIGTERM                                            every request is answered
//! ```

#![expect(clippy::float_arithmetic, reason = "bytes and times, for people")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use super::ProxyOptions;
use super::crowd::{Crowd, Ending, Endings, summary};
use super::figures::{Goal, GoalFigure};
use super::tidegate::{TidegateProxy, upstream};
use crate::http_bench::wire::get;
use crate::rig::install;
use crate::rig::process::Process;
use crate::rig::usage::ProcessGroup;
use crate::rounds::float;
use crate::say;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long the shutdown may take.
const DRAIN: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a waiting request besides its head.
const MOST_BYTES: f64 = 2048.0;
/// The server is idle if it used less than this share of the time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const IDLE_CPU: Duration = Duration::from_millis(2);

/// What the experiment has found so far.
struct Findings<'f> {
    case: &'f str,
    json: bool,
    rows: Vec<String>,
}

impl Findings<'_> {
    fn add(&mut self, name: &str, value: f64, unit: &str, goal: Goal) {
        let case = &format!("{}-{name}", self.case);
        self.rows.push(GoalFigure { case, value, unit, goal }.print(self.json));
    }

    fn tell(&self, text: &str) {
        if !self.json {
            say(text);
        }
    }
}

pub(crate) async fn waiting(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    raise_open_files()?;
    let upstream = upstream("waiting-upstream").await?;
    let mut proxy = start(options, upstream.address).await?;
    let group = proxy.group().map_err(|error| error.to_string())?;
    let mut findings = Findings { case, json: options.rig.json, rows: Vec::new() };
    let many = usize::from(options.waiting);
    let mut crowd = fill(many, &proxy, &group, &mut findings).await?;
    leave(&mut crowd, &group, &mut findings).await;
    refill(many, &mut crowd, (&proxy, &group), &mut findings).await?;
    shut_down(crowd, &mut proxy, &mut findings).await?;
    Ok(findings.rows)
}

/// A proxy that makes all but a few requests wait. The rate is so low that hardly any gets its turn, and high enough that
/// all of them would within the hour.
async fn start(options: &ProxyOptions, upstream: SocketAddr) -> Result<Process, String> {
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let many = options.waiting;
    let rule = format!(
        "{{ name: slow, match: {{ path: /wait }}, key: [ip], limits: [{{ rate: {many}/h, burst: 1 }}], on_limit: {{ delay: {{ max_wait: 1h, max_queue: {many} }} }} }}"
    );
    let drain = format!("{}s", DRAIN.as_secs());
    let proxy = TidegateProxy {
        program: &program,
        rule: &rule,
        upstreams: &[upstream],
        group: "",
        // All requests come from one address, which gets only a part of the budget.
        admin: None,
        arguments: &["--drain-timeout", &drain, "--proxy-buffer-budget", "4GiB"],
    };
    proxy.start("waiting", "/free").await
}

/// Steps 1 and 2.
async fn fill(
    many: usize,
    proxy: &Process,
    group: &ProcessGroup,
    findings: &mut Findings<'_>,
) -> Result<Crowd, String> {
    let empty = group.resident();
    let mut crowd = Crowd::open(proxy.address, many).await?;
    crowd.ask(get("/free").of(|| 0)).await?;
    let free = crowd.answers(PATIENCE).await;
    settle(group).await;
    let idle = group.resident();
    findings.tell(&format!(
        "{many} connections, a request each that does not wait: {}",
        summary(&free)
    ));
    findings.add("connection-bytes", each(idle.saturating_sub(empty), many), "B", Goal::None);
    let mut request = get("/wait");
    let head = request.of(|| 0);
    // The first request of all passes.
    within_the_limit(proxy.address, head).await?;
    let start = Instant::now();
    crowd.ask(head).await?;
    settle(group).await;
    let held = group.resident();
    let most = MOST_BYTES + float(u64::try_from(head.len()).unwrap_or(0));
    findings.add("request-bytes", each(held.saturating_sub(idle), many), "B", Goal::AtMost(most));
    findings.tell(&format!(
        "all requests are there after {:?}; {} are answered",
        start.elapsed(),
        crowd.heard()
    ));
    let mut one_more = Crowd::open(proxy.address, 1).await?;
    one_more.ask(head).await?;
    let ending = one_more.answers(Duration::from_secs(1)).await;
    findings.tell(&format!("one request more than may wait: {}", summary(&ending)));
    let refused = u32::from(ending.contains_key(&Ending::Answer(429)));
    findings.add("one-more-refused", refused.into(), "", Goal::AtLeast(1.0));
    Ok(crowd)
}

/// Step 3.
async fn leave(crowd: &mut Crowd, group: &ProcessGroup, findings: &mut Findings<'_>) {
    let (before, memory) = (group.open_files(), group.resident());
    let start = Instant::now();
    let many = crowd.len();
    crowd.halve();
    let gone = many.saturating_sub(crowd.len());
    let left = before.saturating_sub(gone);
    while group.open_files() > left && start.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1)).await;
    }
    let millis = start.elapsed().as_secs_f64() * 1e3;
    let stuck = float(u64::try_from(group.open_files().saturating_sub(left)).unwrap_or(0));
    findings.add("left-open", stuck, "", Goal::AtMost(0.0));
    findings.add("left-closed-after", millis, "ms", Goal::None);
    let freed = float(memory.saturating_sub(group.resident())) / 1024.0;
    findings.add("left-freed", freed, "KiB", Goal::None);
}

/// Step 4.
async fn refill(
    many: usize,
    crowd: &mut Crowd,
    (proxy, group): (&Process, &ProcessGroup),
    findings: &mut Findings<'_>,
) -> Result<(), String> {
    let before = crowd.heard();
    let mut others = Crowd::open(proxy.address, many.saturating_sub(crowd.len())).await?;
    others.ask(get("/wait").of(|| 0)).await?;
    settle(group).await;
    // Those who have heard something got their turn meanwhile, or were refused.
    let turned_away = float(u64::try_from(others.heard()).unwrap_or(0));
    findings.add("places-lost", turned_away, "", Goal::AtMost(0.0));
    findings.tell(&format!("{before} of the others had an answer before the new requests"));
    crowd.join(others);
    Ok(())
}

/// Step 5.
async fn shut_down(
    mut crowd: Crowd,
    proxy: &mut Process,
    findings: &mut Findings<'_>,
) -> Result<(), String> {
    let (many, early) = (crowd.len(), crowd.heard());
    let start = Instant::now();
    proxy.signal(Signal::TERM);
    let endings = crowd.answers(DRAIN.saturating_add(PATIENCE)).await;
    let took = start.elapsed();
    findings.tell(&format!(
        "SIGTERM with {many} requests, {early} answered before: {}",
        summary(&endings)
    ));
    findings.add("sigterm-unanswered", unanswered(&endings), "", Goal::AtMost(0.0));
    let most = DRAIN.as_secs_f64() * 1e3 + 1e3;
    findings.add("sigterm-answered-after", took.as_secs_f64() * 1e3, "ms", Goal::AtMost(most));
    while !proxy.has_ended() && start.elapsed() < DRAIN.saturating_add(PATIENCE) {
        sleep(Duration::from_millis(10)).await;
    }
    findings.add(
        "sigterm-ended-after",
        start.elapsed().as_secs_f64() * 1e3,
        "ms",
        Goal::AtMost(most),
    );
    Ok(())
}

/// Requests whose connection ended without an answer, or that got none in time.
fn unanswered(endings: &Endings) -> f64 {
    let times = |ending| endings.get(&ending).copied().unwrap_or(0);
    let all = times(Ending::Closed).saturating_add(times(Ending::Silence));
    float(u64::try_from(all).unwrap_or(u64::MAX))
}

/// Sends one request that must pass.
async fn within_the_limit(address: SocketAddr, request: &[u8]) -> Result<(), String> {
    let mut one = Crowd::open(address, 1).await?;
    one.ask(request).await?;
    let ending = one.answers(PATIENCE).await;
    let passed = ending.contains_key(&Ending::Answer(200));
    if passed { Ok(()) } else { Err(format!("the first request: {}", summary(&ending))) }
}

fn each(bytes: u64, many: usize) -> f64 {
    float(bytes) / float(u64::try_from(many).unwrap_or(1).max(1))
}

/// Waits until the server has nothing left to do.
async fn settle(group: &ProcessGroup) {
    let start = Instant::now();
    let (mut last, mut calm) = (group.cpu(), 0_u32);
    while calm < 3 && start.elapsed() < PATIENCE {
        sleep(LOOK_EVERY).await;
        let now = group.cpu();
        calm = if now.saturating_sub(last) < IDLE_CPU { calm.saturating_add(1) } else { 0 };
        last = now;
    }
}

/// Each connection is an open file of this process.
fn raise_open_files() -> Result<(), String> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|e| e.to_string())
}
