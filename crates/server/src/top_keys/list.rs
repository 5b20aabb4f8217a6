//! Lists of top keys, and how those of several workers and nodes become one.

use super::table::label_bytes;
use crate::shown_key::ShownKey;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The heaviest keys of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct TopList {
    /// The heaviest first.
    pub(crate) keys: Vec<RankedKey>,
    /// The most that a key can have that is not in the list.
    pub(crate) rest: u64,
}

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "TopKey"))]
pub(crate) struct RankedKey {
    /// A keyed hash of its values, the same on every worker and node.
    #[serde(skip)]
    pub(crate) id: u64,
    /// `null` if keys are not shown.
    pub(crate) key: Option<ShownKey>,
    /// Of `used`, the cost of the requests that passed; otherwise requests.
    pub(crate) count: u64,
    /// The true count is at most this much lower or higher.
    pub(crate) error: u64,
}

/// A key in several lists.
#[derive(Default)]
struct MergedKey {
    key: Option<ShownKey>,
    count: u64,
    error: u64,
    /// The `rest` of the lists that have the key.
    rest: u64,
}

impl TopList {
    /// One list of several that counted different requests. A key that is missing in one of them may have as much there as the
    /// list's `rest`, which is added to its error.
    pub(crate) fn merged(lists: impl IntoIterator<Item = Self>) -> Self {
        let (mut keys, mut all) = (HashMap::<u64, MergedKey>::new(), 0_u64);
        for list in lists {
            all = all.saturating_add(list.rest);
            for RankedKey { id, key, count, error } in list.keys {
                let sum = keys.entry(id).or_default();
                sum.key = sum.key.take().or(key);
                sum.count = sum.count.saturating_add(count);
                sum.error = sum.error.saturating_add(error);
                sum.rest = sum.rest.saturating_add(list.rest);
            }
        }
        let merged = |(id, sum): (u64, MergedKey)| RankedKey {
            id,
            key: sum.key,
            count: sum.count,
            error: sum.error.saturating_add(all.saturating_sub(sum.rest)),
        };
        let mut list = Self { keys: keys.into_iter().map(merged).collect(), rest: all };
        list.sort();
        list
    }

    /// Keeps the heaviest keys.
    pub(crate) fn truncate(&mut self, most: usize) {
        if let Some(dropped) = self.keys.get(most) {
            self.rest = self.rest.max(dropped.count);
            self.keys.truncate(most);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys.iter().map(|key| label_bytes(key.key.as_ref()));
        keys.fold(size_of::<Self>(), usize::saturating_add)
    }

    /// Keys with the same count are sorted by what does not change.
    pub(super) fn sort(&mut self) {
        self.keys.sort_unstable_by_key(|key| (Reverse(key.count), key.error, key.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rest: u64, keys: &[(u64, u64, u64)]) -> TopList {
        let key = |(id, count, error): &(u64, u64, u64)| RankedKey {
            id: *id,
            key: None,
            count: *count,
            error: *error,
        };
        TopList { keys: keys.iter().map(key).collect(), rest }
    }

    #[test]
    fn counts_of_one_key_are_added_and_a_list_without_it_makes_it_less_certain() {
        let lists = [list(3, &[(1, 10, 1), (2, 8, 0)]), list(5, &[(2, 7, 2), (9, 6, 0)])];
        let merged = TopList::merged(lists);
        assert_eq!(merged, list(8, &[(2, 15, 2), (1, 10, 6), (9, 6, 3)]));
    }

    #[test]
    fn what_is_left_out_of_a_list_can_still_be_in_it() {
        let mut short = list(1, &[(1, 10, 1), (2, 8, 0), (3, 4, 0)]);
        short.truncate(1);
        assert_eq!(short, list(8, &[(1, 10, 1)]));
        short.truncate(5);
        assert_eq!(short.rest, 8);
    }
}
