//! The keys of a rule, and of its limits.

use super::{
    Choice, EXPRESSION, Instead, KEY_PART, LENGTH, NAME, PERCENT, RATE, Record, Shape, optional,
    required, required_unless, words,
};

pub(crate) static RULE: Record = Record {
    title: "a rule",
    fields: &[
        required(
            "name",
            "Names the rule in responses, logs and metrics. Its counters belong to this name.",
            NAME,
        ),
        optional("description", "Describes the purpose of the rule for people.", Shape::Plain),
        optional(
            "match",
            "Lists conditions on attributes. All of them must hold; a list means any of its values. In paths, `*` is any one segment and `**` is any number of segments.",
            Shape::Map(&Shape::OneOrMore(&Shape::Plain)),
        ),
        optional(
            "case_insensitive",
            "With `true`, /LOGIN equals /login in the match, condition and key of this rule.",
            Shape::Flag,
        ),
        optional("when", "Adds a condition on attributes and on `cost`.", EXPRESSION),
        optional(
            "priority",
            "Names the priority class of the requests that this rule applies to. The first rule with a `priority` counts. Such a rule needs neither `key` nor `limits`.",
            NAME,
        ),
        required_unless(
            &[Instead::Key("priority"), Instead::Word("limits", UNLIMITED)],
            "key",
            "Lists the attributes that select the counter: [user, ip] is a pair, [user|ip] is the first one that is present, [ip/48] is an IPv6 network, and [] is one counter for all requests.",
            Shape::List(&KEY_PART),
        ),
        required_unless(
            &[Instead::Key("priority")],
            "limits",
            "Lists the limits. A request takes from all of them, or from none. With `unlimited`, the rule has no limits and needs no `key`; with `stop: true` in addition, it exempts its requests from all later rules.",
            LIMITS,
        ),
        optional(
            "tiers",
            "Lists the allowances of tiers that differ from the limits of the rule.",
            Shape::Map(&Shape::Choice(&TIER_ALLOWANCE)),
        ),
        optional(
            "overrides",
            "Lists the allowances of single customers that differ from the limits of the rule.",
            Shape::List(&Shape::Record(&OVERRIDE)),
        ),
        optional("mode", "Sets how strictly the limits are enforced.", Shape::Choice(&MODE)),
        optional(
            "on_limit",
            "Sets what happens to a request above the limit.",
            Shape::Choice(&ON_LIMIT),
        ),
        optional("count_rejected", "With `true`, rejected requests count too.", Shape::Flag),
        optional(
            "count",
            "Sets which requests count. The caller reports the outcome of a request later.",
            Shape::Choice(&COUNT),
        ),
        optional(
            "consistency",
            "Sets how exact the counters are that several nodes share.",
            Shape::Choice(&CONSISTENCY),
        ),
        optional(
            "on_store_error",
            "Sets what the rule does while its store is unreachable.",
            Shape::Choice(&ON_STORE_ERROR),
        ),
        optional(
            "when_full",
            "Sets what happens to new keys when the memory is full of active ones.",
            Shape::Choice(&WHEN_FULL),
        ),
        optional(
            "shadow",
            "With `true`, the rule counts and reports what it would do, but denies nothing.",
            Shape::Flag,
        ),
        optional("enabled", "With `false`, the rule is disabled.", Shape::Flag),
        optional(
            "stop",
            "With `true`, later rules are skipped when this one applies.",
            Shape::Flag,
        ),
    ],
    others: None,
};

/// The word in place of a list of limits.
pub(crate) const UNLIMITED: &str = "unlimited";

const LIMITS: Shape = Shape::ShortOrLong(
    &Shape::Text { pattern: "^unlimited$", example: UNLIMITED },
    &Shape::List(&LIMIT),
);

pub(crate) static LIMIT: Shape = Shape::ShortOrLong(
    &RATE,
    &Shape::ShortOrLong(&Shape::Record(&LIMIT_RECORD), &Shape::Record(&CONCURRENCY_RECORD)),
);

/// Permits of a concurrency limit: a log of them is kept in one state.
pub(crate) const MOST_CONCURRENT: u64 = 10_000;

pub(crate) static CONCURRENCY_RECORD: Record = Record {
    title: "a concurrency limit",
    fields: &[
        required(
            "concurrent",
            "Sets how many requests may be in flight at a time.",
            Shape::Whole { least: 1, most: MOST_CONCURRENT },
        ),
        optional(
            "name",
            "Sets the id of the limit, which its permits belong to. The default is `concurrent`.",
            NAME,
        ),
        optional(
            "lease",
            "Sets how long a permit is held that is neither returned nor renewed, from 1s to 1h. The default is 30s.",
            LENGTH,
        ),
    ],
    others: None,
};

