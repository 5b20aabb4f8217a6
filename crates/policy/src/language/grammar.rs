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
    /// A text that matches this regular expression.
    Text { pattern: &'static str, example: &'static str },
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
    Field { name, doc, shape, required: Required::Yes }
}

const fn optional(name: &'static str, doc: &'static str, shape: Shape) -> Field {
    Field { name, doc, shape, required: Required::No }
}

const fn required_unless(
    instead: &'static [Instead],
    name: &'static str,
    doc: &'static str,
    shape: Shape,
) -> Field {
    Field { name, doc, shape, required: Required::Unless(instead) }
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
    pattern: "^(digest:)?(header|cookie|query|jwt|auth):.+$|^digest:query$",
    example: "header:x-user-id",
};
const SOURCE: Shape = Shape::ShortOrLong(&SOURCE_TEXT, &Shape::Record(&SOURCE_RECORD));
const KEY_PART: Shape = Shape::Text { pattern: "^[A-Za-z0-9._|/-]+$", example: "user|ip" };

pub(crate) static POLICY: Record = Record {
    title: "a policy",
    fields: &[
        required(
            "version",
            "The version of the policy language. It is 1.",
            Shape::Whole { least: 1, most: 1 },
        ),
        optional(
            "identity",
            "Sets how HTTP requests are turned into attributes.",
            Shape::Record(&IDENTITY),
        ),
        optional("paths", "Sets how paths of requests are compared.", Shape::Record(&PATHS)),
        optional("tiers", "Lists the plans (tiers) of customers.", Shape::Record(&TIERS)),
        optional(
            "priorities",
            "Lists the priority classes, the highest first. The default is critical, high, normal and low.",
            Shape::List(&Shape::Record(&PRIORITY_CLASS)),
        ),
        required(
            "rules",
            "Lists the rules. They are evaluated in this order, and all rules that match apply.",
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
            "Lists the networks of peers whose headers are trusted. By default no peer is trusted. Write `everyone` if every peer is one of your proxies.",
            Shape::ShortOrLong(
                &Shape::Text { pattern: "^everyone$", example: "everyone" },
                &Shape::List(&NETWORK),
            ),
        ),
        optional(
            "ip",
            "Sets how the address of the client is determined and counted.",
            Shape::Record(&IP),
        ),
    ],
    others: Some(&SOURCE),
};

pub(crate) static SOURCE_RECORD: Record = Record {
    title: "an attribute",
    fields: &[
        required("from", "Names the source of the attribute, as in the short form.", SOURCE_TEXT),
        optional(
            "duplicates",
            "Sets which value counts if a request has several different ones. By default such a request is refused.",
            Shape::Choice(&DUPLICATES),
        ),
        optional(
            "peers",
            "Sets whose requests have the attribute. With `trusted`, the default, the source is read only from the peers under `trusted`. With `any`, it is read from every peer. Use `any` only for what clients show to prove who they are, such as API keys. A client that invents keys gets a new counter for each of them, so it escapes every limit by this key; add a rule with `key: [ip]`, which limits it all the same.",
            Shape::Choice(&PEERS),
        ),
        optional(
            "decode",
            "Sets how the value is decoded: `percent` decodes %41, and `form` also turns + into a space. The default is `form` for query parameters and `none` otherwise.",
            Shape::Choice(&DECODE),
        ),
    ],
    others: None,
};

pub(crate) static DUPLICATES: Choice = words("`duplicates`", &["reject", "first", "last"]);
pub(crate) static PEERS: Choice = words("`peers`", &["trusted", "any"]);
pub(crate) static DECODE: Choice = words("`decode`", &["none", "percent", "form"]);

pub(crate) static PATHS: Record = Record {
    title: "`paths`",
    fields: &[
        optional(
            "ambiguous",
            "Sets what happens to a path that servers read in several ways. With `match_any`, a rule applies if it matches any reading. With `reject`, such HTTP requests are refused.",
            Shape::Choice(&AMBIGUOUS),
        ),
        optional(
            "case_insensitive",
            "With `true`, /LOGIN equals /login. A rule can override this setting.",
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
            "IPv6 addresses are counted by a prefix of this many bits. The default is 64, because a single host has at least 2⁶⁴ addresses.",
            Shape::Whole { least: 1, most: 128 },
        ),
        optional(
            "header",
            "Names the header in which trusted peers write the address of the client. The default is x-forwarded-for.",
            Shape::Choice(&HOP_HEADER),
        ),
    ],
    others: None,
};

pub(crate) static HOP_HEADER: Choice = words("`header`", &["x-forwarded-for", "forwarded"]);

pub(crate) static TIERS: Record = Record {
    title: "`tiers`",
    fields: &[
        required(
            "default",
            "Names the tier of customers that have no tier or an unknown one.",
            NAME,
        ),
        required("known", "Lists the names of all tiers.", Shape::List(&NAME)),
    ],
    others: None,
};

pub(crate) static PRIORITY_CLASS: Record = Record {
    title: "a priority class",
    fields: &[
        required("name", "Names the class in rules, responses and metrics.", NAME),
        required(
            "weight",
            "Orders the requests that wait for seats which no class has reserved: a class with weight 16 gets 16 of them for each one that a class with weight 1 gets.",
            Shape::Whole { least: 1, most: 1_000_000 },
        ),
        required(
            "share",
            "Sets the part of the seats that is reserved for the class. Together the classes have at most 100%.",
            PERCENT,
        ),
        optional(
            "max_wait",
            "Sets how long a request of this class waits for a seat at most. The default is 500ms.",
            LENGTH,
        ),
    ],
    others: None,
};
