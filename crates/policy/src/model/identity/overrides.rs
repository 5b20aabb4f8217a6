//! Method overrides: fields with which a client asks a server to take its request for one of another method.
//!
//! ```text
//!   POST /urls/7
//!   X-HTTP-Method-Override: DELETE       Rails, Spring, Symfony, Express with method-override: DELETE /urls/7
//! ```
//!
//! tidegate does not know whether the server behind it does that. So the rules of both methods apply, and nothing is removed from
//! the request: the server would take what the client meant as a DELETE for a POST. An override in the body (`_method` of a form)
//! is not seen.

use super::{Decode, Request, pairs};
use crate::model::attributes::{AttributeError, Attributes};

/// The header fields with which a client asks a server to take its request for one of another method, in lower case.
///
/// ```
/// assert!(tidegate_policy::METHOD_OVERRIDES.contains(&"x-http-method-override"));
/// ```
pub const METHOD_OVERRIDES: [&str; 3] =
    ["x-http-method-override", "x-http-method", "x-method-override"];
/// The parameter of the query that they read.
const PARAMETER: &str = "_method";
/// No method is longer.
const LONGEST: usize = 32;

impl Request<'_, '_> {
    /// Whether the request asks servers to take it for one of another method, in a header field or in its query.
    ///
    /// ```
    /// use tidegate_policy::Request;
    /// let nothing = |_: &str| Vec::new();
    /// let request = |target| Request { peer: None, method: "POST", target, headers: &nothing };
    /// assert!(request("/urls/7?%5Fmethod=delete").has_method_override());
    /// assert!(!request("/urls/7").has_method_override());
    /// ```
    #[must_use]
    pub fn has_method_override(&self) -> bool {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        METHOD_OVERRIDES.iter().any(|field| !self.texts(field).is_empty())
            || pairs(query, '&').any(|(name, _)| Decode::Form.of(name) == PARAMETER)
    }

    /// Adds the methods that the request asks servers to take it for.
    pub(crate) fn add_overrides(
        &self,
        attributes: &mut Attributes<'_>,
    ) -> Result<(), AttributeError> {
        for field in METHOD_OVERRIDES {
            for value in self.texts(field) {
                add(&value, attributes)?;
            }
        }
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        if query.is_empty() {
            return Ok(());
        }
        for (name, value) in pairs(query, '&') {
            if Decode::Form.of(name) == PARAMETER {
                add(&Decode::Form.of(value), attributes)?;
            }
        }
        Ok(())
    }
}

/// Adds every word of a value: some servers read the first element of a list and others the last, and they disagree on what is
/// white space.
fn add(value: &str, attributes: &mut Attributes<'_>) -> Result<(), AttributeError> {
    let words = value.split(|c: char| !c.is_ascii_alphabetic() && c != '-');
    let mut words = words.filter(|word| (1..=LONGEST).contains(&word.len()));
    words.try_for_each(|word| attributes.may_be(word))
}

#[cfg(test)]
mod tests {
    use crate::{AttributeError, Attributes, Policy, Request};

    const RULES: &str = "
rules:
  - { name: reads, match: { method: GET }, key: [ip], limits: [9/s] }
  - { name: deletes, match: { method: DELETE }, key: [ip], limits: [9/s] }
  - { name: posts, match: { method: POST }, key: [ip], limits: [9/s], stop: true }
  - { name: bodies, when: 'method in [\"POST\", \"PUT\"]', key: [ip], limits: [9/s] }
  - { name: each, key: [ip, method], limits: [9/s] }
";

    fn attributes(
        policy: &Policy,
        method: &'static str,
        target: &'static str,
        fields: &[(&str, &'static str)],
    ) -> Result<Attributes<'static>, AttributeError> {
        let headers = |wanted: &str| {
            let fields = fields.iter().filter(|(name, _)| *name == wanted);
            fields.map(|(_, value)| value.as_bytes()).collect()
        };
        // Not a trusted peer: the fields make the request subject to more rules, so they may be invented.
        let peer = "203.0.113.7".parse().ok();
        let request = Request { peer, method, target, headers: &headers };
        policy.attributes(&request, &|_| String::new())
    }

    /// The rules that apply, each with its key, in the order of the file.
    fn applying(
        method: &'static str,
        target: &'static str,
        fields: &[(&str, &'static str)],
    ) -> Vec<String> {
        let policy = Policy::parse(format!("version: 1\n{RULES}")).unwrap();
        let request = attributes(&policy, method, target, fields).unwrap();
        let all = policy.applying(&request, 1);
        all.map(|(rule, values)| format!("{} {}", rule.name(), &*values.pairs().last().unwrap().1))
            .collect()
    }

    const IP: &str = "203.0.113.7";

    #[test]
    fn the_rules_of_both_methods_apply() {
        let of = |rules: &[&str], methods: &[&str]| -> Vec<String> {
            let rules = rules.iter().map(|rule| format!("{rule} {IP}"));
            rules.chain(methods.iter().map(|method| format!("each {method}"))).collect()
        };
        assert_eq!(applying("POST", "/", &[]), of(&["posts"], &[]));
        // `posts` stops only if the request is a POST for every server.
        let both = of(&["deletes", "posts", "bodies"], &["POST", "DELETE"]);
        for (target, field) in [
            ("/", ("x-http-method-override", "DELETE")),
            ("/", ("x-http-method", "delete")),
            ("/", ("x-method-override", " Delete ")),
            ("/", ("x-http-method-override", "\u{a0}DELETE\u{a0}")),
            ("/", ("x-http-method-override", "POST, DELETE")),
            ("/?a=b&_method=DELETE", ("x", "y")),
            ("/?%5fmethod=%44ELETE", ("x", "y")),
        ] {
            assert_eq!(applying("POST", target, &[field]), both, "{target} {field:?}");
        }
        let override_field = [("x-http-method-override", "GET")];
        assert_eq!(applying("HEAD", "/", &override_field), of(&["reads"], &["HEAD", "GET"]));
        assert_eq!(applying("GET", "/?_method=", &[]), of(&["reads"], &["GET"]));
        // With a path of two readings, each method is combined with each of them.
        let both = applying("PUT", "/a%2fb", &[("x-http-method", "DELETE")]);
        assert_eq!(both, of(&["deletes", "bodies"], &["PUT", "DELETE"]));
    }

    #[test]
    fn a_policy_may_refuse_overrides() {
        let text = format!("version: 1\nmethods: {{ overrides: reject }}\n{RULES}");
        let policy = Policy::parse(text).unwrap();
        let field = |value| [("x-http-method-override", value)];
        let error = attributes(&policy, "POST", "/", &field("DELETE")).unwrap_err();
        assert_eq!(error, AttributeError::Override("DELETE".to_owned()));
        assert!(attributes(&policy, "POST", "/", &field("post")).is_ok());
        assert!(attributes(&policy, "POST", "/", &[]).is_ok());
        // More than a request may have are refused by any policy.
        let policy = Policy::parse(format!("version: 1\n{RULES}")).unwrap();
        let error = attributes(&policy, "GET", "/", &field("a b c d e")).unwrap_err();
        assert_eq!(error, AttributeError::Override("E".to_owned()));
        // No rule distinguishes methods, so nothing is read.
        let policy =
            Policy::parse("{ version: 1, rules: [{ name: a, key: [ip], limits: [1/s] }] }");
        let request = attributes(&policy.unwrap(), "POST", "/", &field("a b c d e")).unwrap();
        assert!(!request.is_ambiguous());
    }
}
