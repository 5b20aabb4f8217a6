//! The dashboard, the alerts, the runbook and the reference of metrics, compared with what servers show.

use super::deployment::Deployment;
use super::page::Page;
use super::queries::{Query, groupings, of_alerts, of_dashboard, read, selectors};
use std::collections::{BTreeMap, BTreeSet};

/// A row of the tables in docs/metrics.md.
struct Documented {
    kind: String,
    labels: BTreeSet<String>,
}

/// Labels that Prometheus adds.
const ADDED: [&str; 3] = ["instance", "job", "le"];

/// The metrics that docs/metrics.md lists: `| name{label,label} | type | meaning |`.
fn documented() -> BTreeMap<String, Documented> {
    let mut all = BTreeMap::new();
    for line in read("docs/metrics.md").lines().filter(|line| line.starts_with("| `tidegate_")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let series = cells[0].trim_start_matches("| `").trim_end_matches('`');
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split_terminator(',').map(str::to_owned);
        let kind = cells[1].to_owned();
        let twice = all.insert(name.to_owned(), Documented { kind, labels: labels.collect() });
        assert!(twice.is_none(), "{name} is listed twice");
    }
    all
}

/// The values that docs/metrics.md lists for labels: `` | `label` | `value`, `value` | ``.
fn documented_values() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/metrics.md");
    let section = page.split("## Values of labels").nth(1).expect("a section about labels");
    let section = section.split("\n## ").next().unwrap();
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let label = cells[0].trim_start_matches("| ").trim_matches('`').to_owned();
        let value = cells[1].split(", ").map(|value| value.trim_matches('`').to_owned());
        all.entry(label).or_default().extend(value);
    }
    all
}

/// The name in the reference of a series in a query.
fn metric_of<'d>(
    documented: &'d BTreeMap<String, Documented>,
    series: &str,
) -> Option<(&'d String, &'d Documented)> {
    let is_it = |name: &str, kind: &str| match kind {
        "histogram" => {
            ["_bucket", "_sum", "_count"].iter().any(|end| series == format!("{name}{end}"))
        }
        _ => series == name,
    };
    documented.iter().find(|(name, it)| is_it(name, &it.kind))
}

fn all_queries() -> Vec<Query> {
    let mut queries = of_dashboard();
    queries.extend(of_alerts().into_iter().map(|alert| Query { of: alert.name, text: alert.expr }));
    queries
}

/// Every metric of a server has a row with its labels and its type, and every row has a metric.
#[test]
fn the_reference_lists_what_servers_show() {
    let mut deployment = Deployment::start();
    deployment.load();
    let documented = documented();
    let values = documented_values();
    let mut shown: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for (_, text) in deployment.pages() {
        let page = Page::read(&text);
        let labels = page.labels();
        for (metric, kind) in &page.kinds {
            let end = if kind == "counter" { "_total" } else { "" };
            let entry = shown.entry(format!("{metric}{end}")).or_default();
            entry.0.clone_from(kind);
            let labels = labels.get(&**metric).into_iter().flatten();
            for (label, seen) in labels.filter(|(label, _)| **label != "le") {
                entry.1.insert((*label).to_owned());
                // Labels without a list, such as `rule`, have the names that the operator gives.
                let Some(known) = values.get(*label) else { continue };
                let unknown = seen.iter().find(|value| !known.contains(**value));
                assert_eq!(unknown, None, "a value of {label} of {metric}");
            }
        }
    }
    let of_page: BTreeMap<String, (String, BTreeSet<String>)> =
        documented.into_iter().map(|(name, it)| (name, (it.kind, it.labels))).collect();
    for (name, row) in &shown {
        assert_eq!(of_page.get(name), Some(row), "{name} in docs/metrics.md");
    }
    let missing: Vec<&String> = of_page.keys().filter(|name| !shown.contains_key(*name)).collect();
    assert_eq!(missing, [""; 0], "documented, but not there");
}

/// A query with a misspelled metric or label has no data, and an alert with one never fires.
#[test]
fn queries_name_metrics_and_labels_that_exist() {
    let (documented, values) = (documented(), documented_values());
    for Query { of, text } in all_queries() {
        let mut known: BTreeSet<&str> = ADDED.into();
        for (series, matchers) in selectors(&text) {
            let metric = metric_of(&documented, &series);
            let (_, metric) = metric.unwrap_or_else(|| panic!("{of}: there is no metric {series}"));
            known.extend(metric.labels.iter().map(String::as_str));
            for (label, words) in matchers {
                assert!(
                    metric.labels.contains(&label) || ADDED.contains(&&*label),
                    "{of}: {series} has no label {label}"
                );
                for word in words {
                    let is_known = values.get(&label).is_none_or(|known| known.contains(&word));
                    assert!(is_known, "{of}: {label} is never {word}");
                }
            }
        }
        for label in groupings(&text) {
            assert!(known.contains(label), "{of}: groups by {label}, which no metric in it has");
        }
    }
}

/// What has no panel is not seen when it matters.
#[test]
fn every_metric_is_on_the_dashboard() {
    let documented = documented();
    let queries = of_dashboard();
    let series = queries.iter().flat_map(|query| selectors(&query.text));
    let series: Vec<String> = series.map(|(series, _)| series).collect();
    let shown: BTreeSet<&String> =
        series.iter().filter_map(|series| Some(metric_of(&documented, series)?.0)).collect();
    let missing: Vec<&String> = documented.keys().filter(|name| !shown.contains(name)).collect();
    assert_eq!(missing, [""; 0], "without a panel");
}

/// Every alert links to its paragraph of the runbook, which says what it means, what to look at and what to do.
#[test]
fn every_alert_has_its_paragraph_in_the_runbook() {
    let runbook = read("docs/runbook.md");
    let sections = runbook.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap());
    let sections: BTreeMap<&str, &str> = sections.collect();
    let mut names = BTreeSet::new();
    for alert in of_alerts() {
        assert_eq!(alert.runbook, format!("docs/runbook.md#{}", alert.name.to_lowercase()));
        let text = sections.get(&*alert.name);
        let text = text.unwrap_or_else(|| panic!("{} is not in the runbook", alert.name));
        for part in ["**Meaning.**", "**Look at.**", "**Do.**"] {
            assert!(text.contains(part), "{}: no {part}", alert.name);
        }
        names.insert(alert.name);
    }
    let others: Vec<&&str> = sections.keys().filter(|name| !names.contains(**name)).collect();
    assert_eq!(others, [&""; 0], "in the runbook, but not an alert");
}

/// The tests of the rules, which `make test-watching` runs, test every alert.
#[test]
fn every_alert_has_a_test() {
    let tests = read("deploy/prometheus/tidegate.rules.test.yaml");
    for alert in of_alerts() {
        let name = format!("alertname: {}\n", alert.name);
        assert!(tests.contains(&name), "{} has no test", alert.name);
        assert!(tests.matches(&name).count() >= 2, "{}: it fires, and it does not", alert.name);
    }
}
