//! Every scenario, played against the pure core.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly, and says how much it played"
)]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use tidegate_core::{Ask, Cost, Decision, Written};
use tidegate_timelines::{Call, FOLDER, parse, play};

/// At least this many scenarios must be found, so that none gets lost.
const FEWEST: usize = 300;

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The core as a layer: one state in a variable.
fn on_core<'s>() -> impl FnMut(Call<'s>) -> Option<Decision> {
    let mut kept: Option<Written<'s>> = None;
    let mut receipts = HashMap::new();
    move |call| match call {
        Call::Take(limit, ask, name) => {
            let taken = limit.take(kept.get_or_insert(Written::empty(limit)), &ask);
            receipts.extend(name.zip(taken.receipt.map(|receipt| (limit, receipt))));
            Some(taken.decision)
        }
        Call::Peek(limit, ask) => {
            Some(limit.decide(kept.get_or_insert(Written::empty(limit)), &ask))
        }
        Call::Charge(limit, ask, name) => {
            let written = kept.get_or_insert(Written::empty(limit));
            let receipt = limit.charge(written, &ask);
            receipts.extend(name.map(|name| (name, (limit, receipt))));
            Some(limit.decide(written, &Ask { cost: Cost::default(), ..ask }))
        }
        Call::GiveBack(now, name) => {
            // A receipt is given back once. The layer that keeps states remembers that.
            if let (Some(written), Some((limit, receipt))) = (kept.as_mut(), receipts.remove(name))
            {
                written.give_back(now, limit, &receipt);
            }
            None
        }
        Call::Reset => {
            kept = None;
            None
        }
    }
}

#[test]
fn the_core_agrees_with_every_timeline() {
    let mut played = 0;
    let mut wrong = Vec::new();
    for file in files() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let scenarios = parse(&fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for scenario in &scenarios {
            played += 1;
            if let Err(mismatch) = play(scenario, on_core()) {
                wrong.push(format!("{name}: {}: {mismatch}", scenario.title));
            }
        }
    }
    println!("{played} timelines played");
    assert!(wrong.is_empty(), "{} of {played} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(played >= FEWEST, "only {played} timelines");
}
