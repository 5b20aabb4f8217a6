//! The keys of a rule, and of its limits.

use super::{
    Choice, EXPRESSION, Instead, KEY_PART, LENGTH, NAME, PERCENT, RATE, Record, Shape, TextKind,
    optional, required, word, words,
};

pub(crate) static RULE: Record = Record {
    title: "a rule",
    fields: &[
        required(
            "name",
            NAME,
            "Names the rule in responses, logs and metrics. Its counters belong to this name.",
        )
        .example("name: per-client, key: [ip], limits: [15/s]"),
        optional("description", Shape::Plain, "Describes the purpose of the rule for people.")
            .otherwise("none")
            .example("description: protects the login from guessing"),
        optional(
            "match",
            Shape::Map(&Shape::OneOrMore(&Shape::Plain)),
            "Lists conditions on attributes. All of them must hold; a list means any of its values. `method: GET` matches `HEAD` too. In paths, `*` is any one segment and `**` is any number of segments.",
        )
        .otherwise("all requests match")
        .example("match: { method: POST, path: [/login, /api/**] }"),
        optional(
            "case_insensitive",
            Shape::Flag,
            "With `true`, /LOGIN equals /login in the match, condition and key of this rule.",
        )
        .otherwise("as in `paths`")
        .example("case_insensitive: true"),
        optional(
            "get_includes_head",
            Shape::Flag,
            "With `false`, `method: GET` in the match of this rule does not match `HEAD`. Servers answer `HEAD` as they answer `GET`, with the same work.",
        )
        .default("true")
        .example("match: { method: GET }, get_includes_head: false"),
        optional("when", EXPRESSION, "Adds a condition on attributes and on `cost`.")
            .otherwise("always holds")
            .example("when: 'cost <= 100 and method == \"POST\"'"),
        optional(
            "priority",
            NAME,
            "Names the priority class of the requests that this rule applies to. The first rule with a `priority` counts. Such a rule needs neither `key` nor `limits`.",
        )
        .otherwise("the class of later rules, or `normal`")
        .example("priority: high"),
        required(
            "key",
            Shape::List(&KEY_PART),
            "Lists the attributes that select the counter, 8 parts at most: [user, ip] is a pair, [user|ip] is the first one that is present, [ip/48] is an IPv6 network, and [] is one counter for all requests.",
        )
        .unless(
            &[Instead::Key("priority"), Instead::Word("limits", UNLIMITED)],
            "required, unless the rule has a `priority` or `limits: unlimited`",
        )
        .example("key: [user|ip, path]"),
        required(
            "limits",
            LIMITS,
            "Lists 1 to 16 limits. A request takes from all of them, or from none. With `unlimited`, the rule has no limits and needs no `key`; with `stop: true` in addition, it exempts its requests from all later rules.",
        )
        .unless(&[Instead::Key("priority")], "required, unless the rule has a `priority`")
        .example("limits: [2/s, { rate: 500/h, algorithm: sliding_buckets }]"),
        optional(
            "tiers",
            Shape::Map(&Shape::Choice(&TIER_ALLOWANCE)),
            "Lists the allowances of tiers that differ from the limits of the rule.",
        )
        .otherwise("every tier has the limits of the rule")
        .example("tiers: { pro: { scale: 10 } }"),
        optional(
            "overrides",
            Shape::List(&Shape::Record(&OVERRIDE)),
            "Lists the allowances of single customers that differ from the limits of the rule.",
        )
        .otherwise("none")
        .example("overrides: [{ key: { ip: 192.0.2.7 }, limits: [100/s] }]"),
        optional("mode", Shape::Choice(&MODE), "Sets how strictly the limits are enforced.")
            .default("hard")
            .example("mode: { soft: 10% }"),
        optional(
            "on_limit",
            Shape::Choice(&ON_LIMIT),
            "Sets what happens to a request above the limit.",
        )
        .default("reject")
        .example("on_limit: { delay: { max_wait: 2s } }"),
        optional(
            "count_rejected",
            Shape::Flag,
            "With `true`, rejected requests count too, at most as much as the limit once more. So a client that goes on is refused for longer.",
        )
        .default("false")
        .example("count_rejected: true"),
        optional(
            "count",
            Shape::Choice(&COUNT),
            "Sets which requests count. The caller reports the outcome of a request later.",
        )
        .default("all")
        .example("count: failures"),
        optional(
            "consistency",
            Shape::Choice(&CONSISTENCY),
            "Sets how exact the counters are that several nodes share.",
        )
        .default("exact")
        .example("consistency: { lease: { share: 5% } }"),
        optional(
            "on_store_error",
            Shape::Choice(&ON_STORE_ERROR),
            "Sets what the rule does while its store is unreachable.",
        )
        .default("local")
        .example("on_store_error: deny"),
        optional(
            "when_full",
            Shape::Choice(&WHEN_FULL),
            "Sets what happens to new keys when the memory is full of active ones.",
        )
        .default("shared")
        .example("when_full: deny"),
        optional(
            "shadow",
            Shape::Flag,
            "With `true`, the rule counts and reports what it would do, but denies nothing.",
        )
        .default("false")
        .example("shadow: true"),
        optional("enabled", Shape::Flag, "With `false`, the rule is disabled.")
            .default("true")
            .example("enabled: false"),
        optional(
            "stop",
            Shape::Flag,
            "With `true`, later rules are skipped when this one applies.",
        )
        .default("false")
        .example("stop: true"),
    ],
    others: None,
};

