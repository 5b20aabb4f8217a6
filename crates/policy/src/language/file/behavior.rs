//! Reads the settings of a rule for requests above the limit, for counting, and for failures of the store.

use super::{DEFAULT_QUEUE, LONGEST_WAIT};
use crate::document::{Document, Entry, Value, shown};
use crate::language::grammar;
use crate::language::reader::{Chosen, Fields, Reader};
use crate::model::allowance::Allowance;
use crate::model::identity::Identity;
use crate::model::priority::Classes;
use crate::model::rate;
use crate::model::rule::{Consistency, Count, Mode, OnLimit, OnStoreError, Rule};
use tidegate_core::{LeaseTerms, NoLease, RejectedCost, Span, WhenFull};

/// Settings of a rule that say how its limits count, or what happens above them.
const OF_LIMITS: [&str; 8] = [
    "mode",
    "on_limit",
    "count_rejected",
    "count",
    "consistency",
    "on_store_error",
    "when_full",
    "shadow",
];

const SHORTEST_INTERVAL: Span = Span::from_millis(10);
const LONGEST_INTERVAL: Span = Span::from_secs(1);

impl Reader {
    /// A rule with these settings, and with the default of everything else.
    pub(super) fn behavior(&mut self, fields: &Fields<'_>, classes: &Classes) -> Rule {
        let on_limit = fields.get("on_limit").and_then(|node| self.on_limit(node, classes));
        let consistency = fields.get("consistency").and_then(|node| self.consistency(node));
        let count = match self.word(fields, "count", &grammar::COUNT) {
            "failures" => Count::Failures,
            "successes" => Count::Successes,
            _ => Count::All,
        };
        let on_store_error = match self.word(fields, "on_store_error", &grammar::ON_STORE_ERROR) {
            "allow" => OnStoreError::Allow,
            "deny" => OnStoreError::Deny,
            _ => OnStoreError::Local,
        };
        let when_full = match self.word(fields, "when_full", &grammar::WHEN_FULL) {
            "allow" => WhenFull::Allow,
            "deny" => WhenFull::Deny,
            _ => WhenFull::Shared,
        };
        let count_rejected = match self.flag_or(fields, "count_rejected", false) {
            true => RejectedCost::Charged,
            false => RejectedCost::Free,
        };
        Rule {
            on_limit: on_limit.unwrap_or_default(),
            count_rejected,
            count,
            on_store_error,
            when_full,
            consistency: consistency.unwrap_or_default(),
            shadow: self.flag_or(fields, "shadow", false),
            enabled: self.flag_or(fields, "enabled", true),
            stop: self.flag_or(fields, "stop", false),
            ..Rule::new(Box::default(), fields.place, Allowance::Unlimited)
        }
    }

    /// Reports what has no effect on a rule whose requests are all unlimited.
    pub(super) fn unlimited_has_no_settings(&mut self, fields: &Fields<'_>, rule: &Rule) {
        if rule.allowance != Allowance::Unlimited || !rule.counts_nothing() {
            return;
        }
        for entry in fields.entries().iter().filter(|entry| OF_LIMITS.contains(&&*entry.name)) {
            let name = &entry.name;
            let text = format!("`{name}` has no effect with `limits: unlimited`; remove it");
            self.note(entry.place, text);
        }
        // Scaling no limits leaves an empty list.
        let is_scaled = |(_, allowance): &(_, Allowance)| *allowance != Allowance::Unlimited;
        if let (Some(node), true) = (fields.get("tiers"), rule.tiers.iter().any(is_scaled)) {
            let text = "`scale` has no effect with `limits: unlimited`; write `limits: […]` for this tier, or remove it";
            self.note(node.place, text);
        }
    }

    /// Reports settings that contradict a concurrency limit, whose permits are returned when their requests end.
    pub(super) fn permits_are_returned(&mut self, fields: &Fields<'_>, rule: &Rule) {
        if !rule.limits_concurrency() {
            return;
        }
        if let (Some(node), true) = (fields.get("count"), rule.count != Count::All) {
            let text = "a concurrency limit counts every request until it ends; write `count: all`, and put the limits that count outcomes into another rule";
            self.note(node.place, text);
        }
        if let (Some(node), RejectedCost::Charged) =
            (fields.get("count_rejected"), rule.count_rejected)
        {
            let text = "a rejected request does not run, so it cannot count under a concurrency limit; write `count_rejected: false`, and put the limits that count rejected requests into another rule";
            self.note(node.place, text);
        }
    }

