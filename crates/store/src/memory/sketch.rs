//! The sketch: what is remembered of demoted states. It may overestimate, and never underestimates.
//!
//! It is a count-min sketch with two rows in one array, whose cells keep the *maximum* and not the sum. A state that is removed
//! from the table leaves its use in two cells, chosen by its tag. A cell keeps the largest use of all states that share it. A
//! key without a state in the table begins with the smaller of its two cells:
//!
//! ```text
//!   demoted: alice 19 of 20 ──► cells 3 and 8       cell   1  2  3  4  5  6  7  8
//!   demoted: a flood of 1s  ──► many cells                 1  1 19  1  1  0  1 19
//!
//!   bob is new: cells 3 and 5 ──► begins with 1      alice is back ──► begins with 19
//! ```
//!
//! So an attacker gains nothing by flooding the table, and a new client loses little. It is not nothing: the sketch cannot tell
//! a new client from a demoted one, so a new client inherits what its cells say. When that client is demoted, its cells rise by
//! what it took itself. A flood of `n` keys over `c` cells raises them to less than `n / c`: 87 million over 12 million, to 4.3.
//! That is for costs of 1. A cell that said "all of the limit" would refuse every new client that meets it. So a state that used
//! more than half of its limit goes to a Bloom filter instead (`bloom.rs`).
//!
//! Sixty cells share a line and the time until which they count: the latest that any of them needs. A line whose time has
//! come is cleared. So limits share lines only with limits of the same [class](SketchClass):
//!
//! - They use the same clock. A calendar window ends at an instant of the wall clock, which an operator may set. Every other
//!   use ends at an instant of the steady clock. A line that mixed them would be cleared when the wall clock is put forward,
//!   and would lose what a weekly limit counts by the steady clock.
//! - Their uses last about as long. Otherwise a flood on a daily limit would make a second's use last for a day. For a window
//!   that is its period. For a token or leaky bucket it is its *fill time*, in which a full one drains. A bucket that is edited
//!   is still the same state, so its use is also looked up in the classes of fill times up to four times longer or shorter.
//!   After a larger edit, a state that was demoted begins anew.
//!
//! The first class that needs lines gets three quarters of them, the next one three quarters of the rest. One line is kept for
//! each class that has none yet.

mod saved;

pub(crate) use saved::{SketchGeometry, SketchLine};

use super::budget::Budget;
use super::dirty::{DirtyBits, Kept};
use super::region::{Region, Zeroed};
use super::tag::Tag;
use crate::sync::{AtomicU64, Mutex, lock};
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::atomic::Ordering::{Relaxed, Release};
use tidegate_core::{Algorithm, Limit, Now, Period, Span, Timestamp, Usage};

/// Cells of a line.
const CELLS: u64 = 60;
const WORDS: usize = 8;
/// Bytes of the budget that a line takes: a cache line.
const LINE_BYTES: usize = 64;
/// Locks; many lines share one.
const LOCKS: usize = 64;
pub(super) const NANOS: u64 = 1_000_000_000;
const LAST_SECOND: u64 = 0xffff_ffff;

/// The lower half of the first word is the second until which the line counts. Then come cells of one byte.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line([AtomicU64; WORDS]);

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: a line is eight atomic integers: all zero is a value (nothing used), shared by threads, no drop.
unsafe impl Zeroed for Line {}

/// What is remembered of demoted states.
#[derive(Debug)]
pub(super) struct Sketch {
    lines: Region<Line>,
    locks: Vec<Mutex<()>>,
    /// The lines of each class: the number of the first in the upper half, their count in the lower half; 0 when it has none.
    classes: [Counter; SketchClass::ALL.len()],
    /// How many lines were given to classes.
    claimed: Mutex<usize>,
    /// One bit for each line, if the sketch is also kept on disk.
    dirty: Option<Region<DirtyBits>>,
}

