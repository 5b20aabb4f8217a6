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
//! Read once, when the policy is loaded; then evaluated without allocating. There is no loop and no
//! function that could call another, so an expression of 2 KiB takes at most as many steps as it has words:
//! the cost is bounded by the text. A test of an absent attribute is false, whatever it tests.
//!
//! Text is compared as text, numbers as numbers; `ip` is compared with networks (`ip in ["10.0.0.0/8"]`).

mod parse;

use crate::identity::Identity;
use crate::number::Number;
use crate::pattern::Case;
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;

/// A condition, ready to be asked.
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
    root: Node,
    text: String,
}

/// What a name stands for at the moment.
///
/// ```
/// use tidegate_policy::Fact;
/// assert_eq!(Fact::Number(3.into()), Fact::Number("3".parse().unwrap()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<'f> {
    /// Text; it is a number too if it reads as one.
    Text(Cow<'f, str>),
    /// A number.
    Number(Number),
    /// An address.
    Address(IpAddr),
}

/// Why an expression was refused: where in it, and what to write instead.
///
/// ```
/// let error = tidegate_policy::Expression::parse("user && admin").unwrap_err();
/// assert_eq!((error.at, error.text.as_str()), (5, "write `and` instead of `&&`"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {text}", at.saturating_add(1))]
pub struct ExpressionError {
    /// How many characters stand before the mistake.
    pub at: usize,
    /// What is wrong, and what to write.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Any(Vec<Node>),
    All(Vec<Node>),
    Not(Box<Node>),
    Always(bool),
    /// Name, comparison, number.
    Size(Name, Compare, Number),
    /// The name's text is one of these.
    Text(Name, Vec<String>),
    /// The address lies in one of these.
    Within(Name, Vec<IpNet>),
    /// Two names have the same text, or not.
    Same(Name, Name),
    Part(Name, Part, String),
    /// The name stands for something: what a negated test still needs.
    Known(Name),
}

type Name = Box<str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Start,
    End,
    Anywhere,
}

// === impl Expression ===

impl Expression {
    /// Reads an expression.
    ///
    /// ```
    /// use tidegate_policy::Expression;
    /// assert!(Expression::parse("load < 0.7").is_ok());
    /// assert!(Expression::parse("load <").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Self::about(text, &Identity::default())
    }

    /// Reads an expression about requests as a policy knows them: where the identity keeps a digest, the value itself would
    /// never be equal, and is refused.
    pub(crate) fn about(text: &str, identity: &Identity) -> Result<Self, ExpressionError> {
        Ok(Self { root: parse::parse(text, identity)?, text: text.to_owned() })
    }

    /// The same, with what it compares `path` with as paths are compared.
    pub(crate) fn with_case(mut self, case: Case) -> Self {
        self.root.fold(case);
        self
    }

    /// Whether it holds, given what names stand for.
    ///
    /// ```
    /// let never_known = |_: &str| None;
    /// assert!(!tidegate_policy::Expression::parse("load < 0.7").unwrap().holds(&never_known));
    /// ```
    pub fn holds<'f>(&self, facts: &impl Fn(&str) -> Option<Fact<'f>>) -> bool {
        self.root.holds(facts)
    }

    /// The names it asks about, each once, in order.
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

    /// As it was written.
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
            Self::Part(name, part, text) => {
                facts(name).is_some_and(|fact| part.holds(&fact.text(), text))
            }
            Self::Known(name) => facts(name).is_some(),
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
            Self::Part(name, _, text) if &**name == "path" => *text = case.fold(text).into_owned(),
            Self::Always(_)
            | Self::Size(..)
            | Self::Text(..)
            | Self::Within(..)
            | Self::Same(..)
            | Self::Part(..)
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
            | Self::Part(name, ..)
            | Self::Known(name) => names.push(name),
            Self::Same(left, right) => names.extend([&**left, &**right]),
        }
    }
}

impl Compare {
    fn holds(self, left: Number, right: Number) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }

    /// The same comparison seen from the other side.
    fn turned(self) -> Self {
        match self {
            Self::Equal => Self::Equal,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }
}

impl Part {
    fn holds(self, whole: &str, part: &str) -> bool {
        match self {
            Self::Start => whole.starts_with(part),
            Self::End => whole.ends_with(part),
            Self::Anywhere => whole.contains(part),
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
            Self::Text(text) => crate::address::parse_address(text),
            Self::Number(_) => None,
            Self::Address(address) => Some(*address),
        }
    }
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::whole(n)
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
    fn what_holds() {
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
            "not nobody == \"x\"",
            "((((cost > 1))))",
            "user == 'internal-7'",
            "user not in [\"x\", \"y\"]",
        ] {
            assert!(Expression::parse(text).unwrap().holds(&request), "{text}");
        }
    }

    #[test]
    fn what_does_not_hold() {
        for text in [
            "cost <= 49",
            "user > 3", // no number
            "user == \"INTERNAL-7\"",
            // A comparison with an absent attribute is false, whichever way it is put.
            "nobody == \"x\"",
            "nobody != \"x\"",
            "nobody < 1",
            "nobody == user",
            "nobody != user",
            "nobody in [\"x\"]",
            "nobody not in [\"x\"]",
            "nobody.starts_with(\"\")",
            "ip in [\"10.1.2.4/32\", \"::/0\"]",
            "false",
            "true and false or false",
        ] {
            assert!(!Expression::parse(text).unwrap().holds(&request), "{text}");
        }
    }
}
