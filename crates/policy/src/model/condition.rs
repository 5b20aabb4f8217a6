//! Conditions of `match`: an attribute, and the values that it may have.

use crate::model::attributes::RequestReading;
use crate::model::pattern::Pattern;
use ipnet::IpNet;
use std::borrow::Cow;

/// One entry of `match`: an attribute, and the values that it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Method(Vec<String>),
    Path(Vec<Pattern>),
    Ip(Vec<IpNet>),
    Named(Box<str>, Vec<String>),
}

impl Condition {
    pub(crate) fn attribute(&self) -> &str {
        match self {
            Self::Method(_) => "method",
            Self::Path(_) => "path",
            Self::Ip(_) => "ip",
            Self::Named(name, _) => name,
        }
    }

    /// Lets a condition on `GET` hold for `HEAD`, which is the same request without the body of its answer.
    pub(crate) fn include_head(&mut self) {
        if let Self::Method(methods) = self
            && is_among(methods, "GET")
            && let Err(at) = methods.binary_search_by(|method| method.as_str().cmp("HEAD"))
        {
            methods.insert(at, "HEAD".to_owned());
        }
    }

    /// The accepted values, as text.
    pub(crate) fn values(&self) -> Box<dyn Iterator<Item = Cow<'_, str>> + '_> {
        match self {
            Self::Method(values) | Self::Named(_, values) => {
                Box::new(values.iter().map(|value| value.as_str().into()))
            }
            Self::Path(patterns) => Box::new(patterns.iter().map(|p| p.to_string().into())),
            Self::Ip(networks) => Box::new(networks.iter().map(|n| n.addr().to_string().into())),
        }
    }

    pub(crate) fn holds(&self, reading: RequestReading<'_>) -> bool {
        let request = reading.request();
        match self {
            Self::Method(methods) => reading.method().is_some_and(|found| is_among(methods, found)),
            Self::Path(patterns) => {
                reading.path().is_some_and(|path| patterns.iter().any(|p| p.matches(path)))
            }
            Self::Ip(networks) => {
                request.address().is_some_and(|ip| networks.iter().any(|n| n.contains(&ip)))
            }
            Self::Named(name, values) => {
                request.named(name).is_some_and(|found| is_among(values, found))
            }
        }
    }

    /// Whether every request that satisfies `other` satisfies this condition too; false when in doubt.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Method(mine), Self::Method(theirs)) => theirs.iter().all(|m| is_among(mine, m)),
            (Self::Path(mine), Self::Path(theirs)) => {
                theirs.iter().all(|theirs| mine.iter().any(|mine| mine.covers(theirs)))
            }
            (Self::Ip(mine), Self::Ip(theirs)) => {
                theirs.iter().all(|theirs| mine.iter().any(|mine| mine.contains(theirs)))
            }
            (Self::Named(name, mine), Self::Named(other, theirs)) => {
                name == other && theirs.iter().all(|value| is_among(mine, value))
            }
            (Self::Method(_) | Self::Path(_) | Self::Ip(_) | Self::Named(..), _) => false,
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values: Vec<String> = match self {
            Self::Method(values) | Self::Named(_, values) => values.clone(),
            Self::Path(patterns) => patterns.iter().map(ToString::to_string).collect(),
            Self::Ip(networks) => networks.iter().map(ToString::to_string).collect(),
        };
        f.write_str(&values.join(" or "))
    }
}

/// Whether a value is in a sorted list.
fn is_among(values: &[String], wanted: &str) -> bool {
    values.binary_search_by(|value| value.as_str().cmp(wanted)).is_ok()
}
