//! The sketch on disk: lines that changed, and lines that are read back.
//!
//! A budget that was edited gives the sketch another number of lines. The two hashes of a tag choose its line by their share of
//! all lines of the class, and its cell by other bits. So the keys of a line become the keys of the lines at the same share:
//!
//! ```text
//!   4 lines      │ 0         │ 1         │ 2         │ 3         │
//!   3 lines      │ 0             │ 1             │ 2             │      line 1 of 4 becomes lines 0 and 1 of 3
//! ```
//!
//! Each of these lines gets the largest uses of both. That may overestimate a key, and never underestimates it.

use super::{Line, Sketch, SketchClass, WORDS};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

/// The lines of each class: the number of the first in the upper half, their count in the lower half; 0 when it has none.
pub(crate) type SketchGeometry = [u64; SketchClass::ALL.len()];

/// A line as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SketchLine {
    /// Its number.
    pub(crate) line: u32,
    /// The second until which it counts, and its cells.
    pub(crate) words: [u64; WORDS],
}

impl Sketch {
    /// How the lines are divided.
    pub(in super::super) fn geometry(&self) -> SketchGeometry {
        self.classes.each_ref().map(|class| class.load(Relaxed))
    }

    /// The next line from `from` on that changed; the bit is cleared.
    pub(in super::super) fn next_changed(&self, from: usize) -> Option<SketchLine> {
        let dirty = self.dirty.as_ref()?;
        let changed = dirty.iter().enumerate().skip(from).find(|(_, bits)| bits.seem_set());
        let (line, bits) = changed?;
        bits.take();
        self.saved(line)
    }

    /// The next line from `from` on in which anything counts.
    pub(in super::super) fn next_used(&self, from: usize) -> Option<SketchLine> {
        let claimed = *lock(&self.claimed);
        let mut lines = (from..=claimed).filter_map(|line| self.saved(line));
        lines.find(|line| line.words.iter().any(|word| *word != 0))
    }

    fn saved(&self, line: usize) -> Option<SketchLine> {
        let (Line(words), mutex) = (self.lines.get(line)?, self.lock_of(line)?);
        let _locked = lock(mutex);
        let words = words.each_ref().map(|word| word.load(Relaxed));
        Some(SketchLine { line: u32::try_from(line).ok()?, words })
    }

    /// Clears the bits of all lines.
    pub(in super::super) fn forget_changes(&self) {
        self.dirty.iter().flat_map(|dirty| dirty.iter()).for_each(|bits| _ = bits.take());
    }

    /// Divides the lines among the classes in the same order.
    pub(in super::super) fn restore_geometry(&self, geometry: &SketchGeometry) {
        let mut classes: Vec<_> = geometry.iter().zip(&self.classes).collect();
        classes.sort_unstable_by_key(|(lines, _)| **lines);
        for (_, class) in classes.into_iter().filter(|(lines, _)| **lines != 0) {
            if class.load(Relaxed) == 0 {
                self.claim(class);
            }
        }
    }

    /// Restores a line of a sketch that was divided like this.
    pub(in super::super) fn restore(&self, geometry: &SketchGeometry, saved: &SketchLine) {
        let line = u64::from(saved.line);
        let (first, count) = (|lines: u64| lines >> 32, |lines: u64| lines & u64::from(u32::MAX));
        let class = geometry.iter().zip(&self.classes).find(|(old, _)| {
            let from_first = line.checked_sub(first(**old));
            from_first.is_some_and(|from_first| from_first < count(**old))
        });
        let Some((old, class)) = class else { return };
        let new = class.load(Relaxed);
        let at = line.saturating_sub(first(*old));
        let share = |at: u64| at.saturating_mul(count(new)).checked_div(count(*old));
        let (Some(from), Some(end)) = (share(at), share_above(at, count(new), count(*old))) else {
            return;
        };
        for line in from..end.min(count(new)) {
            self.raise_all(first(new).saturating_add(line), &saved.words);
        }
    }

    /// Raises all cells of a line.
    fn raise_all(&self, line: u64, saved: &[u64; WORDS]) {
        let line = usize::try_from(line).unwrap_or(usize::MAX);
        let (Some(Line(words)), Some(mutex)) = (self.lines.get(line), self.lock_of(line)) else {
            return;
        };
        let _locked = lock(mutex);
        for (place, (word, saved)) in words.iter().zip(saved).enumerate() {
            let old = word.load(Relaxed);
            let larger =
                if place == 0 { larger_head(old, *saved) } else { larger_bytes(old, *saved) };
            word.store(larger, Relaxed);
        }
        self.note(line);
    }
}

