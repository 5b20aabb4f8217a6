//! What a rule needs to know of a request, for sources of requests that know less than the server, such as a log.

use crate::model::condition::Condition;
use crate::model::expression::Expression;
use crate::model::rule::Rule;

impl Rule {
    /// Whether the value of an attribute makes a difference to this rule.
    pub(crate) fn needs(&self, attribute: &str) -> bool {
        let is_other = |name: &str| name != attribute;
        self.lacking(is_other, is_other).contains(&attribute)
            || self.key.names().any(|name| name == attribute)
    }

    /// The attributes that this rule needs and a source of requests, such as a log, does not have. `known` says which attributes
    /// the source has, and `clear` which of them it has as text instead of as a digest. A digest is enough for a key, which only
    /// distinguishes values, but not for `match`, `when` and overrides, which compare them.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// rules:
    ///   - { name: a, key: [user|ip], limits: [1/s] }
    ///   - { name: b, match: { tenant: acme }, key: [user], limits: [1/s] }").unwrap();
    /// let lacking = |rule: usize| policy.rules()[rule].lacking(|name| name == "ip", |name| name == "ip");
    /// assert_eq!(lacking(0), [""; 0]); // the address is enough
    /// assert_eq!(lacking(1), ["tenant", "user"]);
    /// ```
    pub fn lacking(&self, known: impl Fn(&str) -> bool, clear: impl Fn(&str) -> bool) -> Vec<&str> {
        let conditions = self.conditions.iter().map(Condition::attribute);
        let when = self.when.iter().flat_map(Expression::names).filter(|name| *name != "cost");
        let overridden = self.overrides.names();
        let compared = conditions.chain(when).chain(overridden).filter(|name| !clear(name));
        let parts = self.key.parts().filter(|part| !part.iter().any(|name| known(name)));
        let mut lacking: Vec<&str> = compared.chain(parts.flatten()).collect();
        lacking.sort_unstable();
        lacking.dedup();
        lacking
    }
}
