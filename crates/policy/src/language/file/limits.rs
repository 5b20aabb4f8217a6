//! Reads limits, tiers and overrides of a rule.

use super::MOST_TIERS;
use crate::document::{Document, Entry, Value, shown};
use crate::language::grammar;
use crate::language::reader::{Chosen, Fields, Reader};
use crate::model::allowance::{Allowance, RuleLimit, RuleLimitError};
use crate::model::identity::Identity;
use crate::model::key::Key;
use crate::model::number::Number;
use crate::model::overrides::Overrides;
use crate::model::policy::Tiers;
use crate::model::rate::{Rate, length};
use crate::suggest::{hint, nearest};
use tidegate_core::{Algorithm, Align, Headroom, Plan, Refill, Span};

/// All limits of a request are decided together, in one plan.
const MOST_LIMITS: usize = Plan::MOST_TAKES;

/// A shorter lease would be over while a slow network renews it.
const SHORTEST_LEASE: Span = Span::from_secs(1);
/// Permits of a crashed node are lost for a lease.
const LONGEST_LEASE: Span = Span::from_secs(3_600);

/// The algorithm that each option belongs to.
const OPTIONS: [(&str, &str); 5] = [
    ("burst", "token_bucket"),
    ("refill", "token_bucket"),
    ("queue", "leaky_bucket"),
    ("buckets", "sliding_buckets"),
    ("align", "fixed_window"),
];

/// A name that the field uses for several algorithms.
const AMBIGUOUS_ALGORITHM: &str = "sliding_window";

impl Reader {
    fn limits(&mut self, node: &Document, headroom: Headroom) -> Option<Vec<RuleLimit>> {
        let list = self.list(node, "`limits`")?;
        if list.is_empty() {
            return self.wrong(node.place, "`limits` is empty; write a rate such as `15/s`");
        }
        if list.len() > MOST_LIMITS {
            let text = format!("{} limits; a rule has at most {MOST_LIMITS}", list.len());
            return self.wrong(node.place, text);
        }
        let limits: Vec<RuleLimit> =
            list.iter().filter_map(|node| self.limit(node, headroom)).collect();
        if limits.len() < list.len() {
            return None;
        }
        for (at, (limit, node)) in limits.iter().zip(list).enumerate() {
            if limits.iter().take(at).any(|other| other.id() == limit.id()) {
                let example = match limit.limit().lease() {
                    Some(_) => format!("concurrent: {}", limit.limit().amount()),
                    None => format!("rate: {}", limit.rate()),
                };
                let text = format!(
                    "two limits of this rule have the id `{}`; give one of them another name: `{{ {example}, name: … }}`",
                    limit.id(),
                );
                return self.wrong(node.place, text);
            }
        }
        Some(limits)
    }

    fn limit(&mut self, node: &Document, headroom: Headroom) -> Option<RuleLimit> {
        if let Value::Text(text, _) = &node.value {
            if text == grammar::UNLIMITED {
                let text = "`unlimited` stands in place of the list; write `limits: unlimited`";
                return self.wrong(node.place, text);
            }
            let rate = self.rate(node, text, Some(false))?;
            let algorithm = RuleLimit::default_algorithm(&rate);
            let limit = self.built(node, None, rate, algorithm, headroom)?;
            return Some(limit.of_only_a_rate());
        }
        if is_concurrency(node) {
            return self.concurrency(node, headroom);
        }
        let fields = self.record(node, &grammar::LIMIT_RECORD)?;
        let block = fields.get("block").map_or(Some(false), |node| self.flag(node, "`block`"));
        let name = fields.get("name").map(|node| self.name(node, "a limit"));
        let rate = fields.get("rate").and_then(|node| {
            let text = self.text(node, "`rate`")?;
            self.rate(node, text, block)
        });
        let algorithm = self.algorithm(&fields, rate.as_ref());
        let name = match name {
            Some(name) => Some(name?),
            None => None,
        };
        block?;
        let limit = self.built(node, name.as_deref(), rate?, algorithm?, headroom)?;
        let says_how = |entry: &Entry| !["rate", "name", "block"].contains(&&*entry.name);
        let says_how = fields.entries().iter().any(says_how);
        Some(if says_how { limit } else { limit.of_only_a_rate() })
    }

