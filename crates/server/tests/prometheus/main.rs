//! The dashboard and the alerts, with Prometheus itself. `make test-watching` runs these tests; they are not part of `make test`,
//! because they install Prometheus.
//!
//! ```text
//!   servers under load ──► their pages ──► blocks with timestamps that the test chooses ──► Prometheus ──► every query has data
//! ```
//!
//! No scrape interval has to pass for that: the pages are read between the steps of the load, and get timestamps a minute apart.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "../watching/deployment.rs"]
mod deployment;
#[path = "../watching/page.rs"]
#[allow(dead_code, reason = "the tests of the files use the rest")]
mod page;
#[path = "../watching/queries.rs"]
#[allow(dead_code, reason = "the tests of the files use the rest")]
mod queries;
#[path = "../support/mod.rs"]
mod support;

use deployment::Deployment;
use page::{Page, Sample};
use queries::{of_alerts, of_dashboard};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::upstream::free_address;
use support::{PATIENCE, Server, folder, pause, project, request};

/// When the first pages were read, as the test tells Prometheus.
const FIRST: u64 = 1_790_000_000;
const MINUTE: u64 = 60;

/// A running Prometheus, in a folder of its own. It ends with the test.
struct Prometheus {
    address: SocketAddr,
    child: Child,
    folder: PathBuf,
}

impl Prometheus {
    /// Starts it on the blocks in `folder/data`, with this configuration.
    fn start(folder: PathBuf, configuration: &str) -> Self {
        let address = free_address();
        std::fs::write(folder.join("prometheus.yml"), configuration).unwrap();
        let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg("--storage.tsdb.retention.time=100y")
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let prometheus = Self { address, child, folder };
        prometheus.until("it is ready", |prometheus| {
            // Nothing listens at first.
            std::net::TcpStream::connect(prometheus.address).is_ok()
                && request(prometheus.address, "GET", "/-/ready", &[], "").status == 200
        });
        prometheus
    }

    /// Waits until a condition holds. If it does not, the test fails.
    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..PATIENCE.as_millis() / 20 {
            if holds(self) {
                return;
            }
            pause(std::time::Duration::from_millis(20));
        }
        let log = std::fs::read_to_string(self.folder.join("prometheus.log")).unwrap();
        panic!("never so: {what}\n{log}");
    }

    /// The values of a query. Without a time, the values now.
    fn ask(&self, query: &str, at: Option<u64>) -> Vec<f64> {
        let encoded: String = query.bytes().fold(String::new(), |mut text, byte| {
            write!(text, "%{byte:02x}").unwrap();
            text
        });
        let time = at.map(|at| format!("&time={at}")).unwrap_or_default();
        let body = format!("query={encoded}{time}");
        let form = [("content-type", "application/x-www-form-urlencoded")];
        // HTTP/1.0 answers are not chunked.
        let reply = request(self.address, "POST", "/api/v1/query", &form, &body);
        let answer: Value = serde_json::from_str(&unchunked(&reply.head, &reply.body)).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap().iter();
        result.map(|one| one["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

/// The body of an answer that may be chunked.
fn unchunked(head: &str, body: &str) -> String {
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        whole.push_str(&after[..size]);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    whole
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The pages as one, with labels and timestamps as if Prometheus had read one after the other every minute.
fn with_timestamps(scrapes: &[[(&str, String); 3]]) -> String {
    let mut metrics: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (scrape, at) in scrapes.iter().zip((FIRST..).step_by(60)) {
        for (instance, text) in scrape {
            let Page { kinds, samples } = Page::read(text);
            for Sample { metric, name, labels, value } in samples {
                let kind = kinds[&metric].clone();
                let lines = &mut metrics.entry(metric).or_insert((kind, String::new())).1;
                let labels = labels.iter().map(|(label, value)| format!(",{label}=\"{value}\""));
                let labels: String = labels.collect();
                let added = format!("job=\"tidegate\",instance=\"{instance}\"");
                writeln!(lines, "{name}{{{added}{labels}}} {value} {at}").unwrap();
            }
        }
    }
    let mut text = String::new();
    for (name, (kind, lines)) in metrics {
        write!(text, "# TYPE {name} {kind}\n{lines}").unwrap();
    }
    text + "# EOF\n"
}

fn promtool(arguments: &[&str], paths: &[&Path]) {
    let output = Command::new("promtool").args(arguments).args(paths).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "promtool {arguments:?}: {}", said.concat());
}

/// The figure of this test is the number of queries without data. It must be 0.
#[test]
fn every_query_has_data_from_servers_under_load() {
    let mut deployment = Deployment::start();
    let mut scrapes = vec![deployment.pages()];
    for _ in 0..3 {
        deployment.load();
        scrapes.push(deployment.pages());
    }
    let folder = folder("prometheus");
    let pages = folder.join("pages");
    std::fs::write(&pages, with_timestamps(&scrapes)).unwrap();
    promtool(&["tsdb", "create-blocks-from", "openmetrics"], &[&pages, &folder.join("data")]);
    let prometheus = Prometheus::start(folder, "global: {}\n");
    let last = FIRST + 3 * MINUTE;
    let queries = of_dashboard();
    let mut empty = Vec::new();
    for query in &queries {
        // A quantile of no requests is not a number.
        if !prometheus.ask(&query.text, Some(last)).iter().any(|value| value.is_finite()) {
            empty.push(format!("{}: {}", query.of, query.text));
        }
    }
    println!(
        "Grafana queries that return no data from a server under load: {} of {}",
        empty.len(),
        queries.len()
    );
    assert_eq!(empty, [""; 0]);
    // Prometheus understands the alerts, too. What they say of broken servers is in the tests of the rules.
    of_alerts().iter().for_each(|alert| _ = prometheus.ask(&alert.expr, Some(last)));
}

#[test]
fn the_rules_are_valid_and_fire_as_their_tests_say() {
    promtool(&["check", "rules"], &[&project(queries::RULES)]);
    promtool(&["test", "rules"], &[&project("deploy/prometheus/tidegate.rules.test.yaml")]);
}

/// Prometheus reads the metrics listener as docs/metrics.md configures it.
#[test]
fn prometheus_reads_the_metrics_listener() {
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/s] }] }";
    let server = Server::with_policy(policy, &["--metrics-listen", "127.0.0.1:0"]);
    let page = queries::read("docs/metrics.md");
    let documented = page.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    let targets = "\"10.0.0.1:9464\", \"10.0.0.2:9464\"";
    assert!(documented.contains(targets), "{documented}");
    let configuration = documented.replace(targets, &format!("\"{}\"", server.metrics));
    let folder = folder("prometheus");
    std::fs::copy(project(queries::RULES), folder.join("tidegate.rules.yaml")).unwrap();
    let configuration = format!("global: {{ scrape_interval: 1s }}\n{configuration}");
    let prometheus = Prometheus::start(folder, &configuration);
    prometheus.until("a scrape", |prometheus| {
        prometheus
            .ask("scrape_samples_post_metric_relabeling{job=\"tidegate\"}", None)
            .iter()
            .any(|count| *count > 50.0)
    });
    assert!(prometheus.ask("tidegate_problem", None).iter().all(|value| *value < 1.0));
}
