//! States that used more than half of their limit, remembered by two bits each: Bloom filters in slots of the table.
//!
//! What is used of a demoted state goes to cells of the sketch, which every stranger shares. A cell that says "all of it"
//! refuses every stranger that meets it. So the sketch keeps small uses only, and a state that used more than half of its
//! limit is *marked* instead, in its home, which is the first of its two buckets:
//!
//! ```text
//!   a bucket in a flood of spent keys      slot  0 1 2 3 4 5 6      P  page of 64 marks    s  state
//!                                                P P P P s s s
//!
//!   demoted: alice 20 of 20 ──► page 2, bits 9 and 40      alice is back ──► both set: begins with 20
//!   bob is new              ──► page 1, bits 3 and 31      one is clear  ──► begins with nothing
//! ```
//!
//! A slot for one state is a *page* for tens of them. It says how much the most used of them has used, and when the last
//! of them ends. A state begins with that if both of its bits are set: too much, never too little. A page is made of a free
//! slot or of the slot of a spent state, which is marked too. So pages take memory from states that they can replace, and
//! none while there is room.
//!
//! Pages of one *generation* are found by linear hashing, as buckets are: the second is split off the first when that has
//! [`CROWDED`] bits, and begins as its copy. What ends within the same half period is of one generation. So marks that are
//! made every hour of every day end, too, although there are always new ones.
//!
//! Limits share pages only with those of their [`Scale`].
//!
//! All of this is read and written by the holder of the bucket's lock. Without it, [`find`] gives a hint.

use super::bucket::{Bucket, Entry, Locked, MARKS, SLOTS, Slot};
use super::sketch::{Class, NANOS, code, fill_nanos, instant, most, second, units};
use super::table::{Tag, parent, place};
use smallvec::SmallVec;
use tidegate_core::{Limit, Now, Period, Usage};

/// Pages of a generation.
const PARTS: usize = 4;
/// Pages of a bucket: a slot is left for a state that has something left, and there is room for half of a second generation.
const PAGES: usize = 6;
/// A page with so many bits is split, if there is a slot.
const CROWDED: u32 = 8;

/// What a state leaves behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) tag: Tag,
    pub(super) class: Class,
    pub(super) in_use: Usage,
    scale: Scale,
    /// Half of its limit's period, in seconds.
    half: u64,
}

/// Limits that may share pages: windows of one [`Class`], or buckets whose fill times have the same power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale(u64);

/// A page that is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    page: Page,
    /// Without it the mark is not set; with `true` the page only spares strangers.
    pub(super) is_set: bool,
}

/// A slot of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    scale: Scale,
    /// Which of the two generations that a scale may have at a time.
    generation: u64,
    /// Its number among the pages of its generation.
    part: usize,
    /// The code of the most that one of its states used.
    most: u64,
    /// The second at which the last of them ends; the same in all pages of a generation.
    until: u64,
    bits: u64,
}

type Pages = SmallVec<[(Slot, Page); SLOTS]>;

/// What is marked of a state in its home; `None` when nothing is.
pub(super) fn find(home: &Bucket, tag: Tag, limit: &Limit) -> Option<Usage> {
    let pages = pages(home);
    if pages.is_empty() {
        return None;
    }
    let scale = Scale::of(limit);
    marked(&pages, tag, |page| page.scale.may_have_been(scale))
}

/// How much a state of any limit would begin with.
pub(super) fn find_any(home: &Bucket, tag: Tag, now: Now) -> u64 {
    marked(&pages(home), tag, |page| !page.has_ended(now)).map_or(0, |in_use| in_use.units)
}

/// Sets a mark in its generation; if there are two others, in the later one. Answers which page is missing.
pub(super) fn set(home: &mut Locked<'_>, mark: &Mark) -> Option<Wanted> {
    let pages = pages(home.bucket());
    let of_scale = || pages.iter().map(|(_, page)| page).filter(|page| page.scale == mark.scale);
    let is_taken = |generation| of_scale().any(|page| page.generation == generation);
    let own = of_scale().find(|page| mark.ends_with(page));
    let later = || of_scale().max_by_key(|page| page.until).filter(|_| is_taken(0) && is_taken(1));
    match own.or_else(later) {
        Some(page) => set_in(home, &pages, page, mark),
        None => {
            let page = Page::first(mark, u64::from(is_taken(0)));
            Some(Wanted { page, is_set: false })
        }
    }
}

/// Sets a mark in the latest generation of its scale, which then lasts until the mark ends; answers whether there is one.
pub(super) fn set_in_latest(home: &mut Locked<'_>, mark: &Mark) -> bool {
    let pages = pages(home.bucket());
    let of_scale = pages.iter().map(|(_, page)| page).filter(|page| page.scale == mark.scale);
    let latest = of_scale.max_by_key(|page| page.until);
    latest.into_iter().for_each(|page| _ = set_in(home, &pages, page, mark));
    latest.is_some()
}

