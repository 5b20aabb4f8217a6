//! How a rule treats requests, nodes and memory: what a refusal means, and when it is one.

use super::{LONGEST_WAIT, USUAL_QUEUE};
use crate::allowance::Allowance;
use crate::attributes::shown;
use crate::document::{Document, Value};
use crate::grammar;
use crate::identity::Identity;
use crate::key::Key;
use crate::overrides::Overrides;
use crate::rate;
use crate::reader::{Chosen, Fields, Reader};
use crate::rule::{Count, Mode, OnLimit, OnStoreError, Rule};
use tidegate_core::WhenFull;
use tidegate_core::{RejectedCost, Span};

impl Reader {
    /// What is left of a rule: how it treats requests, nodes and memory.
    pub(super) fn manners(&mut self, fields: &Fields<'_>) -> Rule {
        let on_limit = fields.get("on_limit").and_then(|node| self.on_limit(node));
        if let Some(node) = fields.get("consistency") {
            self.consistency(node);
        }
        let mut word =
            |name: &str, choice| match fields.get(name).and_then(|n| self.choice(n, choice)) {
                Some(Chosen::Word(word)) => word,
                Some(Chosen::Form(..)) | None => "",
            };
        let count = match word("count", &grammar::COUNT) {
            "failures" => Count::Failures,
            "successes" => Count::Successes,
            _ => Count::All,
        };
        let on_store_error = match word("on_store_error", &grammar::ON_STORE_ERROR) {
            "allow" => OnStoreError::Allow,
            "deny" => OnStoreError::Deny,
            _ => OnStoreError::Local,
        };
        let when_full = match word("when_full", &grammar::WHEN_FULL) {
            "allow" => WhenFull::Allow,
            "deny" => WhenFull::Deny,
            _ => WhenFull::Shared,
        };
        let mut flag = |name: &str, usual| {
            let read = fields.get(name).and_then(|node| self.flag(node, &format!("`{name}`")));
            read.unwrap_or(usual)
        };
        Rule {
            name: Box::default(),
            place: fields.place,
            conditions: vec![],
            when: None,
            key: Key::shared(),
            allowance: Allowance::Unlimited,
            tiers: vec![],
            overrides: Overrides::default(),
            mode: Mode::Hard,
            on_limit: on_limit.unwrap_or_default(),
            count_rejected: if flag("count_rejected", false) {
                RejectedCost::Charged
            } else {
                RejectedCost::Free
            },
            count,
            on_store_error,
            when_full,
            shadow: flag("shadow", false),
            enabled: flag("enabled", true),
            stop: flag("stop", false),
        }
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

    fn percent(&mut self, node: &Document, what: &str, least: u16, most: u16) -> Option<u16> {
        let text = self.text(node, what)?;
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent.filter(|percent| (least..=most).contains(percent)) {
            Some(percent) => Some(percent),
            None => {
                let text = format!("{what} is `{least}%` to `{most}%`, not `{}`", shown(text));
                self.wrong(node.place, text)
            }
        }
    }

    fn length(&mut self, node: &Document, what: &str) -> Option<Span> {
        let text = self.text(node, what)?;
        let length = self.ok(node.place, rate::length(text).map_err(|e| format!("{what}: {e}")))?;
        if length > LONGEST_WAIT {
            return self.wrong(node.place, format!("{what} is at most 1h, not `{}`", shown(text)));
        }
        Some(length)
    }

    fn on_limit(&mut self, node: &Document) -> Option<OnLimit> {
        match self.choice(node, &grammar::ON_LIMIT)? {
            Chosen::Form("delay", node) => {
                let fields = self.record(node, &grammar::DELAY)?;
                let queue = fields
                    .get("max_queue")
                    .map_or(Some(0), |node| self.whole(node, "`max_queue`", 1, 1_000_000));
                let max_wait = self.length(fields.get("max_wait")?, "`max_wait`")?;
                let max_queue = queue?.try_into().ok().filter(|queue| *queue > 0);
                Some(OnLimit::Delay { max_wait, max_queue: max_queue.unwrap_or(USUAL_QUEUE) })
            }
            Chosen::Form("flag", node) => Some(OnLimit::Flag(self.name(node, "a flag")?)),
            Chosen::Form(_, node) => {
                self.choice(node, &grammar::PRIORITY).map(|_| OnLimit::Deprioritize)
            }
            Chosen::Word(_) => Some(OnLimit::Reject),
        }
    }

    /// Only `exact` exists; a policy that asks for write-back must not be counted in another way than it says.
    fn consistency(&mut self, node: &Document) {
        match &node.value {
            Value::Map(entries) if entries.iter().any(|entry| &*entry.name == "write_back") => {
                let text = "`write_back` is not available yet; write `consistency: exact`";
                let _: Option<()> = self.wrong(node.place, text);
            }
            Value::Nothing | Value::Text(..) | Value::List(_) | Value::Map(_) => {
                self.choice(node, &grammar::CONSISTENCY);
            }
        }
    }
}
