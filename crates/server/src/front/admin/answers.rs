//! JSON bodies that the admin API answers with. The `OpenAPI` document is written from these types and their comments.

use super::auth::AdminRole;
use crate::control::ChangeNote;
use crate::health::HealthReport;
use crate::recent_denials::DeniedKey;
use crate::shown_key::ShownKey;
use crate::top_keys::{TopBy, TopList};
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
#[cfg(test)]
use serde_json::Map;
use serde_json::Value;
use tidegate::{Changes, PersonLimit, Policy, RuleLimit, RuleStats, Span, Stats, UncoveredRule};
use tidegate_policy::{AppliedRule, Explanation, Rule, RuleExplanation};
use tidegate_store::{Gauges, LeaseReport, NodeReport};

// === this server ===

/// Whose token the request carries.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct WhoAmI<'a> {
    pub(super) name: &'a str,
    pub(super) role: AdminRole,
}

/// The status of this server.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Status {
    /// As /ready answers it.
    pub(super) health: HealthReport,
    pub(super) uptime_s: u64,
    /// The version of the server.
    pub(super) tidegate: &'static str,
    pub(super) policy_version: u64,
    pub(super) policy_hash: String,
    pub(super) control_version: u64,
    /// How full the store in memory is; `null` for a store elsewhere.
    pub(super) memory: Option<MemoryStatus>,
    /// Requests to which no rule applied.
    pub(super) unmatched: u64,
    /// Requests with a tier that the policy does not know.
    pub(super) unknown_tiers: u64,
    /// Requests that the store did not answer.
    pub(super) store_errors: u64,
    pub(super) rules: Vec<RuleCounts>,
    /// The rule files of Envoy's reference service, if they decide over gRPC.
    pub(super) envoy: Option<RuleFilesStatus>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct MemoryStatus {
    states: usize,
    bytes: usize,
    budget: usize,
    /// States that were removed while they still counted.
    demotions: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct RuleFilesStatus {
    /// The folder of the files.
    pub(super) config: String,
    pub(super) version: u64,
    pub(super) unmatched: u64,
    pub(super) store_errors: u64,
    pub(super) rules: Vec<RuleCounts>,
}

/// What a rule has decided.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct RuleCounts {
    rule: String,
    allowed: u64,
    delayed: u64,
    denied: u64,
    would_deny: u64,
    /// Requests that exceeded the limit and passed because of its headroom.
    over: u64,
}

// === rules ===

/// A rule in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Rule"))]
pub(super) struct RuleInForce {
    rule: String,
    key: String,
    limits: Vec<LimitInForce>,
    enabled: bool,
    shadow: bool,
    /// Which protocol it decides, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(extend("const" = "grpc")))]
    decides: Option<&'static str>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct LimitInForce {
    id: String,
    rate: String,
    algorithm: &'static str,
}

/// How every rule applies to a request.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Explanation"))]
pub(crate) struct ExplanationBody<'a> {
    tier: &'a Option<String>,
    /// The tier that the request named, if it does not exist.
    unknown_tier: &'a Option<String>,
    /// The priority class, if the policy uses priorities.
    priority: &'a Option<String>,
    /// All readings of the path, if servers read it in several ways.
    readings: &'a [String],
    rules: Vec<RuleEffect<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(JsonSchema))]
enum RuleEffect<'a> {
    Applied {
        rule: &'a str,
        #[cfg_attr(test, schemars(extend("const" = true)))]
        applies: bool,
        key: &'a str,
        limits: &'a [String],
        from: &'a str,
        unlimited: bool,
        notes: &'a [String],
    },
    Skipped {
        rule: &'a str,
        #[cfg_attr(test, schemars(extend("const" = false)))]
        applies: bool,
        why: String,
    },
}

/// What a change of the policy changes.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct PolicyChange {
    pub(super) dry_run: bool,
    pub(super) policy_version: u64,
    #[cfg_attr(test, schemars(with = "Map<String, Value>"))]
    pub(super) difference: Value,
}

// === nodes ===

/// What this node holds of leased limits.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Leases {
    pub(super) rules: Vec<Lease>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Lease {
    rule: String,
    overshoot_bound: u64,
    /// How many keys are leased now.
    keys: u64,
    held: u64,
    /// How many calls were made for leases.
    asks: u64,
    granted: u64,
    spent: u64,
    returned: u64,
    /// How much was not spent in time.
    drained: u64,
    /// How much was lost, for example with a connection.
    lost: u64,
}

