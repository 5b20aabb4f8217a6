//! Who was refused lately: one entry for each rule and key, however often the key is refused.
//!
//! ```text
//!   worker 0 ── ring ─┐
//!   worker 1 ── ring ─┼──► merged when an operator looks
//! ```
//!
//! It answers: since when is this client refused, by which rule, and how often?
//!
//! The number of entries of a ring and their bytes are bounded. A full ring drops the quarter of its entries that was refused least
//! recently, at most once a second. If it is full again sooner, it takes no new keys until the second is over. So in a flood of new
//! keys most refusals cost only a lookup, and a client that is refused again and again keeps its entry.
//!
//! A key that is not refused for ten minutes begins anew when it is refused again, because "since when" is about the refusals that a
//! client sees now.
//!
//! Keys are shown as the settings say. To find a person all the same, each entry has keyed hashes of its values, under a key that this
//! process chose at random.

use crate::shown_key::{KeyForm, RequestKey, ShownKey};
use foldhash::fast::RandomState as FastHash;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Clock, Secret};
use tidegate_policy::{AddressKey, parse_address};

/// The keys that were refused lately, if they are kept.
#[derive(Clone, Default)]
pub(crate) struct RecentDenials(Option<Arc<DenialRings>>);

/// The rings of all workers.
struct DenialRings {
    form: KeyForm,
    secret: Secret,
    clock: Clock,
    hashes: RandomState,
    /// Unix time in milliseconds, a second old at most: reading the clock would cost more than the rest of a refusal.
    now_ms: AtomicU64,
    rings: Mutex<Vec<Arc<Mutex<Ring>>>>,
}

/// The ring of one worker.
#[derive(Clone)]
pub(crate) struct DenialRing {
    all: Arc<DenialRings>,
    /// Locked by its worker for refusals, and by operators. Workers do not wait for each other.
    ring: Arc<Mutex<Ring>>,
}

struct Ring {
    /// By rule, key, and whether the rule is in shadow mode. Clients cannot choose these numbers, so a fast hash is safe: `SipHash`
    /// would take longer than the rest of a refusal that is noted again.
    entries: HashMap<(u64, bool), RingEntry, FastHash>,
    bytes: usize,
    room: usize,
    /// When entries made room for the last time, in Unix time.
    made_room_ms: u64,
    /// A new entry had no room since then.
    is_full: bool,
}

struct RingEntry {
    denied: DeniedKey,
    values: Vec<HashedValue>,
}

/// The value of an attribute of a key, as a keyed hash.
struct HashedValue {
    name: Box<str>,
    hash: u64,
    /// The length of the prefix that the rule counts, if the value is an address.
    prefix: Option<u8>,
}

/// A refusal, for the ring.
pub(crate) struct NewDenial<'d> {
    /// Identifies the rule and the key.
    pub(crate) print: u64,
    /// Empty for a limit that the client named.
    pub(crate) rule: &'d str,
    pub(crate) limit: Option<&'d str>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) would_deny: bool,
}

/// A key that a rule refused, or would have refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKey {
    /// Empty for a limit that the client named.
    pub(crate) rule: String,
    /// The limit of the rule that refused first.
    pub(crate) limit: Option<String>,
    /// The attributes of the key with their values, as the settings say that they are shown.
    pub(crate) key: Vec<(String, String)>,
    /// The first and the last of these denials, in Unix time; the last may be a second older than it was.
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
    pub(crate) denials: u64,
    /// Of the last denial. `None`: such a request never passes.
    pub(crate) retry_after_ms: Option<u64>,
    /// The rule is in shadow mode: it would have refused.
    pub(crate) would_deny: bool,
}

/// A key that was not refused for so long begins anew.
const SILENCE_MS: u64 = 600_000;
/// How often a full ring makes room.
const MAKES_ROOM_EVERY_MS: u64 = 1_000;
/// Entries of all rings together.
const MOST_ENTRIES: usize = 4_096;
/// Bytes of an entry apart from its texts.
const ENTRY_BYTES: usize = size_of::<RingEntry>() + 64;
/// Bytes of an attribute apart from its texts.
const VALUE_BYTES: usize = size_of::<HashedValue>() + 96;

// === impl RecentDenials ===

