//! Bloom filters in slots of the table, for demoted states that used more than half of their limit.
//!
//! The use of a demoted state usually goes to cells of the sketch, which all new keys share. A cell that says "all of the limit"
//! refuses every new key that meets it. So the sketch keeps small uses only. A state that used more than half of its limit is
//! *marked* instead: two bits are set in a Bloom filter in its home, which is the first of its two buckets.
//!
//! ```text
//!   a bucket in a flood of spent keys      slot  0 1 2 3 4 5 6      P  page of 64 bits    s  state
//!                                                P P P P s s s
//!
//!   demoted: alice 20 of 20 ──► page 2, bits 9 and 40      alice is back ──► both set: begins with 20
//!   bob is new              ──► page 1, bits 3 and 31      one is clear  ──► begins with nothing
//! ```
//!
//! A slot that would hold one state is a *page* for tens of them. The page says how much the most used of its states has used,
//! and when the last of them ends. A key whose two bits are both set begins with that use: it may be too much, never too
//! little. A page takes a free slot, or the slot of a spent state, which is then marked too. So pages take memory only from
//! states that they replace, and none while there is room.
//!
//! Marks that end within the same half period are one *generation*, so the marks of a flood that never stops end, too. The pages
//! of a generation are found by [linear hashing](super::linear_hashing), as buckets are: when a page has [`CROWDED`] bits, the
//! next page is split off and begins as a copy.
//!
//! Limits share pages only with limits of the same [`Scale`].
//!
//! The holder of the bucket's lock reads and writes all of this. Without the lock, [`find`] returns a hint.

use super::bucket::{Bucket, Entry, FIRST_PAGE_TAG, LockedBucket, SLOTS, Slot};
use super::linear_hashing::{parent, place};
use super::sketch::{
    NANOS, SketchClass, decode, encode, fill_nanos, instant_of, larger_of, second_of,
};
use super::tag::Tag;
use smallvec::SmallVec;
use std::cmp::Reverse;
use tidegate_core::{Limit, Now, Period, Usage};

/// Pages of a generation, at most.
const GENERATION_PAGES: usize = 4;
/// Pages of a bucket, at most: one slot is left for a state that can still pass, and half of a second generation has room.
const MOST_PAGES: usize = 6;
/// A page with this many bits is split, if there is a slot for another page.
const CROWDED: u32 = 8;

/// What a demoted state leaves in the filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) tag: Tag,
    pub(super) class: SketchClass,
    pub(super) in_use: Usage,
    scale: Scale,
    /// Half of its limit's period, in seconds.
    half: u64,
}

/// Groups of limits that may share pages: windows of one [`SketchClass`], or buckets whose fill times have the same power of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale(u64);

/// A page that should be added to the bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissingPage {
    page: Page,
    /// Whether the mark is set without this page. Then the page only lowers the odds that new keys meet set bits.
    pub(super) is_set: bool,
}

/// A slot that holds 64 bits of a Bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    scale: Scale,
    /// Which of the two generations that a scale may have at the same time: 0 or 1.
    generation: u64,
    /// Which page of its generation it is.
    index: usize,
    /// The largest use of its states, [encoded](encode).
    most: u64,
    /// The second at which the last of its states ends; the same in all pages of a generation.
    until: u64,
    bits: u64,
}

type Pages = SmallVec<[(Slot, Page); SLOTS]>;

/// Pages without their slots.
type PageSet = SmallVec<[Page; SLOTS]>;

/// The use with which a key begins, by the filter of its home; `None` when one of its bits is clear.
pub(super) fn find(home: &Bucket, tag: Tag, limit: &Limit) -> Option<Usage> {
    let pages = pages(home);
    if pages.is_empty() {
        return None;
    }
    let scale = Scale::of(limit);
    use_in(&pages, tag, |page| page.scale.may_be_edited_to(scale))
}

/// How much a key would begin with, under the limit for which that is most.
pub(super) fn find_any(home: &Bucket, tag: Tag, now: Now) -> u64 {
    use_in(&pages(home), tag, |page| !page.has_ended(now)).map_or(0, |in_use| in_use.units)
}

