//! How many seats each key may use while others need them: a quarter.
//!
//! Fair queueing alone does not protect the keys from one whose requests take long: it takes a seat whenever no other request
//! happens to wait, and keeps it. So, as for [classes](super::machine), a seat must be kept free *before* another key needs it:
//!
//! ```text
//!   share = a quarter of the seats, at least one
//!   key k may start a request  iff  in flight_k < share
//!                               or  L - in flight > min(peak, Σ min(share, peak_d)) - Σ min(share, in flight_d)
//!                                                            d≠k                      d≠k
//! ```
//!
//! `peak_d` is the highest demand (in flight and waiting) of key `d` in the last 10 to 20 s, and `peak` that of all keys at a time, of
//! each at most its share. So a key that is alone may use all seats. While several keys want more than their shares, they have all of
//! their shares, so no seat is kept free, and they divide the rest. And many keys that come one after another keep no more seats free
//! than they need at a time.
//!
//! **Example.** `L = 8`, so a share is 2. A key has endless slow requests, and five others never have more than one request each. The
//! slow key has 3 seats, and the others always find a free one.
//!
//! A key is remembered after its last request, until its peak is forgotten. Only a bounded number of keys is; when there are more,
//! `peak` alone counts for a while, and more seats may be kept free than needed.

use super::recent::{Ended, Recent};
use std::collections::HashMap;

