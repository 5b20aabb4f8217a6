//! The grammar of the policy language: its keys, and the values that each key takes.
//!
//! One table has two users. The file reader refuses keys that are not in it, and suggests similar ones. The JSON Schema, which
//! editors use for completion and hover texts, is printed from it. What a value *means* is in `file.rs`.

mod rules;

pub(crate) use rules::{
    ALGORITHM, ALIGN, CONCURRENCY_RECORD, CONSISTENCY, COUNT, DELAY, ELASTIC, LEASE, LIMIT_RECORD,
    MODE, MOST_CONCURRENT, ON_LIMIT, ON_STORE_ERROR, OVERRIDE, REFILL, RULE, TIER_ALLOWANCE,
    UNLIMITED, WHEN_FULL,
};

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Record {
    /// Its name in error messages.
    pub(crate) title: &'static str,
    pub(crate) fields: &'static [Field],
    /// The value of any other key, if other keys are allowed.
    pub(crate) others: Option<&'static Shape>,
}

/// A key of a record.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// The hover text in editors: complete sentences.
    pub(crate) doc: &'static str,
    pub(crate) shape: Shape,
    pub(crate) required: Required,
    pub(crate) absent: WhenAbsent,
    /// The key with a value, and with the other keys that it needs: `rate: 10/s, algorithm: leaky_bucket, queue: 20`.
    pub(crate) example: &'static str,
}