/// Groups of limits that may share lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SketchClass {
    /// Windows of up to 10 s.
    Seconds,
    /// Windows of up to 10 min.
    Minutes,
    /// Windows of up to a day.
    Hours,
    /// Longer windows.
    Days,
    /// Windows of the calendar, whatever their length: they end by the wall clock.
    Calendar,
    /// Token and leaky buckets that drain within 10 s.
    QuickBuckets,
    /// Token and leaky buckets that drain within 10 min.
    Buckets,
    /// Token and leaky buckets that take longer.
    SlowBuckets,
}

/// The use of a demoted bucket is still found after an edit of its fill time by up to this factor.
const EDITED_BY: u128 = 4;

/// One of the two cells of a tag.
#[derive(Clone, Copy, Debug)]
struct Cell {
    line: usize,
    cell: u64,
}

impl Sketch {
    pub(super) fn new(budget: &Budget, kept: Kept) -> Self {
        let lines: Region<Line> = Region::reserve(budget.sketch() / LINE_BYTES);
        let dirty = (kept == Kept::OnDisk).then(|| Region::reserve(lines.len()));
        let locks = (0..LOCKS).map(|_| Mutex::new(())).collect();
        Self { lines, locks, classes: Default::default(), claimed: Mutex::new(0), dirty }
    }

    /// What is remembered of a state; `None` when that is nothing. The use may have ended.
    ///
    /// A line that has ended may be cleared at any moment, by a thread that read the clock later than the caller did. So
    /// callers compare `until` with a clock that they read *after* this call: what was cleared has then ended for them, too.
    pub(super) fn get(&self, tag: Tag, limit: &Limit) -> Option<Usage> {
        SketchClass::searched_for(limit)
            .filter_map(|class| {
                let lines = self.lines_of(class)?.load(Relaxed);
                let in_use = (lines != 0).then(|| self.smaller(tag, lines))?;
                (in_use.units > 0).then_some(in_use)
            })
            .reduce(larger_of)
    }

    /// The smaller of the two cells of a tag.
    fn smaller(&self, tag: Tag, lines: u64) -> Usage {
        let [one, two] = cells(tag, lines).map(|cell| self.read(cell));
        Usage { units: one.units.min(two.units), until: one.until.min(two.until) }
    }

    /// Remembers the use of a state.
    pub(super) fn add(&self, tag: Tag, class: SketchClass, in_use: Usage, now: Now) {
        let now = class.time_of(now);
        if in_use.units == 0 || in_use.until <= now {
            return;
        }
        let Some(class) = self.lines_of(class) else { return };
        let lines = match class.load(Relaxed) {
            0 => self.claim(class),
            lines => lines,
        };
        for cell in cells(tag, lines) {
            self.raise(cell, in_use, now);
        }
    }

    /// What a new key would begin with, on average over all classes that have lines; in thousandths of a cost of 1.
    pub(super) fn expected(&self, tag: Tag, now: Timestamp) -> u64 {
        let classes = self.classes.iter().map(|lines| lines.load(Relaxed));
        let claimed = classes.filter(|lines| *lines != 0);
        let (sum, count) = claimed.fold((0u64, 0u64), |(sum, count), lines| {
            let in_use = self.smaller(tag, lines);
            let units = if in_use.until <= now { 0 } else { in_use.units };
            (sum.saturating_add(units.min(1 << 32)), count.saturating_add(1))
        });
        sum.saturating_mul(1_000).checked_div(count).unwrap_or(0)
    }

    /// The entry of `classes` for a class.
    fn lines_of(&self, class: SketchClass) -> Option<&Counter> {
        let place = SketchClass::ALL.iter().position(|other| *other == class)?;
        self.classes.get(place)
    }

    /// Gives a class its lines.
    fn claim(&self, class: &Counter) -> u64 {
        let mut claimed = lock(&self.claimed);
        let there = class.load(Relaxed);
        if there != 0 {
            return there;
        }
        let rest = self.lines.len().saturating_sub(*claimed);
        let without = self.classes.iter().filter(|class| class.load(Relaxed) == 0).count();
        // The smallest budget has lines for all classes. Models have fewer lines; there, classes share the last one.
        let most = rest.saturating_sub(without.saturating_sub(1));
        let lines = (rest / 4).saturating_mul(3).min(most).max(1);
        let word = (wide(*claimed) << 32) | wide(lines);
        *claimed = claimed.saturating_add(lines).min(self.lines.len().saturating_sub(1));
        class.store(word, Release);
        word
    }

