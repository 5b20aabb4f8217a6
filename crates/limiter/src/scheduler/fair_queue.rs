//! The queue of one class: start-time fair queueing over the keys of its requests.
//!
//! Each key that waits has a *start tag*, and the key with the smallest tag has the next turn. A turn starts one request
//! and moves the tag of its key by one round, so keys take turns, however many requests each of them has waiting.
//!
//! ```text
//!   S = max(V, F)                                           start tag of a key that begins to wait
//!   F = S + ROUND                                           its finish tag after a turn: the next S while it waits on
//!   V = min(max(S, V + ROUND / n), S + ROUND)               virtual time, after a turn with tag S of one of n waiting keys
//! ```
//!
//! Of equal tags, the one that was assigned first goes first.
//!
//! # Why virtual time moves by `ROUND / n`
//!
//! In plain start-time fair queueing `V` is the tag of the last turn. Then an endless stream of new keys starves an old one:
//! each new key gets the tag `V`, has its turn with it, and `V` never reaches the tag of the old key, `V + ROUND`. So each
//! turn moves `V` by at least the part of a round that it is, as in WF²Q+.
//!
//! # What follows
//!
//! Let `s` be the tag of the last turn.
//!
//! 1. `s ≤ V ≤ s + ROUND`, by the formula. Turns have tags in ascending order: the smallest tag goes first, and new ones are
//!    at least `V ≥ s`. So `V` never decreases: before a turn with tag `S` it is at most `s + ROUND ≤ S + ROUND`.
//! 2. All waiting tags lie in `[s, s + ROUND]`. Hence of two keys that both wait all the time, neither has more than two
//!    turns more than the other.
//! 3. **A key that begins to wait with `S = V` waits for at most one turn of every other waiting key.** Another key has a tag
//!    of at least `s ≥ V - ROUND`. After one turn its tag is at least `V`, and was assigned later. Keys that come later also
//!    get at least `V`, later.
//! 4. **No key starves.** A key that had its turn with tag `S` waits on with `S + ROUND`. While `V` is smaller, each turn
//!    moves it by at least `ROUND / m` if at most `m` keys wait. (The cap `s + ROUND` does not stop it before `S + ROUND`, as
//!    `s ≥ S`.) After at most `m` turns no new key can get ahead, and of those that are ahead each has one turn by 2. So the
//!    key has its next turn after fewer than `2 · m` turns of others.
//! 5. **There is no credit.** A key that did not wait begins at `V`, however long it was away.
//! 6. The finish tag of a key that waits no more is kept while it is larger than `V`; otherwise a key that comes back as soon
//!    as it had its turn would begin at `V` again and again. By 4 there are at most `m` such keys.
//!
//! When no request waits, all tags are forgotten: the next request does not delay any other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidegate_core::Timestamp;

/// By how much a turn moves the tag of its key. Large enough that a ten-thousandth of it is hardly rounded; and at 100,000
/// turns per second tags would overflow after five years in which at least one request waits at any time.
const ROUND: u64 = 1 << 20;

/// Requests that wait in one class. `W` is whatever the caller needs to wake them.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    /// By key and number, so the requests of a key are neighbours, the oldest first.
    requests: BTreeMap<(u64, u64), QueuedRequest<W>>,
    /// Keys that wait, and those that wait no more but whose finish tag is larger than `virtual_time`.
    keys: HashMap<u64, KeyQueue>,
    /// The keys that wait, in the order of their turns.
    turns: BTreeSet<KeyTurn>,
    /// The keys with at least two waiting requests: how many, and the key.
    lengths: BTreeSet<(usize, u64)>,
    /// The keys that wait no more: their finish tag, and the key.
    idle: BTreeSet<(u64, u64)>,
    virtual_time: u64,
    /// How many tags were assigned; orders equal tags.
    assigned: u64,
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct QueuedRequest<W> {
    pub(super) deadline: Timestamp,
    pub(super) waiter: W,
}

/// A request that left the queue, with its key and number.
pub(super) struct Dequeued<W> {
    pub(super) key: u64,
    pub(super) number: u64,
    pub(super) request: QueuedRequest<W>,
}

#[derive(Clone, Copy, Debug)]
struct KeyQueue {
    /// While the key waits, the tag of its next turn; else its finish tag.
    tag: u64,
    /// When the tag was assigned.
    assigned: u64,
    /// How many of its requests wait.
    length: usize,
}

/// The fields are in the order in which turns are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyTurn {
    tag: u64,
    assigned: u64,
    key: u64,
}

