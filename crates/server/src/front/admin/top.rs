//! Who uses the limits, and who is refused: `top` and `denials`.

use super::answers::{Denial, RecentDenialsBody, Scope, Top, TopRule};
use super::handler::AdminHandler;
use super::request::bad;
use crate::backend::Backend;
use crate::shared_store::top_keys_of_others;
use crate::top_keys::{RuleLists, TopBy, TopList};
use crate::web::{Answer, Call};
use http::StatusCode;
use serde_json::json;
use std::collections::BTreeMap;

/// Keys of each rule: by default, and at most.
pub(super) const TOP_KEYS: (usize, usize) = (20, 100);
/// Recent denials: by default, and at most.
pub(super) const DENIALS: (usize, usize) = (100, 1_000);

impl<S: Backend> AdminHandler<S> {
    /// The top keys of all nodes, or of this one if the store is not shared or does not answer.
    pub(super) async fn top(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let by = match call.parameter("by") {
            None => TopBy::Used,
            Some(name) => TopBy::of(name)
                .ok_or_else(|| bad("`by` must be `used`, `denied` or `would_deny`"))?,
        };
        let (last, rule) = (count(call, TOP_KEYS)?, call.parameter("rule"));
        if !self.page.top.is_on() {
            return Err(off());
        }
        let others = top_keys_of_others(self.limiter.store()).await;
        let scope = if others.is_some() { Scope::AllNodes } else { Scope::ThisNode };
        let mut nodes = others.unwrap_or_default();
        nodes.push(self.page.top.lists());
        let since_ms = nodes.iter().map(|(since, _)| *since).min().unwrap_or(0);
        let count = nodes.len();
        let lists =
            merged(nodes, |list_by, name| list_by == by && rule.is_none_or(|rule| rule == name));
        let shortened = |(rule, mut list): (String, TopList)| {
            list.truncate(last);
            TopRule { rule, list }
        };
        let rules = lists.into_iter().map(shortened).collect();
        let answer = Top { scope, nodes: count, by, since_ms, rules };
        Ok(Answer::json(StatusCode::OK, &json!(answer)))
    }

    /// The keys that this node refused last.
    pub(super) fn denials(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let last = count(call, DENIALS)?;
        if !self.page.top.is_on() {
            return Err(off());
        }
        let newest = self.page.top.recent().newest(last);
        let denials = newest.into_iter().map(Denial::from).collect();
        let answer = RecentDenialsBody { scope: Scope::ThisNode, denials };
        Ok(Answer::json(StatusCode::OK, &json!(answer)))
    }
}

fn off() -> Answer {
    let detail = "top keys are off; set top_keys.memory to a size, such as `4MiB`";
    Answer::problem(StatusCode::NOT_FOUND, detail)
}

/// The parameter `last`: by default, and at most.
fn count(call: &Call<'_>, (default, most): (usize, usize)) -> Result<usize, Answer> {
    match call.parameter("last").map(str::parse::<usize>) {
        None => Ok(default),
        Some(Ok(count)) => Ok(count.min(most)),
        Some(Err(_)) => Err(bad("`last` must be a number, such as `last=20`")),
    }
}

/// One list for each wanted rule, of the lists of several nodes.
fn merged(
    nodes: Vec<(u64, RuleLists)>,
    wanted: impl Fn(TopBy, &str) -> bool,
) -> BTreeMap<String, TopList> {
    let mut by_rule = BTreeMap::<String, Vec<TopList>>::new();
    for (by, rule, list) in nodes.into_iter().flat_map(|(_, lists)| lists) {
        if wanted(by, &rule) {
            by_rule.entry(rule).or_default().push(list);
        }
    }
    by_rule.into_iter().map(|(rule, lists)| (rule, TopList::merged(lists))).collect()
}