/// The word in place of a list of limits.
pub(crate) const UNLIMITED: &str = "unlimited";

const LIMITS: Shape = Shape::ShortOrLong(
    &Shape::Text(&TextKind {
        name: "`unlimited`",
        doc: "",
        pattern: "^unlimited$",
        example: UNLIMITED,
    }),
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
            Shape::Whole { least: 1, most: MOST_CONCURRENT },
            "Sets how many requests may be in flight at a time. On Redis it is at most 1,000, headroom included.",
        )
        .example("concurrent: 20"),
        optional("name", NAME, "Sets the id of the limit, which its permits belong to.")
            .default("concurrent")
            .example("concurrent: 20, name: uploads"),
        optional(
            "lease",
            LENGTH,
            "Sets how long a permit is held that is neither returned nor renewed, from 1s to 1h; on Redis in whole seconds.",
        )
        .default("30s")
        .example("concurrent: 20, lease: 2min"),
    ],
    others: None,
};

pub(crate) static LIMIT_RECORD: Record = Record {
    title: "a limit",
    fields: &[
        required("rate", RATE, "Sets the amount and the period.").example("rate: 500/30s"),
        optional("name", NAME, "Sets the id of the limit, which its counters belong to.")
            .otherwise("the period as it is written, such as `s` or `30s`")
            .example("rate: 100/day, name: daily"),
        optional("algorithm", Shape::Choice(&ALGORITHM), "Selects the algorithm that counts.")
            .otherwise("`token_bucket`; for a calendar period `fixed_window`, the only one possible; under a tier or an override that of the limit that this one replaces")
            .example("rate: 500/h, algorithm: sliding_buckets"),
        optional(
            "burst",
            Shape::Whole { least: 1, most: u64::MAX },
            "For token_bucket, sets how much may pass in one burst.",
        )
        .otherwise("the amount")
        .example("rate: 10/s, burst: 30"),
        optional("refill", Shape::Choice(&REFILL), "For token_bucket, sets how tokens are refilled.")
            .default("continuous")
            .example("rate: 10/s, refill: interval"),
        optional(
            "queue",
            Shape::Whole { least: 0, most: u64::MAX },
            "For leaky_bucket, sets how many requests may wait, on all nodes together.",
        )
        .otherwise("the amount")
        .example("rate: 10/s, algorithm: leaky_bucket, queue: 20"),
        optional(
            "buckets",
            Shape::Whole { least: 2, most: 1_000 },
            "For sliding_buckets, sets the number of parts of the window.",
        )
        .default("60")
        .example("rate: 500/h, algorithm: sliding_buckets, buckets: 30"),
        optional("align", Shape::Choice(&ALIGN), "For fixed_window, sets when windows begin.")
            .default("epoch")
            .example("rate: 20/day, algorithm: fixed_window, align: first"),
        optional("block", Shape::Flag, "Confirms that an amount of 0 is intended.")
            .otherwise("`false`")
            .example("rate: 0/s, block: true"),
    ],
    others: None,
};

pub(crate) static ALGORITHM: Choice = words(
    "`algorithm`",
    &[
        word(
            "fixed_window",
            "Counts in windows that begin at fixed times. Up to twice the limit may pass around the start of a window.",
        ),
        word(
            "sliding_log",
            "Remembers the time of each request. It is exact, and meant for small limits.",
        ),
        word(
            "sliding_buckets",
            "Counts in parts of a window that slides. Never more than the limit passes, in any period.",
        ),
        word(
            "sliding_weighted",
            "Counts two windows and weighs the earlier one. It needs little memory. About the limit passes if requests are spread evenly, and at most twice the limit.",
        ),
        word("token_bucket", "Refills tokens at the rate. It allows a burst, and then the rate."),
        word(
            "leaky_bucket",
            "Lets requests through one at a time, evenly spaced; others wait for their turn or are refused.",
        ),
    ],
);
pub(crate) static REFILL: Choice = words(
    "`refill`",
    &[
        word("continuous", "Tokens come one by one, evenly spread over the period."),
        word("interval", "All tokens of a period come at once, at its end."),
    ],
);
pub(crate) static ALIGN: Choice = words(
    "`align`",
    &[
        word("epoch", "Windows begin at whole multiples of the period since 1970 (UTC)."),
        word("first", "The window of a key begins with its first request."),
    ],
);
pub(crate) static COUNT: Choice = words(
    "`count`",
    &[
        word("all", "Every request counts that passes."),
        word("failures", "Only requests count whose failure is reported, such as failed logins."),
        word("successes", "Only requests count whose success is reported."),
    ],
);
pub(crate) static ON_STORE_ERROR: Choice = words(
    "`on_store_error`",
    &[
        word(
            "local",
            "Each of N nodes counts by itself and allows 1/N of the limit, at least 1, in addition to what the store has counted.",
        ),
        word("allow", "Requests pass."),
        word("deny", "Requests are refused."),
    ],
);
pub(crate) static WHEN_FULL: Choice = words(
    "`when_full`",
    &[
        word("shared", "The least used key moves to a shared sketch that only overestimates."),
        word("allow", "Requests of new keys pass."),
        word("deny", "Requests of new keys are refused."),
    ],
);

