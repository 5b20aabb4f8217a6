//! How many nodes there are decides the share that each grants while the store is down.

use tidegate_simulator::{Arrival, Decider, Fault, FaultKind, RuleSpec, Scenario, run};

/// Two nodes, of which one is restarted. Then the store is down, and the other node gets more requests than its share.
fn granted_after_a_restart(keeps_disk: bool) -> u64 {
    let rule = RuleSpec { algorithm: "fixed_window", amount: 60, seconds: 604_800, burst: None };
    let fault = |at, until, kind| Fault { at, until, kind };
    let arrival = |number: u64| Arrival {
        at: number.saturating_mul(5).saturating_add(7_000),
        node: 0,
        user: 0,
        tenant: 0,
        cost: 1,
        timeout: None,
        report: None,
    };
    let scenario = Scenario {
        clocks: vec![(0, 0); 2],
        store_clock: 0,
        keeps_disk,
        rules: [rule.clone(), rule],
        lease: None,
        tenants: None,
        faults: vec![
            fault(3_000, 3_200, FaultKind::Crash(1)),
            fault(6_000, 9_000, FaultKind::StoreDown { keeps_data: true }),
        ],
        arrivals: (0..100).map(arrival).collect(),
        ..Scenario::of(0)
    };
    let answered = run(&scenario).answered.into_iter();
    let granted = answered.filter(|answer| answer.allowed && answer.by == Decider::Fallback);
    granted.map(|answer| answer.cost).sum()
}

/// Two servers were counted as three after one of them had been restarted, so the other granted a third of the limit.
#[test]
fn a_restarted_node_is_no_further_node() {
    assert_eq!(granted_after_a_restart(true), 30);
}

/// A node without its disk is another node. The node that it replaces may only be cut off, and still grant its share.
#[test]
fn a_node_that_has_lost_its_disk_is_a_further_node() {
    assert_eq!(granted_after_a_restart(false), 20);
}
