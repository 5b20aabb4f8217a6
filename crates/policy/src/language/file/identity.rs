//! Reads `identity` and `tiers`.

use super::MOST_TIERS;
use crate::document::{Document, Entry, Value, shown};
use crate::language::grammar;
use crate::language::reader::{Chosen, Fields, Reader};
use crate::model::address::{HopHeader, Trusted, parse_network};
use crate::model::attributes::is_attribute;
use crate::model::identity::{Decode, Duplicates, Identity, Peers, Source, contain_all_addresses};
use crate::model::policy::Tiers;
use crate::suggest::{hint, nearest};
use ipnet::IpNet;

impl Reader {
    pub(super) fn identity(&mut self, node: &Document) -> Identity {
        let Some(fields) = self.record(node, &grammar::IDENTITY) else {
            return Identity::default();
        };
        let ip = fields.get("ip").and_then(|node| self.record(node, &grammar::IP));
        let field = |name| ip.as_ref().and_then(|ip| ip.get(name));
        let prefix = field("ipv6_prefix").and_then(|n| self.whole(n, "`ipv6_prefix`", 1, 128));
        let header = match field("header").and_then(|n| self.choice(n, &grammar::HOP_HEADER)) {
            Some(Chosen::Word("forwarded")) => HopHeader::Forwarded,
            Some(Chosen::Word(_) | Chosen::Form(..)) | None => HopHeader::XForwardedFor,
        };
        let (trusted, everyone) =
            fields.get("trusted").map_or((vec![], false), |n| self.trusted(n));
        let others =
            fields.entries().iter().filter(|entry| !["trusted", "ip"].contains(&&*entry.name));
        Identity {
            place: node.place,
            trusted: Trusted::new(trusted, header),
            everyone,
            header,
            ipv6_prefix: prefix.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(64),
            sources: others.filter_map(|entry| self.source(entry)).collect(),
        }
    }

    fn trusted(&mut self, node: &Document) -> (Vec<IpNet>, bool) {
        if let Value::Text(text, _) = &node.value {
            if text == "everyone" {
                let all = ["0.0.0.0/0", "::/0"].iter().filter_map(|text| text.parse().ok());
                return (all.collect(), true);
            }
            let hint = hint(text, ["everyone"].into_iter());
            let text = format!(
                "`trusted` is a list of networks, or `everyone`, not `{}`{hint}",
                shown(text)
            );
            self.note(node.place, text);
            return (vec![], false);
        }
        let Some(list) = self.list(node, "`trusted`") else { return (vec![], false) };
        let networks: Vec<IpNet> = list.iter().filter_map(|node| self.network(node)).collect();
        if contain_all_addresses(&networks) {
            let text = "these networks contain every address, so every client could forge headers; if every peer is your proxy, write `trusted: everyone`";
            self.note(node.place, text);
        }
        (networks, false)
    }

    pub(super) fn network(&mut self, node: &Document) -> Option<IpNet> {
        let text = self.text(node, "a network")?;
        self.ok(node.place, parse_network(text))
    }

    fn source(&mut self, entry: &Entry) -> Option<(Box<str>, Source)> {
        if !is_attribute(&entry.name) || ["method", "path", "cost"].contains(&&*entry.name) {
            let text = format!(
                "`{}` cannot be read from a header, cookie or query; choose another name",
                shown(&entry.name)
            );
            return self.wrong(entry.place, text);
        }
        let source = match &entry.node.value {
            Value::Text(text, _) => self.source_text(entry, &entry.node, text)?,
            Value::Map(fields) if is_long_source(&entry.name, fields) => self.long_source(entry)?,
            Value::Nothing | Value::List(_) | Value::Map(_) => {
                let hint = hint(&entry.name, ["trusted", "ip"].into_iter());
                let text = format!(
                    "unknown key `{}`{hint} (write an attribute like `header:NAME`)",
                    shown(&entry.name)
                );
                return self.wrong(entry.place, text);
            }
        };
        Some((entry.name.as_ref().into(), source))
    }

