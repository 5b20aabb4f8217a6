//! The pages: every link inside the repository leads somewhere, and the book has every page below docs/.
//!
//! Links to other sites are not followed, because a test must not depend on them.

use super::{files, read, root};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The links of a page, and the anchors of its headings.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn parsed(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "only these events are of links and headings"
        )]
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap(), &page.anchors);
                page.anchors.insert(anchor);
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    page
}

/// The anchor of a heading, as GitHub and mdBook make it. A second heading with the same text gets a number.
fn anchor(heading: &str, taken: &BTreeSet<String>) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    let plain: String =
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
    let numbered = (1..).map(|number| format!("{plain}-{number}"));
    let mut names = [plain.clone()].into_iter().chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap()
}

/// A path without `..`; `None` if it leaves the repository.
fn resolved(page: &str, link: &str) -> Option<String> {
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap().join(link).components() {
        match part {
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path.to_string_lossy().into_owned())
}

/// What is wrong with a link, if anything.
fn broken(pages: &BTreeMap<String, Page>, page: &str, link: &str) -> Option<&'static str> {
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let Some(target) = (if path.is_empty() { Some(page.to_owned()) } else { resolved(page, path) })
    else {
        return Some("leads out of the repository");
    };
    if !root().join(&target).exists() {
        return Some("there is no such file");
    }
    match pages.get(&target) {
        _ if fragment.is_empty() => None,
        Some(page) if page.anchors.contains(fragment) => None,
        Some(_) => Some("there is no such heading"),
        None => Some("only pages have headings"),
    }
}

/// All Markdown files of the repository.
fn pages() -> BTreeMap<String, Page> {
    let paths = files("").into_iter().filter(|path| path.ends_with(".md"));
    paths.map(|path| (path.clone(), parsed(&read(&path)))).collect()
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading_that_exist() {
    let pages = pages();
    let mut number = 0;
    let mut wrong = Vec::new();
    for (name, page) in &pages {
        let inside =
            page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
        for link in inside {
            number += 1;
            if let Some(why) = broken(&pages, name, link) {
                wrong.push(format!("{name}: {link}: {why}"));
            }
        }
    }
    assert!(number > 150, "only {number} links were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_broken_link_is_found() {
    let pages = pages();
    let why = |link: &str| broken(&pages, "docs/metrics.md", link);
    assert_eq!(why("runbook.md#tidegatedown"), None);
    assert_eq!(why("../README.md"), None);
    assert_eq!(why("runbok.md"), Some("there is no such file"));
    assert_eq!(why("runbook.md#tidegateup"), Some("there is no such heading"));
    assert_eq!(why("#no-heading"), Some("there is no such heading"));
    assert_eq!(why("policy.yaml#rules"), Some("only pages have headings"));
    assert_eq!(why("../../README.md"), Some("leads out of the repository"));
    let page = parsed("# A `b_c`, d!\n## A `b_c`, d!\n");
    assert_eq!(page.anchors, ["a-b_c-d", "a-b_c-d-1"].map(str::to_owned).into());
}

/// mdBook makes the pages that are in SUMMARY.md, and no others.
#[test]
fn the_book_has_every_page_below_docs() {
    let linked = parsed(&read("docs/SUMMARY.md")).links;
    let linked: BTreeSet<String> =
        linked.iter().map(|link| resolved("docs/SUMMARY.md", link).unwrap()).collect();
    let exist = files("docs").into_iter().filter(|path| path.ends_with(".md"));
    let exist: BTreeSet<String> = exist.filter(|path| path != "docs/SUMMARY.md").collect();
    let missing: Vec<_> = exist.difference(&linked).collect();
    let gone: Vec<_> = linked.difference(&exist).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/SUMMARY.md: add {missing:?}; remove {gone:?}"
    );
}