/// What the keys use and want.
#[derive(Debug)]
pub(super) struct KeyShares {
    /// The seats that a key may use whatever the others do.
    share: usize,
    keys: HashMap<u64, KeyDemand>,
    /// How many of the keys have no request.
    idle: usize,
    /// The sums over all keys, of each at most its share: what they use, want, and wanted recently.
    used: usize,
    demand: usize,
    peaks: usize,
    /// What all keys wanted at a time.
    recent: Recent,
    /// Whether a key was forgotten too early, in the current window or the one before.
    forgot: [bool; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KeyDemand {
    in_flight: usize,
    waiting: usize,
    /// The highest demand in the current window, and in the one before.
    peaks: [usize; 2],
}

/// The most keys without requests that are remembered.
const MOST_IDLE: usize = 4_096;

impl KeyShares {
    pub(super) fn new() -> Self {
        Self {
            share: usize::MAX,
            keys: HashMap::new(),
            idle: 0,
            used: 0,
            demand: 0,
            peaks: 0,
            recent: Recent::default(),
            forgot: [false; 2],
        }
    }

    /// Follows a new number of seats; `None` is any number.
    pub(super) fn set_limit(&mut self, limit: Option<usize>) {
        self.share = limit.map_or(usize::MAX, |limit| limit.div_ceil(4).max(1));
        self.add_up();
        self.recent.count_demand(self.demand);
    }

    /// Whether a request of this key may start while this many seats are free.
    pub(super) fn may_start(&self, key: u64, free: usize) -> bool {
        let own = self.keys.get(&key).copied().unwrap_or_default();
        if own.in_flight < self.share {
            return true;
        }
        let peaks = self.peaks.saturating_sub(own.peak().min(self.share));
        let wanted = if self.forgot == [false; 2] { peaks } else { usize::MAX };
        let used = self.used.saturating_sub(own.in_flight.min(self.share));
        free > wanted.min(self.recent.peak()).saturating_sub(used)
    }

    pub(super) fn start(&mut self, key: u64) {
        self.change(key, |key| key.in_flight = key.in_flight.saturating_add(1));
    }

    pub(super) fn finish(&mut self, key: u64) {
        self.change(key, |key| key.in_flight = key.in_flight.saturating_sub(1));
    }

    pub(super) fn enter_queue(&mut self, key: u64) {
        self.change(key, |key| key.waiting = key.waiting.saturating_add(1));
    }

    pub(super) fn leave_queue(&mut self, key: u64) {
        self.change(key, |key| key.waiting = key.waiting.saturating_sub(1));
    }

    /// Goes on to the next window.
    pub(super) fn roll(&mut self, ended: Ended) {
        if ended == Ended::None {
            return;
        }
        self.recent.roll(ended, self.demand);
        self.forgot = [false, ended == Ended::Current && self.forgot[0]];
        self.keys.retain(|_, key| {
            let before = if ended == Ended::Current { key.peaks[0] } else { key.demand() };
            key.peaks = [key.demand(), before];
            key.peak() > 0
        });
        self.idle = self.keys.values().filter(|key| key.demand() == 0).count();
        self.add_up();
    }

    fn change(&mut self, key: u64, change: impl FnOnce(&mut KeyDemand)) {
        let known = self.keys.get(&key).copied();
        let before = known.unwrap_or_default();
        let mut after = before;
        change(&mut after);
        after.peaks[0] = after.peaks[0].max(after.demand());
        let was_idle = known.is_some_and(|key| key.demand() == 0);
        let is_idle = after.demand() == 0;
        self.idle = self.idle.saturating_sub(usize::from(was_idle));
        if is_idle && self.idle >= MOST_IDLE {
            self.forgot[0] = true;
            after.peaks = [0; 2];
            self.keys.remove(&key);
        } else {
            self.idle = self.idle.saturating_add(usize::from(is_idle));
            self.keys.insert(key, after);
        }
        let share = self.share;
        let moved = |sum: usize, number: fn(&KeyDemand) -> usize| {
            sum.saturating_add(number(&after).min(share)).saturating_sub(number(&before).min(share))
        };
        self.used = moved(self.used, |key| key.in_flight);
        self.demand = moved(self.demand, KeyDemand::demand);
        self.peaks = moved(self.peaks, KeyDemand::peak);
        self.recent.count_demand(self.demand);
    }

    fn add_up(&mut self) {
        (self.used, self.demand, self.peaks) =
            (self.sum(|key| key.in_flight), self.sum(KeyDemand::demand), self.sum(KeyDemand::peak));
    }

    /// The sum of a number of each key, of each at most its share.
    fn sum(&self, number: fn(&KeyDemand) -> usize) -> usize {
        let numbers = self.keys.values().map(|key| number(key).min(self.share));
        numbers.fold(0, usize::saturating_add)
    }
}

impl KeyDemand {
    fn demand(&self) -> usize {
        self.in_flight.saturating_add(self.waiting)
    }

    fn peak(&self) -> usize {
        self.peaks[0].max(self.peaks[1])
    }
}

#[cfg(test)]
impl KeyShares {
    /// Whether the sums are those of the keys, and no key is remembered in vain.
    pub(super) fn assert_consistent(&self, in_flight: usize, waiting: usize) {
        let all = |number: fn(&KeyDemand) -> usize| self.keys.values().map(number).sum::<usize>();
        assert_eq!((all(|key| key.in_flight), all(|key| key.waiting)), (in_flight, waiting));
        assert_eq!(
            (self.used, self.demand, self.peaks),
            (self.sum(|key| key.in_flight), self.sum(KeyDemand::demand), self.sum(KeyDemand::peak))
        );
        assert!(self.keys.values().all(|key| key.peak() > 0));
        assert_eq!(self.idle, self.keys.values().filter(|key| key.demand() == 0).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that invent keys fill no memory. Meanwhile a key with its share still leaves what all keys needed at a time.
    #[test]
    fn a_bounded_number_of_keys_is_remembered() {
        let mut shares = KeyShares::new();
        shares.set_limit(Some(8));
        let invented = 10 + u64::try_from(MOST_IDLE).unwrap();
        for key in 0..10 * invented {
            shares.start(key);
            shares.finish(key);
        }
        assert_eq!((shares.keys.len(), shares.idle), (MOST_IDLE, MOST_IDLE));
        (0..2).for_each(|_| shares.start(u64::MAX));
        // At most one other request ran at a time; the peak is that of the key itself, since the windows know no better.
        assert_eq!([2, 3].map(|free| shares.may_start(u64::MAX, free)), [false, true]);
        (0..2).for_each(|_| shares.roll(Ended::Current));
        assert_eq!((shares.keys.len(), shares.idle), (1, 0));
        assert!(shares.may_start(u64::MAX, 1));
    }
}
