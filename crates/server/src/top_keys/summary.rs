//! What nodes tell each other about their top keys: the lists of a node, as bounded JSON.

use super::{RuleLists, TopBy, TopKeys, TopList};
use crate::shown_key::ShownKey;
use crate::top_keys::list::RankedKey;
use serde::{Deserialize, Serialize};

/// The lists of a node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeSummary {
    /// The version of the format.
    v: u8,
    since_ms: u64,
    lists: Vec<SummaryList>,
}

/// The top keys of one tally of a rule.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SummaryList {
    rule: String,
    by: String,
    rest: u64,
    keys: Vec<SummaryKey>,
}

/// The identity of a key, its count and error, and how it is shown.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SummaryKey(u64, u64, u64, Option<Vec<(String, String)>>);

/// The longest summary.
const MOST_BYTES: usize = 128 * 1024;
/// Keys of a list: as many as the admin API shows at most.
pub(crate) const MOST_KEYS: usize = 100;
const VERSION: u8 = 1;

impl TopKeys {
    /// The summary of this node. If it is too long, every list gets shorter.
    pub(crate) fn summary(&self) -> Vec<u8> {
        let (since_ms, mut lists) = self.lists();
        let mut most = MOST_KEYS;
        loop {
            lists.iter_mut().for_each(|(_, _, list)| list.truncate(most));
            let summary = NodeSummary::of(since_ms, &lists);
            let text = serde_json::to_vec(&summary).unwrap_or_default();
            if text.len() <= MOST_BYTES {
                return text;
            }
            if most <= 1 {
                // More rules than fit with one key each.
                lists.truncate(lists.len() / 2);
            }
            most = (most / 2).max(1);
        }
    }
}

impl NodeSummary {
    fn of(since_ms: u64, lists: &RuleLists) -> Self {
        let key = |key: &RankedKey| {
            let pairs = key.key.as_ref().map(|ShownKey(pairs)| pairs.clone());
            SummaryKey(key.id, key.count, key.error, pairs)
        };
        let list = |(by, rule, list): &(TopBy, String, TopList)| SummaryList {
            rule: rule.clone(),
            by: by.name().to_owned(),
            rest: list.rest,
            keys: list.keys.iter().map(key).collect(),
        };
        Self { v: VERSION, since_ms, lists: lists.iter().map(list).collect() }
    }

    /// Reads the summary of another node; `None` for one of another version of tidegate.
    pub(crate) fn read(text: &[u8]) -> Option<(u64, RuleLists)> {
        let text = Some(text).filter(|text| text.len() <= MOST_BYTES)?;
        let summary: Self =
            serde_json::from_slice(text).ok().filter(|read: &Self| read.v == VERSION)?;
        let key = |SummaryKey(id, count, error, pairs): SummaryKey| RankedKey {
            id,
            key: pairs.map(ShownKey),
            count,
            error,
        };
        let list = |list: SummaryList| {
            let keys = list.keys.into_iter().map(key).collect();
            Some((TopBy::of(&list.by)?, list.rule, TopList { keys, rest: list.rest }))
        };
        Some((summary.since_ms, summary.lists.into_iter().filter_map(list).collect()))
    }
}