impl RecentDenials {
    pub(crate) fn new(form: KeyForm, (clock, secret): (&Clock, &Secret)) -> Self {
        let all = DenialRings {
            form,
            secret: secret.clone(),
            clock: clock.clone(),
            hashes: RandomState::new(),
            now_ms: AtomicU64::new(0),
            rings: Mutex::default(),
        };
        all.tick();
        Self(Some(Arc::new(all)))
    }

    /// A ring for one more worker, with this much memory.
    pub(crate) fn ring(&self, room: usize) -> Option<DenialRing> {
        let all = Arc::clone(self.0.as_ref()?);
        let ring = Arc::new(Mutex::new(Ring::new(room)));
        all.rings().push(Arc::clone(&ring));
        Some(DenialRing { all, ring })
    }

    /// Reads the clock. It is called every second.
    pub(crate) fn tick(&self) {
        if let Some(all) = &self.0 {
            all.tick();
        }
    }

    /// Entries whose key agrees with every given attribute that it has, and has at least one of them.
    pub(crate) fn matching(&self, attributes: &[(&str, &str)]) -> Vec<DeniedKey> {
        let Some(all) = &self.0 else { return vec![] };
        let wanted: Vec<WantedValue<'_>> =
            attributes.iter().map(|(name, value)| WantedValue::new(name, value, all)).collect();
        all.entries(|entry| entry.agrees(&wanted, all))
    }

    /// The newest entries, the last refused first.
    pub(crate) fn newest(&self, most: usize) -> Vec<DeniedKey> {
        let Some(all) = &self.0 else { return vec![] };
        let mut newest = all.entries(|_| true);
        newest.truncate(most);
        newest
    }

    /// The memory of all rings.
    pub(crate) fn bytes(&self) -> usize {
        let Some(all) = &self.0 else { return 0 };
        let rings = all.rings();
        rings.iter().map(|ring| lock(ring).bytes).fold(0, usize::saturating_add)
    }
}

// === impl DenialRings ===

impl DenialRings {
    fn tick(&self) {
        let now = self.clock.now().calendar.as_nanos() / 1_000_000;
        self.now_ms.store(now, Ordering::Relaxed);
    }

    fn rings(&self) -> MutexGuard<'_, Vec<Arc<Mutex<Ring>>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries that are wanted, the last refused first. Those of several workers about one key are added.
    fn entries(&self, wanted: impl Fn(&RingEntry) -> bool) -> Vec<DeniedKey> {
        let mut all = HashMap::<(u64, bool), DeniedKey>::new();
        for ring in self.rings().iter() {
            for (print, entry) in lock(ring).entries.iter().filter(|(_, entry)| wanted(entry)) {
                let denied = &entry.denied;
                all.entry(*print)
                    .and_modify(|known| known.add(denied))
                    .or_insert_with(|| denied.clone());
            }
        }
        let mut all: Vec<((u64, bool), DeniedKey)> = all.into_iter().collect();
        all.sort_by_key(|(print, denied)| {
            (Reverse(denied.last_ms), Reverse(denied.denials), *print)
        });
        all.into_iter().map(|(_, denied)| denied).collect()
    }

    fn hash(&self, name: &str, value: &str) -> u64 {
        self.hashes.hash_one((name, value))
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl DenialRing ===

impl DenialRing {
    /// Notes a refusal. `key` is called for a key without an entry.
    pub(crate) fn note<'k>(&self, new: &NewDenial<'_>, key: impl FnOnce() -> RequestKey<'k>) {
        let now = self.all.now_ms.load(Ordering::Relaxed);
        let mut ring = lock(&self.ring);
        let print = (new.print, new.would_deny);
        if let Some(RingEntry { denied, .. }) = ring.entries.get_mut(&print)
            && now.saturating_sub(denied.last_ms) < SILENCE_MS
        {
            denied.denials = denied.denials.saturating_add(1);
            denied.last_ms = denied.last_ms.max(now);
            denied.retry_after_ms = new.retry_after_ms;
            return;
        }
        if ring.is_full && !ring.may_make_room(now) {
            return;
        }
        ring.insert(print, self.all.entry(new, &key()));
    }
}

impl DenialRings {
    fn entry(&self, new: &NewDenial<'_>, key: &RequestKey<'_>) -> RingEntry {
        // The exact time, because operators compare it with their logs.
        self.tick();
        let now = self.now_ms.load(Ordering::Relaxed);
        let shown = key.shown(self.form, &self.secret);
        let values = key.concealed(&self.secret).map(|(name, value)| HashedValue {
            name: name.into(),
            hash: self.hash(name, &value),
            prefix: value.rsplit_once('/').and_then(|(_, bits)| bits.parse().ok()),
        });
        RingEntry {
            values: values.collect(),
            denied: DeniedKey {
                rule: new.rule.to_owned(),
                limit: new.limit.map(str::to_owned),
                key: shown.map(|ShownKey(pairs)| pairs).unwrap_or_default(),
                first_ms: now,
                last_ms: now,
                denials: 1,
                retry_after_ms: new.retry_after_ms,
                would_deny: new.would_deny,
            },
        }
    }
}

// === impl Ring ===

impl Ring {
    fn new(room: usize) -> Self {
        Self { entries: HashMap::default(), bytes: 0, room, made_room_ms: 0, is_full: false }
    }

