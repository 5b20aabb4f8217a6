//! The cases that run in this process: takes from the store in memory, and requests through the tower layer.

use super::callgrind::{Profile, counted};
use crate::embedded::{OurStore, governed, number, quota};
use crate::policy_bench::{LARGE, ServeFactory, governor, many_rules, one_limit};
use crate::rig::launch::Limits;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use std::fs;
use std::hint::black_box;
use tidegate_core::{Algorithm, Limit, Span};

/// Keys, or clients.
const KEYS: u32 = 4_096;
/// Decisions of the two runs, after one for each key.
const TIMES: [u64; 2] = [2_000, 22_000];
/// Takes of a batch.
const BATCH: usize = 64;
/// A limit that allows all, in takes per second.
const GENEROUS: u32 = 1_000_000;

/// Makes decisions: one for each turn.
type Decide = Box<dyn FnMut(&[u32])>;

/// A loop of decisions.
pub(super) struct LoopCase {
    name: &'static str,
    decide: Prepare,
}

/// Makes what decides.
type Prepare = fn() -> Result<Decide, String>;

impl LoopCase {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        let case = |(name, decide): (&'static str, Prepare)| Self { name, decide };
        CASES.into_iter().map(case)
    }

    /// Counts the instructions of one decision.
    pub(super) fn count(&self) -> Result<Profile, String> {
        let [few, many] = TIMES;
        let (fewer, more) = (self.profile(few)?, self.profile(many)?);
        Ok(more.per_decision(&fewer, many.saturating_sub(few)))
    }

    fn profile(&self, times: u64) -> Result<Profile, String> {
        let file = std::env::temp_dir().join(format!("tidegate-{}-{times}", std::process::id()));
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = counted(this.as_os_str(), &file);
        let status =
            command.args(["instructions", "--counted", self.name, &times.to_string()]).status();
        let status = status.map_err(|error| format!("valgrind: {error}"))?;
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()));
        // A file that cannot be removed stays among the temporary files and does no harm.
        let _ = fs::remove_file(&file);
        if status.success() {
            Profile::parse(&text?)
        } else {
            Err(format!("{}: {status}", self.name))
        }
    }
}

/// Makes this many decisions of a case, after one for each key.
pub(super) fn run(name: &str, times: u64) -> Result<(), String> {
    let case =
        LoopCase::all().find(|case| case.name == name).ok_or("there is no case with this name")?;
    let mut decide = (case.decide)()?;
    let keys: Vec<u32> = (0..KEYS).collect();
    decide(&keys);
    let times = usize::try_from(times).unwrap_or(0);
    // Not in the order in which they were created, and not the same key again soon.
    let turns = (0..KEYS).cycle().map(|turn| turn.wrapping_mul(1_987) % KEYS);
    decide(&turns.take(times).collect::<Vec<u32>>());
    Ok(())
}

const CASES: [(&str, Prepare); 15] = [
    ("take-u64-batch64-allowed", || numbers(Limits::Generous, BATCH)),
    ("take-u64-batch64-refused", || numbers(Limits::Strict, BATCH)),
    ("take-u64-single-allowed", || numbers(Limits::Generous, 1)),
    ("take-u64-single-refused", || numbers(Limits::Strict, 1)),
    ("take-str25-batch64-allowed", || texts(Limits::Generous, BATCH)),
    ("take-str25-single-allowed", || texts(Limits::Generous, 1)),
    ("take-str25-single-refused", || texts(Limits::Strict, 1)),
    ("governor-u64", governor_numbers),
    ("governor-str25", governor_texts),
    ("tower-one-limit-allowed", || served(one_limit(LARGE))),
    ("tower-one-limit-refused", || served(one_limit("1/h"))),
    ("tower-two-limits-allowed", || served(many_rules(10, LARGE))),
    ("tower-two-limits-refused", || served(many_rules(10, "1/h"))),
    ("tower_governor-allowed", || served(governor(1_000_000))),
    ("tower_governor-refused", || served(governor(1))),
];

fn limit(limits: Limits) -> Result<Limit, String> {
    let (amount, span) = match limits {
        Limits::Generous => (GENEROUS, Span::from_secs(1)),
        Limits::Strict => (1, Span::from_secs(3_600)),
    };
    let limit = Limit::new(amount.into(), span, Algorithm::TOKEN_BUCKET);
    limit.map_err(|error| error.to_string())
}

fn text(turn: u32) -> String {
    format!("customer-{:016x}", number(turn))
}

fn numbers(limits: Limits, batch: usize) -> Result<Decide, String> {
    let store = OurStore::with_limit(limit(limits)?)?;
    Ok(Box::new(move |turns| {
        store.take_all(turns, batch, |turn| store.take(&number(*turn).to_le_bytes()));
    }))
}

/// The keys are made before the first decision, because a caller has just read its key from a request.
fn texts(limits: Limits, batch: usize) -> Result<Decide, String> {
    let store = OurStore::with_limit(limit(limits)?)?;
    let keys: Vec<String> = (0..KEYS).map(text).collect();
    Ok(Box::new(move |turns| {
        let key =
            |turn: &u32| keys.get(usize::try_from(*turn).unwrap_or(0)).map_or("", String::as_str);
        store.take_all(turns, batch, |turn| store.take(key(turn).as_bytes()));
    }))
}

fn governor_numbers() -> Result<Decide, String> {
    let governor: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota(GENEROUS)?);
    Ok(Box::new(move |turns| governed(&governor, turns.iter().map(|turn| number(*turn)))))
}

fn governor_texts() -> Result<Decide, String> {
    let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota(GENEROUS)?);
    let keys: Vec<String> = (0..KEYS).map(text).collect();
    Ok(Box::new(move |turns| {
        let key = |turn: &u32| keys.get(usize::try_from(*turn).unwrap_or(0));
        governed(&governor, turns.iter().filter_map(key));
    }))
}

fn served(factory: Result<ServeFactory, String>) -> Result<Decide, String> {
    let factory = factory?;
    let mut serve = factory();
    Ok(Box::new(move |turns| {
        for turn in turns {
            black_box(serve(*turn));
        }
    }))
}