    /// `{ concurrent: 20, name: …, lease: 30s }`
    fn concurrency(&mut self, node: &Document, headroom: Headroom) -> Option<RuleLimit> {
        let of_rates = |entry: &&Entry| {
            grammar::LIMIT_RECORD.has(&entry.name) && !grammar::CONCURRENCY_RECORD.has(&entry.name)
        };
        let mut mixed = self.map(node, "a limit")?.iter().filter(of_rates).peekable();
        if mixed.peek().is_some() {
            mixed.for_each(|entry| {
                let text = format!(
                    "`{}` does not belong to a concurrency limit; write the rate as another limit",
                    entry.name
                );
                self.note(entry.place, text);
            });
            return None;
        }
        let fields = self.record(node, &grammar::CONCURRENCY_RECORD)?;
        let amount = fields
            .get("concurrent")
            .and_then(|node| self.whole(node, "`concurrent`", 1, grammar::MOST_CONCURRENT));
        let name = match fields.get("name").map(|node| self.name(node, "a limit")) {
            Some(name) => name,
            None => Some("concurrent".into()),
        };
        let lease = match fields.get("lease") {
            Some(node) => self.lease(node),
            None => Some("30s"),
        };
        let rate = self.ok(node.place, format!("{}/{}", amount?, lease?).parse())?;
        self.built(node, Some(&name?), rate, Algorithm::Concurrent, headroom)
    }

