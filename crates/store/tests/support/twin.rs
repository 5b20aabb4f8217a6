//! Twins: the same random history in the core and in a script, compared at every step.
//!
//! Each take goes over the short path or over the long one, alone or with others in one call. All of them read and write the same
//! state, so they must agree with the core, and with each other.

use super::dice::Dice;
use tidegate_core::Written;
use tidegate_core::{
    Algorithm, Align, Ask, Bound, Calendar, Cost, Headroom, LeaseAsk, Limit, Need, Now, Plan,
    PlanOutcome, Refill, RejectedCost, Span, StateId, Take, TakeReceipt, Timestamp,
};
use tidegate_store::testing::Rig;
use tidegate_store::{Answer, Part, ReceiptId, Redis, Settled, Settlement, Store, StoreError};

/// Longer than any queue, in whole microseconds.
const FOREVER: u64 = 4_000_000_000_000_000;
/// Steps of one history: then both forget and begin again, with another limit.
const STEPS: u64 = 100;

/// The kinds of limit that twins are compared under.
pub(crate) const KINDS: [&str; 8] =
    ["fixed", "first", "log", "buckets", "weighted", "token", "interval", "leaky"];

/// Plans of several takes, of all kinds.
pub(crate) const PLANS: &str = "plans";

/// Plays at least `steps` steps of one kind; answers how many.
pub(crate) async fn compare(rig: &Rig<Redis>, engine: &str, kind: &str, steps: u64) -> u64 {
    let mut dice = Dice::new(
        kind.bytes().chain(engine.bytes()).fold(7, |n, b| n * 31 % 1_000_003 + u64::from(b)),
    );
    let mut done = 0;
    while done < steps {
        let id = StateId(u128::from(done) << 40 | u128::from(dice.roll(1 << 40)));
        match kind {
            "plans" => plans_history(rig, id, &mut dice).await,
            kind => history(rig, kind, id, &mut dice).await,
        }
        done += STEPS;
    }
    done
}

async fn history(rig: &Rig<Redis>, kind: &str, id: StateId, dice: &mut Dice) {
    let limits = shapes(kind, dice);
    let window = 1_000_000
        * (1 + dice.roll(90))
        * [1, 1_000, 60_000][usize::try_from(dice.roll(3)).unwrap()];
    let mut micros = [0, 3_000_000, 1_700_000_000_000_000][usize::try_from(dice.roll(3)).unwrap()]
        + dice.roll(window);
    let mut core = Written::empty(&limits[0]);
    let mut receipts: Vec<(usize, TakeReceipt)> = Vec::new();
    let mut settled = 0u128;
    for step in 0..STEPS {
        micros = advance(micros, window, dice);
        let now = Timestamp::from_nanos(micros * 1_000);
        rig.at(now.as_nanos());
        let which = usize::try_from(if dice.roll(6) == 0 { dice.roll(3) } else { 0 }).unwrap();
        let limit = &limits[which];
        let bound = match dice.roll(6) {
            0 => Bound::Headroom,
            1 => Bound::Part(37),
            _ => Bound::Plain,
        };
        let cost = Cost::new(
            [1, 1, 2, dice.roll(5), dice.roll(limit.capacity() + 2), u64::MAX]
                [usize::try_from(dice.roll(6)).unwrap()],
        );
        let take = Take { bound, ..Take::new(id, limit, cost) };
        let wait = Span::from_nanos(
            [0, dice.roll(window) * 1_000, FOREVER][usize::try_from(dice.roll(3)).unwrap()],
        );
        let plan = Plan::new(vec![take], wait).unwrap();
        let story = || format!("{kind} step {step} at {micros} µs: {take:?}, wait {wait}");
        match dice.roll(11) {
            10 if limit.can_lease().is_ok() => {
                let ask = ask(limit, dice);
                let theirs = rig.store.grant_slice(id, limit, ask).await.unwrap();
                let ours = limit.grant(&mut core, now, &ask);
                assert_eq!(theirs, ours, "grant {ask:?}, {}", story());
                receipts.extend(ours.map(|slice| (which, slice.receipt())));
            }
            0 => {
                let theirs = rig.store.charge(&[take]).await.unwrap();
                let ask = Ask { max_wait: Span::ZERO, ..plan.ask(&take, Now::at(now)) };
                let receipt = limit.charge(&mut core, &ask);
                assert_eq!(theirs.receipts, [receipt], "charge, {}", story());
                let after = limit.decide(&core, &Ask { cost: Cost::default(), ..ask });
                assert_eq!(theirs.decisions, [after], "charge, {}", story());
                receipts.push((which, receipt));
            }
            1 if !receipts.is_empty() => {
                let chosen = dice.roll(u64::try_from(receipts.len()).unwrap());
                let (under, receipt) = receipts.swap_remove(usize::try_from(chosen).unwrap());
                settled += 1;
                let part = Part { state: id, limit: &limits[under], receipt };
                let (receipt_id, until) = (ReceiptId(id.0 ^ settled), Timestamp::END);
                let settlement = Settlement { id: receipt_id, until, parts: &[part] };
                assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Done);
                core.give_back(now, &limits[under], &receipt);
            }
            2 => {
                let ours = limit.decide(&core, &plan.ask(&take, Now::at(now)));
                assert_eq!(rig.store.peek(&plan).await.unwrap(), [ours], "peek, {}", story());
            }
            _ => {
                let plans = vec![plan.clone(); many(dice)];
                rig.store.set_long_path_only(dice.roll(3) == 0);
                let theirs = rig.store.take(&plans).await;
                let take = |_| plan.take(Now::at(now), std::slice::from_mut(&mut core));
                let ours: Vec<PlanOutcome> = plans.iter().map(take).collect();
                assert_same(theirs, &ours, story);
                let taken = ours.iter().filter_map(|ours| ours.receipts[0]);
                let before = receipts.len();
                receipts.extend(taken.map(|receipt| (which, receipt)));
                // On leased limits, the last receipt names the slot of its take.
                let as_slot = receipts.len() > before && dice.roll(3) == 0;
                if let (true, Some((_, last))) = (as_slot, receipts.last_mut()) {
                    *last = core.slot_of(*last);
                }
            }
        }
        let nothing = Take { cost: Cost::default(), ..take };
        let look = Plan::new(vec![nothing], Span::from_nanos(FOREVER)).unwrap();
        let ours = limit.decide(&core, &look.ask(&nothing, Now::at(now)));
        assert_eq!(rig.store.peek(&look).await.unwrap(), [ours], "after, {}", story());
    }
}

