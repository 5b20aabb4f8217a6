//! The limits of the trees, each with the path to it, and how they relate to one another.

use crate::model::descriptors::{DescriptorNode, DescriptorRule, Wildcard};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// A limit and the path to it.
#[derive(Clone)]
pub(super) struct Leaf<'d> {
    pub(super) domain: &'d str,
    pub(super) steps: Vec<Step<'d>>,
    pub(super) rule: &'d DescriptorRule,
}

/// An entry of a descriptor.
#[derive(Clone, Copy)]
pub(super) struct Step<'d> {
    pub(super) key: &'d str,
    pub(super) value: Wanted<'d>,
}

/// Which values an entry may have.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'d> {
    Any,
    Exact(&'d str),
    Like(&'d Wildcard),
}

/// Collects all limits at and below a node.
pub(super) fn collect<'d>(
    domain: &'d str,
    node: &'d DescriptorNode,
    steps: &mut Vec<Step<'d>>,
    leaves: &mut Vec<Leaf<'d>>,
) {
    if let Some(rule) = &node.rule {
        leaves.push(Leaf { domain, steps: steps.clone(), rule });
    }
    let exact = node.below.iter().flat_map(|(key, values)| {
        values.exact.iter().map(move |(value, node)| (&**key, Wanted::Exact(value), node))
    });
    let any = node
        .below
        .iter()
        .filter_map(|(key, values)| Some((&**key, Wanted::Any, values.any.as_deref()?)));
    let like = node
        .wildcards
        .iter()
        .map(|(wildcard, node)| (&*wildcard.key, Wanted::Like(wildcard), node));
    for (key, value, node) in exact.chain(any).chain(like) {
        steps.push(Step { key, value });
        collect(domain, node, steps, leaves);
        steps.pop();
    }
}

// === impl Leaf ===

impl Leaf<'_> {
    /// `rl/foo/bar=banned`
    pub(super) fn path(&self) -> String {
        let mut path = self.domain.to_owned();
        for step in &self.steps {
            let _ = match step.value {
                Wanted::Any => write!(path, "/{}", step.key),
                Wanted::Exact(value) => write!(path, "/{}={value}", step.key),
                Wanted::Like(wildcard) => write!(path, "/{}={}", step.key, wildcard.value),
            };
        }
        path
    }

    /// Longer descriptors first; then exact values before wildcards before any value; otherwise the order of the files.
    pub(super) fn order(&self) -> (Reverse<usize>, Vec<u8>, usize) {
        let rank = |step: &Step<'_>| match step.value {
            Wanted::Exact(_) => 0,
            Wanted::Like(_) => 1,
            Wanted::Any => 2,
        };
        let ranks = self.steps.iter().map(rank).collect();
        (Reverse(self.steps.len()), ranks, self.rule.number)
    }

    /// The names of its attributes, sorted.
    fn attributes(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.steps.iter().map(Step::attribute).collect();
        names.sort_unstable();
        names
    }

    /// Limits that differ only in the value of their last entry have the same family. Returns the family and that value.
    fn family(&self) -> Option<(String, Wanted<'_>)> {
        let (last, before) = self.steps.split_last()?;
        let before = Leaf { steps: before.to_vec(), ..*self };
        Some((format!("{}\0{}", before.path(), last.key), last.value))
    }
}

impl<'d> Step<'d> {
    /// The name of the attribute that an entry becomes.
    pub(super) fn attribute(&self) -> &'d str {
        match self.key {
            "remote_address" | "masked_remote_address" => "ip",
            key => key,
        }
    }
}

// === relations ===

/// How limits relate to one another. It holds their numbers, because there may be twenty thousand.
#[derive(Default)]
pub(super) struct Relations<'l> {
    /// For a limit on any value: the limits of its family on exact values, which become overrides of its rule.
    exceptions: HashMap<usize, Vec<usize>>,
    /// All of these exceptions.
    exceptional: HashSet<usize>,
    /// By domain and attributes: the last limit that is about more than one value.
    last_general: HashMap<(&'l str, Vec<&'l str>), Option<usize>>,
}

impl<'l> Relations<'l> {
    pub(super) fn new(leaves: &'l [Leaf<'l>]) -> Self {
        let mut relations = Self::default();
        let (mut general, mut with_wildcards) = (HashMap::new(), HashSet::new());
        for (number, leaf) in leaves.iter().enumerate() {
            relations.add_general(number, leaf);
            match leaf.family() {
                Some((family, Wanted::Any)) if leaf.rule.limit.is_some() => {
                    general.insert(family, number);
                }
                // Wildcards come between exact values and any value, so each limit of this family is a rule of its own.
                Some((family, Wanted::Like(_))) => _ = with_wildcards.insert(family),
                Some((_, Wanted::Any | Wanted::Exact(_))) | None => {}
            }
        }
        for (number, leaf) in leaves.iter().enumerate() {
            if let Some((family, Wanted::Exact(_))) = leaf.family()
                && !leaf.rule.shadow
                && !with_wildcards.contains(&family)
                && let Some(general) = general.get(&family)
            {
                relations.exceptions.entry(*general).or_default().push(number);
                relations.exceptional.insert(number);
            }
        }
        relations
    }

    fn add_general(&mut self, number: usize, leaf: &'l Leaf<'l>) {
        let is_exact = leaf.steps.iter().all(|step| matches!(step.value, Wanted::Exact(_)));
        let last = self.last_general.entry((leaf.domain, leaf.attributes())).or_default();
        *last = if is_exact { *last } else { Some(number) };
    }

    /// The exceptions to a limit.
    pub(super) fn exceptions(&self, number: usize) -> &[usize] {
        self.exceptions.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Whether a limit is an exception to another.
    pub(super) fn is_exception(&self, number: usize) -> bool {
        self.exceptional.contains(&number)
    }

    /// Whether a later rule may apply to the requests of this one: a rule on fewer attributes, or on any value of the same
    /// attributes.
    pub(super) fn is_narrow(&self, number: usize, leaf: &Leaf<'_>) -> bool {
        let names = leaf.attributes();
        self.last_general.iter().any(|((domain, others), last)| {
            let fewer =
                others.len() < names.len() && others.iter().all(|name| names.contains(name));
            let same = *others == names && last.is_some_and(|last| last > number);
            *domain == leaf.domain && (fewer || same)
        })
    }
}