    fn read(&self, Cell { line, cell }: Cell) -> Usage {
        let (Some(Line(words)), Some(mutex)) = (self.lines.get(line), self.lock_of(line)) else {
            return Usage { units: 0, until: Timestamp::EPOCH };
        };
        let _locked = lock(mutex);
        let (word, shift) = place(cell);
        let code = words.get(word).map_or(0, |word| word.load(Relaxed) >> shift & 0xff);
        Usage { units: decode(code), until: until(words) }
    }

    fn raise(&self, Cell { line, cell }: Cell, in_use: Usage, now: Timestamp) {
        let (Some(Line(words)), Some(mutex)) = (self.lines.get(line), self.lock_of(line)) else {
            return;
        };
        let _locked = lock(mutex);
        if until(words) <= now {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        if until(words) < in_use.until
            && let [head, ..] = words
        {
            head.store((head.load(Relaxed) >> 32 << 32) | second_of(in_use.until), Relaxed);
        }
        let (word, shift) = place(cell);
        if let Some(word) = words.get(word) {
            let old = word.load(Relaxed);
            let code = encode(in_use.units).max(old >> shift & 0xff);
            word.store((old & !(0xff << shift)) | (code << shift), Relaxed);
        }
        self.note(line);
    }

    /// Notes that a line was written.
    fn note(&self, line: usize) {
        self.dirty
            .as_ref()
            .and_then(|dirty| dirty.get(line))
            .into_iter()
            .for_each(|bits| bits.set(1));
    }

    fn lock_of(&self, line: usize) -> Option<&Mutex<()>> {
        self.locks.get(line & LOCKS.saturating_sub(1))
    }
}

impl SketchClass {
    const ALL: [Self; 8] = [
        Self::Seconds,
        Self::Minutes,
        Self::Hours,
        Self::Days,
        Self::Calendar,
        Self::QuickBuckets,
        Self::Buckets,
        Self::SlowBuckets,
    ];

    /// The time on the clock by which its uses end.
    pub(super) const fn time_of(self, now: Now) -> Timestamp {
        match self {
            Self::Calendar => now.calendar,
            Self::Seconds
            | Self::Minutes
            | Self::Hours
            | Self::Days
            | Self::QuickBuckets
            | Self::Buckets
            | Self::SlowBuckets => now.steady,
        }
    }

    /// The class in which a use under this limit is remembered.
    pub(super) fn of(limit: &Limit) -> Self {
        match fill_nanos(limit) {
            Some(nanos) => Self::of_bucket(nanos),
            None => Self::of_window(limit.period()),
        }
    }

    /// The classes in which a use may be remembered: the limit's own and, for a bucket, those that an edit may have left.
    fn searched_for(limit: &Limit) -> impl Iterator<Item = Self> {
        let own = Self::of(limit);
        let edited = fill_nanos(limit).map(|nanos| {
            [nanos.checked_div(EDITED_BY), nanos.checked_mul(EDITED_BY)]
                .map(|nanos| Self::of_bucket(nanos.unwrap_or(u128::MAX)))
        });
        let others = edited.into_iter().flatten().filter(move |class| *class != own);
        std::iter::once(own).chain(others)
    }

    const fn of_bucket(fill_nanos: u128) -> Self {
        const SECOND: u128 = 1_000_000_000;
        match fill_nanos.div_ceil(SECOND) {
            0..=10 => Self::QuickBuckets,
            11..=600 => Self::Buckets,
            601.. => Self::SlowBuckets,
        }
    }