/// Whether there may be another page in a bucket.
pub(super) fn may_add_page(home: &Bucket) -> bool {
    pages(home).len() < PAGES
}

/// Makes a slot the page that was missing.
pub(super) fn add_page(home: &mut Locked<'_>, slot: Slot, wanted: &Wanted) {
    home.put(slot, wanted.page.entry());
}

/// Frees the pages that have ended; answers whether there were any.
pub(super) fn forget(bucket: &mut Locked<'_>, now: Now) -> bool {
    let mut ended = pages(bucket.bucket());
    ended.retain(|(_, page)| page.has_ended(now));
    ended.iter().for_each(|(slot, _)| bucket.clear(*slot));
    !ended.is_empty()
}

/// Sets a mark in the generation of a page. Answers which page would help if the mark's own is crowded.
fn set_in(home: &mut Locked<'_>, pages: &Pages, of: &Page, mark: &Mark) -> Option<Wanted> {
    let parts = parts(pages, of);
    let own = place(hash(mark.tag), parts);
    let (mut crowded, mut split) = (false, None);
    for (slot, page) in pages.iter().filter(|(_, page)| page.is_beside(of)) {
        let mut page = Page { until: page.until.max(second(mark.in_use.until)), ..*page };
        if page.part == own {
            page.bits |= bits(mark.tag);
            page.most = page.most.max(code(mark.in_use.units));
            crowded = page.bits.count_ones() >= CROWDED;
        }
        if page.part == parent(parts) {
            split = Some(page);
        }
        home.put(*slot, page.entry());
    }
    let page = split.filter(|_| crowded && parts < PARTS)?;
    Some(Wanted { page: Page { part: parts, ..page }, is_set: true })
}

/// What some of the pages know of a state.
fn marked(pages: &Pages, tag: Tag, counts: impl Fn(&Page) -> bool) -> Option<Usage> {
    let bits = bits(tag);
    let pages = pages.iter().map(|(_, page)| page).filter(|page| {
        let own = || page.part == place(hash(tag), parts(pages, page));
        page.bits & bits == bits && counts(page) && own()
    });
    let in_use = pages.map(|page| Usage { units: units(page.most), until: instant(page.until) });
    in_use.reduce(most)
}

/// How many pages there are in the generation of a page.
fn parts(pages: &Pages, of: &Page) -> usize {
    pages.iter().filter(|(_, page)| page.is_beside(of)).count()
}

fn pages(bucket: &Bucket) -> Pages {
    bucket.marks().map(|(slot, tag, bits)| (slot, Page::of(tag, bits))).collect()
}

// === impl Mark ===

impl Mark {
    pub(super) fn of(tag: Tag, limit: &Limit, in_use: Usage) -> Self {
        let period = match (fill_nanos(limit), limit.period()) {
            (Some(nanos), _) => u64::try_from(nanos).unwrap_or(u64::MAX),
            (None, Period::Every(period)) => period.as_nanos(),
            // Windows of the calendar that end together are a generation.
            (None, Period::Calendar(_)) => 0,
        };
        let half = (period / NANOS / 2).max(1);
        Self { tag, class: Class::of(limit), in_use, scale: Scale::of(limit), half }
    }

    /// Whether it ends within the same half period as the marks of a page.
    const fn ends_with(&self, page: &Page) -> bool {
        second(self.in_use.until).div_ceil(self.half) == page.until.div_ceil(self.half)
    }
}

// === impl Scale ===

impl Scale {
    const CALENDAR: Self = Self(4);
    /// Scales from here on are those of buckets.
    const BUCKETS: u64 = 5;
    /// The last there is room for: fill times of two years and more.
    const LAST: u64 = 31;
    /// What an edit by a factor of up to four changes, as in the sketch.
    const EDITED_BY: u64 = 2;

    fn of(limit: &Limit) -> Self {
        match Class::of(limit) {
            Class::Seconds => Self(0),
            Class::Minutes => Self(1),
            Class::Hours => Self(2),
            Class::Days => Self(3),
            Class::Calendar => Self::CALENDAR,
            Class::QuickBuckets | Class::Buckets | Class::SlowBuckets => {
                let seconds =
                    fill_nanos(limit).map_or(0, |nanos| nanos.div_ceil(u128::from(NANOS)));
                let power = u64::from(seconds.max(1).ilog2());
                Self(Self::BUCKETS.saturating_add(power).min(Self::LAST))
            }
        }
    }

    /// Whether a state of this scale may now have a limit of another one.
    const fn may_have_been(self, other: Self) -> bool {
        let buckets = self.0 >= Self::BUCKETS && other.0 >= Self::BUCKETS;
        self.0 == other.0 || (buckets && self.0.abs_diff(other.0) <= Self::EDITED_BY)
    }
}

// === impl Page ===

impl Page {
    fn first(mark: &Mark, generation: u64) -> Self {
        let (most, until) = (code(mark.in_use.units), second(mark.in_use.until));
        Self { scale: mark.scale, generation, part: 0, most, until, bits: bits(mark.tag) }
    }