/// What a record without a key means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WhenAbsent {
    /// As if the key had this value.
    Value(&'static str),
    /// What these words say.
    Words(&'static str),
}

/// Whether a record needs a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Required {
    Yes,
    No,
    /// Unless the record has one of these.
    Unless(&'static [Instead]),
}

/// What a record may have instead of a required key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// Another key.
    Key(&'static str),
    /// Another key with this word as its value.
    Word(&'static str, &'static str),
}

/// The kind of value that a key takes.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A text of this kind.
    Text(&'static TextKind),
    /// Any word or number.
    Plain,
    /// A whole number.
    Whole { least: u64, most: u64 },
    /// A number above 0, possibly with decimals.
    Scale,
    /// `true` or `false`.
    Flag,
    /// A list.
    List(&'static Shape),
    /// One value, or a list of them.
    OneOrMore(&'static Shape),
    /// A map with known keys.
    Record(&'static Record),
    /// A map with free keys.
    Map(&'static Shape),
    /// One of these words, or a map with exactly one of these keys.
    Choice(&'static Choice),
    /// The short form as a text, or the long form.
    ShortOrLong(&'static Shape, &'static Shape),
}

/// A kind of text, such as a rate.
#[derive(Debug)]
pub(crate) struct TextKind {
    pub(crate) name: &'static str,
    /// How it is written, in complete sentences.
    pub(crate) doc: &'static str,
    /// The regular expression that it matches.
    pub(crate) pattern: &'static str,
    pub(crate) example: &'static str,
}

/// A closed set of words and one-key forms, such as `reject` and `{ flag: challenge }`.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) title: &'static str,
    pub(crate) words: &'static [ChoiceWord],
    pub(crate) forms: &'static [Field],
}

/// A word of a choice.
#[derive(Debug)]
pub(crate) struct ChoiceWord {
    pub(crate) name: &'static str,
    /// What it means, in complete sentences.
    pub(crate) doc: &'static str,
}

impl Record {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.fields.iter().map(|field| field.name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }
}

impl Choice {
    /// The names of its words.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.words.iter().map(|word| word.name)
    }
}

const fn required(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    let absent = WhenAbsent::Words("required");
    Field { name, doc, shape, required: Required::Yes, absent, example: "" }
}

const fn optional(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    let absent = WhenAbsent::Words("");
    Field { required: Required::No, absent, ..required(name, shape, doc) }
}

impl Field {
    /// A key that is required unless the record has one of these.
    const fn unless(self, instead: &'static [Instead], words: &'static str) -> Self {
        Self { required: Required::Unless(instead), absent: WhenAbsent::Words(words), ..self }
    }

    const fn default(self, value: &'static str) -> Self {
        Self { absent: WhenAbsent::Value(value), ..self }
    }

    const fn otherwise(self, words: &'static str) -> Self {
        Self { absent: WhenAbsent::Words(words), ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }
}

const fn word(name: &'static str, doc: &'static str) -> ChoiceWord {
    ChoiceWord { name, doc }
}

const fn words(title: &'static str, words: &'static [ChoiceWord]) -> Choice {
    Choice { title, words, forms: &[] }
}

const NAME: Shape = Shape::Text(&TextKind {
    name: "name",
    doc: "1 to 64 of the characters `A-Z a-z 0-9 . _ -`, not starting with a dot.",
    pattern: "^[A-Za-z0-9._-]{1,64}$",
    example: "per-client",
});
const EXPRESSION: Shape = Shape::Text(&TextKind {
    name: "condition",
    doc: "Comparisons of attributes, `cost` or signals, joined with `and`, `or` and `not`. A comparison with an absent attribute is false.",
    pattern: "^.{1,2048}$",
    example: "cost <= 100",
});
const LENGTH: Shape = Shape::Text(&TextKind {
    name: "time",
    doc: "A whole number and a unit: `ms`, `s`, `min`, `h`, `day` or `week`.",
    pattern: "^[0-9]+(ms|s|min|h|day|week)$",
    example: "100ms",
});
const PERCENT: Shape = Shape::Text(&TextKind {
    name: "percentage",
    doc: "A whole number and a per cent sign.",
    pattern: "^[0-9]{1,4}%$",
    example: "10%",
});
const RATE: Shape = Shape::Text(&TextKind {
    name: "rate",
    doc: "An amount, a slash and a period. A period is `ms`, `s`, `min`, `h`, `day` or `week`, also with a number before it (`500/30s`), or `calendar-day`, `calendar-week` (from Monday) or `calendar-month`, also with a time zone (`3/calendar-day@Europe/Berlin`). Periods are from 1 ms to 400 days; the time zone is UTC if none is named.",
    pattern: "^[0-9]+/([0-9]*(ms|s|min|h|day|week)|calendar-(day|week|month)(@[A-Za-z0-9/_+-]{1,48})?)$",
    example: "15/s",
});
const NETWORK: Shape = Shape::Text(&TextKind {
    name: "network",
    doc: "An address of IPv4 or IPv6, or one with the length of a prefix after a slash.",
    pattern: "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$",
    example: "10.0.0.0/8",
});
const SOURCE_TEXT: Shape = Shape::Text(&TextKind {
    name: "source",
    doc: "Where the value of an attribute is in an HTTP request: `header:NAME`, `cookie:NAME`, `query:NAME`, `jwt:CLAIM` (a claim of a verified token) or `auth:NAME` (a field that an auth server answered). With `digest:` before it, only a keyed hash of the value is kept; `digest:query` is the hash of the whole query.",
    pattern: "^(digest:)?(header|cookie|query|jwt|auth):.+$|^digest:query$",
    example: "header:x-user-id",
});
const SOURCE: Shape = Shape::ShortOrLong(&SOURCE_TEXT, &Shape::Record(&SOURCE_RECORD));
const KEY_PART: Shape = Shape::Text(&TextKind {
    name: "part of a key",
    doc: "The name of an attribute, or several with `|` between them, of which the first that is present counts. `ip/48` is the network of the address with a prefix of this length.",
    pattern: "^[A-Za-z0-9._|/-]+$",
    example: "user|ip",
});

pub(crate) static POLICY: Record = Record {
    title: "a policy",
    fields: &[
        required(
            "version",
            Shape::Whole { least: 1, most: 1 },
            "The version of the policy language. It is 1.",
        )
        .example("version: 1"),
        optional(
            "identity",
            Shape::Record(&IDENTITY),
            "Sets how HTTP requests are turned into attributes.",
        )
        .otherwise("no peer is trusted, and only the address is read")
        .example("identity: { trusted: [10.0.0.0/8], user: header:x-user-id }"),
        optional("paths", Shape::Record(&PATHS), "Sets how paths of requests are compared.")
            .otherwise("the defaults of its keys")
            .example("paths: { case_insensitive: true }"),
        optional("methods", Shape::Record(&METHODS), "Sets how methods of requests are read.")
            .otherwise("the defaults of its keys")
            .example("methods: { overrides: reject }"),
        optional("tiers", Shape::Record(&TIERS), "Lists the plans (tiers) of customers.")
            .otherwise("no tiers")
            .example("tiers: { default: free, known: [free, pro] }"),
        optional(
            "priorities",
            Shape::List(&Shape::Record(&PRIORITY_CLASS)),
            "Lists 1 to 16 priority classes, the highest first.",
        )
        .otherwise("`critical`, `high`, `normal` and `low`")
        .example("priorities: [{ name: normal, weight: 4, share: 60% }, { name: low, weight: 1, share: 10% }]"),
        required(
            "rules",
            Shape::List(&Shape::Record(&RULE)),
            "Lists 1 to 20,000 rules. They are evaluated in this order, and all rules that match apply.",
        )
        .example("rules: [{ name: per-client, key: [ip], limits: [15/s] }]"),
    ],
    others: None,
};

pub(crate) static IDENTITY: Record = Record {
    title: "`identity`",
    fields: &[
        optional(
            "trusted",
            Shape::ShortOrLong(
                &Shape::Text(&TextKind {
                    name: "`everyone`",
                    doc: "",
                    pattern: "^everyone$",
                    example: "everyone",
                }),
                &Shape::List(&NETWORK),
            ),
            "Lists the networks of peers whose headers are trusted. Write `everyone` if every peer is one of your proxies.",
        )
        .default("[]")
        .example("trusted: [10.0.0.0/8, 2001:db8::/32]"),
        optional(
            "ip",
            Shape::Record(&IP),
            "Sets how the address of the client is determined and counted.",
        )
        .otherwise("the defaults of its keys")
        .example("ip: { ipv6_prefix: 56 }"),
    ],
    others: Some(&SOURCE),
};

pub(crate) static SOURCE_RECORD: Record = Record {
    title: "an attribute",
    fields: &[
        required("from", SOURCE_TEXT, "Names the source of the attribute, as in the short form.")
            .example("from: header:x-user-id"),
        optional(
            "duplicates",
            Shape::Choice(&DUPLICATES),
            "Sets which value counts if a request has several different ones. It is not for `jwt:` and `auth:`.",
        )
        .default("reject")
        .example("from: cookie:sid, duplicates: first"),
        optional(
            "peers",
            Shape::Choice(&PEERS),
            "Sets whose requests have the attribute. `any` is not possible for `tier` and `priority`, and the key is not for `jwt:` and `auth:`, which count from every peer.",
        )
        .default("trusted")
        .example("from: header:x-api-key, peers: any"),
        optional(
            "decode",
            Shape::Choice(&DECODE),
            "Sets how the value is decoded. It is not for `jwt:` and `auth:`.",
        )
        .otherwise("`form` for query parameters, `none` otherwise")
        .example("from: cookie:city, decode: percent"),
    ],
    others: None,
};

pub(crate) static DUPLICATES: Choice = words(
    "`duplicates`",
    &[
        word("reject", "Such a request is refused with status 400."),
        word("first", "The first value counts."),
        word("last", "The last value counts."),
    ],
);
pub(crate) static PEERS: Choice = words(
    "`peers`",
    &[
        word("trusted", "The source is read only from the peers under `trusted`."),
        word(
            "any",
            "The source is read from every peer. Use it only for what clients show to prove who they are, such as API keys. A client that invents keys gets a new counter for each of them, so it escapes every limit by this key; add a rule with `key: [ip]`, which limits it all the same.",
        ),
    ],
);
pub(crate) static DECODE: Choice = words(
    "`decode`",
    &[
        word("none", "The value is used as it is."),
        word("percent", "`%41` is decoded to `A`."),
        word("form", "The same, and `+` is a space."),
    ],
);

pub(crate) static PATHS: Record = Record {
    title: "`paths`",
    fields: &[
        optional(
            "ambiguous",
            Shape::Choice(&AMBIGUOUS),
            "Sets what happens to a path that servers read in several ways.",
        )
        .default("match_any")
        .example("ambiguous: reject"),
        optional(
            "case_insensitive",
            Shape::Flag,
            "With `true`, /LOGIN equals /login. A rule can override this setting.",
        )
        .default("false")
        .example("case_insensitive: true"),
    ],
    others: None,
};

pub(crate) static AMBIGUOUS: Choice = words(
    "`ambiguous`",
    &[
        word("match_any", "A rule applies if it matches any reading of the path."),
        word(
            "reject",
            "Forward auth, the reverse proxy and the tower layer refuse the request with status 400. Elsewhere it has no effect.",
        ),
    ],
);

pub(crate) static METHODS: Record = Record {
    title: "`methods`",
    fields: &[optional(
        "overrides",
        Shape::Choice(&OVERRIDES),
        "Sets what happens to a request that asks servers to take it for one of another method, in `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override` or the parameter `_method` of its query.",
    )
    .default("match_any")
    .example("overrides: reject")],
    others: None,
};

pub(crate) static OVERRIDES: Choice = words(
    "`overrides`",
    &[
        word("match_any", "A rule applies if it matches any of the methods."),
        word(
            "reject",
            "Forward auth, the reverse proxy and the tower layer refuse the request with status 400. Elsewhere it has no effect.",
        ),
    ],
);

pub(crate) static IP: Record = Record {
    title: "`ip`",
    fields: &[
        optional(
            "ipv6_prefix",
            Shape::Whole { least: 1, most: 128 },
            "IPv6 addresses are counted by a prefix of this many bits, because a single host has at least 2⁶⁴ addresses.",
        )
        .default("64")
        .example("ipv6_prefix: 56"),
        optional(
            "header",
            Shape::Choice(&HOP_HEADER),
            "Names the header in which trusted peers write the address of the client.",
        )
        .default("x-forwarded-for")
        .example("header: forwarded"),
    ],
    others: None,
};

pub(crate) static HOP_HEADER: Choice = words(
    "`header`",
    &[
        word("x-forwarded-for", "The list of addresses that most proxies write."),
        word("forwarded", "The header field of RFC 7239."),
    ],
);

pub(crate) static TIERS: Record = Record {
    title: "`tiers`",
    fields: &[
        required(
            "default",
            NAME,
            "Names the tier of customers that have no tier or an unknown one.",
        )
        .example("default: free, known: [free, pro]"),
        required("known", Shape::List(&NAME), "Lists the names of all tiers, 64 at most.")
            .example("default: free, known: [free, pro, enterprise]"),
    ],
    others: None,
};

pub(crate) static PRIORITY_CLASS: Record = Record {
    title: "a priority class",
    fields: &[
        required("name", NAME, "Names the class in rules, responses and metrics.")
            .example("name: high, weight: 16, share: 30%"),
        required(
            "weight",
            Shape::Whole { least: 1, most: 1_000_000 },
            "Orders the requests that wait for seats which no class has reserved: a class with weight 16 gets 16 of them for each one that a class with weight 1 gets.",
        )
        .example("name: high, weight: 16, share: 30%"),
        required(
            "share",
            PERCENT,
            "Sets the part of the seats that is reserved for the class. Together the classes have at most 100%.",
        )
        .example("name: high, weight: 16, share: 30%"),
        optional(
            "max_wait",
            LENGTH,
            "Sets how long a request of this class waits for a seat at most. It is up to 1h.",
        )
        .default("500ms")
        .example("name: low, weight: 1, share: 10%, max_wait: 100ms"),
    ],
    others: None,
};