    fn of_window(period: &Period) -> Self {
        match period {
            Period::Calendar(_) => Self::Calendar,
            Period::Every(period) if *period <= Span::from_secs(10) => Self::Seconds,
            Period::Every(period) if *period <= Span::from_secs(600) => Self::Minutes,
            Period::Every(period) if *period <= Span::from_secs(86_400) => Self::Hours,
            Period::Every(_) => Self::Days,
        }
    }
}

/// How long a full bucket takes to drain; `None` for windows.
pub(super) fn fill_nanos(limit: &Limit) -> Option<u128> {
    match (limit.algorithm(), limit.period()) {
        (Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. }, Period::Every(period)) => {
            u128::from(period.as_nanos())
                .saturating_mul(u128::from(limit.capacity()))
                .checked_div(u128::from(limit.amount()))
        }
        (
            Algorithm::TokenBucket { .. }
            | Algorithm::LeakyBucket { .. }
            | Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingBuckets { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::Concurrent,
            _,
        ) => None,
    }
}

/// When a line ends.
fn until(words: &[AtomicU64; WORDS]) -> Timestamp {
    let [head, ..] = words;
    instant_of(head.load(Relaxed) & LAST_SECOND)
}

/// The first second that is not before an instant, in 32 bits. [`LAST_SECOND`] means for ever.
pub(super) const fn second_of(until: Timestamp) -> u64 {
    let second = until.as_nanos().div_ceil(NANOS);
    if second < LAST_SECOND { second } else { LAST_SECOND }
}

pub(super) const fn instant_of(second: u64) -> Timestamp {
    match second {
        LAST_SECOND.. => Timestamp::END,
        _ => Timestamp::from_nanos(second.saturating_mul(NANOS)),
    }
}

/// The larger of two uses, until the later of their ends.
pub(super) fn larger_of(one: Usage, other: Usage) -> Usage {
    Usage { units: one.units.max(other.units), until: one.until.max(other.until) }
}

/// The word of a line that has a cell, and the bit at which the cell begins.
fn place(cell: u64) -> (usize, u64) {
    let byte = cell.saturating_add(4);
    (usize::try_from(byte / 8).unwrap_or(0), (byte % 8).saturating_mul(8))
}

/// The two cells of a tag, among these lines.
fn cells(tag: Tag, lines: u64) -> [Cell; 2] {
    let (first, count) = (lines >> 32, lines & u64::from(u32::MAX));
    [0x9fb2_1c65_1e98_df25, 0xc2b2_ae3d_27d4_eb4f].map(|odd: u64| {
        let mixed = tag.0.wrapping_mul(odd);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let (high, low) = (mixed >> 32, mixed & u64::from(u32::MAX));
        let line = first.saturating_add(high.saturating_mul(count) >> 32);
        Cell { line: usize::try_from(line).unwrap_or(0), cell: low.saturating_mul(CELLS) >> 32 }
    })
}

// === a use in a byte: exact up to 32, then at most a sixteenth too much; the last code means everything ===

/// The smallest code whose value is at least this many units.
pub(super) fn encode(units: u64) -> u64 {
    if units < 32 {
        return units;
    }
    let bits = 63u32.saturating_sub(units.leading_zeros());
    let shift = bits.saturating_sub(4);
    let mantissa = units >> shift;
    let exact = (mantissa << shift) == units;
    let code = u64::from(shift).saturating_mul(16).saturating_add(mantissa);
    code.saturating_add(u64::from(!exact)).min(0xff)
}

pub(super) fn decode(code: u64) -> u64 {
    match code {
        0..32 => code,
        0xff => u64::MAX,
        _ => {
            let shift = (code / 16).saturating_sub(1);
            (code % 16).saturating_add(16) << shift
        }
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::Calendar;

    proptest! {
        #[test]
        fn a_code_means_at_least_its_units_and_little_more(shift in 0u32..64, n in any::<u64>()) {
            let n = n >> shift;
            let said = decode(encode(n));
            prop_assert!(said >= n);
            prop_assert!(encode(n) == 0xff || said <= n + n / 16, "{n} becomes {said}");
        }
    }

    #[test]
    fn small_uses_are_exact_and_codes_ascend() {
        for n in 0..32 {
            assert_eq!(decode(encode(n)), n);
        }
        for code in 1..=0xff {
            assert!(decode(code) > decode(code - 1));
        }
    }

    fn daily() -> Limit {
        Limit::new(20, Span::from_secs(86_400), Algorithm::FIXED_WINDOW).unwrap()
    }

    #[test]
    fn a_remembered_key_begins_with_at_least_its_use_until_that_ends() {
        let (sketch, limit) = (Sketch::new(&Budget::new(1 << 20), Kept::InMemory), daily());
        let (now, until) = (Timestamp::from_nanos(5 * NANOS), Timestamp::from_nanos(90 * NANOS));
        assert_eq!(sketch.get(Tag(1), &limit), None);
        for n in 1..=10_000u64 {
            sketch.add(
                Tag(n),
                SketchClass::of(&limit),
                Usage { units: n % 20, until },
                Now::at(now),
            );
        }
        for n in (1..=10_000u64).filter(|n| n % 20 != 0) {
            let found = sketch.get(Tag(n), &limit).unwrap();
            assert!(found.units >= n % 20);
            assert_eq!(found.until, until);
        }
    }

    #[test]
    fn a_new_key_in_a_flood_of_ones_begins_with_one() {
        let (sketch, limit) = (Sketch::new(&Budget::new(1 << 20), Kept::InMemory), daily());
        let (now, until) = (Timestamp::EPOCH, Timestamp::from_nanos(NANOS));
        for n in 1..=1_000_000u64 {
            sketch.add(Tag(n), SketchClass::of(&limit), Usage { units: 1, until }, Now::at(now));
        }
        assert!(
            (2_000_000..2_001_000u64)
                .all(|n| { sketch.get(Tag(n), &limit).is_none_or(|in_use| in_use.units == 1) })
        );
        assert!((1..1_000).all(|n| sketch.expected(Tag(n), now) <= 1_000));
    }

    #[test]
    fn periods_of_different_classes_do_not_share_lines() {
        let sketch = Sketch::new(&Budget::new(64 * 1_024), Kept::InMemory);
        let second = Limit::new(20, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
        let until = Timestamp::from_nanos(NANOS);
        for n in 1..=100_000u64 {
            sketch.add(
                Tag(n),
                SketchClass::of(&daily()),
                Usage { units: 20, until },
                Now::at(Timestamp::EPOCH),
            );
        }
        assert!((1..1_000u64).all(|n| sketch.get(Tag(n), &second).is_none()));
    }

    /// For every size of the sketch, and whichever class comes first.
    #[test]
    fn every_class_has_lines_of_its_own() {
        let seconds = |seconds| Period::Every(Span::from_secs(seconds));
        let calendar = Calendar::new([Timestamp::EPOCH]).unwrap();
        let mut limits: Vec<Limit> = [seconds(1), seconds(60), seconds(3_600), seconds(604_800)]
            .into_iter()
            .chain([Period::Calendar(calendar)])
            .map(|period| Limit::new(20, period, Algorithm::FIXED_WINDOW).unwrap())
            .collect();
        let buckets = [1, 100, 86_400].map(Span::from_secs);
        limits
            .extend(buckets.map(|period| Limit::new(20, period, Algorithm::TOKEN_BUCKET).unwrap()));
        assert_eq!(limits.len(), SketchClass::ALL.len());
        for budget in [8 * 1_024, 10_000, 1 << 20] {
            for first in 0..limits.len() {
                limits.rotate_left(first);
                let sketch = Sketch::new(&Budget::new(budget), Kept::InMemory);
                for (limit, until) in limits.iter().zip(1u64..) {
                    let in_use = Usage { units: 1, until: Timestamp::from_nanos(until * NANOS) };
                    let (class, now) = (SketchClass::of(limit), Now::at(Timestamp::EPOCH));
                    (1..1_000).for_each(|n| sketch.add(Tag(n), class, in_use, now));
                }
                for (limit, until) in limits.iter().zip(1u64..) {
                    let found = sketch.get(Tag(7), limit).unwrap();
                    assert_eq!(
                        found.until.as_nanos(),
                        until * NANOS,
                        "{limit:?} in {budget} bytes"
                    );
                }
            }
        }
    }
}
