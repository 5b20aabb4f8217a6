//! Plays the timelines against a store.

use std::collections::HashMap;
use std::fs;
use tidegate_core::{Cost, Decision, Plan, StateId, Take, Timestamp};
use tidegate_store::testing::Rig;
use tidegate_store::{Part, ReceiptId, Settlement, Store};
use tidegate_timelines::{Action, Call, FOLDER, Scenario, calls, parse, play};

/// Plays every scenario that the store supports, each with a fresh state. `tick_nanos` is the resolution of the store's clock.
/// Returns how many scenarios were played.
pub(crate) async fn play_all<S: Store>(make: impl AsyncFn() -> Rig<S>, tick_nanos: u64) -> usize {
    let rig = make().await;
    let mut files: Vec<_> =
        fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut played, mut wrong) = (0u64, Vec::new());
    for file in files {
        for scenario in parse(&fs::read_to_string(&file).unwrap()).unwrap() {
            if !supports_all(&rig, &scenario, tick_nanos) {
                continue;
            }
            played += 1;
            let id = StateId(u128::from(played) << 32);
            if let Err(difference) = play_one(&rig, &scenario, id, u128::from(played) << 64).await {
                wrong.push(format!("{}: {}: {difference}", file.display(), scenario.title));
            }
        }
    }
    println!("{played} timelines played");
    assert!(wrong.is_empty(), "{} of {played} differ:\n{}", wrong.len(), wrong.join("\n"));
    usize::try_from(played).unwrap()
}

/// Whether the store supports all limits of a scenario and its clock can represent all of its times.
fn supports_all<S: Store>(rig: &Rig<S>, scenario: &Scenario, tick_nanos: u64) -> bool {
    let Rig { store, declared, .. } = rig;
    let (mut limits, mut latest) = (0, Timestamp::EPOCH);
    for step in &scenario.steps {
        match &step.action {
            Action::Limit(_) => limits += 1,
            Action::At(now, _) if *now < latest && declared.forgets_later_times => return false,
            Action::At(now, _) => latest = *now,
            Action::Elastic(_) => {}
        }
    }
    if limits > 1 && declared.edits_begin_anew {
        return false;
    }
    scenario.steps.iter().all(|step| match &step.action {
        Action::Limit(limit) => store.supports(limit).is_ok(),
        Action::At(now, _) => now.as_nanos() % tick_nanos == 0,
        Action::Elastic(_) => true,
    })
}

/// Makes the calls of a scenario one after another, then compares the answers.
async fn play_one<S: Store>(
    rig: &Rig<S>,
    scenario: &Scenario,
    id: StateId,
    receipts_from: u128,
) -> Result<(), String> {
    let mut answers = Vec::new();
    let mut receipts = Receipts { by_name: HashMap::new(), next: receipts_from };
    for call in calls(scenario) {
        answers.push(perform(rig, call, id, &mut receipts).await);
    }
    let mut answers = answers.into_iter();
    play(scenario, |_| answers.next().flatten()).map_err(|mismatch| mismatch.to_string())
}

/// The receipts of a scenario by name, each with a number of its own.
struct Receipts<'s> {
    by_name: HashMap<&'s str, (u128, Part<'s>)>,
    next: u128,
}

impl<'s> Receipts<'s> {
    fn file(&mut self, name: Option<&'s str>, part: Option<Part<'s>>) {
        if let (Some(name), Some(part)) = (name, part) {
            self.next += 1;
            self.by_name.insert(name, (self.next, part));
        }
    }
}

async fn perform<'s, S: Store>(
    rig: &Rig<S>,
    call: Call<'s>,
    id: StateId,
    receipts: &mut Receipts<'s>,
) -> Option<Decision> {
    match call {
        Call::Take(limit, ask, name) => {
            rig.at(ask.now.as_nanos());
            let take = Take { bound: ask.bound, ..Take::new(id, limit, ask.cost) };
            let plan = Plan::new(vec![take], ask.max_wait).unwrap();
            let done = rig.store.take(&[plan]).await.pop().unwrap().unwrap().done;
            let part = done.receipts[0].map(|receipt| Part { state: id, limit, receipt });
            receipts.file(name, part);
            Some(done.decisions[0])
        }
        Call::Peek(limit, ask) => {
            rig.at(ask.now.as_nanos());
            let take = Take { bound: ask.bound, ..Take::new(id, limit, Cost::default()) };
            let plan = Plan::new(vec![take], ask.max_wait).unwrap();
            Some(rig.store.peek(&plan).await.unwrap()[0])
        }
        Call::Charge(limit, ask, name) => {
            rig.at(ask.now.as_nanos());
            let take = Take { bound: ask.bound, ..Take::new(id, limit, ask.cost) };
            let charged = rig.store.charge(&[take]).await.unwrap();
            let part = Part { state: id, limit, receipt: charged.receipts[0] };
            receipts.file(name, Some(part));
            Some(charged.decisions[0])
        }
        Call::GiveBack(now, name) => {
            rig.at(now.as_nanos());
            if let Some((number, part)) = receipts.by_name.get(name) {
                let (id, until) = (ReceiptId(*number), Timestamp::END);
                rig.store.give_back(&Settlement { id, until, parts: &[*part] }).await.unwrap();
            }
            None
        }
        Call::Reset => {
            rig.store.reset(&[id]).await.unwrap();
            None
        }
    }
}