    fn lease<'d>(&mut self, node: &'d Document) -> Option<&'d str> {
        let text = self.text(node, "`lease`")?;
        let lease = self.ok(node.place, length(text).map_err(|e| format!("`lease`: {e}")))?;
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
            let text = format!("`lease` is from 1s to 1h, not `{}`", shown(text));
            return self.wrong(node.place, text);
        }
        Some(text)
    }

    fn rate(&mut self, node: &Document, text: &str, block: Option<bool>) -> Option<Rate> {
        let rate: Rate = self.ok(node.place, text.parse())?;
        if rate.amount == 0 && block == Some(false) {
            return self.wrong(node.place, format!("`{}`: {}", shown(text), RuleLimitError::Zero));
        }
        if rate.amount > 0 && block == Some(true) {
            return self.wrong(node.place, "`block: true` needs an amount of 0");
        }
        Some(rate)
    }

    fn built(
        &mut self,
        node: &Document,
        name: Option<&str>,
        rate: Rate,
        algorithm: Algorithm,
        headroom: Headroom,
    ) -> Option<RuleLimit> {
        let text = rate.to_string();
        let built = RuleLimit::new(name, rate, algorithm, headroom);
        self.ok(node.place, built.map_err(|error| format!("`{}`: {error}", shown(&text))))
    }

    fn algorithm(&mut self, fields: &Fields<'_>, rate: Option<&Rate>) -> Option<Algorithm> {
        let default = rate.map_or(Algorithm::TOKEN_BUCKET, RuleLimit::default_algorithm).name();
        let name = match fields.get("algorithm") {
            Some(node) => self.algorithm_name(node),
            None => Some(default),
        };
        if let Some(name) = name {
            self.options_of_others(fields, name);
        }
        // All options are read before a missing one ends the function, so that all mistakes are reported.
        let burst = self.option(fields, "burst", 1, u64::MAX);
        let queue = self.option(fields, "queue", 0, u64::MAX);
        let buckets = self.option(fields, "buckets", 2, 1_000);
        let refill = self.option_word(fields, "refill", &grammar::REFILL);
        let align = self.option_word(fields, "align", &grammar::ALIGN);
        let (burst, queue, buckets) = (burst?, queue?, buckets?);
        let refill = if refill? == "interval" { Refill::Interval } else { Refill::Continuous };
        let align = if align? == "first" { Align::First } else { Align::Epoch };
        Some(match name? {
            "fixed_window" => Algorithm::FixedWindow { align },
            "sliding_log" => Algorithm::SlidingLog,
            "sliding_buckets" => match buckets.and_then(|buckets| u16::try_from(buckets).ok()) {
                Some(buckets) => Algorithm::SlidingBuckets { buckets },
                None => Algorithm::SLIDING_BUCKETS,
            },
            "sliding_weighted" => Algorithm::SlidingWeighted,
            "leaky_bucket" => Algorithm::LeakyBucket { queue },
            _ => Algorithm::TokenBucket { burst, refill },
        })
    }

    fn algorithm_name<'d>(&mut self, node: &'d Document) -> Option<&'d str> {
        let is_ambiguous = |text: &str| text.replace('-', "_") == AMBIGUOUS_ALGORITHM;
        if matches!(&node.value, Value::Text(text, _) if is_ambiguous(text)) {
            let text = "several algorithms are called a sliding window; write `sliding_log` (exact; for large amounts `sliding_buckets`) or `sliding_weighted` (an estimate, in less memory)";
            return self.wrong(node.place, text);
        }
        match self.choice(node, &grammar::ALGORITHM)? {
            Chosen::Word(name) => Some(name),
            Chosen::Form(..) => None,
        }
    }

    /// Reports options that belong to another algorithm.
    fn options_of_others(&mut self, fields: &Fields<'_>, algorithm: &str) {
        for (option, of) in OPTIONS.iter().filter(|(_, of)| *of != algorithm) {
            if let Some(entry) = fields.entries().iter().find(|entry| *entry.name == **option) {
                let text = format!("`{option}` belongs to {of}; this limit is a {algorithm}");
                self.note(entry.place, text);
            }
        }
    }

    /// A number; `Some(None)` if it is absent.
    fn option(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        least: u64,
        most: u64,
    ) -> Option<Option<u64>> {
        match fields.get(name) {
            Some(node) => self.whole(node, &format!("`{name}`"), least, most).map(Some),
            None => Some(None),
        }
    }

    /// A word; empty if it is absent.
    fn option_word<'d>(
        &mut self,
        fields: &Fields<'d>,
        name: &str,
        choice: &'static grammar::Choice,
    ) -> Option<&'d str> {
        match fields.get(name).map(|node| self.choice(node, choice)) {
            Some(Some(Chosen::Word(word))) => Some(word),
            Some(_) => None,
            None => Some(""),
        }
    }

    // === tiers and overrides ===

    pub(super) fn rule_tiers(
        &mut self,
        node: &Document,
        base: &[RuleLimit],
        tiers: Option<&Tiers>,
        headroom: Headroom,
    ) -> Vec<(Box<str>, Allowance)> {
        let Some(entries) = self.map(node, "`tiers`") else { return vec![] };
        if entries.len() > MOST_TIERS {
            let text = format!("{} tiers; there are at most {MOST_TIERS}", entries.len());
            self.note(node.place, text);
            return vec![];
        }
        let read = |entry: &Entry| self.rule_tier(entry, base, tiers, headroom);
        entries.iter().filter_map(read).collect()
    }

    fn rule_tier(
        &mut self,
        entry: &Entry,
        base: &[RuleLimit],
        tiers: Option<&Tiers>,
        headroom: Headroom,
    ) -> Option<(Box<str>, Allowance)> {
        let name: Box<str> = entry.name.as_ref().into();
        if tiers.is_none_or(|tiers| !tiers.is_known(&name)) {
            self.unknown_tier(entry, tiers.unwrap_or(&Tiers::default()));
        }
        let allowance = match self.choice(&entry.node, &grammar::TIER_ALLOWANCE)? {
            Chosen::Word(_) => Allowance::Unlimited,
            Chosen::Form("scale", node) => {
                let scale = self.scale(node)?;
                let scaled: Result<_, _> = base.iter().map(|limit| limit.scaled(scale)).collect();
                let error = |error| format!("scaled by {scale}: {error}");
                Allowance::Limits(self.ok(node.place, scaled.map_err(error))?)
            }
            Chosen::Form(_, node) => self.allowance_instead(node, base, headroom)?,
        };
        Some((name, allowance))
    }

    fn unknown_tier(&mut self, entry: &Entry, tiers: &Tiers) {
        let name = &*entry.name;
        let hint = hint(name, tiers.known.iter().map(|tier| &**tier));
        let text = format!("unknown tier `{}`{hint}{}", shown(name), tiers.listed());
        self.note(entry.place, text);
    }

    fn scale(&mut self, node: &Document) -> Option<Number> {
        let Value::Text(text, false) = &node.value else {
            return self.wrong(
                node.place,
                "`scale` is a number above 0, such as 10 or 1.5, without quotes",
            );
        };
        match text.parse::<Number>().ok().filter(|number| number.is_positive()) {
            Some(number) => Some(number),
            None => {
                let text = format!(
                    "`scale` is a number above 0, such as 10 or 1.5, not `{}`",
                    shown(text)
                );
                self.wrong(node.place, text)
            }
        }
    }

    pub(super) fn overrides(
        &mut self,
        node: &Document,
        key: Option<&Key>,
        identity: &Identity,
        (base, headroom): (&[RuleLimit], Headroom),
    ) -> Overrides {
        let mut overrides = Overrides::default();
        for node in self.list(node, "`overrides`").unwrap_or_default() {
            let read = self.an_override(node, identity, (base, headroom));
            let (Some((who, allowance)), Some(key)) = (read, key) else { continue };
            let who: Vec<(&str, &str)> = who.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let inserted = overrides.insert(key, identity.ipv6_prefix(), &who, allowance);
            if let Some(Some(_)) = self.ok(node.place, inserted) {
                let who: Vec<String> =
                    who.iter().map(|(n, v)| format!("{n}={}", shown(v))).collect();
                let text = format!("a second override for {}; remove one of them", who.join(" "));
                self.note(node.place, text);
            }
        }
        overrides
    }

    fn an_override<'d>(
        &mut self,
        node: &'d Document,
        identity: &Identity,
        (base, headroom): (&[RuleLimit], Headroom),
    ) -> Option<(Vec<(&'d str, String)>, Allowance)> {
        let fields = self.record(node, &grammar::OVERRIDE)?;
        let who = fields.get("key").and_then(|node| self.map(node, "an override's `key`"));
        let allowance = fields.get("limits");
        let allowance = allowance.and_then(|node| self.allowance_instead(node, base, headroom));
        let pairs: Vec<(&str, String)> = who?
            .iter()
            .filter_map(|entry| {
                let what = format!("`{}`", shown(&entry.name));
                let value = self.value(&entry.node, &what)?;
                self.ok(entry.node.place, identity.may_name(&entry.name, &value))?;
                Some((&*entry.name, value))
            })
            .collect();
        (pairs.len() == who?.len()).then_some((pairs, allowance?))
    }

    /// An allowance in place of the limits of a rule.
    fn allowance_instead(
        &mut self,
        node: &Document,
        base: &[RuleLimit],
        headroom: Headroom,
    ) -> Option<Allowance> {
        let allowance = self.allowance(node, headroom)?;
        self.ok(node.place, allowance.in_place_of(base, headroom))
    }

    /// `unlimited`, or a list of limits.
    pub(super) fn allowance(&mut self, node: &Document, headroom: Headroom) -> Option<Allowance> {
        match &node.value {
            Value::Text(text, _) if text == grammar::UNLIMITED => Some(Allowance::Unlimited),
            Value::Text(text, _) if nearest(text, [grammar::UNLIMITED].into_iter()).is_some() => {
                let text = format!("unknown word `{}`, did you mean `unlimited`?", shown(text));
                self.wrong(node.place, text)
            }
            Value::Text(text, _) if text.parse::<Rate>().is_err() => {
                let text = format!(
                    "`limits` is a list of rates, such as `[15/s]`, or `unlimited`, not `{}`",
                    shown(text)
                );
                self.wrong(node.place, text)
            }
            Value::Text(..) | Value::Nothing | Value::List(_) | Value::Map(_) => {
                self.limits(node, headroom).map(Allowance::Limits)
            }
        }
    }
}

/// Whether a limit is meant to be one of concurrency: it has `concurrent`, nearly `concurrent`, or `lease`.
fn is_concurrency(node: &Document) -> bool {
    let Value::Map(entries) = &node.value else { return false };
    let names = || grammar::CONCURRENCY_RECORD.names().filter(|name| *name != "name");
    entries.iter().any(|entry| {
        !grammar::LIMIT_RECORD.has(&entry.name) && {
            names().any(|name| *entry.name == *name) || nearest(&entry.name, names()).is_some()
        }
    })
}
