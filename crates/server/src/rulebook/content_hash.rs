//! A short hash of the rules in force: equal on two nodes only if they decide by the same rules.
//!
//! ```text
//!   policy, parsed ─────────┐
//!   switches, overrides,    ├──► JSON with sorted names ──► SHA-256 ──► 9f86d081884c
//!   tiers, sorted ──────────┘
//! ```
//!
//! Unlike the version of a policy, it does not depend on how often and in which order a node has loaded its rules. Comments, white
//! space and the order of keys do not matter, because the policy is parsed. The order of rules matters, because it decides which
//! rule comes first. A change that waits for its rule is not in force, so it does not count. Nor does it count who made a change,
//! why, and when it ends.

use super::diff::plain;
use crate::control::Document;
use data_encoding::HEXLOWER;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidegate::Policy;
use tidegate_policy::Document as Text;

/// The bytes of a hash: 48 bits. By accident, two of a thousand policies have the same hash with odds of 1 in 10⁸.
const BYTES: usize = 6;

/// The hash of a policy with the changes of operators.
pub(super) fn of_rules(text: &[u8], policy: &Policy, document: &Document) -> String {
    let in_force = document.fitting(policy).without_notes();
    shortened(&json!({
        "policy": parsed(text),
        "rules": sorted(&in_force.rules),
        "overrides": sorted(&in_force.overrides),
        "tiers": sorted(&in_force.tiers),
    }))
}

/// The hash of several texts, such as rule files, in their order.
pub(crate) fn of_texts<'t>(texts: impl Iterator<Item = &'t [u8]>) -> String {
    shortened(&texts.map(parsed).collect())
}

/// A text as JSON, without comments and places; a text that cannot be parsed as it is.
fn parsed(text: &[u8]) -> Value {
    Text::parse(text).map_or_else(|_| json!(text), |document| plain(&document))
}

fn sorted(entries: &[impl Serialize]) -> Vec<String> {
    let mut texts: Vec<String> = entries.iter().map(|entry| json!(entry).to_string()).collect();
    texts.sort_unstable();
    texts
}

fn shortened(value: &Value) -> String {
    let hash = Sha256::digest(value.to_string());
    HEXLOWER.encode(hash.get(..BYTES).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ChangeNote, Override, RuleSwitch, Tier};

    const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: a, key: [ip], limits: [1/s] }
  - { name: b, key: [user], limits: [2/s] }
";

    fn hash(text: &str, document: &Document) -> String {
        of_rules(text.as_bytes(), &Policy::parse(text.as_bytes()).unwrap(), document)
    }

    fn switch(rule: &str) -> RuleSwitch {
        let (rule, note) = (rule.to_owned(), ChangeNote::default());
        RuleSwitch { rule, enabled: Some(false), shadow: None, note }
    }

    fn of(user: &str, rule: &str) -> Override {
        let key = [("user".to_owned(), user.to_owned())].into();
        let (rule, note) = (rule.to_owned(), ChangeNote::default());
        Override { rule, key, limits: Some(json!(["9/s"])), note }
    }

    #[test]
    fn the_same_rules_have_the_same_hash_in_whatever_order_they_came() {
        let plain = Document::default();
        let respelled = "{version: 1, rules: [{name: a, limits: ['1/s'], key: [ip]}, # first
            {key: [user], name: b, limits: [2/s]}], tiers: {known: [free, pro], default: free}}";
        assert_eq!(hash(POLICY, &plain), hash(respelled, &plain));
        let one = Document {
            version: 7,
            rules: vec![switch("a"), switch("b")],
            overrides: vec![of("x", "b"), of("y", "b")],
            ..Document::default()
        };
        let other = Document {
            version: 3,
            rules: vec![switch("b"), switch("a")],
            overrides: vec![of("y", "b"), of("x", "b")],
            ..Document::default()
        };
        assert_eq!(hash(POLICY, &one), hash(POLICY, &other));
        let mut noted = one.clone();
        noted.rules[0].note.reason = Some("a test".to_owned());
        noted.overrides[0].note.expires_at_ms = Some(7);
        assert_eq!(hash(POLICY, &one), hash(POLICY, &noted));
        let waiting = Document {
            rules: vec![switch("gone")],
            overrides: vec![of("x", "gone"), of("x", "a")],
            ..Document::default()
        };
        assert_eq!(hash(POLICY, &waiting), hash(POLICY, &plain));
    }

    #[test]
    fn other_rules_have_another_hash() {
        let tier = |tier: &str| Tier {
            attribute: "user".to_owned(),
            value: "x".to_owned(),
            tier: Some(tier.to_owned()),
            note: ChangeNote::default(),
        };
        let plain = Document::default;
        let documents = [
            plain(),
            Document { rules: vec![switch("a")], ..plain() },
            Document { rules: vec![switch("*")], ..plain() },
            Document { overrides: vec![of("x", "b")], ..plain() },
            Document { overrides: vec![of("y", "b")], ..plain() },
            Document { tiers: vec![tier("pro")], ..plain() },
            Document { tiers: vec![tier("free")], ..plain() },
        ];
        let mut hashes: Vec<String> = documents.iter().map(|one| hash(POLICY, one)).collect();
        hashes.extend(
            [POLICY.replace("2/s", "3/s"), POLICY.replace("name: a", "name: c")]
                .map(|text| hash(&text, &plain())),
        );
        assert!(hashes.iter().all(|hash| hash.len() == 12), "{hashes:?}");
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), 9);
    }
}
