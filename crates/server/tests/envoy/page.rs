//! The files of `docs/envoy`, with other ports and a timeout for busy machines; and the snippets of the pages about
//! them.

use super::mesh::{Config, Envoy};
use crate::support::upstream::{Upstream, free_address};
use crate::support::{Reply, Server, project};
use std::process::Command;

fn docs(name: &str) -> String {
    std::fs::read_to_string(project("docs").join(name)).unwrap()
}

/// The site of the page, with an Envoy that asks a tidegate with these flags.
struct Site {
    envoy: Envoy,
    tidegate: Server,
    _upstream: Upstream,
}

impl Site {
    fn start(flags: &[&str]) -> Self {
        let upstream = Upstream::start("the site");
        let tidegate = Server::start(flags);
        let envoy = Config(docs("envoy/envoy.yaml"))
            .with("timeout: 0.02s", "timeout: 10s")
            .at(9901, ([127, 0, 0, 1], 0).into())
            .at(10000, free_address())
            .at(3000, upstream.address)
            .at(8081, tidegate.grpc);
        Self { envoy: Envoy::start(&envoy), tidegate, _upstream: upstream }
    }

    fn statuses(&self, count: usize, path: &str, fields: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.envoy.get(path, fields).status).collect()
    }
}

#[test]
fn its_policy_limits_the_site() {
    let policy = project("docs/envoy/policy.yaml");
    let site = Site::start(&["--policy", policy.to_str().unwrap()]);
    assert_eq!(site.statuses(6, "/login", &[]), [200, 200, 200, 200, 200, 429]);
    // With any spelling of the path, and with a forged client address.
    for path in ["//login", "/x/../login", "/login?next=/"] {
        let forged = site.envoy.get(path, &[("x-forwarded-for", "203.0.113.7")]);
        assert_eq!(forged.status, 429, "{path}");
    }
    assert_eq!(site.statuses(20, "/", &[]), [200; 20]);
    limits(&site, "/api/a", 15, "per-client");
    // The limit of the user is the tighter of two. The user `batch` has no limit of its own.
    let told = |user| {
        let reply = passes(&site, "/api/a", &[("x-user", user)]);
        reply.field("x-ratelimit-limit").unwrap().to_owned()
    };
    assert!(told("alice").contains("20;w=1;name=\"per-user\""), "{}", told("alice"));
    assert!(!told("batch").contains("per-user"), "{}", told("batch"));
}

#[test]
fn its_rule_files_limit_the_site() {
    let rules = project("docs/envoy/rules");
    let site = Site::start(&["--envoy-config", rules.to_str().unwrap()]);
    // A minute may end in between, once.
    let logins = site.statuses(11, "/login", &[]);
    let passed = logins.iter().filter(|status| **status == 200).count();
    assert!(passed >= 5 && logins.contains(&429), "{logins:?}");
    assert_eq!(site.statuses(20, "/", &[]), [200; 20]);
    let series = docs("migrating-from-ratelimit.md");
    let series = series.split("tidegate_decisions_total{").nth(1).unwrap().split('}').next();
    let series = format!("tidegate_decisions_total{{{}", series.unwrap());
    assert!(site.tidegate.metric(&series) > 0);
    limits(&site, "/api/a", 15, "");
    let reply = passes(&site, "/api/a", &[("x-user", "alice")]);
    assert!(reply.field("x-ratelimit-limit").unwrap().ends_with("1000;w=3600"), "{reply:?}");
}

/// An answer that passes. The limit is per second, so one soon does.
fn passes(site: &Site, path: &str, fields: &[(&str, &str)]) -> Reply {
    let mut replies = (0..2_000).map(|_| site.envoy.get(path, fields));
    replies.find(|reply| reply.status == 200).unwrap()
}

/// Checks that the answer names the limit.
fn limits(site: &Site, path: &str, amount: u32, name: &str) {
    let reply = site.envoy.get(path, &[]);
    let told = reply.field("x-ratelimit-limit").unwrap();
    let name = if name.is_empty() { String::new() } else { format!(";name=\"{name}\"") };
    assert_eq!(told, format!("{amount}, {amount};w=1{name}"));
}

// === the page ===

/// The page about Envoy, and the one about moving from the reference service.
fn pages() -> String {
    docs("envoy.md") + &docs("migrating-from-ratelimit.md")
}

/// The code blocks of the pages in this language.
fn quoted(language: &str) -> Vec<String> {
    let page = pages();
    let blocks = page.split("```").skip(1).step_by(2);
    blocks
        .filter_map(|block| Some(block.strip_prefix(&format!("{language}\n"))?.to_owned()))
        .collect()
}

/// A snippet is a whole policy, or some rules of one.
#[test]
fn every_policy_of_the_pages_is_one() {
    let snippets = quoted("yaml");
    let rules = snippets
        .iter()
        .filter(|text| text.trim_start().starts_with("- name: ") || text.starts_with("version: 1"));
    let folder = crate::support::folder("snippets");
    let mut count = 0;
    for text in rules {
        let whole = if text.starts_with("version") {
            text.clone()
        } else {
            format!("version: 1\nrules:\n{text}")
        };
        let path = folder.join("policy.yaml");
        std::fs::write(&path, &whole).unwrap();
        let lint = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["policy", "lint", path.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&lint.stdout);
        assert!(lint.status.success() && said.contains("no problems found"), "{whole}\n{said}");
        count += 1;
    }
    assert!(count >= 5, "{count} policies");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_page_quotes_the_files() {
    let page = docs("envoy.md");
    for file in ["envoy/policy.yaml", "envoy/rules/site.yaml"] {
        assert!(page.contains(&format!("```yaml\n{}```", docs(file))), "{file} is not quoted");
    }
}

/// Every setting that the pages name exists.
#[test]
fn the_pages_name_settings_that_exist() {
    let help = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let page = pages();
    let mut count = 0;
    for word in page.split("`--").skip(1) {
        let flag: String =
            word.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        assert!(help.contains(&format!("--{flag} ")), "`--{flag}` is no setting");
        count += 1;
    }
    assert!(count > 10, "{count}");
}