    /// `{ from: cookie:sid, peers: any, duplicates: first, decode: percent }`
    fn long_source(&mut self, entry: &Entry) -> Option<Source> {
        let fields = self.record(&entry.node, &grammar::SOURCE_RECORD)?;
        let duplicates = match self.word(&fields, "duplicates", &grammar::DUPLICATES) {
            "first" => Duplicates::First,
            "last" => Duplicates::Last,
            _ => Duplicates::Reject,
        };
        let decode = match self.word(&fields, "decode", &grammar::DECODE) {
            "none" => Some(Decode::Nothing),
            "percent" => Some(Decode::Percent),
            "form" => Some(Decode::Form),
            _ => None,
        };
        let peers = match self.word(&fields, "peers", &grammar::PEERS) {
            "any" => Peers::Any,
            _ => Peers::Trusted,
        };
        if let (Some(node), Peers::Any, "tier" | "priority") =
            (fields.get("peers"), peers, &*entry.name)
        {
            let text = format!(
                "with `peers: any`, every client would choose its own {}; remove it",
                entry.name
            );
            self.note(node.place, text);
        }
        let from = fields.get("from")?;
        let text = self.text(from, "`from`")?;
        let source = self.source_text(entry, from, text)?;
        if source.place.verified().is_some() {
            self.verified_sources_have_no_options(&fields);
        }
        Some(Source { peers, duplicates, decode: decode.unwrap_or(source.decode), ..source })
    }

    fn verified_sources_have_no_options(&mut self, fields: &Fields<'_>) {
        let choice = ["duplicates", "decode"].into_iter().find_map(|name| fields.get(name));
        if let Some(choice) = choice {
            let text = "a claim of a token or a field of an auth server has one value, which is not encoded; remove `duplicates` and `decode`";
            self.note(choice.place, text);
        }
        if let Some(peers) = fields.get("peers") {
            let text = "a claim of a token or a field of an auth server is read from every peer; remove `peers`";
            self.note(peers.place, text);
        }
    }

    fn source_text(&mut self, entry: &Entry, node: &Document, text: &str) -> Option<Source> {
        match Source::parse(&entry.name, text) {
            Some(source) => Some(source),
            None if nearest(&entry.name, ["trusted"].into_iter()).is_some() => {
                let text = format!("unknown key `{}`, did you mean `trusted`?", shown(&entry.name));
                self.wrong(entry.place, text)
            }
            None => {
                let text = format!(
                    "`{}` is not a valid source of an attribute; write `header:NAME`, `cookie:NAME`, `query:NAME`, `digest:query`, `jwt:CLAIM` or `auth:NAME`",
                    shown(text)
                );
                self.wrong(node.place, text)
            }
        }
    }

    pub(super) fn tiers(&mut self, node: &Document) -> Option<Tiers> {
        let fields = self.record(node, &grammar::TIERS)?;
        let list = fields.get("known").and_then(|node| self.list(node, "`known`"));
        let default =
            fields.get("default").and_then(|node| Some((node, self.name(node, "a tier")?)));
        let list = list?;
        if list.len() > MOST_TIERS {
            return self.wrong(
                node.place,
                format!("{} tiers; there are at most {MOST_TIERS}", list.len()),
            );
        }
        let known = self.tier_names(list);
        let (node, default) = default?;
        if !known.contains(&default) {
            let hint = hint(&default, known.iter().map(|tier| &**tier));
            self.note(node.place, format!("`{default}` is not listed in `known`{hint}"));
        }
        Some(Tiers { default: Some(default), known })
    }

    fn tier_names(&mut self, list: &[Document]) -> Vec<Box<str>> {
        let mut known: Vec<Box<str>> = Vec::new();
        for node in list {
            match self.name(node, "a tier") {
                Some(tier) if known.contains(&tier) => {
                    self.note(node.place, format!("`{tier}` is listed twice in `known`"));
                }
                tier => known.extend(tier),
            }
        }
        known
    }
}

/// Whether a map is the long form of an attribute, not a misspelt known key.
fn is_long_source(name: &str, fields: &[Entry]) -> bool {
    let from = fields.iter().any(|field| &*field.name == "from");
    from || nearest(name, ["trusted", "ip"].into_iter()).is_none()
}
