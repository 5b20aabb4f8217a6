//! The index: finds the rules that can match a request, without testing each of them.
//!
//! ```text
//!   tenant = acme ──► rules 3, 8           every rule is stored under one condition of its `match`: values of an
//!   path /urls/…  ──► rules 1, 8, 20       attribute, networks, or the beginning of its paths; a rule without
//!   always        ──► rules 0, 99          conditions is always a candidate
//! ```
//!
//! A rule is stored under its most selective condition, the one that it shares with the fewest other rules. So a policy of a
//! thousand different rules costs about as much per request as one of ten.
use crate::model::attributes::Attributes;
use crate::model::condition::Condition;
use crate::model::path::{Case, NormalPath, Segments};
use crate::model::pattern::Pattern;
use crate::model::rule::Rule;
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashMap;

/// A hash map of rules. Operators choose its keys, and clients can only look something up. So an attacker cannot cause
/// collisions, and the hash needs no random seed.
type Lookup<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// Rule numbers by condition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// By the name of the rule, for operators. A linear search would take seconds with thousands of rules.
    names: Lookup<Box<str>, usize>,
    always: Vec<u32>,
    /// By attribute, then by value.
    values: Vec<(Box<str>, ByValue)>,
    /// By the length of their prefix. An address is looked up once for each length.
    networks: Vec<(u8, Lookup<IpNet, Vec<u32>>)>,
    paths: PathIndex,
    /// For rules with case-insensitive paths; most policies have none.
    folded_paths: Option<Box<PathIndex>>,
}

/// Rules by the patterns of their paths.
#[derive(Clone, Debug, Default)]
struct PathIndex {
    starts: PathTrie,
    /// By the last segment, for patterns that begin with `**`.
    ends: ByValue,
}

/// Numbers of rules; usually a handful.
pub(crate) type RuleNumbers = SmallVec<[u32; 16]>;
type ByValue = Lookup<Box<str>, Vec<u32>>;

/// A trie of path segments.
#[derive(Clone, Debug, Default)]
struct PathTrie {
    here: Vec<u32>,
    below: Lookup<Box<str>, PathTrie>,
    /// For `*`: below any segment.
    below_any: Option<Box<PathTrie>>,
}

