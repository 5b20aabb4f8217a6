//! Twins: the same random history in the core and in memcached, compared at every step. One clock decides, which does not run back.

use super::dice::Dice;
use tidegate_core::{
    Algorithm, Ask, Bound, Calendar, Cost, Headroom, Limit, Need, Now, Plan, PlanOutcome, Refill,
    RejectedCost, Span, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tidegate_store::testing::Rig;
use tidegate_store::{Memcached, Part, ReceiptId, Settled, Settlement, Store};

/// Steps of one history: then both forget and begin again, with another limit.
const STEPS: u64 = 100;
const BEGIN: u64 = 1_700_000_000_000_000_000;
const MINUTE: u64 = 60_000_000_000;

pub(crate) const KINDS: [&str; 5] = ["fixed", "calendar", "weighted", "token", "interval"];
/// Plans of several takes, of all kinds.
pub(crate) const PLANS: &str = "plans";

/// Plays at least `steps` steps of one kind; answers how many.
pub(crate) async fn compare(rig: &Rig<Memcached>, kind: &str, steps: u64) -> u64 {
    let mut dice =
        Dice::new(kind.bytes().fold(7, |number, byte| number * 31 % 1_000_003 + u64::from(byte)));
    let mut done = 0;
    while done < steps {
        // The upper bits choose the server and are part of the key.
        let id = StateId(u128::from(dice.roll(1 << 60)) << 60 | u128::from(done) << 20);
        match kind {
            PLANS => plans_history(rig, id, &mut dice).await,
            kind => history(rig, kind, id, &mut dice).await,
        }
        done += STEPS;
    }
    done
}

async fn history(rig: &Rig<Memcached>, kind: &str, id: StateId, dice: &mut Dice) {
    let window = window(dice);
    let limits = shapes(kind, window, dice);
    let mut nanos = BEGIN + dice.roll(window);
    let mut core = Written::empty(&limits[0]);
    let mut receipts: Vec<(usize, TakeReceipt)> = Vec::new();
    let mut settled = 0_u128;
    for step in 0..STEPS {
        nanos = advance(nanos, window, dice);
        let now = Timestamp::from_nanos(nanos);
        rig.at(nanos);
        let which = usize::try_from(if dice.roll(6) == 0 { dice.roll(3) } else { 0 }).unwrap();
        let limit = &limits[which];
        let bound = match dice.roll(6) {
            0 => Bound::Headroom,
            1 => Bound::Part(37),
            _ => Bound::Plain,
        };
        let cost = [1, 1, 2, dice.roll(5), dice.roll(limit.capacity() + 2), u64::MAX]
            [usize::try_from(dice.roll(6)).unwrap()];
        let take = Take { bound, ..Take::new(id, limit, Cost::new(cost)) };
        let plan = Plan::new(vec![take], Span::ZERO).unwrap();
        let story = || format!("{kind} step {step} at {nanos}: {take:?}");
        match dice.roll(11) {
            0 => {
                let theirs = rig.store.charge(&[take]).await.unwrap();
                let ask = plan.ask(&take, Now::at(now));
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
                let theirs = rig.store.take(std::slice::from_ref(&plan)).await.pop();
                let ours = plan.take(Now::at(now), std::slice::from_mut(&mut core));
                assert_eq!(theirs.unwrap().unwrap().done, ours, "take, {}", story());
                receipts.extend(ours.receipts[0].map(|receipt| (which, receipt)));
            }
        }
        let nothing = Plan::from(Take { cost: Cost::default(), ..take });
        let ours = limit.decide(&core, &nothing.ask(&nothing.takes()[0], Now::at(now)));
        assert_eq!(rig.store.peek(&nothing).await.unwrap(), [ours], "after, {}", story());
    }
}

/// A random history of plans of one to three takes, of any kind; required or not, charged if refused or not.
async fn plans_history(rig: &Rig<Memcached>, id: StateId, dice: &mut Dice) {
    let window = window(dice);
    let states: Vec<(StateId, [Limit; 3])> = (0..=dice.roll(3))
        .map(|number| {
            let kind = KINDS[usize::try_from(dice.roll(5)).unwrap()];
            (StateId(id.0 ^ u128::from(number) << 64), shapes(kind, window, dice))
        })
        .collect();
    let mut core: Vec<Written<'_>> =
        states.iter().map(|(_, limits)| Written::empty(&limits[0])).collect();
    let mut nanos = BEGIN + dice.roll(window);
    for step in 0..STEPS {
        nanos = advance(nanos, window, dice);
        rig.at(nanos);
        let mut take = |(state, limits): &'_ (StateId, [Limit; 3])| -> (StateId, usize, u64, u64) {
            let which = usize::try_from(dice.roll(8)).unwrap().saturating_sub(5);
            let capacity = limits[which].capacity();
            let cost = [1, 1, 2, dice.roll(capacity + 2)][usize::try_from(dice.roll(4)).unwrap()];
            (*state, which, cost, dice.roll(25))
        };
        let rolled: Vec<_> = states.iter().map(&mut take).collect();
        let takes = states.iter().zip(rolled).map(|((_, limits), (state, which, cost, kind))| {
            let need = if kind % 5 == 0 { Need::Optional } else { Need::Required };
            let refused = if kind / 5 == 0 { RejectedCost::Charged } else { RejectedCost::Free };
            Take { need, refused, ..Take::new(state, &limits[which], Cost::new(cost)) }
        });
        let plan = Plan::new(takes.collect::<Vec<_>>(), Span::ZERO).unwrap();
        let theirs = rig.store.take(std::slice::from_ref(&plan)).await.pop().unwrap().unwrap();
        let ours: PlanOutcome = plan.take(Now::at(Timestamp::from_nanos(nanos)), &mut core);
        assert_eq!(theirs.done, ours, "step {step} at {nanos}: {plan:?}");
    }
}

