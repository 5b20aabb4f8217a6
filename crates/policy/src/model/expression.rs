//! Conditions: `cost <= 100 and not user.starts_with("internal-")`.
//!
//! ```text
//!   or   := and { "or" and }
//!   and  := not { "and" not }
//!   not  := "not" not | "(" or ")" | "true" | "false" | test
//!   test := value ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) value
//!         | name "in" "[" literal { "," literal } "]"
//!         | name "." ( "starts_with" | "ends_with" | "contains" ) "(" string ")"
//! ```
//!
//! An expression is parsed once, when the policy is loaded, and then evaluated without allocating. There are no loops and no
//! functions that call others, so evaluating an expression takes at most one step for each word, and its text has at most
//! 2 KiB. A test of an absent attribute is always false.
//!
//! Text is compared as text, and numbers as numbers. `ip` is compared with networks (`ip in ["10.0.0.0/8"]`).
//!
//! This module evaluates expressions; `language/expression.rs` parses them.
use crate::model::address::parse_address;
use crate::model::number::Number;
use crate::model::path::Case;
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;

/// A parsed condition.
///
/// ```
/// use tidegate_policy::{Expression, Fact};
/// let condition = Expression::parse("cost <= 100 and user in [\"alice\", \"bob\"]").unwrap();
/// let of = |user: &'static str| move |name: &str| match name {
///     "cost" => Some(Fact::Number(7.into())),
///     "user" => Some(Fact::Text(user.into())),
///     _ => None,
/// };
/// assert!(condition.holds(&of("alice")));
/// assert!(!condition.holds(&of("mallory")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    pub(crate) root: Node,
    pub(crate) text: String,
}

/// The value of a name when an expression is evaluated.
///
/// ```
/// use tidegate_policy::Fact;
/// assert_eq!(Fact::Number(3.into()), Fact::Number("3".parse().unwrap()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<'f> {
    /// Text. It is also a number if it can be parsed as one.
    Text(Cow<'f, str>),
    /// A number.
    Number(Number),
    /// An address.
    Address(IpAddr),
}

/// Why an expression was refused: the position of the mistake, and what to write instead.
///
/// ```
/// let error = tidegate_policy::Expression::parse("user && admin").unwrap_err();
/// assert_eq!((error.at, error.text.as_str()), (5, "write `and` instead of `&&`"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {text}", at.saturating_add(1))]
pub struct ExpressionError {
    /// How many characters are before the mistake.
    pub at: usize,
    /// What is wrong, and what to write instead.
    pub text: String,
}

/// A node of the syntax tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Any(Vec<Node>),
    All(Vec<Node>),
    Not(Box<Node>),
    Always(bool),
    /// Compares a name with a number.
    Size(Name, Comparison, Number),
    /// The text of a name equals one of these.
    Text(Name, Vec<String>),
    /// The address is in one of these networks.
    Within(Name, Vec<IpNet>),
    /// Two names have the same text.
    Same(Name, Name),
    TextTest(Name, TextTest, String),
    /// The name has a value. A negated test needs this, because it is false too if the attribute is absent.
    Known(Name),
}

pub(crate) type Name = Box<str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

// === impl Expression ===

impl Expression {
    /// Converts the texts that this expression compares with `path` to the given case.
    pub(crate) fn with_case(mut self, case: Case) -> Self {
        self.root.fold(case);
        self
    }