/// A random ask for a slice.
fn ask(limit: &Limit, dice: &mut Dice) -> LeaseAsk {
    let capacity = limit.capacity();
    let ahead = [0, 1_000, 100_000_000, 1_000_000_000, 3_000_000_000]
        [usize::try_from(dice.roll(5)).unwrap()];
    LeaseAsk {
        most: 1 + dice.roll(capacity + 2),
        least: [0, 1, 2, dice.roll(capacity + 2)][usize::try_from(dice.roll(4)).unwrap()],
        parts: 1 + dice.roll(6),
        ahead: Span::from_nanos(ahead),
    }
}

/// Equal plans at once have equal answers in some order: one that needs the long path is decided after those that do not.
fn assert_same(
    theirs: Vec<Result<Answer, StoreError>>,
    ours: &[PlanOutcome],
    story: impl Fn() -> String,
) {
    let done = |theirs: Result<Answer, StoreError>| match theirs {
        Ok(answer) => format!("{:?}", answer.done),
        Err(error) => panic!("{error}; {}", story()),
    };
    let mut theirs: Vec<String> = theirs.into_iter().map(done).collect();
    let mut ours: Vec<String> = ours.iter().map(|done| format!("{done:?}")).collect();
    theirs.sort_unstable();
    ours.sort_unstable();
    assert_eq!(theirs, ours, "take, {}", story());
}

/// How many plans there are at once. The fifth and later ones share a call.
fn many(dice: &mut Dice) -> usize {
    usize::try_from(if dice.roll(8) == 0 { 2 + dice.roll(8) } else { 1 }).unwrap()
}

/// The state of one take of a plan, and the limits that it is taken under.
struct PlannedState {
    id: StateId,
    limits: [Limit; 3],
    kind: &'static str,
}

/// A random history of plans of one to three takes, of any kind, under calendars too; required or not, charged if refused or not.
async fn plans_history(rig: &Rig<Redis>, id: StateId, dice: &mut Dice) {
    let window = 1_000_000 * (1 + dice.roll(90)) * 1_000;
    let mut micros = 1_700_000_000_000_000 + dice.roll(window);
    let states: Vec<PlannedState> = (0..=dice.roll(3))
        .map(|number| {
            let kind = [&KINDS[..], &["calendar"]].concat()[usize::try_from(dice.roll(9)).unwrap()];
            let limits = match kind {
                "calendar" => calendars(window, dice),
                kind => shapes(kind, dice),
            };
            PlannedState { id: StateId(id.0 ^ u128::from(number)), limits, kind }
        })
        .collect();
    let mut core: Vec<Written<'_>> =
        states.iter().map(|state| Written::empty(&state.limits[0])).collect();
    for step in 0..STEPS {
        micros = advance(micros, window, dice);
        let now = Timestamp::from_nanos(micros * 1_000);
        rig.at(now.as_nanos());
        let takes: Vec<Take<'_>> = states.iter().map(|state| state.take(dice)).collect();
        let wait = Span::from_nanos([0, dice.roll(window) * 1_000][usize::from(dice.roll(2) == 0)]);
        let plan = Plan::new(takes, wait).unwrap();
        let kinds: Vec<&str> = states.iter().map(|state| state.kind).collect();
        let story = || format!("{kinds:?} step {step} at {micros} µs: {plan:?}");
        let plans = vec![plan.clone(); many(dice)];
        rig.store.set_long_path_only(dice.roll(3) == 0);
        let theirs = rig.store.take(&plans).await;
        let ours: Vec<PlanOutcome> =
            plans.iter().map(|plan| plan.take(Now::at(now), &mut core)).collect();
        assert_same(theirs, &ours, story);
    }
}

