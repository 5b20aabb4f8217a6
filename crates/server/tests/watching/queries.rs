//! The queries of the dashboard and of the alerts, and the metrics and labels that they name.

use crate::support::project;
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) const DASHBOARD: &str = "deploy/grafana/tidegate.json";
pub(crate) const RULES: &str = "deploy/prometheus/tidegate.rules.yaml";

/// A query, and the panel or alert that it is of.
pub(crate) struct Query {
    pub(crate) of: String,
    pub(crate) text: String,
}

/// An alert: its fields in the file of rules.
#[derive(Default)]
pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) expr: String,
    pub(crate) runbook: String,
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The queries of all panels, with values in place of Grafana's variables.
pub(crate) fn of_dashboard() -> Vec<Query> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().into_iter().flatten();
        queries.extend(targets.map(|target| {
            Query {
                of: panel["title"].as_str().unwrap().to_owned(),
                text: target["expr"]
                    .as_str()
                    .unwrap()
                    .replace("$instance", ".*")
                    .replace("$__rate_interval", "5m"),
            }
        }));
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let names: Vec<&str> = variables.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance"]);
    assert!(queries.len() > 40, "{} queries", queries.len());
    queries
}

/// The alerts. Their fields stand on lines of their own.
pub(crate) fn of_alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    for line in read(RULES).lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push(Alert { name: name.to_owned(), ..Alert::default() });
        } else if let Some(expr) = line.strip_prefix("expr: ") {
            expr.clone_into(&mut alerts.last_mut().unwrap().expr);
        } else if let Some(runbook) = line.strip_prefix("runbook: ") {
            runbook.clone_into(&mut alerts.last_mut().unwrap().runbook);
        }
    }
    assert!(alerts.len() > 10, "{} alerts", alerts.len());
    alerts
}

/// The name of a series, and its labels, each with the words that it is compared with.
type Selector = (String, Vec<(String, Vec<String>)>);

/// What a query names: each metric, and its matchers as label and value. The value is empty unless the matcher is `=` or lists
/// words with `=~`.
pub(crate) fn selectors(query: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("tidegate_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let (matchers, after) = match after.strip_prefix('{') {
            Some(after) => after.split_once('}').unwrap(),
            None => ("", after),
        };
        let matchers = matchers.split_terminator(',').map(|matcher| {
            let (label, value) = matcher.split_once('=').unwrap();
            let words = value.trim_start_matches('~').trim_matches('"').split('|');
            let is_word =
                |word: &&str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let negated = label.ends_with('!') || !value.ends_with('"');
            let words = words.filter(is_word).filter(|_| !negated).map(str::to_owned);
            (label.trim_end_matches('!').trim().to_owned(), words.collect())
        });
        found.push((name.to_owned(), matchers.collect()));
        rest = after;
    }
    found
}

/// The labels by which a query groups.
pub(crate) fn groupings(query: &str) -> BTreeSet<&str> {
    let mut labels = BTreeSet::new();
    for part in
        [" by (", " by(", "on (", "group_left ("].iter().flat_map(|word| query.split(word).skip(1))
    {
        let list = part.split(')').next().unwrap();
        labels.extend(list.split(',').map(str::trim).filter(|label| !label.is_empty()));
    }
    labels
}