    /// Whether the expression holds. `facts` returns the value of a name.
    ///
    /// ```
    /// let absent = |_: &str| None;
    /// assert!(!tidegate_policy::Expression::parse("load < 0.7").unwrap().holds(&absent));
    /// ```
    pub fn holds<'f>(&self, facts: &impl Fn(&str) -> Option<Fact<'f>>) -> bool {
        self.root.holds(facts)
    }

    /// How clearly the expression holds, from 0 (it does not) to 100. A comparison of size with a number above 0 holds clearly
    /// when the value is a tenth of that number away from it; nearer than that, the result lies between. `and` returns the
    /// smallest result, and `or` the largest.
    ///
    /// ```
    /// use tidegate_policy::{Expression, Fact};
    /// let calm = Expression::parse("load < 0.7").unwrap();
    /// let degree = |load: &str| calm.degree(&|_| Some(Fact::Number(load.parse().unwrap())));
    /// assert_eq!(["0.1", "0.63", "0.665", "0.69", "0.7", "0.9"].map(degree), [100, 100, 50, 14, 0, 0]);
    /// ```
    pub fn degree<'f>(&self, facts: &impl Fn(&str) -> Option<Fact<'f>>) -> u8 {
        self.root.degree(facts)
    }

    /// The names in the expression, each once, sorted.
    ///
    /// ```
    /// let condition = tidegate_policy::Expression::parse("b > 1 or a > 1 or b > 2").unwrap();
    /// assert_eq!(condition.names(), ["a", "b"]);
    /// ```
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.names(&mut names);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The text of the expression.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Expression::parse("true").unwrap().as_str(), "true");
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

// === impl Node ===

impl Node {
    fn holds<'f>(&self, facts: &impl Fn(&str) -> Option<Fact<'f>>) -> bool {
        match self {
            Self::Any(nodes) => nodes.iter().any(|node| node.holds(facts)),
            Self::All(nodes) => nodes.iter().all(|node| node.holds(facts)),
            Self::Not(node) => !node.holds(facts),
            Self::Always(answer) => *answer,
            Self::Size(name, compare, number) => facts(name)
                .and_then(|fact| fact.number())
                .is_some_and(|found| compare.holds(found, *number)),
            Self::Text(name, texts) => facts(name).is_some_and(|fact| {
                let found = fact.text();
                texts.iter().any(|text| *text == found)
            }),
            Self::Within(name, networks) => facts(name)
                .and_then(|fact| fact.address())
                .is_some_and(|address| networks.iter().any(|network| network.contains(&address))),
            Self::Same(left, right) => match (facts(left), facts(right)) {
                (Some(left), Some(right)) => left.text() == right.text(),
                (None, _) | (_, None) => false,
            },
            Self::TextTest(name, test, text) => {
                facts(name).is_some_and(|fact| test.holds(&fact.text(), text))
            }
            Self::Known(name) => facts(name).is_some(),
        }
    }

    fn degree<'f>(&self, facts: &impl Fn(&str) -> Option<Fact<'f>>) -> u8 {
        match self {
            Self::Any(nodes) => nodes.iter().map(|node| node.degree(facts)).max().unwrap_or(0),
            Self::All(nodes) => nodes.iter().map(|node| node.degree(facts)).min().unwrap_or(100),
            Self::Size(name, compare, number) => facts(name)
                .and_then(|fact| fact.number())
                .map_or(0, |found| compare.degree(found, *number)),
            Self::Not(_)
            | Self::Always(_)
            | Self::Text(..)
            | Self::Within(..)
            | Self::Same(..)
            | Self::TextTest(..)
            | Self::Known(_) => u8::from(self.holds(facts)).saturating_mul(100),
        }
    }

    fn fold(&mut self, case: Case) {
        match self {
            Self::Any(nodes) | Self::All(nodes) => {
                nodes.iter_mut().for_each(|node| node.fold(case));
            }
            Self::Not(node) => node.fold(case),
            Self::Text(name, texts) if &**name == "path" => {
                texts.iter_mut().for_each(|text| *text = case.fold(text).into_owned());
            }
            Self::TextTest(name, _, text) if &**name == "path" => {
                *text = case.fold(text).into_owned();
            }
            Self::Always(_)
            | Self::Size(..)
            | Self::Text(..)
            | Self::Within(..)
            | Self::Same(..)
            | Self::TextTest(..)
            | Self::Known(_) => {}
        }
    }

    fn names<'n>(&'n self, names: &mut Vec<&'n str>) {
        match self {
            Self::Any(nodes) | Self::All(nodes) => nodes.iter().for_each(|node| node.names(names)),
            Self::Not(node) => node.names(names),
            Self::Always(_) => {}
            Self::Size(name, ..)
            | Self::Text(name, _)
            | Self::Within(name, _)
            | Self::TextTest(name, ..)
            | Self::Known(name) => names.push(name),
            Self::Same(left, right) => names.extend([&**left, &**right]),
        }
    }
}