fn window(dice: &mut Dice) -> u64 {
    let seconds = [1, 60, 3_600, 1 + dice.roll(100), 1 + dice.roll(34_560_000)];
    1_000_000_000 * seconds[usize::try_from(dice.roll(5)).unwrap()]
}

/// On by a little, or by periods.
fn advance(nanos: u64, window: u64, dice: &mut Dice) -> u64 {
    match dice.roll(12) {
        0..=4 => nanos,
        5..=7 => nanos + dice.roll(window / 10 + 1),
        8..=10 => nanos + dice.roll(window),
        _ => nanos + dice.roll(window * 4),
    }
}

/// Three limits that share a state: one and two edited ones. A bucket is not edited.
fn shapes(kind: &str, window: u64, dice: &mut Dice) -> [Limit; 3] {
    let amount = [1 + dice.roll(12), 1 + dice.roll(900), 1 + dice.roll(12)]
        [usize::try_from(dice.roll(3)).unwrap()];
    let rooms = [Headroom::None, Headroom::Soft(50), Headroom::Elastic(250)];
    let calendar = (kind == "calendar").then(|| calendar(window, dice));
    let limits = [0, 1, 2].map(|edit| {
        let headroom = rooms[usize::try_from(dice.roll(3)).unwrap()];
        let period = Span::from_nanos(window);
        let edited = if edit == 0 { amount } else { 1 + dice.roll(amount * 2) };
        let bucket = |refill, burst| Algorithm::TokenBucket { burst: Some(burst), refill };
        let limit = match (kind, &calendar) {
            ("fixed", _) => Limit::new(edited, period, Algorithm::FIXED_WINDOW),
            ("weighted", _) => Limit::new(edited, period, Algorithm::SLIDING_WEIGHTED),
            ("token", _) => Limit::new(amount, period, bucket(Refill::Continuous, edited)),
            ("interval", _) => Limit::new(amount, period, bucket(Refill::Interval, edited)),
            (_, Some(calendar)) => Limit::new(edited, calendar.clone(), Algorithm::FIXED_WINDOW),
            (kind, None) => panic!("{kind}"),
        };
        limit.unwrap().with_headroom(headroom).unwrap()
    });
    // An edited bucket is another bucket.
    let [first, ..] = &limits;
    let of_same_bucket =
        |limit: &Limit| if limit.ticks().is_some() { first.clone() } else { limit.clone() };
    limits.each_ref().map(of_same_bucket)
}

/// A calendar whose windows are not of equal length.
fn calendar(window: u64, dice: &mut Dice) -> Calendar {
    let mut starts = vec![Timestamp::from_nanos(BEGIN / MINUTE * MINUTE)];
    for _ in 0..300 {
        let last = starts.last().unwrap().as_nanos();
        let length = (window / MINUTE + dice.roll(3) + 1) * MINUTE;
        starts.push(Timestamp::from_nanos(last + length));
    }
    Calendar::new(starts).unwrap()
}