impl PlannedState {
    fn take(&self, dice: &mut Dice) -> Take<'_> {
        let limit = &self.limits[usize::try_from(dice.roll(8)).unwrap().saturating_sub(5)];
        let cost =
            [1, 1, 2, dice.roll(limit.capacity() + 2)][usize::try_from(dice.roll(4)).unwrap()];
        let need = if dice.roll(5) == 0 { Need::Optional } else { Need::Required };
        let refused = if dice.roll(5) == 0 { RejectedCost::Charged } else { RejectedCost::Free };
        Take { need, refused, ..Take::new(self.id, limit, Cost::new(cost)) }
    }
}

/// Three limits with the same calendar, whose windows are not of equal length.
fn calendars(window: u64, dice: &mut Dice) -> [Limit; 3] {
    let minute = 60_000_000_000;
    let first = 1_600_000_000_000_000_000 / minute * minute;
    let mut starts = vec![Timestamp::from_nanos(first)];
    let steps = (200_000_000_000_000_000 / (window * 1_000)).min(400);
    for _ in 0..steps {
        let last = starts.last().unwrap().as_nanos();
        let length = (200_000_000_000_000_000 / steps / minute + dice.roll(3) + 1) * minute;
        starts.push(Timestamp::from_nanos(last + length));
    }
    let calendar = Calendar::new(starts).unwrap();
    let make = |amount| Limit::new(amount, calendar.clone(), Algorithm::FIXED_WINDOW).unwrap();
    [make(1 + dice.roll(20)), make(1 + dice.roll(20)), make(1 + dice.roll(20))]
}

/// Mostly on by a little, sometimes by periods, sometimes back.
fn advance(micros: u64, window: u64, dice: &mut Dice) -> u64 {
    match dice.roll(12) {
        0..=3 => micros,
        4..=6 => micros + dice.roll(window / 10 + 1),
        7..=8 => micros + dice.roll(window),
        9 => micros + dice.roll(window * 4),
        10 => micros.saturating_sub(dice.roll(1_000_000)),
        _ => micros.saturating_sub(dice.roll(window * 5)),
    }
}

/// Three limits that share a state: one, an edited one, and one edited further.
fn shapes(kind: &str, dice: &mut Dice) -> [Limit; 3] {
    let amount = [1 + dice.roll(12), 1 + dice.roll(900), 1 + dice.roll(12)]
        [usize::try_from(dice.roll(3)).unwrap()];
    let seconds = [1, 60, 3_600, 1 + dice.roll(100), 1 + dice.roll(34_560_000)]
        [usize::try_from(dice.roll(5)).unwrap()];
    let amount = if kind == "log" { amount % 300 + 1 } else { amount };
    let size = 1 + dice.roll(30);
    let buckets = u16::try_from(2 + dice.roll(70)).unwrap();
    let rooms = [Headroom::None, Headroom::Soft(50), Headroom::Elastic(250)];
    let mut headroom = || rooms[usize::try_from(dice.roll(3)).unwrap()];
    let headrooms = [headroom(), headroom(), headroom()];
    let make = |amount: u64, seconds: u64, size: u64, headroom: Headroom| {
        let algorithm = match kind {
            "fixed" => Algorithm::FIXED_WINDOW,
            "first" => Algorithm::FixedWindow { align: Align::First },
            "log" => Algorithm::SLIDING_LOG,
            "buckets" => Algorithm::SlidingBuckets { buckets },
            "weighted" => Algorithm::SLIDING_WEIGHTED,
            "token" => Algorithm::TokenBucket { burst: Some(size), refill: Refill::Continuous },
            "interval" => Algorithm::TokenBucket { burst: Some(size), refill: Refill::Interval },
            "leaky" => Algorithm::LeakyBucket { queue: Some(size) },
            _ => panic!("{kind}"),
        };
        let limit = Limit::new(amount, Span::from_secs(seconds), algorithm).unwrap();
        limit.with_headroom(headroom).unwrap()
    };
    // Only buckets keep their states when the period is edited.
    let other = if matches!(kind, "token" | "leaky") { seconds * 2 / 3 + 1 } else { seconds };
    let [first, second, third] = headrooms;
    [
        make(amount, seconds, size, first),
        make(amount * 2 % 400 + 1, seconds, size + 3, second),
        make(amount.div_ceil(3), other, size / 2 + 1, third),
    ]
}
