//! Histories of a durable store with crashes, from a seed. After every crash, each state must be a value that it had between the last
//! completed write or sync and the crash.
//!
//! Two kinds of history take turns:
//!
//! - *With room:* each state is compared with all its values since then; it must equal one of them.
//! - *Without room:* states are demoted all the time, and what is remembered of them may be too much. A model counts what every key
//!   was granted. No key may have more left than the model had at some time since then.

mod model;

use super::crashing_disk::CrashingDisk;
use super::random::Random;
use crate::clock::Clock;
use crate::durable::sync_work::SyncWork;
use crate::durable::writer::LogWriter;
use crate::durable::{Identity, Opening};
use crate::memory::{Memory, Writing};
use crate::store::{Part, ReceiptId, Settled, Settlement};
use model::{Key, Kind, Value};
use std::sync::Arc;
use tidegate_core::{Ask, Cost, Plan, Span, State, Take, TakeReceipt, Timestamp, Written};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const VERIFIER: u128 = 77;

/// What a history went through.
///
/// ```
/// let tally = tidegate_store::testing::CrashTally::default();
/// assert_eq!(tally.crashes, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashTally {
    /// Crashes of the process or of the power.
    pub crashes: u64,
    /// Calls of the disk that returned an error.
    pub disk_errors: u64,
    /// States that were compared after crashes.
    pub states: u64,
    /// Snapshots that were completed.
    pub snapshots: u64,
}

/// Plays the history of a seed.
///
/// # Errors
///
/// What was promised and is not true.
///
/// ```
/// let tally = tidegate_store::testing::play_crashes(7).unwrap();
/// assert!(tally.crashes > 0);
/// ```
pub fn play_crashes(seed: u64) -> Result<CrashTally, String> {
    let mut random = Random::new(seed);
    let kind = if seed.is_multiple_of(2) { Kind::Roomy } else { Kind::Full };
    let disk = CrashingDisk::new(random.fork());
    let clock = Clock::manual(Timestamp::from_nanos(START));
    let writer = open(&disk, &clock, kind).map_err(|error| format!("seed {seed}: {error}"))?;
    let mut history = History {
        random,
        kind,
        memory: writer.memory(),
        writer,
        disk,
        clock,
        step: 0,
        keys: kind.keys(),
        receipts: vec![],
        marks: Marks::default(),
        syncing: None,
        tally: CrashTally::default(),
    };
    history.play().map_err(|broken| format!("seed {seed}, step {}: {broken}", history.step))?;
    history.tally.disk_errors = history.disk.errors();
    Ok(history.tally)
}

struct History {
    random: Random,
    kind: Kind,
    memory: Arc<Memory>,
    writer: LogWriter<CrashingDisk>,
    disk: CrashingDisk,
    clock: Clock,
    step: u64,
    keys: Vec<Key>,
    receipts: Vec<Receipt>,
    marks: Marks,
    /// A sync in progress, and the mark that holds when it has ended.
    syncing: Option<(SyncWork<CrashingDisk>, u64)>,
    tally: CrashTally,
}

/// After a crash, a state must have a value that it had at some step since one of these marks.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// When the writing in progress began.
    writing: Option<u64>,
    /// When the last completed writing began. What was written survives a crash of the process.
    written: u64,
    /// When the writing began that was last synced completely. What was synced survives a power failure.
    synced: u64,
    /// When the snapshot in progress began.
    snapshot: u64,
}

struct Receipt {
    id: ReceiptId,
    key: usize,
    limit: usize,
    receipt: TakeReceipt,
    /// The step at which it was settled.
    settled: Option<u64>,
}

fn open(disk: &CrashingDisk, clock: &Clock, kind: Kind) -> Result<LogWriter<CrashingDisk>, String> {
    let budget = match kind {
        Kind::Roomy => 1 << 20,
        Kind::Full => 8 << 10,
    };
    let identity = Identity { verifier: VERIFIER, boot: 1 };
    let opening = Opening { budget, identity, clock: clock.clone(), frame_bytes: 700 };
    let opened = opening.open(disk.clone(), &mut |_, _| ());
    opened.map(|(writer, _)| writer).map_err(|error| error.to_string())
}

impl History {
    fn play(&mut self) -> Result<(), String> {
        for _ in 0..300 {
            self.step += 1;
            self.one_step()?;
        }
        self.crash(true)
    }