/// Sets a mark in its generation or, if there are two other generations, in the later one. Returns the page that is missing.
pub(super) fn set(home: &mut LockedBucket<'_>, mark: &Mark) -> Option<MissingPage> {
    let pages = pages(home.bucket());
    let of_scale = || pages.iter().map(|(_, page)| page).filter(|page| page.scale == mark.scale);
    let is_taken = |generation| of_scale().any(|page| page.generation == generation);
    let own = of_scale().find(|page| mark.ends_with(page));
    let later = || of_scale().max_by_key(|page| page.until).filter(|_| is_taken(0) && is_taken(1));
    match own.or_else(later) {
        Some(page) => set_in(home, &pages, page, mark),
        None => {
            let page = Page::first(mark, u64::from(is_taken(0)));
            Some(MissingPage { page, is_set: false })
        }
    }
}

/// Sets a mark in the latest generation of its scale, which then lasts until the mark ends. Returns whether there is such a
/// generation.
pub(super) fn set_in_latest(home: &mut LockedBucket<'_>, mark: &Mark) -> bool {
    let pages = pages(home.bucket());
    let of_scale = pages.iter().map(|(_, page)| page).filter(|page| page.scale == mark.scale);
    let latest = of_scale.max_by_key(|page| page.until);
    latest.into_iter().for_each(|page| _ = set_in(home, &pages, page, mark));
    latest.is_some()
}

/// Whether the bucket may have another page.
pub(super) fn may_add_page(home: &Bucket) -> bool {
    pages(home).len() < MOST_PAGES
}

/// Puts the missing page into a slot.
pub(super) fn add_page(home: &mut LockedBucket<'_>, slot: Slot, missing: &MissingPage) {
    home.put(slot, missing.page.entry());
}

/// Frees the pages that have ended; returns whether there were any.
pub(super) fn remove_ended(bucket: &mut LockedBucket<'_>, now: Now) -> bool {
    let mut ended = pages(bucket.bucket());
    ended.retain(|(_, page)| page.has_ended(now));
    ended.iter().for_each(|(slot, _)| bucket.clear(*slot));
    !ended.is_empty()
}