impl Comparison {
    fn holds(self, left: Number, right: Number) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }

    /// How clearly the comparison holds, from 0 to 100.
    fn degree(self, left: Number, right: Number) -> u8 {
        let distance = match self {
            _ if !self.holds(left, right) => return 0,
            Self::Equal => return 100,
            Self::Less | Self::LessOrEqual => right.minus(left),
            Self::Greater | Self::GreaterOrEqual => left.minus(right),
        };
        distance.percent_of_a_tenth(right)
    }

    /// The comparison with both sides swapped.
    pub(crate) fn turned(self) -> Self {
        match self {
            Self::Equal => Self::Equal,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }
}

impl TextTest {
    fn holds(self, whole: &str, part: &str) -> bool {
        match self {
            Self::StartsWith => whole.starts_with(part),
            Self::EndsWith => whole.ends_with(part),
            Self::Contains => whole.contains(part),
        }
    }
}

// === impl Fact ===

impl Fact<'_> {
    fn number(&self) -> Option<Number> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Number(number) => Some(*number),
            Self::Address(_) => None,
        }
    }

    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => number.to_string().into(),
            Self::Address(address) => address.to_string().into(),
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Text(text) => parse_address(text),
            Self::Number(_) => None,
            Self::Address(address) => Some(*address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> Option<Fact<'static>> {
        match name {
            "cost" => Some(Fact::Number(50.into())),
            "user" => Some(Fact::Text("internal-7".into())),
            "age" => Some(Fact::Text("41".into())),
            "owner" => Some(Fact::Text("internal-7".into())),
            "ip" => Some(Fact::Address([10, 1, 2, 3].into())),
            "path" => Some(Fact::Text("/a/b".into())),
            _ => None,
        }
    }

    #[test]
    fn expressions_that_hold() {
        for text in [
            "cost <= 100",
            "100 >= cost",
            "cost == 50",
            "cost != 49",
            "age > 40.5",
            "not age > 41",
            "user == \"internal-7\"",
            "user == owner",
            "user != \"x\"",
            "user in [\"x\", \"internal-7\"]",
            "not (user in [\"x\"])",
            "user.starts_with(\"internal-\") and user.ends_with(\"7\") and user.contains(\"nal\")",
            "ip in [\"192.168.0.0/16\", \"10.0.0.0/8\"]",
            "ip == \"10.1.2.3\"",
            "ip != \"10.1.2.4\"",
            "path == \"/a//b/\"",
            "false or true and not false",
            "true or false and false",
            "not absent == \"x\"",
            "((((cost > 1))))",
            "user == 'internal-7'",
            "user not in [\"x\", \"y\"]",
        ] {
            assert!(Expression::parse(text).unwrap().holds(&request), "{text}");
        }
    }

    #[test]
    fn expressions_that_do_not_hold() {
        for text in [
            "cost <= 49",
            "user > 3", // the user is not a number
            "user == \"INTERNAL-7\"",
            // A comparison with an absent attribute is false, with every operator.
            "absent == \"x\"",
            "absent != \"x\"",
            "absent < 1",
            "absent == user",
            "absent != user",
            "absent in [\"x\"]",
            "absent not in [\"x\"]",
            "absent.starts_with(\"\")",
            "ip in [\"10.1.2.4/32\", \"::/0\"]",
            "false",
            "true and false or false",
        ] {
            assert!(!Expression::parse(text).unwrap().holds(&request), "{text}");
        }
    }
}