    /// Whether entries may make room again. The clock may have been set back since they last did.
    const fn may_make_room(&self, now: u64) -> bool {
        now.abs_diff(self.made_room_ms) >= MAKES_ROOM_EVERY_MS
    }

    fn insert(&mut self, print: (u64, bool), entry: RingEntry) {
        let bytes = entry.bytes();
        let has_no_room = |ring: &Self| {
            ring.bytes.saturating_add(bytes) > ring.room || ring.entries.len() >= MOST_ENTRIES
        };
        let now = entry.denied.last_ms;
        if has_no_room(self) && self.may_make_room(now) {
            self.drop_oldest();
            self.made_room_ms = now;
        }
        self.is_full = has_no_room(self);
        if self.is_full {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(old) = self.entries.insert(print, entry) {
            self.bytes = self.bytes.saturating_sub(old.bytes());
        }
    }

    /// Drops the quarter that was refused least recently, so that this sort is rare.
    fn drop_oldest(&mut self) {
        let mut ages: Vec<(u64, u64, (u64, bool))> = self
            .entries
            .iter()
            .map(|(print, entry)| (entry.denied.last_ms, entry.denied.denials, *print))
            .collect();
        ages.sort_unstable();
        for (_, _, print) in ages.iter().take(ages.len().div_ceil(4)) {
            if let Some(old) = self.entries.remove(print) {
                self.bytes = self.bytes.saturating_sub(old.bytes());
            }
        }
    }
}

// === impl RingEntry ===

impl RingEntry {
    fn bytes(&self) -> usize {
        let DeniedKey { rule, limit, key, .. } = &self.denied;
        let texts = rule.len().saturating_add(limit.as_ref().map_or(0, String::len));
        let shown = key.iter().map(|(name, value)| name.len().saturating_add(value.len()));
        let names = self.values.iter().map(|value| value.name.len().saturating_add(VALUE_BYTES));
        shown.chain(names).fold(texts.saturating_add(ENTRY_BYTES), usize::saturating_add)
    }

    fn agrees(&self, wanted: &[WantedValue<'_>], all: &DenialRings) -> bool {
        let mut common = 0_usize;
        for wanted in wanted {
            for value in self.values.iter().filter(|value| *value.name == *wanted.name) {
                if !wanted.is(value, all) {
                    return false;
                }
                common = common.saturating_add(1);
            }
        }
        common > 0
    }
}

impl DeniedKey {
    /// Adds what another worker noted about the same key.
    fn add(&mut self, other: &Self) {
        if other.last_ms > self.last_ms {
            self.retry_after_ms = other.retry_after_ms;
        }
        self.first_ms = self.first_ms.min(other.first_ms);
        self.last_ms = self.last_ms.max(other.last_ms);
        self.denials = self.denials.saturating_add(other.denials);
    }
}

// === impl WantedValue ===

/// An attribute that an operator looks for.
struct WantedValue<'w> {
    name: &'w str,
    value: &'w str,
    /// The hashes of the value and of its digest: keys have the digests of secrets.
    hashes: [u64; 2],
}

impl<'w> WantedValue<'w> {
    fn new(name: &'w str, value: &'w str, all: &DenialRings) -> Self {
        let digest = all.secret.digest(value);
        Self { name, value, hashes: [value, &digest].map(|text| all.hash(name, text)) }
    }