/// A place in the index where a rule can be stored.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Slot<'r> {
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
        let mut sharing: HashMap<Slot<'_>, usize> = HashMap::new();
        for slot in rules.iter().flat_map(|rule| slots(rule).into_iter().flatten()) {
            let count = sharing.entry(slot).or_default();
            *count = count.saturating_add(1);
        }
        let most_shared = |slots: &Vec<Slot<'_>>| {
            slots.iter().filter_map(|slot| sharing.get(slot)).max().copied().unwrap_or(0)
        };
        let mut index = Self::default();
        for (number, rule) in rules.iter().enumerate() {
            index.names.entry(rule.name().into()).or_insert(number);
        }
        for (number, rule) in (0..).zip(rules) {
            match slots(rule).into_iter().min_by_key(most_shared) {
                Some(slots) => slots.into_iter().for_each(|slot| index.insert(number, slot)),
                None => index.always.push(number),
            }
        }
        index
    }

    /// The numbers of the rules that can match, sorted, each once.
    pub(crate) fn candidates(&self, request: &Attributes<'_>) -> RuleNumbers {
        let mut found = RuleNumbers::from_slice(&self.always);
        for (attribute, by_value) in &self.values {
            let find = |value: &str| {
                found.extend_from_slice(by_value.get(value).map_or(&[], Vec::as_slice));
            };
            match &**attribute {
                "method" => request.methods().flatten().for_each(find),
                name => request.named(name).into_iter().for_each(find),
            }
        }
        for (bits, networks) in &self.networks {
            let network = request.address().and_then(|address| IpNet::new(address, *bits).ok());
            found.extend(
                network.and_then(|n| networks.get(&n.trunc())).into_iter().flatten().copied(),
            );
        }
        for path in request.paths().flatten() {
            self.find_path(path, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn find_path(&self, path: &NormalPath<'_>, found: &mut RuleNumbers) {
        self.paths.find(path.segments(), found);
        if let Some(index) = &self.folded_paths {
            index.find(Segments::of(&Case::Insensitive.fold(path.as_str())), found);
        }
    }

    fn path_index(&mut self, case: Case) -> &mut PathIndex {
        match case {
            Case::Sensitive => &mut self.paths,
            Case::Insensitive => self.folded_paths.get_or_insert_default(),
        }
    }

    fn insert(&mut self, number: u32, slot: Slot<'_>) {
        match slot {
            Slot::Value(attribute, value) => self.insert_value(number, attribute, value),
            Slot::Network(network) => self.insert_network(number, network),
            Slot::PathEnd(case, last) => {
                self.path_index(case).ends.entry(last.into()).or_default().push(number);
            }
            Slot::Path(case, segments) => {
                self.path_index(case).starts.at(&segments).here.push(number);
            }
        }
    }

    fn insert_value(&mut self, number: u32, attribute: &str, value: &str) {
        let at = self.values.iter().position(|(known, _)| **known == *attribute);
        let at = at.unwrap_or_else(|| {
            self.values.push((attribute.into(), Lookup::default()));
            self.values.len().saturating_sub(1)
        });
        if let Some((_, by_value)) = self.values.get_mut(at) {
            by_value.entry(value.into()).or_default().push(number);
        }
    }

    fn insert_network(&mut self, number: u32, network: IpNet) {
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

impl PathIndex {
    fn find(&self, segments: Segments<'_>, found: &mut RuleNumbers) {
        if !self.ends.is_empty()
            && let Some(last) = segments.clone().next_back()
            && let Some(rules) = self.ends.get(last)
        {
            found.extend_from_slice(rules);
        }
        self.starts.find(segments, found);
    }
}

impl PathTrie {
    /// The node for these segments, created if needed.
    fn at(&mut self, segments: &[Option<&str>]) -> &mut Self {
        match segments {
            [] => self,
            [Some(name), rest @ ..] => self.below.entry((*name).into()).or_default().at(rest),
            [None, rest @ ..] => self.below_any.get_or_insert_default().at(rest),
        }
    }

    /// Adds all rules on the path down the trie along these segments.
    fn find(&self, mut segments: Segments<'_>, found: &mut RuleNumbers) {
        if !self.here.is_empty() {
            found.extend_from_slice(&self.here);
        }
        if self.below.is_empty() && self.below_any.is_none() {
            return;
        }
        let Some(segment) = segments.next() else { return };
        if let Some(below) = self.below.get(segment) {
            below.find(segments.clone(), found);
        }
        if let Some(below) = &self.below_any {
            below.find(segments, found);
        }
    }
}

fn path_slot(pattern: &Pattern) -> Slot<'_> {
    match pattern.fixed_end() {
        Some(last) => Slot::PathEnd(pattern.case(), last),
        None => Slot::Path(pattern.case(), pattern.start().collect()),
    }
}

/// For each condition of a rule, the slots that it would be stored in; empty if the rule has no usable condition.
fn slots(rule: &Rule) -> Vec<Vec<Slot<'_>>> {
    let all = rule.conditions.iter().map(|condition| match condition {
        Condition::Method(methods) => {
            methods.iter().map(|method| Slot::Value("method", method)).collect()
        }
        Condition::Named(name, values) => {
            values.iter().map(|value| Slot::Value(name, value)).collect()
        }
        Condition::Path(patterns) => patterns.iter().map(path_slot).collect(),
        Condition::Ip(networks) => networks.iter().map(|network| Slot::Network(*network)).collect(),
    });
    all.filter(|slots: &Vec<Slot<'_>>| !slots.is_empty()).collect()
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

        /// The index must find every rule that testing each rule finds.
        #[test]
        fn the_index_finds_what_testing_each_rule_finds(
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
    fn one_of_a_thousand_rules_is_a_candidate() {
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
