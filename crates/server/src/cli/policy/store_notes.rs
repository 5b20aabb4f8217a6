//! What a store makes of the limits of a policy: which it cannot count, and how exactly it counts the others.

use clap::ValueEnum;
use tidegate_policy::{Allowance, Policy, Problem, Rule};
use tidegate_store::{Memcached, Redis};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StoreKind {
    /// Of this server, with a data directory or without.
    Memory,
    /// On Redis or Valkey.
    Redis,
    /// On memcached.
    Memcached,
}

/// What was found.
#[derive(Default)]
pub(super) struct StoreNotes {
    /// Limits that the store cannot count.
    pub(super) problems: Vec<Problem>,
    /// How exactly it counts the others, where that is not exactly.
    pub(super) notes: Vec<String>,
}

impl StoreNotes {
    pub(super) fn of(policy: &Policy, store: Option<StoreKind>) -> Self {
        let mut found = Self::default();
        if let Some(store) = store {
            policy.rules().iter().for_each(|rule| found.look(rule, store));
        }
        found
    }

    /// What is to be said of one rule.
    pub(super) fn of_rule(rule: &Rule, store: Option<StoreKind>) -> Vec<String> {
        let mut found = Self::default();
        if let Some(store) = store {
            found.look(rule, store);
        }
        let problems = found.problems.into_iter().map(|problem| problem.text);
        problems.chain(found.notes).collect()
    }

    fn look(&mut self, rule: &Rule, store: StoreKind) {
        for limit in rule.allowances().flat_map(Allowance::limits) {
            let name = limit.limit().algorithm().name();
            let shown = format!("rule `{}`, {} {name}", rule.name(), limit.summary());
            let counted = match store {
                StoreKind::Memory => Ok(None),
                StoreKind::Redis => Redis::can_count(limit.limit()).map(|()| None),
                StoreKind::Memcached => Memcached::exactness(limit.limit()).map(Some),
            };
            match counted {
                Ok(None) => {}
                Ok(Some(how)) => self.notes.push(format!("{shown}: memcached counts {how}")),
                Err(why) => {
                    let text = format!("this store cannot count {shown}: {why}");
                    self.problems.push(Problem { place: rule.place(), text });
                }
            }
        }
        self.notes.dedup();
        self.problems.dedup();
    }
}