/// The end of the lines among `new` that share keys with line `at` of `old`.
fn share_above(at: u64, new: u64, old: u64) -> Option<u64> {
    let end = at.saturating_add(1).saturating_mul(new);
    (old > 0).then(|| end.div_ceil(old.max(1)))
}

/// The later end, and the larger cells in the other four bytes.
fn larger_head(one: u64, other: u64) -> u64 {
    let second = u64::from(u32::MAX);
    (larger_bytes(one, other) & !second) | (one & second).max(other & second)
}

fn larger_bytes(one: u64, other: u64) -> u64 {
    let mut larger = one.to_le_bytes();
    for (byte, other) in larger.iter_mut().zip(other.to_le_bytes()) {
        *byte = (*byte).max(other);
    }
    u64::from_le_bytes(larger)
}

#[cfg(test)]
mod tests {
    use super::super::super::budget::Budget;
    use super::super::super::dirty::Kept;
    use super::super::super::tag::Tag;
    use super::*;
    use tidegate_core::{Algorithm, Limit, Now, Span, Timestamp, Usage};

    const NANOS: u64 = 1_000_000_000;

    /// The budget is changed between two starts. Every key is remembered with at least its use.
    #[test]
    fn what_is_remembered_survives_another_budget() {
        let limits = [
            Limit::new(20, Span::from_secs(86_400), Algorithm::FIXED_WINDOW).unwrap(),
            Limit::new(20, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap(),
        ];
        let until = Timestamp::from_nanos(90 * NANOS);
        for (before, after) in [(1 << 20, 1 << 20), (1 << 20, 300_000), (100_000, 1 << 20)] {
            let old = Sketch::new(&Budget::new(before), Kept::OnDisk);
            for tag in 1..=2_000u64 {
                for limit in &limits {
                    let in_use = Usage { units: tag % 9 + 1, until };
                    old.add(Tag(tag), SketchClass::of(limit), in_use, Now::at(Timestamp::EPOCH));
                }
            }
            let new = Sketch::new(&Budget::new(after), Kept::OnDisk);
            let geometry = old.geometry();
            new.restore_geometry(&geometry);
            let mut next = 0;
            while let Some(line) = old.next_used(next) {
                new.restore(&geometry, &line);
                next = usize::try_from(line.line).unwrap() + 1;
            }
            for tag in 1..=2_000u64 {
                for limit in &limits {
                    let found = new.get(Tag(tag), limit).unwrap();
                    assert!(found.units > tag % 9 && found.until >= until, "{before} {after}");
                    let same = old.get(Tag(tag), limit).unwrap();
                    assert!(before != after || same == found, "the same sketch");
                }
            }
        }
    }

    #[test]
    fn a_line_is_collected_once_for_each_change() {
        let sketch = Sketch::new(&Budget::new(1 << 20), Kept::OnDisk);
        let limit = Limit::new(20, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
        let in_use = Usage { units: 3, until: Timestamp::from_nanos(90 * NANOS) };
        sketch.add(Tag(7), SketchClass::of(&limit), in_use, Now::at(Timestamp::EPOCH));
        let lines = |from| {
            let (mut lines, mut next) = (vec![], from);
            while let Some(line) = sketch.next_changed(next) {
                next = usize::try_from(line.line).unwrap() + 1;
                lines.push(line);
            }
            lines
        };
        let changed = lines(0);
        assert!((1..=2).contains(&changed.len()));
        assert!(changed.iter().all(|line| line.words.iter().any(|word| *word != 0)));
        assert_eq!(lines(0), vec![]);
    }

    #[test]
    fn lines_at_the_same_share_are_found() {
        let lines = |at, new, old| (at * new / old)..share_above(at, new, old).unwrap();
        assert_eq!(lines(1, 3, 4), 0..2);
        assert_eq!(lines(3, 3, 4), 2..3);
        assert_eq!(lines(0, 4, 3), 0..2);
        assert_eq!(lines(2, 5, 5), 2..3);
    }
}