    /// Whether a key has this value. An address is the same as the network that the rule counts.
    fn is(&self, value: &HashedValue, all: &DenialRings) -> bool {
        let network = || {
            let address = parse_address(self.value).filter(|_| self.name == "ip")?;
            Some(AddressKey::new(address, value.prefix?).to_string())
        };
        self.hashes.contains(&value.hash)
            || network().is_some_and(|text| all.hash(self.name, &text) == value.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shown_key::KeyPairs;
    use std::borrow::Cow;
    use tidegate::Policy;
    use tidegate_core::{Span, Timestamp};

    const START_MS: u64 = 1_700_000_000_000;

    /// Recent denials with the ring of one worker.
    struct Kept {
        recent: RecentDenials,
        ring: DenialRing,
        clock: Clock,
        policy: Policy,
    }

    impl Kept {
        fn new(form: KeyForm, room: usize) -> Self {
            let clock = Clock::manual(Timestamp::from_nanos(START_MS * 1_000_000));
            let recent = RecentDenials::new(form, (&clock, &Secret::new([7; 32])));
            let ring = recent.ring(room).unwrap();
            let policy = "{ version: 1, rules: [{ name: a, key: [user], limits: [1/h] }] }";
            Self { recent, ring, clock, policy: Policy::parse(policy).unwrap() }
        }

        fn refuse(&self, rule: &str, pairs: &[(&'static str, &str)]) {
            let owned =
                |(name, value): &(&'static str, &str)| (*name, Cow::Owned(value.to_string()));
            let key = KeyPairs::from_iter(pairs.iter().map(owned));
            let print = self.recent.0.as_ref().unwrap().hashes.hash_one((rule, &key));
            let new = NewDenial {
                print,
                rule,
                limit: Some("h"),
                retry_after_ms: Some(5),
                would_deny: false,
            };
            self.ring.note(&new, || RequestKey::of_entries(&self.policy, &key));
        }

        fn later(&self, seconds: u64) {
            self.clock.set(self.clock.now().steady.after(Span::from_secs(seconds)).unwrap());
            self.recent.tick();
        }

        fn rules(&self, attributes: &[(&str, &str)]) -> Vec<String> {
            let found = self.recent.matching(attributes);
            let mut rules: Vec<String> = found.into_iter().map(|denied| denied.rule).collect();
            rules.sort();
            rules
        }
    }

    #[test]
    fn a_key_has_one_entry_since_its_first_refusal() {
        let kept = Kept::new(KeyForm::Clear, 1 << 20);
        kept.refuse("users", &[("user", "alice")]);
        kept.later(60);
        kept.refuse("users", &[("user", "bob")]);
        kept.later(30);
        kept.refuse("users", &[("user", "alice")]);
        let alice = DeniedKey {
            rule: "users".to_owned(),
            limit: Some("h".to_owned()),
            key: vec![("user".to_owned(), "alice".to_owned())],
            first_ms: START_MS,
            last_ms: START_MS + 90_000,
            denials: 2,
            retry_after_ms: Some(5),
            would_deny: false,
        };
        let newest = kept.recent.newest(9);
        assert_eq!((newest.len(), &newest[0]), (2, &alice));
        assert_eq!(newest[1].first_ms, START_MS + 60_000);
        assert_eq!(kept.recent.newest(1), [alice]);
    }

    #[test]
    fn after_ten_silent_minutes_a_key_begins_anew() {
        let kept = Kept::new(KeyForm::Clear, 1 << 20);
        kept.refuse("users", &[("user", "alice")]);
        kept.later(599);
        kept.refuse("users", &[("user", "alice")]);
        kept.later(600);
        kept.refuse("users", &[("user", "alice")]);
        let newest = kept.recent.newest(9);
        assert_eq!((newest.len(), newest[0].denials), (1, 1));
        assert_eq!(newest[0].first_ms, START_MS + 1_199_000);
    }

    #[test]
    fn entries_are_found_by_the_attributes_of_a_person_however_they_are_shown() {
        for form in [KeyForm::Clear, KeyForm::Hashed, KeyForm::Omitted] {
            let kept = Kept::new(form, 1 << 20);
            kept.refuse("users", &[("user", "alice")]);
            kept.refuse("devices", &[("user", "alice"), ("device", "x")]);
            kept.refuse("others", &[("user", "bob"), ("device", "x")]);
            kept.refuse("nets", &[("ip", "2001:db8:0:7::/64")]);
            kept.refuse("keys", &[("api_key", "s3cr3t")]);
            kept.refuse("all", &[]);
            assert_eq!(kept.rules(&[("user", "alice")]), ["devices", "users"]);
            assert_eq!(kept.rules(&[("user", "alice"), ("device", "y")]), ["users"]);
            assert_eq!(kept.rules(&[("device", "x")]), ["devices", "others"]);
            assert_eq!(kept.rules(&[("ip", "2001:db8:0:7:1::9")]), ["nets"]);
            assert_eq!(kept.rules(&[("ip", "2001:db8:0:8::9")]), [""; 0]);
            assert_eq!(kept.rules(&[("api_key", "s3cr3t")]), ["keys"]);
            let digest = Secret::new([7; 32]).digest("s3cr3t");
            assert_eq!(kept.rules(&[("api_key", &digest)]), ["keys"]);
            assert_eq!(kept.rules(&[]), [""; 0]);
            let shown = format!("{:?}", kept.recent.newest(9));
            assert!(!shown.contains("s3cr3t"));
            assert_eq!(shown.contains("alice"), form == KeyForm::Clear);
        }
    }

    #[test]
    fn entries_of_several_workers_about_one_key_are_added() {
        let kept = Kept::new(KeyForm::Clear, 1 << 20);
        kept.refuse("users", &[("user", "alice")]);
        let second = Kept { ring: kept.recent.ring(1 << 20).unwrap(), ..kept };
        second.later(7);
        second.refuse("users", &[("user", "alice")]);
        let newest = second.recent.newest(9);
        assert_eq!((newest.len(), newest[0].denials), (1, 2));
        assert_eq!([newest[0].first_ms, newest[0].last_ms], [START_MS, START_MS + 7_000]);
    }

    #[test]
    fn a_flood_of_refused_keys_pushes_out_the_oldest_and_stays_within_its_memory() {
        let kept = Kept::new(KeyForm::Clear, 64 << 10);
        for number in 0..5_000 {
            kept.refuse("users", &[("user", &format!("user {number:050}"))]);
            assert!(kept.recent.bytes() <= 64 << 10);
            kept.later(1);
        }
        let newest = kept.recent.newest(9_999);
        assert!((60..600).contains(&newest.len()), "{}", newest.len());
        assert!(newest[0].key[0].1.ends_with("4999"));
    }

    #[test]
    fn a_flood_within_a_second_adds_no_more_keys_than_fit_and_keeps_those_that_are_refused_again() {
        let kept = Kept::new(KeyForm::Clear, 64 << 10);
        let number_of = |user: &str| kept.recent.matching(&[("user", user)]).len();
        [(); 2].iter().for_each(|()| kept.refuse("users", &[("user", "alice")]));
        for number in 0..5_000 {
            kept.refuse("users", &[("user", &format!("user {number:050}"))]);
        }
        kept.refuse("users", &[("user", "alice")]);
        let full = kept.recent.newest(9_999);
        assert_eq!(kept.recent.matching(&[("user", "alice")])[0].denials, 3);
        kept.refuse("users", &[("user", "bob")]);
        assert_eq!((kept.recent.newest(9_999), number_of("bob")), (full, 0));
        kept.later(1);
        kept.refuse("users", &[("user", "bob")]);
        assert_eq!((number_of("bob"), number_of("alice")), (1, 1));
    }

    #[test]
    fn a_full_list_takes_new_keys_also_after_the_clock_was_set_back() {
        let kept = Kept::new(KeyForm::Clear, 64 << 10);
        for number in 0..5_000 {
            kept.refuse("users", &[("user", &format!("user {number:050}"))]);
        }
        kept.clock.set(Timestamp::from_nanos((START_MS - 3_600_000) * 1_000_000));
        kept.recent.tick();
        kept.refuse("users", &[("user", "bob")]);
        assert_eq!(kept.rules(&[("user", "bob")]), ["users"]);
    }

    #[test]
    fn without_recent_denials_nothing_is_found() {
        let off = RecentDenials::default();
        assert!(off.ring(1 << 20).is_none() && off.newest(9).is_empty());
        assert!(off.matching(&[("user", "alice")]).is_empty() && off.bytes() == 0);
    }
}
