//! Makes a failing scenario smaller while it still fails: fewer faults, fewer requests.

use crate::scenario::Scenario;
use crate::{Violation, check};

/// Maximum runs while shrinking.
const MAX_TRIES: usize = 400;

/// A smaller scenario that still breaks the same kind of promise.
#[must_use]
pub fn shrunk(scenario: &Scenario) -> Scenario {
    let kinds = |found: &[Violation]| found.iter().map(std::mem::discriminant).collect::<Vec<_>>();
    let wanted = kinds(&check(scenario));
    let mut best = scenario.clone();
    let mut tries = 0;
    let mut fails = |candidate: &Scenario| {
        tries += 1;
        tries <= MAX_TRIES && kinds(&check(candidate)).iter().any(|kind| wanted.contains(kind))
    };
    let mut number = 0;
    while number < best.faults.len() {
        let mut candidate = best.clone();
        candidate.faults.remove(number);
        if fails(&candidate) { best = candidate } else { number += 1 }
    }
    // Requests are removed in pieces that get smaller: halves, quarters, …, one by one.
    let mut piece = best.arrivals.len().div_ceil(2);
    while piece > 0 {
        let mut from = 0;
        while from < best.arrivals.len() {
            let mut candidate = best.clone();
            let to = (from + piece).min(candidate.arrivals.len());
            candidate.arrivals.drain(from..to);
            if fails(&candidate) { best = candidate } else { from += piece }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
    best
}
