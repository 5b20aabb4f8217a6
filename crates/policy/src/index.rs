//! Which rules can match a request, without asking each.
//!
//! ```text
//!   tenant = acme ──► rules 3, 8           every rule is filed under one thing that it demands: values of
//!   path /urls/…  ──► rules 1, 8, 20       an attribute, networks, or where its paths begin; the rest are
//!   asked always  ──► rules 0, 99          asked always
//! ```
//!
//! A rule is filed where it has the least company, so that a thousand rules that differ in anything cost
//! about as much as ten.

use crate::attributes::Attributes;
use crate::path::{NormalPath, Segments};
use crate::pattern::{Case, Pattern};
use crate::rule::{Condition, Rule};
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Of rules, whose names operators choose; whoever sends requests can look something up in it, and put nothing there. So its
/// hash need not be one that nobody can foretell.
type Lookup<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// The files, by what they are about. Rules are known by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// By name, for operators: with thousands of rules, looking through all of them for each would take seconds.
    names: Lookup<Box<str>, usize>,
    always: Vec<u32>,
    /// By attribute, then by value.
    values: Vec<(Box<str>, ByValue)>,
    /// By how many bits they have: an address is looked up once for each.
    networks: Vec<(u8, Lookup<IpNet, Vec<u32>>)>,
    paths: PathFiles,
    /// For rules that make no difference between capitals and small letters; none, most of the time.
    folded_paths: Option<Box<PathFiles>>,
}

/// Rules by their paths.
#[derive(Clone, Debug, Default)]
struct PathFiles {
    starts: Paths,
    /// By the last segment, where a path may begin with anything.
    ends: ByValue,
}

/// Numbers of rules; a handful, most of the time.
pub(crate) type Found = SmallVec<[u32; 16]>;
type ByValue = Lookup<Box<str>, Vec<u32>>;

/// Where paths begin, segment by segment.
#[derive(Clone, Debug, Default)]
struct Paths {
    here: Vec<u32>,
    below: Lookup<Box<str>, Paths>,
    /// Below any one segment.
    below_any: Option<Box<Paths>>,
}

