//! The store hangs for ten seconds. No caller waits longer than the timeout, and after a moment no caller
//! waits at all. What was sent during that time is not counted, and `/ready` reports the state correctly.

use crate::support::load::{Http, Load};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, pause, within};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
/// The time before the fault, for comparison.
const BASELINE: Duration = Duration::from_secs(4);
const STOPPED: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(4);
/// What the server may add to the wait for the store.
const OVERHEAD: Duration = Duration::from_millis(5);
/// How long after the stop some callers may still wait for the timeout.
const FINDING_OUT: Duration = Duration::from_millis(200);
const NOTICED: Duration = Duration::from_secs(2);

#[test]
fn a_store_that_hangs_under_1000_per_second_with_a_timeout_of_20_ms() {
    play(1_000, 64, Duration::from_millis(20));
}

#[test]
fn a_store_that_hangs_under_2000_per_second_with_a_timeout_of_8_ms() {
    play(2_000, 64, Duration::from_millis(8));
}

/// Before, during and after the fault: each phase counts under its own key.
fn name(phase: u8) -> String {
    format!("\"ip\":\"203.0.113.{phase}\"")
}

fn play(per_second: u32, connections: u32, timeout: Duration) {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let flag = format!("{}ms", timeout.as_millis());
    let mut server = deployment.server(&redis.url(), &["--redis-timeout", &flag]);
    server.until_ready();
    let watch = Watch::start(server.http);
    let phase = Arc::new(AtomicU8::new(1));
    let load = Load {
        servers: vec![server.http],
        per_second,
        connections,
        length: BASELINE + STOPPED + AFTER,
    };
    let of = Arc::clone(&phase);
    let load = load.start(move |_| name(of.load(Ordering::SeqCst)));

    load.reaches(BASELINE);
    let errors = server.metric("tidegate_store_errors_total");
    redis.process().stop();
    // The store is stopped: it cannot handle what is sent from here on in time.
    let stopped = Instant::now();
    phase.store(2, Ordering::SeqCst);
    within(NOTICED, "the server is degraded", || server.readiness() == "degraded");
    let degraded = stopped.elapsed();
    load.reaches(BASELINE + STOPPED);
    phase.store(3, Ordering::SeqCst);
    redis.process().resume();
    let went_on = Instant::now();
    let back = until_the_store_decides(&server, went_on);
    // `/ready` says `degraded` for two seconds after the last request that was decided without the store.
    within(PATIENCE, "the server is ready", || server.readiness() == "ready");
    let ready = went_on.elapsed();
    let samples = load.finish();

    let baseline = samples.between(samples.0[0].due, stopped - timeout);
    let fault = samples.between(stopped - timeout, went_on);
    let settled = samples.between(stopped + FINDING_OUT, went_on);
    let errors = server.metric("tidegate_store_errors_total") - errors;
    println!("stopped, {per_second}/s, {timeout:?}\n  before:  {}", baseline.summary());
    println!("  while:   {}\n  settled: {}", fault.summary(), settled.summary());
    println!(
        "  degraded after {degraded:?}, decided by the store after {back:?}, ready after {ready:?}, {errors} decided without"
    );
    let paid = fault.filter(|sample| sample.latency >= timeout).len();
    println!("  {paid} waited for the timeout; /live at most {:?}", watch.finish());

    samples.assert_all_answered();
    // A busy machine may cause some fallbacks; the comparison accounts for that.
    assert!(baseline.by(DecidedBy::Fallback) * 100 <= baseline.len(), "before");
    let most = timeout + OVERHEAD + baseline.slowest();
    assert!(fault.slowest() <= most, "{:?} > {most:?}", fault.slowest());
    let p99 = baseline.quantile(990) + Duration::from_millis(1);
    assert!(settled.quantile(990) <= p99, "p99 {:?} > {p99:?}", settled.quantile(990));
    assert_eq!(settled.by(DecidedBy::Store), 0);
    assert!(back <= Duration::from_secs(1), "the store decides again after {back:?}");
    // What was sent while the store was stopped must not be counted later. Each phase has its own key, and so
    // have the few requests that wait for the store at the end. What was granted meanwhile is charged later.
    let mut counts: Vec<u64> = redis.counts().into_values().collect();
    counts.sort_unstable();
    let sent_while = fault.filter(|sample| sample.due > stopped);
    assert_eq!(sent_while.admitted_by_store(), 0);
    assert_eq!(counts.len(), 4, "{counts:?}");
    let (counted, granted) = (counts[1..].iter().sum::<u64>(), samples.admitted());
    // The store may have counted what was on its way when it was stopped. A reply more than five seconds late is not given back.
    let on_the_way = fault.filter(|sample| sample.due <= stopped).by(DecidedBy::Fallback);
    let most = granted + u64::try_from(on_the_way).unwrap();
    assert!(counted <= most, "{counted} counted of {granted}, {on_the_way} on the way: {counts:?}");
    server.assert_healthy();
}

fn until_the_store_decides(server: &Tidegate, since: Instant) -> Duration {
    server.until_the_store_decides(since, &name(4))
}

/// Requests `/live` twenty times per second.
struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Watch {
    fn start(server: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (mut http, mut slowest) = (Http::connect(server), Duration::ZERO);
            while !ends.load(Ordering::Relaxed) {
                let asked = Instant::now();
                assert_eq!(http.get("/live", "").0, 200);
                slowest = slowest.max(asked.elapsed());
                pause(Duration::from_millis(50));
            }
            slowest
        });
        Self { over, thread }
    }

    /// Ends the watch, and returns the longest latency.
    fn finish(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        let slowest = self.thread.join().unwrap();
        assert!(slowest <= Duration::from_millis(50), "/live took {slowest:?}");
        slowest
    }
}
