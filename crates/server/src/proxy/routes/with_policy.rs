//! Whether the routes fit a policy: each priority class needs a seat in every group, and rules that count by `upstream`, the server
//! that a request belongs to, need a group with `balance: { hash: … }`, which gives requests this attribute.

use super::{BalanceBy, GroupSpec, Routes};
use tidegate_policy::{Policy, Rule};

/// The attribute that names the server.
const UPSTREAM: &str = "upstream";

impl Routes {
    /// Why a policy would not do what it says with these routes.
    pub(crate) fn problems_with(&self, policy: &Policy) -> Vec<String> {
        let mut problems = self.unsuitable_shards(policy);
        problems.extend(self.groups.iter().filter_map(|group| too_few_seats(group, policy)));
        problems
    }

    /// Rules that count by `upstream`, where that does not work.
    fn unsuitable_shards(&self, policy: &Policy) -> Vec<String> {
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

/// A group that has not even one seat for each priority class.
fn too_few_seats(group: &GroupSpec, policy: &Policy) -> Option<String> {
    let (seats, classes) = (group.concurrency?, policy.classes().count());
    (policy.uses_priorities() && seats < classes).then(|| {
        let name = &group.name;
        format!("group `{name}` has `concurrency: {seats}`, but the policy has {classes} priority classes, and each of them needs a seat; write at least `concurrency: {classes}`, or list fewer classes under `priorities` in the policy")
    })
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

    #[test]
    fn each_class_needs_a_seat() {
        let problems = |concurrency: u32, rule: &str| {
            let routes =
                format!("groups: {{ a: {{ servers: [http://a], concurrency: {concurrency} }} }}");
            let policy = format!("{{ version: 1, rules: [{{ name: r, {rule} }}] }}");
            let policy = Policy::parse(&policy).unwrap();
            Routes::parse(routes.as_bytes()).unwrap().problems_with(&policy)
        };
        assert_eq!(problems(3, "key: [], limits: [1/s]"), [""; 0]); // it uses no priorities
        assert_eq!(problems(4, "priority: high"), [""; 0]);
        let found = problems(3, "priority: high");
        assert!(
            found.len() == 1 && found[0].contains("`concurrency: 3`, but the policy has 4"),
            "{found:?}"
        );
    }

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