/// The nodes that share the store.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Nodes {
    pub(super) count: u32,
    pub(super) nodes: Vec<Node>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Node {
    /// Its name; `null` if the nodes are not announced.
    pub(super) node: Option<String>,
    /// Whether it is the node that answers.
    pub(super) this: bool,
    pub(super) policy_hash: String,
    /// For how long it was not announced while others were.
    pub(super) silent_ms: u64,
}

// === keys ===

/// Whose requests an answer is about.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) enum Scope {
    #[serde(rename = "all nodes")]
    AllNodes,
    #[serde(rename = "this node")]
    ThisNode,
}

/// The top keys of each rule.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Top {
    /// `this node` if the store is not shared, or does not answer.
    pub(super) scope: Scope,
    /// How many nodes are in the lists.
    pub(super) nodes: usize,
    pub(super) by: TopBy,
    /// Since when the lists count, in Unix time.
    pub(super) since_ms: u64,
    pub(super) rules: Vec<TopRule>,
}

/// The top keys of a rule.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct TopRule {
    /// Empty for limits that clients name.
    pub(super) rule: String,
    #[serde(flatten)]
    pub(super) list: TopList,
}

/// The keys that were refused last.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct RecentDenialsBody {
    pub(super) scope: Scope,
    pub(super) denials: Vec<Denial>,
}

/// A key that was refused lately.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Denial {
    /// Empty for a limit that a client names.
    rule: String,
    /// The limit of the rule that refused first.
    limit: Option<String>,
    /// `null` if keys are not shown.
    key: Option<ShownKey>,
    #[serde(flatten)]
    denied: Denied,
}

/// How often, and since when, a rule refuses a key.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Denied {
    /// The first of these denials, in Unix time. A key that is not denied for ten minutes begins anew.
    first_ms: u64,
    last_ms: u64,
    denials: u64,
    /// Of the last denial; `null` if such a request never passes.
    retry_after_ms: Option<u64>,
    /// The rule is in shadow mode, or only marks requests.
    would_deny: bool,
}

// === persons ===

/// What every rule has counted for a person.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Person {
    pub(super) scope: Scope,
    pub(super) denials_scope: Scope,
    pub(super) policy_hash: String,
    pub(super) tier: Option<PersonTier>,
    /// Whether the keys of all rules are known.
    pub(super) complete: bool,
    pub(super) rules: Vec<PersonRule>,
    /// Keys of rules in `not_covered` that were refused lately, and may be of the person.
    pub(super) seen: Vec<SeenKey>,
    pub(super) not_covered: Vec<Uncovered>,
}

/// The tier of a person, and where it comes from.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct PersonTier {
    pub(super) name: String,
    #[cfg_attr(test, schemars(extend("enum" = ["policy", "operator"])))]
    pub(super) from: &'static str,
    #[serde(flatten)]
    pub(super) note: ChangeNote,
}

/// What a rule has counted for a person.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct PersonRule {
    pub(super) rule: String,
    pub(super) key: ShownKey,
    pub(super) key_text: String,
    pub(super) shadow: bool,
    pub(super) enabled: bool,
    #[cfg_attr(test, schemars(extend("enum" = ["rule", "tier", "override"])))]
    pub(super) from: &'static str,
    /// Under which conditions the rule applies to requests of the person.
    pub(super) only_when: Option<String>,
    pub(super) limits: Vec<CountedLimit>,
    #[serde(rename = "override")]
    pub(super) own: Option<PersonOverride>,
    /// `null` if the key was not refused lately.
    pub(super) denied: Option<Denied>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct CountedLimit {
    id: String,
    rate: String,
    used: u64,
    limit: u64,
    remaining: u64,
    reset_ms: Option<u64>,
    /// Whether a request with the cost 1 would pass now.
    allowed: bool,
    retry_after_ms: Option<u64>,
}

/// The override that applies to a person: one of the control document, or of the policy, which has no note.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct PersonOverride {
    /// As in a policy.
    pub(super) limits: Value,
    #[serde(flatten)]
    pub(super) note: ChangeNote,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct SeenKey {
    pub(super) rule: String,
    pub(super) key: ShownKey,
    pub(super) denied: Denied,
}

/// A rule whose key is not known.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Uncovered {
    pub(super) rule: String,
    /// The parts of its key of which no value is known.
    pub(super) needs: Vec<String>,
}

/// How many counters there are to forget, or were forgotten.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct ResetDone {
    pub(super) states: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<Vec<ResetRule>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_covered: Option<Vec<Uncovered>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct ResetRule {
    pub(super) rule: String,
    pub(super) states: usize,
}

