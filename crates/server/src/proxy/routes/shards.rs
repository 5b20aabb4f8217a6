//! Rules that count by `upstream`, the server that a request belongs to. Only a group with `balance: { hash: … }` gives requests
//! this attribute.

use super::{BalanceBy, Routes};
use tidegate_policy::{Policy, Rule};

/// The attribute that names the server.
const UPSTREAM: &str = "upstream";

impl Routes {
    /// Why rules of a policy that count by `upstream` would not do what they say.
    pub(crate) fn problems_with(&self, policy: &Policy) -> Vec<String> {
        let hashed: Vec<&str> = self
            .groups
            .iter()
            .filter_map(|group| match &group.balance {
                BalanceBy::Hash(attribute) => Some(attribute.as_str()),
                BalanceBy::LeastInFlight => None,
            })
            .collect();
        let by_server = |rule: &&Rule| rule.key().names().any(|name| name == UPSTREAM);
        policy.rules().iter().filter(by_server).filter_map(|rule| problem(rule, &hashed)).collect()
    }
}

fn problem(rule: &Rule, hashed: &[&str]) -> Option<String> {
    let name = rule.name();
    if hashed.is_empty() {
        return Some(format!(
            "rule `{name}` counts by `upstream`, but no group has `balance: {{ hash: ATTRIBUTE }}`; the rule would never apply"
        ));
    }
    let same = hashed.iter().find(|attribute| rule.key().names().any(|name| name == **attribute));
    same.map(|attribute| {
        format!(
            "rule `{name}` counts by `{attribute}` and by `upstream`, which is chosen by `{attribute}`: that is the same as `{attribute}` alone; balance by another attribute"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(balance: &str, key: &str) -> Vec<String> {
        let routes =
            format!("groups: {{ a: {{ servers: [http://a, http://b], balance: {balance} }} }}");
        let policy =
            format!("{{ version: 1, rules: [{{ name: r, key: {key}, limits: [3/min] }}] }}");
        let policy = Policy::parse(&policy).unwrap();
        Routes::parse(routes.as_bytes()).unwrap().problems_with(&policy)
    }

    #[test]
    fn rules_by_server_need_servers_that_are_chosen_by_something_else() {
        assert!(problems("least_in_flight", "[user]").is_empty());
        assert!(problems("{ hash: url }", "[user, upstream]").is_empty());
        assert!(problems("least_in_flight", "[upstream]")[0].contains("would never apply"));
        assert!(problems("{ hash: user }", "[user, upstream]")[0].contains("the same as `user`"));
    }
}
