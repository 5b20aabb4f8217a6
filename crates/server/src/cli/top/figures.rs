//! What `tidegate top` shows: the answers of the admin API as rows, and rates from two answers.

use crate::cli::admin::access::AdminSession;
use crate::cli::duration;
use crate::timers;
use crate::top_keys::TopBy;
use serde_json::{Value, json};
use std::io;
use std::time::Duration;
use tidegate_policy::printable;
use tokio::time::Instant;

/// What the server is asked for.
#[derive(Clone)]
pub(super) struct TopQuestion {
    pub(super) by: TopBy,
    pub(super) rule: Option<String>,
    pub(super) last: usize,
}

/// The figures of one moment.
pub(super) struct Figures {
    at: Instant,
    answers: [Value; 3],
    by: TopBy,
    pub(super) keys: Vec<KeyRow>,
    pub(super) rules: Vec<RuleRow>,
    pub(super) nodes: Vec<NodeRow>,
    /// The reasons why `/ready` reports a degraded server.
    pub(super) problems: Vec<String>,
}

/// A top key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyRow {
    pub(super) rule: String,
    pub(super) key: String,
    pub(super) count: u64,
    pub(super) error: u64,
}

/// A rule, and its decisions on the node that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleRow {
    pub(super) rule: String,
    /// Allowed, delayed, denied, and what would have been denied.
    pub(super) counts: [u64; 4],
    /// The counts per second since the figures before.
    pub(super) rates: Option<[u64; 4]>,
}

/// A node that shares the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) policy: String,
    pub(super) silent_ms: u64,
}

/// Limits that clients name have no rule.
const NAMED_BY_CLIENTS: &str = "(named by clients)";

impl Figures {
    pub(super) fn fetch(session: &AdminSession, asked: &TopQuestion) -> io::Result<Self> {
        let TopQuestion { by, rule, last } = asked;
        let rule = rule.as_ref().map(|rule| format!("&rule={rule}")).unwrap_or_default();
        let top = session.get(&format!("/admin/v1/top?by={}&last={last}{rule}", by.name()))?;
        let answers = [top, session.get("/admin/v1/status")?, session.get("/admin/v1/nodes")?];
        Ok(Self::of(answers, *by))
    }

    /// The figures of the answers to `top`, `status` and `nodes`.
    pub(super) fn of(answers: [Value; 3], by: TopBy) -> Self {
        let [top, status, nodes] = &answers;
        let keys = list(top, "rules").flat_map(|rule| {
            let name = rule_name(rule);
            list(rule, "keys").map(move |key| key_row(name.clone(), key))
        });
        let rules = list(status, "rules").map(|rule| RuleRow {
            rule: rule_name(rule),
            counts: ["allowed", "delayed", "denied", "would_deny"].map(|name| number(rule, name)),
            rates: None,
        });
        let node = |node: &Value| NodeRow {
            name: match text(node, "node") {
                name if name.is_empty() => "this node".to_owned(),
                name => name,
            },
            policy: text(node, "policy_hash"),
            silent_ms: number(node, "silent_ms"),
        };
        let mut figures = Self {
            at: timers::now(),
            by,
            keys: keys.collect(),
            rules: rules.collect(),
            nodes: list(nodes, "nodes").map(node).collect(),
            problems: problems(status.get("health").unwrap_or(&Value::Null)),
            answers,
        };
        figures.keys.sort_by_key(|row| std::cmp::Reverse(row.count));
        figures
    }

    /// Adds the rates since earlier figures.
    pub(super) fn since(self, earlier: &Self) -> Self {
        let time = self.at.saturating_duration_since(earlier.at);
        self.after(earlier, time)
    }

    pub(super) fn after(mut self, earlier: &Self, time: Duration) -> Self {
        for row in &mut self.rules {
            let before = earlier.rules.iter().find(|before| before.rule == row.rule);
            row.rates = before.and_then(|before| rates(before.counts, row.counts, time));
        }
        self
    }

    /// What is counted, of how many nodes, and since when.
    pub(super) fn title(&self) -> String {
        let [top, ..] = &self.answers;
        let what = match self.by {
            TopBy::Used => "Most used",
            TopBy::Denied => "Most denied",
            TopBy::WouldDeny => "Would be denied most",
        };
        let nodes = match (text(top, "scope").as_str(), number(top, "nodes")) {
            ("all nodes", 1) | ("this node", _) => "this node".to_owned(),
            (_, count) => format!("{count} nodes"),
        };
        format!("{what}, {nodes}, the last 10 to 20 minutes")
    }

    /// The server, in one line.
    pub(super) fn server(&self) -> String {
        let [_, status, _] = &self.answers;
        let uptime = number(status, "uptime_s").saturating_mul(1_000);
        let memory = status.get("memory").filter(|memory| memory.is_object());
        let memory = memory.map(|memory| {
            let [used, budget] = ["bytes", "budget"].map(|name| number(memory, name) >> 20);
            format!(", {used} of {budget} MiB for counters")
        });
        format!(
            "tidegate {}, up {}, policy {}{}, {} requests without the store",
            text(status, "tidegate"),
            duration::of_millis(uptime),
            text(status, "policy_hash"),
            memory.unwrap_or_default(),
            number(status, "store_errors"),
        )
    }

    /// The answers, for programs.
    pub(super) fn json(&self) -> Value {
        let [top, status, nodes] = &self.answers;
        json!({ "top": top, "status": status, "nodes": nodes })
    }

    /// The names of the rules.
    pub(super) fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|row| &*row.rule).filter(|rule| *rule != NAMED_BY_CLIENTS)
    }
}

fn key_row(rule: String, key: &Value) -> KeyRow {
    let [count, error] = ["count", "error"].map(|name| number(key, name));
    let key = match key.get("key").and_then(Value::as_object) {
        None => "(not shown)".to_owned(),
        Some(pairs) if pairs.is_empty() => "(one counter for all)".to_owned(),
        Some(pairs) => {
            let pair = |(name, value): (&String, &Value)| {
                printable(&format!("{name}={}", value.as_str().unwrap_or_default()))
            };
            pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
        }
    };
    KeyRow { rule, key, count, error }
}

/// The growth of each count in a second, rounded; `None` if the server was restarted in between.
fn rates(before: [u64; 4], now: [u64; 4], time: Duration) -> Option<[u64; 4]> {
    let millis = u64::try_from(time.as_millis()).ok().filter(|millis| *millis > 0)?;
    let mut rates = [0; 4];
    for ((rate, before), now) in rates.iter_mut().zip(before).zip(now) {
        let more = now.checked_sub(before)?.saturating_mul(1_000);
        *rate = more.saturating_add(millis / 2).checked_div(millis)?;
    }
    Some(rates)
}

fn problems(health: &Value) -> Vec<String> {
    list(health, "reasons").map(|why| printable(why.as_str().unwrap_or_default())).collect()
}

fn rule_name(rule: &Value) -> String {
    match text(rule, "rule") {
        name if name.is_empty() => NAMED_BY_CLIENTS.to_owned(),
        name => name,
    }
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, name: &str) -> String {
    printable(value.get(name).and_then(Value::as_str).unwrap_or_default())
}