// === conversions ===

impl From<Gauges> for MemoryStatus {
    fn from(gauges: Gauges) -> Self {
        let Gauges { entries, bytes, budget, demotions, .. } = gauges;
        Self { states: entries, bytes, budget, demotions }
    }
}

impl RuleCounts {
    pub(super) fn of_rules(stats: Stats) -> Vec<Self> {
        let counts = |(rule, stats): (String, RuleStats)| {
            let RuleStats { allowed, delayed, denied, would_deny, over } = stats;
            Self { rule, allowed, delayed, denied, would_deny, over }
        };
        stats.rules.into_iter().map(counts).collect()
    }
}

impl RuleInForce {
    pub(super) fn new(rule: &Rule, policy: &Policy, changes: &Changes) -> Self {
        let limit = |limit: &RuleLimit| LimitInForce {
            id: limit.id().to_owned(),
            rate: limit.summary(),
            algorithm: limit.limit().algorithm().name(),
        };
        Self {
            rule: rule.name().to_owned(),
            key: rule.key().to_string(),
            limits: rule.allowance().limits().iter().map(limit).collect(),
            enabled: policy.is_enabled(changes, rule),
            shadow: policy.is_shadow(changes, rule),
            decides: None,
        }
    }

    /// The same rule, of a policy that decides only over gRPC.
    pub(super) fn over_grpc(self) -> Self {
        Self { decides: Some("grpc"), ..self }
    }
}

impl<'a> From<&'a Explanation> for ExplanationBody<'a> {
    fn from(explanation: &'a Explanation) -> Self {
        let Explanation { tier, unknown_tier, priority, readings, rules } = explanation;
        let rules = rules.iter().map(RuleEffect::from).collect();
        Self { tier, unknown_tier, priority, readings, rules }
    }
}

impl<'a> From<&'a RuleExplanation> for RuleEffect<'a> {
    fn from(RuleExplanation { rule, outcome }: &'a RuleExplanation) -> Self {
        match outcome {
            Ok(AppliedRule { key, limits, origin, notes }) => {
                let unlimited = limits.is_empty();
                Self::Applied { rule, applies: true, key, limits, from: origin, unlimited, notes }
            }
            Err(skipped) => Self::Skipped { rule, applies: false, why: skipped.to_string() },
        }
    }
}

impl Lease {
    pub(super) fn of(rule: String, report: &LeaseReport) -> Self {
        Self {
            rule,
            overshoot_bound: 0,
            keys: report.leases,
            held: report.held,
            asks: report.asks,
            granted: report.granted,
            spent: report.spent,
            returned: report.returned,
            drained: report.drained,
            lost: report.lost,
        }
    }
}

impl From<NodeReport> for Node {
    fn from(node: NodeReport) -> Self {
        Self {
            node: Some(node.name),
            this: node.is_this,
            policy_hash: node.policy,
            silent_ms: node.silent.as_millis_ceil(),
        }
    }
}

impl From<DeniedKey> for Denial {
    fn from(found: DeniedKey) -> Self {
        let denied = Denied::from(&found);
        let DeniedKey { rule, limit, key, .. } = found;
        Self { rule, limit, key: (!key.is_empty()).then_some(ShownKey(key)), denied }
    }
}

impl From<&DeniedKey> for Denied {
    fn from(found: &DeniedKey) -> Self {
        Self {
            first_ms: found.first_ms,
            last_ms: found.last_ms,
            denials: found.denials,
            retry_after_ms: found.retry_after_ms,
            would_deny: found.would_deny,
        }
    }
}

impl From<&PersonLimit> for CountedLimit {
    fn from(limit: &PersonLimit) -> Self {
        let is_concurrent = limit.rate.ends_with("concurrent");
        Self {
            id: limit.id.clone(),
            rate: if is_concurrent {
                limit.rate.clone()
            } else {
                format!("{} {}", limit.rate, limit.algorithm)
            },
            used: limit.used,
            limit: limit.limit,
            remaining: limit.remaining,
            reset_ms: limit.reset.map(Span::as_millis_ceil),
            allowed: limit.allowed,
            retry_after_ms: limit.retry_after.map(Span::as_millis_ceil),
        }
    }
}

impl From<&UncoveredRule> for Uncovered {
    fn from(rule: &UncoveredRule) -> Self {
        Self { rule: rule.rule.clone(), needs: rule.needs.clone() }
    }
}