/// Where a rule could be filed: under each of these places, all of one kind.
#[derive(Clone, PartialEq, Eq, Hash)]
enum File<'r> {
    Value(&'r str, &'r str),
    Network(IpNet),
    Path(Case, Vec<Option<&'r str>>),
    PathEnd(Case, &'r str),
}

impl Index {
    /// The number of the rule with this name.
    pub(crate) fn named(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut company: HashMap<File<'_>, usize> = HashMap::new();
        for file in rules.iter().flat_map(|rule| choices(rule).into_iter().flatten()) {
            let count = company.entry(file).or_default();
            *count = count.saturating_add(1);
        }
        let most_company = |files: &Vec<File<'_>>| {
            files.iter().filter_map(|file| company.get(file)).max().copied().unwrap_or(0)
        };
        let mut index = Self::default();
        for (number, rule) in rules.iter().enumerate() {
            index.names.entry(rule.name().into()).or_insert(number);
        }
        for (number, rule) in (0..).zip(rules) {
            match choices(rule).into_iter().min_by_key(most_company) {
                Some(files) => files.into_iter().for_each(|file| index.file(number, file)),
                None => index.always.push(number),
            }
        }
        index
    }

    /// The numbers of the rules that can match, ascending, each once.
    pub(crate) fn candidates(&self, request: &Attributes<'_>) -> Found {
        let mut found = Found::from_slice(&self.always);
        for (attribute, by_value) in &self.values {
            let value = match &**attribute {
                "method" => request.method(),
                name => request.named(name),
            };
            found
                .extend(value.and_then(|value| by_value.get(value)).into_iter().flatten().copied());
        }
        for (bits, networks) in &self.networks {
            let network = request.address().and_then(|address| IpNet::new(address, *bits).ok());
            found.extend(
                network.and_then(|n| networks.get(&n.trunc())).into_iter().flatten().copied(),
            );
        }
        self.find_path(request.seen().path(), &mut found);
        for seen in request.seen_otherwise() {
            self.find_path(seen.path(), &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn find_path(&self, path: Option<&NormalPath<'_>>, found: &mut Found) {
        let Some(path) = path else { return };
        self.paths.find(path.segments(), found);
        if let Some(files) = &self.folded_paths {
            files.find(Segments::of(&Case::Insensitive.fold(path.as_str())), found);
        }
    }

    fn path_files(&mut self, case: Case) -> &mut PathFiles {
        match case {
            Case::Sensitive => &mut self.paths,
            Case::Insensitive => self.folded_paths.get_or_insert_default(),
        }
    }

    fn file(&mut self, number: u32, file: File<'_>) {
        match file {
            File::Value(attribute, value) => {
                let at = self.values.iter().position(|(known, _)| **known == *attribute);
                let at = at.unwrap_or_else(|| {
                    self.values.push((attribute.into(), Lookup::default()));
                    self.values.len().saturating_sub(1)
                });
                if let Some((_, by_value)) = self.values.get_mut(at) {
                    by_value.entry(value.into()).or_default().push(number);
                }
            }
            File::PathEnd(case, last) => {
                self.path_files(case).ends.entry(last.into()).or_default().push(number);
            }
            File::Path(case, segments) => {
                self.path_files(case).starts.at(&segments).here.push(number);
            }
            File::Network(network) => {
                let bits = network.prefix_len();
                let at = self.networks.iter().position(|(known, _)| *known == bits);
                let at = at.unwrap_or_else(|| {
                    self.networks.push((bits, Lookup::default()));
                    self.networks.len().saturating_sub(1)
                });
                if let Some((_, networks)) = self.networks.get_mut(at) {
                    networks.entry(network).or_default().push(number);
                }
            }
        }
    }
}

impl PathFiles {
    fn find(&self, segments: Segments<'_>, found: &mut Found) {
        let last = segments.clone().next_back();
        self.starts.find(segments, found);
        found.extend(last.and_then(|l| self.ends.get(l)).into_iter().flatten().copied());
    }
}

impl Paths {
    /// The place behind these segments, made if need be.
    fn at(&mut self, segments: &[Option<&str>]) -> &mut Self {
        match segments {
            [] => self,
            [Some(name), rest @ ..] => self.below.entry((*name).into()).or_default().at(rest),
            [None, rest @ ..] => self.below_any.get_or_insert_default().at(rest),
        }
    }

    /// Everything that is filed on the way along these segments.
    fn find<'s>(&self, mut segments: impl Iterator<Item = &'s str> + Clone, found: &mut Found) {
        found.extend_from_slice(&self.here);
        let Some(segment) = segments.next() else { return };
        if let Some(below) = self.below.get(segment) {
            below.find(segments.clone(), found);
        }
        if let Some(below) = &self.below_any {
            below.find(segments, found);
        }
    }
}

fn path_file(pattern: &Pattern) -> File<'_> {
    match pattern.fixed_end() {
        Some(last) => File::PathEnd(pattern.case(), last),
        None => File::Path(pattern.case(), pattern.start().collect()),
    }
}

/// The ways to file a rule; none when it must always be asked.
fn choices(rule: &Rule) -> Vec<Vec<File<'_>>> {
    let ways = rule.conditions.iter().map(|condition| match condition {
        Condition::Method(methods) => {
            methods.iter().map(|method| File::Value("method", method)).collect()
        }
        Condition::Named(name, values) => {
            values.iter().map(|value| File::Value(name, value)).collect()
        }
        Condition::Path(patterns) => patterns.iter().map(path_file).collect(),
        Condition::Ip(networks) => networks.iter().map(|network| File::Network(*network)).collect(),
    });
    ways.filter(|files: &Vec<File<'_>>| !files.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Attributes, Policy};
    use proptest::prelude::*;

    fn policy(matches: &[String]) -> Policy {
        let rules: Vec<String> = (0..)
            .zip(matches)
            .map(|(n, m): (u32, _)| {
                let folded = n % 2 == 1;
                format!("  - {{ name: r{n}, match: {m}, key: [], limits: [1/s], case_insensitive: {folded} }}\n")
            })
            .collect();
        Policy::parse(format!("version: 1\nrules:\n{}", rules.concat())).unwrap()
    }

    fn condition() -> impl Strategy<Value = String> {
        let path = prop::sample::select(vec![
            "/**",
            "/a",
            "/a/**",
            "/a/b",
            "/*/b",
            "/a/*",
            "/**/b",
            "[/a, /b/**]",
            "/",
        ]);
        let method = prop::sample::select(vec!["GET", "POST", "[GET, PUT]"]);
        let tenant = prop::sample::select(vec!["x", "y", "[x, z]"]);
        let ip = prop::sample::select(vec!["10.0.0.0/8", "::/0"]);
        let maybe = |name: &'static str, s: prop::sample::Select<&'static str>| {
            prop::option::of(s).prop_map(move |v| v.map(|v| format!("{name}: {v}")))
        };
        (maybe("path", path), maybe("method", method), maybe("tenant", tenant), maybe("ip", ip))
            .prop_map(|(a, b, c, d)| {
                let parts: Vec<String> = [a, b, c, d].into_iter().flatten().collect();
                format!("{{ {} }}", parts.join(", "))
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The index never hides a rule that asking each would have found.
        #[test]
        fn the_index_finds_what_asking_each_finds(
            matches in prop::collection::vec(condition(), 1..=16),
            path in prop::sample::select(vec![
                "/", "/a", "/a/b", "/b", "/b/b", "/a/b/c", "/c/b", "/A", "/A/B", "/c/B",
                // Servers read these in several ways.
                "/a%2fb", "/c/../a", "/x%2f../A/b", "//h/b", "/a;x/B", "/c\\..\\b",
            ]),
            method in prop::sample::select(vec!["GET", "POST", "PUT"]),
            tenant in prop::option::of(prop::sample::select(vec!["x", "y", "z"])),
        ) {
            let policy = policy(&matches);
            let mut request = Attributes::new().with("path", path).unwrap().with("method", method).unwrap();
            request.set("ip", "10.1.1.1").unwrap();
            if let Some(tenant) = tenant {
                request.set("tenant", tenant).unwrap();
            }
            let found: Vec<&str> = policy.applying(&request, 1).map(|(rule, _)| rule.name()).collect();
            let each: Vec<&str> = policy.rules().iter()
                .filter(|rule| rule.applies(&request, 1, 64).is_ok())
                .map(crate::Rule::name)
                .collect();
            prop_assert_eq!(found, each);
        }
    }

    #[test]
    fn few_rules_are_asked_of_many() {
        for differing in [
            "path: /api/v1/r{n}/**",
            "tenant: t{n}",
            "path: /api/**, tenant: t{n}",
            "path: /r{n}, tenant: acme",
        ] {
            let matches: Vec<String> = (0..1_000)
                .map(|n: u32| format!("{{ {} }}", differing.replace("{n}", &n.to_string())))
                .collect();
            let policy = policy(&matches);
            let path = if differing.contains("/api/v1") {
                "/api/v1/r7/x"
            } else if differing.contains("/api") {
                "/api/x"
            } else {
                "/r7"
            };
            let tenant = if differing.contains("t{n}") { "t7" } else { "acme" };
            let request =
                Attributes::new().with("path", path).unwrap().with("tenant", tenant).unwrap();
            assert_eq!(policy.index.candidates(&request).as_slice(), [7], "{differing}");
        }
    }
}