pub(crate) static LIMIT_RECORD: Record = Record {
    title: "a limit",
    fields: &[
        required(
            "rate",
            "Sets the amount and the period, such as 15/s. Periods are ms, s, min, h, day and week with an optional factor, or calendar-day, calendar-week and calendar-month with an optional @Zone/City.",
            RATE,
        ),
        optional(
            "name",
            "Sets the id of the limit, which its counters belong to. The default is its period.",
            NAME,
        ),
        optional(
            "algorithm",
            "Selects the algorithm that counts. The default is token_bucket; under a tier or an override, it is the algorithm of the limit that this one replaces.",
            Shape::Choice(&ALGORITHM),
        ),
        optional(
            "burst",
            "For token_bucket, sets how much may pass in one burst. The default is the amount.",
            Shape::Whole { least: 1, most: u64::MAX },
        ),
        optional(
            "refill",
            "For token_bucket, sets how tokens are refilled.",
            Shape::Choice(&REFILL),
        ),
        optional(
            "queue",
            "For leaky_bucket, sets how many requests may wait. The default is the amount.",
            Shape::Whole { least: 0, most: u64::MAX },
        ),
        optional(
            "buckets",
            "For sliding_buckets, sets the number of parts of the window. The default is 60.",
            Shape::Whole { least: 2, most: 1_000 },
        ),
        optional("align", "For fixed_window, sets when windows begin.", Shape::Choice(&ALIGN)),
        optional("block", "Confirms that an amount of 0 is intended.", Shape::Flag),
    ],
    others: None,
};

pub(crate) static ALGORITHM: Choice = words(
    "`algorithm`",
    &[
        "fixed_window",
        "sliding_log",
        "sliding_buckets",
        "sliding_weighted",
        "token_bucket",
        "leaky_bucket",
    ],
);
pub(crate) static REFILL: Choice = words("`refill`", &["continuous", "interval"]);
pub(crate) static ALIGN: Choice = words("`align`", &["epoch", "first"]);
pub(crate) static COUNT: Choice = words("`count`", &["all", "failures", "successes"]);
pub(crate) static ON_STORE_ERROR: Choice = words("`on_store_error`", &["local", "allow", "deny"]);
pub(crate) static WHEN_FULL: Choice = words("`when_full`", &["shared", "allow", "deny"]);

pub(crate) static TIER_ALLOWANCE: Choice = Choice {
    title: "a tier",
    words: &["unlimited"],
    forms: &[
        optional(
            "scale",
            "Multiplies the amount, burst and queue of the rule. The result is rounded down and at least 1.",
            Shape::Scale,
        ),
        optional(
            "limits",
            "Lists the limits of this tier, in place of the rule's. A limit that says only its rate counts like the limit that it replaces.",
            LIMITS,
        ),
    ],
};

pub(crate) static OVERRIDE: Record = Record {
    title: "an override",
    fields: &[
        required(
            "key",
            "Selects the customers by values of some attributes of the key.",
            Shape::Map(&Shape::Plain),
        ),
        required(
            "limits",
            "Lists their limits, in place of the rule's, or says `unlimited`. A limit that says only its rate counts like the limit that it replaces.",
            LIMITS,
        ),
    ],
    others: None,
};

pub(crate) static MODE: Choice = Choice {
    title: "`mode`",
    words: &["hard"],
    forms: &[
        optional("soft", "This many per cent above the limit still pass, and are marked.", PERCENT),
        optional("elastic", "The limit grows while a condition holds.", Shape::Record(&ELASTIC)),
    ],
};

pub(crate) static ELASTIC: Record = Record {
    title: "`elastic`",
    fields: &[
        required("up_to", "Sets the raised limit, in per cent of the limit.", PERCENT),
        required(
            "while",
            "Sets the condition on reported signals, such as `load < 0.7`.",
            EXPRESSION,
        ),
    ],
    others: None,
};

pub(crate) static ON_LIMIT: Choice = Choice {
    title: "`on_limit`",
    words: &["reject"],
    forms: &[
        optional("delay", "The request waits for its turn.", Shape::Record(&DELAY)),
        optional(
            "deprioritize",
            "The request passes, but in this priority class, if it is lower than its own. The proxy or the caller serves higher classes first.",
            NAME,
        ),
        optional("flag", "The request passes, and is marked with this word.", NAME),
    ],
};

pub(crate) static DELAY: Record = Record {
    title: "`delay`",
    fields: &[
        required("max_wait", "Sets the longest wait.", LENGTH),
        optional(
            "max_queue",
            "Sets how many requests of one key may wait on one node. The default is 1000.",
            Shape::Whole { least: 1, most: 1_000_000 },
        ),
    ],
    others: None,
};

pub(crate) static CONSISTENCY: Choice = Choice {
    title: "`consistency`",
    words: &["exact", "lease"],
    forms: &[optional(
        "lease",
        "Nodes take parts of a limit in advance, and spend them by themselves.",
        Shape::Record(&LEASE),
    )],
};

pub(crate) static LEASE: Record = Record {
    title: "`lease`",
    fields: &[
        optional(
            "share",
            "Sets the most of a limit that a node takes at a time. The default is 10%.",
            PERCENT,
        ),
        optional(
            "interval",
            "Sets how often a busy node asks, from 10ms to 1s. The default is 100ms.",
            LENGTH,
        ),
    ],
    others: None,
};