impl<W> FairQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            requests: BTreeMap::new(),
            keys: HashMap::new(),
            turns: BTreeSet::new(),
            lengths: BTreeSet::new(),
            idle: BTreeSet::new(),
            virtual_time: 0,
            assigned: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request. Numbers ascend.
    pub(super) fn push(&mut self, key: u64, number: u64, request: QueuedRequest<W>) {
        self.requests.insert((key, number), request);
        match self.keys.get(&key).copied() {
            Some(queue) if queue.length > 0 => {
                self.set_length(key, queue, queue.length.saturating_add(1));
            }
            Some(queue) => {
                self.idle.remove(&(queue.tag, key));
                self.assign(key, queue.tag.max(self.virtual_time), 1);
            }
            None => self.assign(key, self.virtual_time, 1),
        }
    }

    /// Whether a request of a key waits that may start.
    pub(super) fn has_turn(&self, may_start: impl Fn(u64) -> bool) -> bool {
        self.turns.iter().any(|turn| may_start(turn.key))
    }

    /// Removes the request whose turn it is: the first of a key that may start one.
    ///
    /// Keys that may not are passed over. They lose their place, and begin again at virtual time, like a key that was away: no
    /// credit, and by 3 above they wait for at most one turn of every other key from when they may start again.
    pub(super) fn pop(&mut self, may_start: impl Fn(u64) -> bool) -> Option<Dequeued<W>> {
        let keys = self.turns.len();
        let turn = *self.turns.iter().find(|turn| may_start(turn.key))?;
        let passed_over: Vec<KeyTurn> = self.turns.range(..turn).copied().collect();
        self.turns.remove(&turn);
        let queue = self.keys.get(&turn.key).copied()?;
        let (&place, _) = self.requests.range((turn.key, 0)..).next()?;
        let request = self.requests.remove(&place)?;
        self.pass_time(turn.tag, keys);
        let (next, left) = (turn.tag.saturating_add(ROUND), queue.length.saturating_sub(1));
        self.index_length(turn.key, queue.length, left);
        self.assign(turn.key, next, left);
        for passed in passed_over {
            self.turns.remove(&passed);
            let length = self.keys.get(&passed.key).map_or(0, |queue| queue.length);
            self.assign(passed.key, passed.tag.max(self.virtual_time), length);
        }
        self.forget();
        Some(Dequeued { key: turn.key, number: place.1, request })
    }

    /// Removes a request that stops waiting. Its key keeps its tag: it had no turn.
    pub(super) fn remove(&mut self, key: u64, number: u64) -> Option<QueuedRequest<W>> {
        let request = self.requests.remove(&(key, number))?;
        if let Some(queue) = self.keys.get(&key).copied() {
            self.set_length(key, queue, queue.length.saturating_sub(1));
        }
        self.forget();
        Some(request)
    }

    /// Removes the youngest request of the key with the most requests. If no key has more than one, it is the request that
    /// would have been the last to have a turn.
    pub(super) fn remove_youngest_of_longest(&mut self) -> Option<Dequeued<W>> {
        let longest = self.lengths.last().map(|(_, key)| *key);
        let key = longest.or_else(|| self.turns.last().map(|turn| turn.key))?;
        let (&(_, number), _) = self.requests.range(..=(key, u64::MAX)).next_back()?;
        let request = self.remove(key, number)?;
        Some(Dequeued { key, number, request })
    }

    /// Moves virtual time after a turn with this tag, when this many keys waited.
    fn pass_time(&mut self, tag: u64, keys: usize) {
        let keys = u64::try_from(keys).unwrap_or(u64::MAX).max(1);
        let part = ROUND.div_ceil(keys);
        let moved = self.virtual_time.saturating_add(part).max(tag);
        self.virtual_time = moved.min(tag.saturating_add(ROUND));
    }

    /// Gives a key its tag: in the order of turns if it waits, else among the idle ones.
    fn assign(&mut self, key: u64, tag: u64, length: usize) {
        self.assigned = self.assigned.wrapping_add(1);
        let assigned = self.assigned;
        self.keys.insert(key, KeyQueue { tag, assigned, length });
        if length > 0 {
            self.turns.insert(KeyTurn { tag, assigned, key });
        } else {
            self.idle.insert((tag, key));
        }
    }

    /// Changes how many requests of a key wait, without a turn. Its tag stays the same.
    fn set_length(&mut self, key: u64, queue: KeyQueue, length: usize) {
        self.index_length(key, queue.length, length);
        self.keys.insert(key, KeyQueue { length, ..queue });
        if length == 0 {
            self.turns.remove(&KeyTurn { tag: queue.tag, assigned: queue.assigned, key });
            self.idle.insert((queue.tag, key));
        }
    }

    fn index_length(&mut self, key: u64, old: usize, new: usize) {
        if old > 1 {
            self.lengths.remove(&(old, key));
        }
        if new > 1 {
            self.lengths.insert((new, key));
        }
    }

    /// Forgets finish tags that virtual time has reached; all of them, if no request waits.
    fn forget(&mut self) {
        if self.is_empty() {
            self.keys.clear();
            self.idle.clear();
            self.virtual_time = 0;
        }
        while let Some(&(tag, key)) = self.idle.first().filter(|(tag, _)| *tag <= self.virtual_time)
        {
            self.idle.remove(&(tag, key));
            self.keys.remove(&key);
        }
    }
}

#[cfg(test)]
impl<W> FairQueue<W> {
    /// How many keys are remembered although they do not wait.
    pub(super) fn remembered(&self) -> usize {
        self.idle.len()
    }

    /// Whether the indices describe the waiting requests, and the tags are where the head of this file says.
    pub(super) fn assert_consistent(&self) {
        let mut lengths = BTreeMap::<u64, usize>::new();
        self.requests.keys().for_each(|(key, _)| *lengths.entry(*key).or_default() += 1);
        let turns: BTreeMap<u64, KeyTurn> =
            self.turns.iter().map(|turn| (turn.key, *turn)).collect();
        assert_eq!(turns.len(), self.turns.len());
        assert!(turns.keys().eq(lengths.keys()));
        assert_eq!(self.keys.len(), turns.len() + self.idle.len());
        let long = lengths.iter().filter(|(_, length)| **length > 1);
        assert_eq!(self.lengths, long.map(|(key, length)| (*length, *key)).collect());
        for (key, queue) in &self.keys {
            assert_eq!(queue.length, lengths.get(key).copied().unwrap_or(0));
            match turns.get(key) {
                Some(turn) => assert_eq!((turn.tag, turn.assigned), (queue.tag, queue.assigned)),
                None => assert!(self.idle.contains(&(queue.tag, *key))),
            }
        }
        assert!(self.idle.iter().all(|(tag, _)| *tag > self.virtual_time));
        let (first, last) = (self.turns.first(), self.turns.last());
        assert!(first.zip(last).is_none_or(|(first, last)| last.tag - first.tag <= ROUND));
    }
}