    fn one_step(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..=44 => self.take(),
            45..=47 => self.charge(),
            48..=53 => self.give_back(),
            54..=55 => self.reset(),
            56..=62 => self.pass_time(),
            63..=78 => self.write(),
            79..=86 => self.sync(),
            87..=88 => self.begin_snapshot(),
            89..=93 => self.continue_snapshot(),
            94..=95 => {
                let one_in = *self.random.choose(&[0, 0, 3, 20]).unwrap();
                self.disk.fail_one_in(one_in);
            }
            96..=97 => self.crash(false)?,
            _ => self.crash(true)?,
        }
        Ok(())
    }

    fn key(&mut self) -> (usize, usize) {
        // Some keys are used much more than others.
        let keys = u64::try_from(self.keys.len()).unwrap();
        let few = if self.random.below(2) == 0 { keys } else { keys / 10 };
        let key = usize::try_from(self.random.below(few)).unwrap();
        let limits = u64::try_from(self.keys[key].limits.len()).unwrap();
        (key, usize::try_from(self.random.below(limits)).unwrap())
    }

    fn now(&self) -> Timestamp {
        self.clock.now().steady
    }

    fn take(&mut self) {
        // Without room, several keys at once, so that the table stays full.
        let takes = if self.kind == Kind::Full { 8 } else { 1 };
        for _ in 0..takes {
            let ((key, limit), cost) = (self.key(), 1 + self.random.below(3));
            let Key { id, limits, .. } = &self.keys[key];
            let take = Take::new(*id, &limits[limit], Cost::new(cost));
            let answer =
                self.memory.take_now(&Plan::new(vec![take], Span::from_secs(600)).unwrap());
            let receipt = answer.done.receipts.first().copied().flatten();
            if answer.done.passes
                && let Some(receipt) = receipt
            {
                self.count(key, limit, cost);
                let id = ReceiptId(u128::from(self.random.next()));
                self.receipts.push(Receipt { id, key, limit, receipt, settled: None });
            }
            self.note(key);
        }
    }

    fn charge(&mut self) {
        let ((key, limit), cost) = (self.key(), 1 + self.random.below(5));
        let Key { id, limits, .. } = &self.keys[key];
        self.memory.charge_now(&[Take::new(*id, &limits[limit], Cost::new(cost))]);
        self.note(key);
    }

    /// In a table without room, counts what a key was granted.
    fn count(&mut self, key: usize, limit: usize, cost: u64) {
        if self.kind == Kind::Roomy {
            return;
        }
        let (step, now) = (self.step, self.now());
        let key = &mut self.keys[key];
        let limit = &key.limits[limit];
        let states = key.value_at(step).states.into_iter().map(|state| {
            let mut written = Written { shape: limit, state };
            limit.charge(&mut written, &Ask::new(now, Cost::new(cost)));
            written.state
        });
        let value = Value { states: states.collect(), limit: Some(Arc::new(limit.clone())) };
        key.values.push((step, value));
    }

    /// In a table with room, remembers the value of a key.
    fn note(&mut self, key: usize) {
        if self.kind == Kind::Full {
            return;
        }
        let value = self.value_in_table(key);
        let key = &mut self.keys[key];
        if key.value_at(self.step) != value {
            key.values.push((self.step, value));
        }
    }

    fn value_in_table(&self, key: usize) -> Value {
        let found = self.memory.state_in_table(self.keys[key].id);
        found
            .map_or(Value::one(None, State::Empty), |(limit, state)| Value::one(Some(limit), state))
    }

    fn give_back(&mut self) {
        // Without room, what is given back may be remembered for longer; the model does not follow.
        if self.kind == Kind::Full || self.receipts.is_empty() {
            return;
        }
        let most = u64::try_from(self.receipts.len()).unwrap();
        let at = usize::try_from(self.random.below(most)).unwrap();
        let step = self.step;
        let key = self.receipts[at].key;
        if self.settle(at) == Settled::Done {
            self.receipts[at].settled = Some(step);
        }
        self.note(key);
    }

    fn settle(&self, at: usize) -> Settled {
        let Receipt { id, key, limit, receipt, .. } = &self.receipts[at];
        let Key { id: state, limits, .. } = &self.keys[*key];
        let part = Part { state: *state, limit: &limits[*limit], receipt: *receipt };
        let until = Timestamp::from_nanos(START + 400 * 86_400 * SECOND);
        self.memory.give_back_now(&Settlement { id: *id, until, parts: &[part] })
    }

    fn reset(&mut self) {
        // A key that was demoted may keep what is remembered of it.
        if self.kind == Kind::Full {
            return;
        }
        let (key, _) = self.key();
        self.memory.reset_now(&[self.keys[key].id]);
        self.note(key);
    }

    fn pass_time(&mut self) {
        let most = *self
            .random
            .choose(&[SECOND / 10, 20 * SECOND, 200 * SECOND, 8 * 3_600 * SECOND])
            .unwrap();
        let later = self.now().as_nanos() + self.random.below(most);
        self.clock.set(Timestamp::from_nanos(later));
    }

    /// Writes a frame of what changed.
    fn write(&mut self) {
        let began = *self.marks.writing.get_or_insert(self.step);
        let parts = 1 + self.random.below(12);
        for _ in 0..parts {
            let Ok((_, writing)) = self.writer.flush_part() else {
                self.marks.writing = None;
                return;
            };
            if writing == Writing::Finished {
                self.marks.writing = None;
                if !self.writer.is_incomplete() {
                    self.marks.written = self.marks.written.max(began);
                }
                return;
            }
        }
    }

    /// Begins or ends a sync.
    fn sync(&mut self) {
        match self.syncing.take() {
            None => {
                self.syncing = self.writer.sync_work().map(|work| (work, self.marks.written));
            }
            Some((work, mark)) => {
                let result = work.run();
                self.writer.synced(&work, &result);
                if result.is_ok() && !self.writer.is_incomplete() {
                    match work {
                        SyncWork::Log(_) => self.marks.synced = self.marks.synced.max(mark),
                        SyncWork::Snapshot(_) => self.snapshot_completed(),
                    }
                }
            }
        }
    }

    fn begin_snapshot(&mut self) {
        if !self.writer.has_snapshot() && self.writer.begin_snapshot().is_ok() {
            self.marks.snapshot = self.step;
        }
    }

    fn snapshot_completed(&mut self) {
        self.tally.snapshots += 1;
        self.marks.synced = self.marks.synced.max(self.marks.snapshot);
        self.marks.written = self.marks.written.max(self.marks.snapshot);
    }

    fn continue_snapshot(&mut self) {
        if self.writer.is_incomplete() {
            self.begin_snapshot();
        }
        let parts = 1 + self.random.below(20);
        for _ in 0..parts {
            // If it fails, the next step begins another one.
            let _ = self.writer.continue_snapshot();
        }
    }

    /// The process or the power fails; then the store is opened and compared.
    fn crash(&mut self, power: bool) -> Result<(), String> {
        self.tally.crashes += 1;
        let since = if power { self.marks.synced } else { self.marks.written };
        self.syncing = None;
        if power {
            self.disk.lose_power();
        }
        if self.random.below(4) == 0 {
            // The disk fails while the store is opened.
            self.disk.fail_one_in(4);
            let _ = open(&self.disk, &self.clock, self.kind);
        }
        self.disk.fail_one_in(0);
        self.pass_time();
        self.writer = open(&self.disk, &self.clock, self.kind)?;
        self.memory = self.writer.memory();
        let what = if power { "a power failure" } else { "a crash" };
        self.compare(since).map_err(|broken| format!("after {what}: {broken}"))?;
        // From here on, this is what there was.
        for key in 0..self.keys.len() {
            let value = match self.kind {
                Kind::Roomy => self.value_in_table(key),
                Kind::Full => self.model_after(key, since),
            };
            self.keys[key].values.push((self.step, value));
        }
        // After a crash of the process, what was read may not be on disk: a sync may have failed before.
        let step = self.step;
        let synced = if power { step } else { self.marks.synced };
        self.marks = Marks { writing: None, written: step, synced, snapshot: step };
        Ok(())
    }

    fn compare(&mut self, since: u64) -> Result<(), String> {
        let now = self.now();
        for number in 0..self.keys.len() {
            let key = &self.keys[number];
            if key.values.is_empty() {
                continue;
            }
            self.tally.states += 1;
            for limit in &key.limits {
                match self.kind {
                    Kind::Roomy => {
                        let found = self.value_in_table(number).answer(limit, now);
                        let mut values =
                            key.values_since(since).map(|(_, value)| value.answer(limit, now));
                        if !values.any(|value| value == found) {
                            let values: Vec<_> = key.values_since(since).collect();
                            return Err(format!(
                                "key {number} is {:?}, which it was not since step {since}: {values:?}",
                                self.value_in_table(number)
                            ));
                        }
                    }
                    Kind::Full => {
                        let take = Take::new(key.id, limit, Cost::default());
                        let left = self.memory.peek_now(&Plan::from(take))[0].remaining;
                        let most = key
                            .values_since(since)
                            .map(|(_, value)| value.remaining(limit, now))
                            .max();
                        if most.is_some_and(|most| left > most) {
                            return Err(format!(
                                "key {number} has {left} left, more than {most:?} since step {since}"
                            ));
                        }
                    }
                }
            }
        }
        self.compare_receipts(since)
    }

    /// A receipt that was settled is not settled again, unless its state may be one from before.
    fn compare_receipts(&mut self, since: u64) -> Result<(), String> {
        let now = self.now();
        let receipts = std::mem::take(&mut self.receipts);
        for receipt in receipts {
            let Some(settled) = receipt.settled else { continue };
            let key = &self.keys[receipt.key];
            let found = self.value_in_table(receipt.key);
            let same = |value: &Value| {
                key.limits.iter().all(|limit| value.answer(limit, now) == found.answer(limit, now))
            };
            let mut before = key.values_since(since).filter(|(at, _)| *at < settled);
            let may_be_forgotten = settled > since && before.any(|(_, value)| same(&value));
            if may_be_forgotten {
                continue;
            }
            self.receipts.push(receipt);
            let last = self.receipts.len() - 1;
            let again = self.settle(last);
            self.receipts.pop();
            if again == Settled::Done {
                return Err(format!(
                    "a receipt that was settled at step {settled} is settled again"
                ));
            }
        }
        Ok(())
    }

    /// In a table without room: all that the model may count for a key after a crash.
    fn model_after(&self, key: usize, since: u64) -> Value {
        let key = &self.keys[key];
        let mut states: Vec<State> = vec![];
        for state in key.values_since(since).flat_map(|(_, value)| value.states) {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        Value { limit: Some(Arc::new(key.limits[0].clone())), states }
    }
}
