//! The words of the policy language: which keys stand where, and what may stand behind them.
//!
//! One table serves two readers. The file reader refuses what is not in it, and suggests what is; the JSON
//! Schema that editors complete by is printed from it. What a value *means* is in `file.rs`.

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Record {
    /// What an error calls it.
    pub(crate) title: &'static str,
    pub(crate) fields: &'static [Field],
    /// What may stand behind any other key, where keys are free.
    pub(crate) others: Option<&'static Shape>,
}

/// A key of a record.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// A sentence for the person who hovers over it.
    pub(crate) doc: &'static str,
    pub(crate) shape: Shape,
    pub(crate) required: bool,
}

/// What may stand behind a key.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A text of this pattern, written for people and for schemas.
    Text { pattern: &'static str, example: &'static str },
    /// Any word or number.
    Plain,
    /// A whole number.
    Whole { least: u64, most: u64 },
    /// A number above 0 with a few decimals.
    Scale,
    /// `true` or `false`.
    Flag,
    /// A list.
    List(&'static Shape),
    /// One, or a list of them.
    OneOrMore(&'static Shape),
    /// A map with known keys.
    Record(&'static Record),
    /// A map with free keys.
    Map(&'static Shape),
    /// One of these words, or a map with exactly one of these keys.
    Choice(&'static Choice),
    /// The short form as a text, or the long one.
    ShortOrLong(&'static Shape, &'static Shape),
}

/// A closed set of words and one-key forms, such as `reject` and `{ flag: challenge }`.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) title: &'static str,
    pub(crate) words: &'static [&'static str],
    pub(crate) forms: &'static [Field],
}

impl Record {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.fields.iter().map(|field| field.name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }
}

const fn required(name: &'static str, doc: &'static str, shape: Shape) -> Field {
    Field { name, doc, shape, required: true }
}

const fn optional(name: &'static str, doc: &'static str, shape: Shape) -> Field {
    Field { name, doc, shape, required: false }
}

const fn words(title: &'static str, words: &'static [&'static str]) -> Choice {
    Choice { title, words, forms: &[] }
}

const NAME: Shape = Shape::Text { pattern: "^[A-Za-z0-9._-]{1,64}$", example: "per-client" };
const EXPRESSION: Shape = Shape::Text { pattern: "^.{1,2048}$", example: "cost <= 100" };
const LENGTH: Shape = Shape::Text { pattern: "^[0-9]+(ms|s|min|h|day|week)$", example: "100ms" };
const PERCENT: Shape = Shape::Text { pattern: "^[0-9]{1,4}%$", example: "10%" };
const RATE: Shape = Shape::Text {
    pattern: "^[0-9]+/([0-9]*(ms|s|min|h|day|week)|calendar-(day|week|month)(@[A-Za-z0-9/_+-]{1,48})?)$",
    example: "15/s",
};
const NETWORK: Shape =
    Shape::Text { pattern: "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$", example: "10.0.0.0/8" };
const SOURCE_TEXT: Shape = Shape::Text {
    pattern: "^(digest:)?(header|cookie|query):.+$|^digest:query$",
    example: "header:x-user-id",
};
const SOURCE: Shape = Shape::ShortOrLong(&SOURCE_TEXT, &Shape::Record(&SOURCE_RECORD));
const KEY_PART: Shape = Shape::Text { pattern: "^[A-Za-z0-9._|/-]+$", example: "user|ip" };

pub(crate) static POLICY: Record = Record {
    title: "a policy",
    fields: &[
        required("version", "The version of this language: 1.", Shape::Whole { least: 1, most: 1 }),
        optional(
            "identity",
            "How fronts that speak HTTP turn a request into attributes.",
            Shape::Record(&IDENTITY),
        ),
        optional("paths", "How paths are compared.", Shape::Record(&PATHS)),
        optional("tiers", "The plans that customers are on.", Shape::Record(&TIERS)),
        required(
            "rules",
            "The rules. They are tried in this order, and all that match apply.",
            Shape::List(&Shape::Record(&RULE)),
        ),
    ],
    others: None,
};

pub(crate) static IDENTITY: Record = Record {
    title: "`identity`",
    fields: &[
        optional(
            "trusted",
            "The peers whose headers are believed; nobody by default. `everyone` if every peer is a proxy of yours.",
            Shape::ShortOrLong(
                &Shape::Text { pattern: "^everyone$", example: "everyone" },
                &Shape::List(&NETWORK),
            ),
        ),
        optional("ip", "How the address of the client is found and counted.", Shape::Record(&IP)),
    ],
    others: Some(&SOURCE),
};

pub(crate) static SOURCE_RECORD: Record = Record {
    title: "an attribute",
    fields: &[
        required("from", "Where it is read, as in the short form.", SOURCE_TEXT),
        optional(
            "duplicates",
            "What counts where a request has several different values; such a request is refused by default.",
            Shape::Choice(&DUPLICATES),
        ),
        optional(
            "decode",
            "What is decoded: `percent` is %41, `form` also turns + into a space. `form` for queries by default, else nothing.",
            Shape::Choice(&DECODE),
        ),
    ],
    others: None,
};

pub(crate) static DUPLICATES: Choice = words("`duplicates`", &["reject", "first", "last"]);
pub(crate) static DECODE: Choice = words("`decode`", &["none", "percent", "form"]);

pub(crate) static PATHS: Record = Record {
    title: "`paths`",
    fields: &[
        optional(
            "ambiguous",
            "A path that servers read in several ways: every rule that matches one of them applies, or such requests over HTTP are refused.",
            Shape::Choice(&AMBIGUOUS),
        ),
        optional(
            "case_insensitive",
            "Whether /LOGIN is /login, for rules that do not say so themselves.",
            Shape::Flag,
        ),
    ],
    others: None,
};

pub(crate) static AMBIGUOUS: Choice = words("`ambiguous`", &["match_any", "reject"]);

pub(crate) static IP: Record = Record {
    title: "`ip`",
    fields: &[
        optional(
            "ipv6_prefix",
            "IPv6 is counted by networks of so many bits; 64 by default. A host has at least 2⁶⁴ addresses.",
            Shape::Whole { least: 1, most: 128 },
        ),
        optional(
            "header",
            "The header in which trusted peers write whom they speak for; x-forwarded-for by default.",
            Shape::Choice(&HOP_HEADER),
        ),
    ],
    others: None,
};

pub(crate) static HOP_HEADER: Choice = words("`header`", &["x-forwarded-for", "forwarded"]);

pub(crate) static TIERS: Record = Record {
    title: "`tiers`",
    fields: &[
        required("default", "The tier of those who have none, or an unknown one.", NAME),
        required("known", "All tiers there are.", Shape::List(&NAME)),
    ],
    others: None,
};

pub(crate) static RULE: Record = Record {
    title: "a rule",
    fields: &[
        required("name", "Its name, in answers, logs and metrics; its states belong to it.", NAME),
        optional("description", "What it is for.", Shape::Plain),
        optional(
            "match",
            "Which requests it is about: all must hold, a list means any of. In paths `*` is one segment, `**` any number.",
            Shape::Map(&Shape::OneOrMore(&Shape::Plain)),
        ),
        optional(
            "case_insensitive",
            "Whether /LOGIN is /login, in this rule's match, condition and key.",
            Shape::Flag,
        ),
        optional("when", "A further condition on attributes and `cost`.", EXPRESSION),
        required(
            "key",
            "Who is counted: [user, ip] is a pair, [user|ip] the first present, [ip/48] a network, [] one bucket for all.",
            Shape::List(&KEY_PART),
        ),
        required(
            "limits",
            "How much: all of these together, or nothing is taken.",
            Shape::List(&LIMIT),
        ),
        optional(
            "tiers",
            "What a tier may take instead.",
            Shape::Map(&Shape::Choice(&TIER_ALLOWANCE)),
        ),
        optional(
            "overrides",
            "What single customers may take instead.",
            Shape::List(&Shape::Record(&OVERRIDE)),
        ),
        optional("mode", "Whether the limit is the last word.", Shape::Choice(&MODE)),
        optional("on_limit", "What happens to a request over the limit.", Shape::Choice(&ON_LIMIT)),
        optional("count_rejected", "Whether a rejected request counts too.", Shape::Flag),
        optional(
            "count",
            "Which requests count; outcomes are reported later.",
            Shape::Choice(&COUNT),
        ),
        optional(
            "consistency",
            "How fresh counts must be that several nodes share.",
            Shape::Choice(&CONSISTENCY),
        ),
        optional(
            "on_store_error",
            "What the rule does while its store is gone.",
            Shape::Choice(&ON_STORE_ERROR),
        ),
        optional(
            "when_full",
            "What becomes of new keys when memory is full of live ones.",
            Shape::Choice(&WHEN_FULL),
        ),
        optional(
            "shadow",
            "Whether it only pretends, and says what it would have done.",
            Shape::Flag,
        ),
        optional("enabled", "Whether it is switched on.", Shape::Flag),
        optional("stop", "Whether no later rule is looked at when this one applies.", Shape::Flag),
    ],
    others: None,
};

pub(crate) static LIMIT: Shape = Shape::ShortOrLong(&RATE, &Shape::Record(&LIMIT_RECORD));

pub(crate) static LIMIT_RECORD: Record = Record {
    title: "a limit",
    fields: &[
        required(
            "rate",
            "N/period: ms s min h day week with an optional factor, or calendar-day|week|month[@Zone/City].",
            RATE,
        ),
        optional("name", "The name of its states; its period by default.", NAME),
        optional(
            "algorithm",
            "How it is counted; token_bucket by default.",
            Shape::Choice(&ALGORITHM),
        ),
        optional(
            "burst",
            "token_bucket: how much may pass at once; the amount by default.",
            Shape::Whole { least: 1, most: u64::MAX },
        ),
        optional("refill", "token_bucket: how tokens come back.", Shape::Choice(&REFILL)),
        optional(
            "queue",
            "leaky_bucket: how many may wait; the amount by default.",
            Shape::Whole { least: 0, most: u64::MAX },
        ),
        optional(
            "buckets",
            "sliding_buckets: into how many parts the window is divided; 60 by default.",
            Shape::Whole { least: 2, most: 1_000 },
        ),
        optional("align", "fixed_window: when windows begin.", Shape::Choice(&ALIGN)),
        optional("block", "Says that an amount of 0 is meant.", Shape::Flag),
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
pub(crate) static PRIORITY: Choice = words("`deprioritize`", &["low"]);

pub(crate) static TIER_ALLOWANCE: Choice = Choice {
    title: "a tier",
    words: &["unlimited"],
    forms: &[
        optional(
            "scale",
            "Multiplies amount, burst and queue; rounded down, at least 1.",
            Shape::Scale,
        ),
        optional("limits", "Limits of its own, instead of the rule's.", Shape::List(&LIMIT)),
    ],
};

pub(crate) static OVERRIDE: Record = Record {
    title: "an override",
    fields: &[
        required("key", "Whom it is for: some of the key's attributes.", Shape::Map(&Shape::Plain)),
        required(
            "limits",
            "Their limits, instead of the rule's; or `unlimited`.",
            Shape::ShortOrLong(
                &Shape::Text { pattern: "^unlimited$", example: "unlimited" },
                &Shape::List(&LIMIT),
            ),
        ),
    ],
    others: None,
};

pub(crate) static MODE: Choice = Choice {
    title: "`mode`",
    words: &["hard"],
    forms: &[
        optional("soft", "So many per cent above the limit still pass, and are marked.", PERCENT),
        optional("elastic", "The limit grows while there is room.", Shape::Record(&ELASTIC)),
    ],
};

pub(crate) static ELASTIC: Record = Record {
    title: "`elastic`",
    fields: &[
        required("up_to", "To so many per cent of itself.", PERCENT),
        required("while", "While this holds of the signals.", EXPRESSION),
    ],
    others: None,
};

pub(crate) static ON_LIMIT: Choice = Choice {
    title: "`on_limit`",
    words: &["reject"],
    forms: &[
        optional("delay", "It waits, if it can.", Shape::Record(&DELAY)),
        optional(
            "deprioritize",
            "It passes, marked to be served after others.",
            Shape::Choice(&PRIORITY),
        ),
        optional("flag", "It passes, marked with this word.", NAME),
    ],
};

pub(crate) static DELAY: Record = Record {
    title: "`delay`",
    fields: &[
        required("max_wait", "It waits for at most so long.", LENGTH),
        optional(
            "max_queue",
            "At most so many of one key wait on one node; 1000 by default.",
            Shape::Whole { least: 1, most: 1_000_000 },
        ),
    ],
    others: None,
};

pub(crate) static CONSISTENCY: Choice = words("`consistency`", &["exact"]);