    /// The word of a choice; empty if it is absent or wrong.
    pub(super) fn word<'d>(
        &mut self,
        fields: &Fields<'d>,
        name: &str,
        choice: &'static grammar::Choice,
    ) -> &'d str {
        match fields.get(name).and_then(|node| self.choice(node, choice)) {
            Some(Chosen::Word(word)) => word,
            Some(Chosen::Form(..)) | None => "",
        }
    }

    pub(super) fn flag_or(&mut self, fields: &Fields<'_>, name: &str, default: bool) -> bool {
        let read = fields.get(name).and_then(|node| self.flag(node, &format!("`{name}`")));
        read.unwrap_or(default)
    }

    pub(super) fn mode(&mut self, node: &Document, identity: &Identity) -> Option<Mode> {
        match self.choice(node, &grammar::MODE)? {
            Chosen::Form("soft", node) => Some(Mode::Soft(self.percent(node, "`soft`", 1, 900)?)),
            Chosen::Form(_, node) => {
                let fields = self.record(node, &grammar::ELASTIC)?;
                let up_to =
                    fields.get("up_to").and_then(|n| self.percent(n, "`up_to`", 101, 1_000));
                let condition =
                    fields.get("while").and_then(|node| self.expression(node, identity));
                Some(Mode::Elastic { up_to: up_to?, condition: condition? })
            }
            Chosen::Word(_) => Some(Mode::Hard),
        }
    }

    pub(super) fn percent(
        &mut self,
        node: &Document,
        what: &str,
        least: u16,
        most: u16,
    ) -> Option<u16> {
        let text = self.text(node, what)?;
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent.filter(|percent| (least..=most).contains(percent)) {
            Some(percent) => Some(percent),
            None => {
                let bare = text.trim_end_matches('%').trim().parse::<u16>().ok();
                let meant = bare.filter(|percent| (least..=most).contains(percent));
                let hint = meant.map_or_else(String::new, |n| format!("; write `{n}%`"));
                let found = shown(text);
                let text = format!("{what} is `{least}%` to `{most}%`, not `{found}`{hint}");
                self.wrong(node.place, text)
            }
        }
    }

    pub(super) fn length(&mut self, node: &Document, what: &str) -> Option<Span> {
        let text = self.text(node, what)?;
        let length = self.ok(node.place, rate::length(text).map_err(|e| format!("{what}: {e}")))?;
        if length > LONGEST_WAIT {
            return self.wrong(node.place, format!("{what} is at most 1h, not `{}`", shown(text)));
        }
        Some(length)
    }

    fn on_limit(&mut self, node: &Document, classes: &Classes) -> Option<OnLimit> {
        match self.choice(node, &grammar::ON_LIMIT)? {
            Chosen::Form("delay", node) => self.delay(node),
            Chosen::Form("flag", node) => Some(OnLimit::Flag(self.name(node, "a flag")?)),
            Chosen::Form(_, node) => self.class_named(node, classes).map(OnLimit::Deprioritize),
            Chosen::Word(_) => Some(OnLimit::Reject),
        }
    }

    fn delay(&mut self, node: &Document) -> Option<OnLimit> {
        let fields = self.record(node, &grammar::DELAY)?;
        let queue = fields
            .get("max_queue")
            .map_or(Some(0), |node| self.whole(node, "`max_queue`", 1, 1_000_000));
        let max_wait = self.length(fields.get("max_wait")?, "`max_wait`")?;
        let max_queue = queue?.try_into().ok().filter(|queue| *queue > 0);
        Some(OnLimit::Delay { max_wait, max_queue: max_queue.unwrap_or(DEFAULT_QUEUE) })
    }

    fn consistency(&mut self, node: &Document) -> Option<Consistency> {
        let is_old = |entries: &[Entry]| entries.iter().any(|entry| &*entry.name == "write_back");
        if matches!(&node.value, Value::Map(entries) if is_old(entries)) {
            let text = "`write_back` is now called `lease`; write `consistency: lease`, or `{ lease: { share: 10%, interval: 100ms } }`";
            return self.wrong(node.place, text);
        }
        match self.choice(node, &grammar::CONSISTENCY)? {
            Chosen::Word("lease") => Some(Consistency::Lease(LeaseTerms::default())),
            Chosen::Word(_) => Some(Consistency::Exact),
            Chosen::Form(_, node) => {
                let fields = self.record(node, &grammar::LEASE)?;
                let default = LeaseTerms::default();
                let share = match fields.get("share") {
                    Some(node) => self.percent(node, "`share`", 1, 50)?,
                    None => u16::from(default.share),
                };
                let interval = match fields.get("interval") {
                    Some(node) => self.lease_interval(node)?,
                    None => default.interval,
                };
                let share = u8::try_from(share).unwrap_or(default.share);
                Some(Consistency::Lease(LeaseTerms { share, interval, ..default }))
            }
        }
    }

    fn lease_interval(&mut self, node: &Document) -> Option<Span> {
        let interval = self.length(node, "`interval`")?;
        if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
            let text = "`interval` of a lease is `10ms` to `1s`";
            return self.wrong(node.place, text);
        }
        Some(interval)
    }

    /// Reports limits that cannot be leased, of the rule and of its tiers and overrides.
    pub(super) fn limits_can_be_leased(&mut self, fields: &Fields<'_>, rule: &Rule) {
        let (Consistency::Lease(_), Some(node)) = (&rule.consistency, fields.get("consistency"))
        else {
            return;
        };
        let limits = rule.allowances().flat_map(Allowance::limits);
        let mut refused = limits.filter_map(|limit| limit.limit().can_lease().err());
        if let Some(why) = refused.next() {
            let instead = match why {
                NoLease::Turns | NoLease::Log => "`, or use token_bucket",
                NoLease::Permits => "`, and put the other limits into another rule",
            };
            let text = format!(
                "limits of this rule cannot be leased: {why}; write `consistency: exact{instead}"
            );
            self.note(node.place, text);
        }
    }
}