/// Adds pages that were saved to the pages of a bucket, which may have marks that the saved ones do not have. If the bucket they
/// were saved from does not `exist`, they are those of a bucket that would be split off this one: then all pages of a scale become
/// one. `make_room` frees a slot if none is free.
pub(super) fn restore(
    bucket: &mut LockedBucket<'_>,
    saved: &[(u64, u64)],
    exists: bool,
    mut make_room: impl FnMut(&mut LockedBucket<'_>),
) {
    let old = pages(bucket.bucket());
    old.iter().for_each(|(slot, _)| bucket.clear(*slot));
    let old: PageSet = old.into_iter().map(|(_, page)| page).collect();
    let saved = saved.iter().map(|(tag, bits)| Page::of(*tag, *bits));
    let mut new: PageSet = PageSet::new();
    if exists {
        new.extend(saved);
    } else {
        saved.for_each(|page| add_to_scale(&mut new, &page));
    }
    for page in &old {
        add_page_of(&mut new, page, generation_size(&old, page));
    }
    if new.len() > MOST_PAGES {
        let mut folded = PageSet::new();
        new.iter().for_each(|page| add_to_scale(&mut folded, page));
        new = folded;
        new.sort_unstable_by_key(|page| Reverse(page.until));
    }
    for page in new.iter().take(MOST_PAGES) {
        make_room(bucket);
        if let Some(slot) = bucket.free() {
            bucket.put(slot, page.entry());
        }
    }
}

/// Adds the marks of a page, of which its generation has `count`, to pages that may have its keys.
fn add_page_of(pages: &mut PageSet, page: &Page, count: usize) {
    if !pages.iter().any(|other| other.scale == page.scale) {
        pages.push(*page);
        return;
    }
    let of_generation = generation_size(pages, page);
    if of_generation == 0 {
        // Another generation of the scale, with all its pages: a key may be in any of them.
        pages
            .iter_mut()
            .filter(|other| other.scale == page.scale)
            .for_each(|other| other.add(page));
        return;
    }
    for other in pages.iter_mut().filter(|other| other.is_of_generation(page)) {
        let (larger, smaller) = (other.index.max(page.index), other.index.min(page.index));
        let shares_keys = ancestor(larger, count.min(of_generation))
            == ancestor(smaller, count.min(of_generation));
        if shares_keys {
            other.add(page);
        }
        other.until = other.until.max(page.until);
    }
}

/// Adds the marks of a page to the one page of its scale.
fn add_to_scale(pages: &mut PageSet, page: &Page) {
    match pages.iter_mut().find(|other| other.scale == page.scale) {
        Some(other) => other.add(page),
        None => pages.push(Page { generation: 0, index: 0, ..*page }),
    }
}

/// How many pages there are in the generation of a page.
fn generation_size(pages: &PageSet, of: &Page) -> usize {
    pages.iter().filter(|page| page.is_of_generation(of)).count()
}

/// The page among the first `count` from which a page was split off, directly or not.
fn ancestor(mut index: usize, count: usize) -> usize {
    while index >= count.max(1) {
        index = parent(index);
    }
    index
}

/// Sets a mark in the generation of a page. Returns the page to add if the mark's own page is crowded.
fn set_in(
    home: &mut LockedBucket<'_>,
    pages: &Pages,
    of: &Page,
    mark: &Mark,
) -> Option<MissingPage> {
    let page_count = page_count(pages, of);
    let own = place(hash(mark.tag), page_count);
    let (mut crowded, mut split) = (false, None);
    for (slot, page) in pages.iter().filter(|(_, page)| page.is_of_generation(of)) {
        let mut page = Page { until: page.until.max(second_of(mark.in_use.until)), ..*page };
        if page.index == own {
            page.bits |= bits(mark.tag);
            page.most = page.most.max(encode(mark.in_use.units));
            crowded = page.bits.count_ones() >= CROWDED;
        }
        if page.index == parent(page_count) {
            split = Some(page);
        }
        home.put(*slot, page.entry());
    }
    let page = split.filter(|_| crowded && page_count < GENERATION_PAGES)?;
    Some(MissingPage { page: Page { index: page_count, ..page }, is_set: true })
}

/// The largest use that these pages have for a key.
fn use_in(pages: &Pages, tag: Tag, counts: impl Fn(&Page) -> bool) -> Option<Usage> {
    let bits = bits(tag);
    let pages = pages.iter().map(|(_, page)| page).filter(|page| {
        let own = || page.index == place(hash(tag), page_count(pages, page));
        page.bits & bits == bits && counts(page) && own()
    });
    let in_use =
        pages.map(|page| Usage { units: decode(page.most), until: instant_of(page.until) });
    in_use.reduce(larger_of)
}

/// How many pages there are in the generation of a page.
fn page_count(pages: &Pages, of: &Page) -> usize {
    pages.iter().filter(|(_, page)| page.is_of_generation(of)).count()
}

fn pages(bucket: &Bucket) -> Pages {
    bucket.pages().map(|(slot, tag, bits)| (slot, Page::of(tag, bits))).collect()
}

// === impl Mark ===

impl Mark {
    pub(super) fn of(tag: Tag, limit: &Limit, in_use: Usage) -> Self {
        let period = match (fill_nanos(limit), limit.period()) {
            (Some(nanos), _) => u64::try_from(nanos).unwrap_or(u64::MAX),
            (None, Period::Every(period)) => period.as_nanos(),
            // Calendar windows that end together are a generation.
            (None, Period::Calendar(_)) => 0,
        };
        let half = (period / NANOS / 2).max(1);
        Self { tag, class: SketchClass::of(limit), in_use, scale: Scale::of(limit), half }
    }

    /// Whether it ends within the same half period as the marks of a page.
    const fn ends_with(&self, page: &Page) -> bool {
        second_of(self.in_use.until).div_ceil(self.half) == page.until.div_ceil(self.half)
    }
}

// === impl Scale ===

impl Scale {
    const CALENDAR: Self = Self(4);
    /// Scales from here on are for token and leaky buckets.
    const FIRST_BUCKET_SCALE: u64 = 5;
    /// The last that fits five bits: fill times of two years and more.
    const LAST: u64 = 31;
    /// An edit of the fill time by a factor of up to four changes the scale by this much. The sketch uses the same factor.
    const EDITED_BY: u64 = 2;

    fn of(limit: &Limit) -> Self {
        match SketchClass::of(limit) {
            SketchClass::Seconds => Self(0),
            SketchClass::Minutes => Self(1),
            SketchClass::Hours => Self(2),
            SketchClass::Days => Self(3),
            SketchClass::Calendar => Self::CALENDAR,
            SketchClass::QuickBuckets | SketchClass::Buckets | SketchClass::SlowBuckets => {
                let seconds =
                    fill_nanos(limit).map_or(0, |nanos| nanos.div_ceil(u128::from(NANOS)));
                let power = u64::from(seconds.max(1).ilog2());
                Self(Self::FIRST_BUCKET_SCALE.saturating_add(power).min(Self::LAST))
            }
        }
    }

    /// Whether a limit of this scale may have been edited to one of the other scale.
    const fn may_be_edited_to(self, other: Self) -> bool {
        let buckets = self.0 >= Self::FIRST_BUCKET_SCALE && other.0 >= Self::FIRST_BUCKET_SCALE;
        self.0 == other.0 || (buckets && self.0.abs_diff(other.0) <= Self::EDITED_BY)
    }
}

// === impl Page ===

impl Page {
    fn first(mark: &Mark, generation: u64) -> Self {
        let (most, until) = (encode(mark.in_use.units), second_of(mark.in_use.until));
        Self { scale: mark.scale, generation, index: 0, most, until, bits: bits(mark.tag) }
    }

    /// Reads a page from its slot. Bits of the tag, from the highest: 16 that tell a page from a state, 5 for the scale, 1 for the
    /// generation, 2 for the index, 8 for the largest use, 32 for the end.
    fn of(tag: u64, bits: u64) -> Self {
        let index = usize::try_from(tag >> 40 & 3).unwrap_or(0);
        let (scale, generation) = (Scale(tag >> 43 & 31), tag >> 42 & 1);
        Self { scale, generation, index, most: tag >> 32 & 0xff, until: tag & 0xffff_ffff, bits }
    }

    fn entry(&self) -> Entry {
        let index = u64::try_from(self.index).unwrap_or(0) << 40;
        let head = FIRST_PAGE_TAG | (self.scale.0 << 43) | (self.generation << 42) | index;
        let tag = head | (self.most << 32) | self.until;
        Entry { tag, limit_number: 0, in_blocks: false, word: self.bits }
    }

    /// Adds the marks of another page.
    fn add(&mut self, other: &Self) {
        self.bits |= other.bits;
        self.most = self.most.max(other.most);
        self.until = self.until.max(other.until);
    }

    /// Whether a page is of the same generation.
    fn is_of_generation(&self, other: &Self) -> bool {
        (self.scale, self.generation) == (other.scale, other.generation)
    }

    fn has_ended(&self, now: Now) -> bool {
        let calendar = self.scale == Scale::CALENDAR;
        instant_of(self.until) <= if calendar { now.calendar } else { now.steady }
    }
}

// === hashes: of bits that depend little on the bucket ===

fn mixed(tag: Tag) -> u64 {
    let mixed = (tag.0 ^ (tag.0 >> 31)).wrapping_mul(0xc6a4_a793_5bd1_e995);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn bits(tag: Tag) -> u64 {
    let mixed = mixed(tag);
    (1 << (mixed >> 58)) | (1 << (mixed >> 52 & 63))
}

fn hash(tag: Tag) -> usize {
    usize::try_from(mixed(tag) >> 40 & 0xfff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::super::dirty::Kept;
    use super::super::table::Table;
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::{Algorithm, Span, Timestamp};

    const START: u64 = 1_700_000_000;

    fn limit(seconds: u64, algorithm: Algorithm) -> Limit {
        Limit::new(20, Span::from_secs(seconds), algorithm).unwrap()
    }

    fn in_use(units: u64, until: u64) -> Usage {
        Usage { units, until: Timestamp::from_nanos(until * NANOS) }
    }

    /// Marks a state as the store does, and adds pages while there are free slots. Returns whether there was a page for it.
    fn mark(home: &mut LockedBucket<'_>, mark: &Mark) -> bool {
        let Some(missing) = set(home, mark) else { return true };
        match home.free().filter(|_| may_add_page(home.bucket())) {
            Some(slot) => {
                add_page(home, slot, &missing);
                true
            }
            None => missing.is_set || set_in_latest(home, mark),
        }
    }

    fn at(second: u64) -> Now {
        Now::at(Timestamp::from_nanos(second * NANOS))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Pages are split, joined and removed in any order: what was marked is found with at least its use, until it ends.
        #[test]
        fn no_mark_is_lost_before_it_ends(
            marks in prop::collection::vec((any::<u64>(), 0usize..4, 11u64..=20, 0u64..60), 1..300),
            slots in 1..=SLOTS,
        ) {
            let limits = [
                limit(100, Algorithm::TOKEN_BUCKET),
                limit(130, Algorithm::TOKEN_BUCKET),
                limit(86_400, Algorithm::LEAKY_BUCKET),
                limit(3_600, Algorithm::SLIDING_LOG),
            ];
            let bucket = Bucket::default();
            let mut home = bucket.lock();
            for tag in slots..SLOTS {
                let state = Entry { tag: 1 + u64::try_from(tag).unwrap(), limit_number: 0, in_blocks: false, word: 1 };
                let slot = home.free().unwrap();
                home.put(slot, state);
            }
            let (mut now, mut live): (u64, Vec<(Tag, usize, Usage)>) = (START, vec![]);
            for (tag, which, units, later) in marks {
                now += later / 10;
                remove_ended(&mut home, at(now));
                let (tag, in_use) = (Tag(tag), in_use(units, now + 1 + later * 2));
                if mark(&mut home, &Mark::of(tag, &limits[which], in_use)) {
                    live.push((tag, which, in_use));
                }
                live.retain(|(_, _, in_use)| in_use.until > at(now).steady);
                for (tag, which, in_use) in &live {
                    let found = find(&bucket, *tag, &limits[*which]).unwrap();
                    prop_assert!(found.units >= in_use.units && found.until >= in_use.until);
                }
                prop_assert!(pages(&bucket).len() <= MOST_PAGES.min(slots));
            }
        }
    }

    #[test]
    fn a_page_is_read_back_as_it_was_written() {
        for (scale, index, until) in [(0, 0, 0), (Scale::LAST, 3, 0xffff_ffff), (16, 2, START)] {
            let page =
                Page { scale: Scale(scale), generation: 1, index, most: 0xff, until, bits: 9 };
            let Entry { tag, word, .. } = page.entry();
            assert!(tag >= FIRST_PAGE_TAG);
            assert_eq!(Page::of(tag, word), page);
        }
    }

    /// Sixty spent states are marked in four pages: six of ten new keys or more find a clear bit.
    #[test]
    fn most_new_keys_find_a_clear_bit() {
        let (daily, bucket) = (limit(86_400, Algorithm::TOKEN_BUCKET), Bucket::default());
        let mut home = bucket.lock();
        for tag in 1..=60u64 {
            assert!(mark(&mut home, &Mark::of(Tag(tag * 0x9e37_79b9), &daily, in_use(20, START))));
        }
        assert_eq!(pages(&bucket).len(), GENERATION_PAGES);
        let met = (0..1_000u64).filter(|n| find(&bucket, Tag((n << 32) + 7), &daily).is_some());
        assert!(met.count() < 400);
    }

    /// Limits that are never edited into each other have separate marks.
    #[test]
    fn limits_of_other_scales_do_not_share_marks() {
        let hourly = limit(3_600, Algorithm::TOKEN_BUCKET);
        let bucket = Bucket::default();
        let mut home = bucket.lock();
        assert!(mark(&mut home, &Mark::of(Tag(7), &hourly, in_use(20, START))));
        for (seconds, algorithm, shares) in [
            (3_600, Algorithm::TOKEN_BUCKET, true),
            (4 * 3_600, Algorithm::LEAKY_BUCKET, true),
            (900, Algorithm::TOKEN_BUCKET, true),
            (86_400, Algorithm::TOKEN_BUCKET, false),
            (60, Algorithm::TOKEN_BUCKET, false),
            (3_600, Algorithm::FIXED_WINDOW, false),
        ] {
            let found = find(&bucket, Tag(7), &limit(seconds, algorithm)).is_some();
            assert_eq!(found, shares, "{seconds} s, {}", algorithm.name());
        }
    }

    /// A bucket is split. Bits do not say whose they are, so both buckets keep them: for states that move and states that stay.
    #[test]
    fn marks_hold_in_both_buckets_of_a_split() {
        let daily = limit(86_400, Algorithm::TOKEN_BUCKET);
        let budget = Budget::new(1 << 20);
        let table = Table::new(&budget, Kept::InMemory);
        for tag in (1..=200).map(Tag) {
            let mut held = table.lock_all(&[tag]);
            let home = held.home(tag).unwrap();
            assert!(mark(home, &Mark::of(tag, &daily, in_use(20, START))));
        }
        (0..100).for_each(|_| table.grow(&budget));
        assert!((1..=200).map(Tag).all(|tag| find(table.home(tag), tag, &daily).is_some()));
    }
}