    /// From the highest bit: 16 that say what it is, 5 for the scale, 1 for the generation, 2 for the part, 8 for the most
    /// that was used, 32 for the end.
    fn of(tag: u64, bits: u64) -> Self {
        let part = usize::try_from(tag >> 40 & 3).unwrap_or(0);
        let (scale, generation) = (Scale(tag >> 43 & 31), tag >> 42 & 1);
        Self { scale, generation, part, most: tag >> 32 & 0xff, until: tag & 0xffff_ffff, bits }
    }

    fn entry(&self) -> Entry {
        let part = u64::try_from(self.part).unwrap_or(0) << 40;
        let head = MARKS | (self.scale.0 << 43) | (self.generation << 42) | part;
        let tag = head | (self.most << 32) | self.until;
        Entry { tag, shape: 0, elsewhere: false, word: self.bits }
    }

    /// Whether a page is of the same generation.
    fn is_beside(&self, other: &Self) -> bool {
        (self.scale, self.generation) == (other.scale, other.generation)
    }

    fn has_ended(&self, now: Now) -> bool {
        let calendar = self.scale == Scale::CALENDAR;
        instant(self.until) <= if calendar { now.calendar } else { now.steady }
    }
}

// === hashes: of bits that say little about the bucket ===

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

    /// Marks a state as the store does, with pages as long as there are slots; answers whether there was a page for it.
    fn mark(home: &mut Locked<'_>, mark: &Mark) -> bool {
        let Some(wanted) = set(home, mark) else { return true };
        match home.free().filter(|_| may_add_page(home.bucket())) {
            Some(slot) => {
                add_page(home, slot, &wanted);
                true
            }
            None => wanted.is_set || set_in_latest(home, mark),
        }
    }

    fn at(second: u64) -> Now {
        Now::at(Timestamp::from_nanos(second * NANOS))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// However pages are split, joined and forgotten: what was marked is found with at least as much, for as long.
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
                let state = Entry { tag: 1 + u64::try_from(tag).unwrap(), shape: 0, elsewhere: false, word: 1 };
                let slot = home.free().unwrap();
                home.put(slot, state);
            }
            let (mut now, mut live): (u64, Vec<(Tag, usize, Usage)>) = (START, vec![]);
            for (tag, which, units, later) in marks {
                now += later / 10;
                forget(&mut home, at(now));
                let (tag, in_use) = (Tag(tag), in_use(units, now + 1 + later * 2));
                if mark(&mut home, &Mark::of(tag, &limits[which], in_use)) {
                    live.push((tag, which, in_use));
                }
                live.retain(|(_, _, in_use)| in_use.until > at(now).steady);
                for (tag, which, in_use) in &live {
                    let found = find(&bucket, *tag, &limits[*which]).unwrap();
                    prop_assert!(found.units >= in_use.units && found.until >= in_use.until);
                }
                prop_assert!(pages(&bucket).len() <= PAGES.min(slots));
            }
        }
    }

    /// A page is what its slot says.
    #[test]
    fn pages_survive_their_slots() {
        for (scale, part, until) in [(0, 0, 0), (Scale::LAST, 3, 0xffff_ffff), (16, 2, START)] {
            let page =
                Page { scale: Scale(scale), generation: 1, part, most: 0xff, until, bits: 9 };
            let Entry { tag, word, .. } = page.entry();
            assert!(tag >= MARKS);
            assert_eq!(Page::of(tag, word), page);
        }
    }

    /// Sixty spent states are marked in four pages: six of ten strangers or more meet no mark.
    #[test]
    fn most_strangers_meet_no_mark() {
        let (daily, bucket) = (limit(86_400, Algorithm::TOKEN_BUCKET), Bucket::default());
        let mut home = bucket.lock();
        for tag in 1..=60u64 {
            assert!(mark(&mut home, &Mark::of(Tag(tag * 0x9e37_79b9), &daily, in_use(20, START))));
        }
        assert_eq!(pages(&bucket).len(), PARTS);
        let met = (0..1_000u64).filter(|n| find(&bucket, Tag((n << 32) + 7), &daily).is_some());
        assert!(met.count() < 400);
    }

    /// Marks of limits that are never edited into each other are kept apart.
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

    /// A bucket is split. Marks do not say whose they are, so they hold for states that move and for those that stay.
    #[test]
    fn marks_hold_in_both_buckets_of_a_split() {
        let daily = limit(86_400, Algorithm::TOKEN_BUCKET);
        let budget = Budget::new(1 << 20);
        let table = Table::new(&budget);
        for tag in (1..=200).map(Tag) {
            let mut held = table.lock_all(&[tag]);
            let home = held.home(tag).unwrap();
            assert!(mark(home, &Mark::of(tag, &daily, in_use(20, START))));
        }
        (0..100).for_each(|_| table.grow(&budget));
        assert!((1..=200).map(Tag).all(|tag| find(table.home(tag), tag, &daily).is_some()));
    }
}