pub(crate) static TIER_ALLOWANCE: Choice = Choice {
    title: "a tier",
    words: &[word("unlimited", "The rule does not limit this tier.")],
    forms: &[
        optional(
            "scale",
            Shape::Scale,
            "Multiplies the amount, burst and queue of the rule. The result is rounded down and at least 1.",
        )
        .example("scale: 2.5"),
        optional(
            "limits",
            LIMITS,
            "Lists the limits of this tier, in place of the rule's. A limit that says only its rate counts like the limit that it replaces.",
        )
        .example("limits: [1000/s]"),
    ],
};

pub(crate) static OVERRIDE: Record = Record {
    title: "an override",
    fields: &[
        required(
            "key",
            Shape::Map(&Shape::Plain),
            "Selects the customers by values of some attributes of the key.",
        )
        .example("key: { ip: 192.0.2.7 }, limits: [1000/s]"),
        required(
            "limits",
            LIMITS,
            "Lists their limits, in place of the rule's, or says `unlimited`. A limit that says only its rate counts like the limit that it replaces.",
        )
        .example("key: { ip: 192.0.2.7 }, limits: unlimited"),
    ],
    others: None,
};

pub(crate) static MODE: Choice = Choice {
    title: "`mode`",
    words: &[word("hard", "The limit is as it is written.")],
    forms: &[
        optional(
            "soft",
            PERCENT,
            "This many per cent above the limit still pass, and are marked. It is from 1% to 900%.",
        )
        .example("soft: 10%"),
        optional("elastic", Shape::Record(&ELASTIC), "The limit grows while a condition holds.")
            .example("elastic: { up_to: 200%, while: 'load < 0.7' }"),
    ],
};

pub(crate) static ELASTIC: Record = Record {
    title: "`elastic`",
    fields: &[
        required(
            "up_to",
            PERCENT,
            "Sets the raised limit, in per cent of the limit. It is from 101% to 1000%.",
        )
        .example("up_to: 200%, while: 'load < 0.7'"),
        required("while", EXPRESSION, "Sets the condition on reported signals.")
            .example("up_to: 200%, while: 'pressure < 0.7'"),
    ],
    others: None,
};

pub(crate) static ON_LIMIT: Choice = Choice {
    title: "`on_limit`",
    words: &[word("reject", "The request is refused.")],
    forms: &[
        optional("delay", Shape::Record(&DELAY), "The request waits for its turn.")
            .example("delay: { max_wait: 2s, max_queue: 100 }"),
        optional(
            "deprioritize",
            NAME,
            "The request passes, but in this priority class, if it is lower than its own. The proxy or the caller serves higher classes first.",
        )
        .example("deprioritize: low"),
        optional("flag", NAME, "The request passes, and is marked with this word.")
            .example("flag: challenge"),
    ],
};

pub(crate) static DELAY: Record = Record {
    title: "`delay`",
    fields: &[
        required("max_wait", LENGTH, "Sets the longest wait, up to 1h.").example("max_wait: 2s"),
        optional(
            "max_queue",
            Shape::Whole { least: 1, most: 1_000_000 },
            "Sets how many requests of one key may wait on one node.",
        )
        .default("1000")
        .example("max_wait: 2s, max_queue: 100"),
    ],
    others: None,
};

pub(crate) static CONSISTENCY: Choice = Choice {
    title: "`consistency`",
    words: &[
        word("exact", "The store decides each request."),
        word("lease", "The form below, with the defaults of its keys."),
    ],
    forms: &[optional(
        "lease",
        Shape::Record(&LEASE),
        "Nodes take parts of a limit in advance, and spend them by themselves. Never more than the limit passes.",
    )
    .example("lease: { share: 5%, interval: 50ms }")],
};

pub(crate) static LEASE: Record = Record {
    title: "`lease`",
    fields: &[
        optional(
            "share",
            PERCENT,
            "Sets the most of a limit that a node takes at a time, from 1% to 50%.",
        )
        .default("10%")
        .example("share: 5%"),
        optional("interval", LENGTH, "Sets how often a busy node asks, from 10ms to 1s.")
            .default("100ms")
            .example("interval: 50ms"),
    ],
    others: None,
};
