//! Tasks that wait for seats, by tokio's paused clock.

use crate::scheduler::machine::ArrivingRequest;
use crate::scheduler::{ClassIndex, Scheduler, SchedulerSettings, Seat, Shed, ShedReason};
use crate::timers;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tidegate_core::Span;
use tokio::sync::oneshot;

const SECOND: Span = Span::from_secs(1);

fn scheduler(limit: Option<usize>, max_waiting: usize) -> (Scheduler, ClassIndex, ClassIndex) {
    let settings = SchedulerSettings { limit, max_waiting, ..SchedulerSettings::default() };
    let scheduler = Scheduler::new(settings).unwrap();
    let class = |name| scheduler.classes().find(name).unwrap();
    let (high, low) = (class("high"), class("low"));
    (scheduler, high, low)
}

/// Takes all seats, for a key of its own.
fn fill(scheduler: &Scheduler, class: ClassIndex) -> Vec<Seat> {
    std::iter::from_fn(|| scheduler.try_enter(class, 99)).collect()
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// In flight and waiting, of all classes.
fn load(scheduler: &Scheduler) -> (usize, usize) {
    let classes = scheduler.reading().classes;
    (classes.iter().map(|c| c.in_flight).sum(), classes.iter().map(|c| c.waiting).sum())
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_is_dropped_goes_to_the_next_request() {
    let (scheduler, _, low) = scheduler(Some(4), 10);
    let mut seats = fill(&scheduler, low);
    assert_eq!(seats.len(), 4);
    let mut first = pin!(scheduler.enter(low, 1, SECOND));
    let mut second = pin!(scheduler.enter(low, 2, SECOND));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    seats.pop();
    assert!(poll(second.as_mut()).is_pending());
    let Poll::Ready(Ok(seat)) = poll(first.as_mut()) else { panic!("no seat") };
    drop(seat);
    assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(_))));
    assert_eq!(load(&scheduler), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_exactly_its_patience() {
    let (scheduler, high, low) = scheduler(Some(4), 10);
    let _seats = fill(&scheduler, low);
    let start = timers::now();
    let shed = scheduler.enter(high, 1, Span::from_millis(500)).await.unwrap_err();
    assert_eq!(shed.reason, ShedReason::WaitedTooLong);
    assert_eq!((timers::now() - start).as_millis(), 500);
    let shed = scheduler.enter(high, 1, Span::ZERO).await.unwrap_err();
    assert_eq!(shed.reason, ShedReason::WaitedTooLong);
    assert_eq!((timers::now() - start).as_millis(), 500);
    assert_eq!(scheduler.reading().classes[1].expired, 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_sheds_lower_classes_first() {
    let (scheduler, high, low) = scheduler(Some(4), 1);
    let _seats = fill(&scheduler, low);
    let mut waits = pin!(scheduler.enter(low, 1, SECOND));
    assert!(poll(waits.as_mut()).is_pending());
    let refused = scheduler.enter(low, 2, SECOND).await.unwrap_err();
    assert_eq!(refused.reason, ShedReason::QueueFull);
    assert_eq!(refused.to_string(), "too many requests are waiting; try again in 1 s");
    let mut important = pin!(scheduler.enter(high, 3, SECOND));
    assert!(poll(important.as_mut()).is_pending());
    let Poll::Ready(Err(Shed { reason, .. })) = poll(waits.as_mut()) else { panic!("waits") };
    assert_eq!(reason, ShedReason::Evicted);
    let reading = scheduler.reading();
    assert_eq!((reading.classes[3].refused, reading.classes[3].evicted), (1, 1));
    assert_eq!(load(&scheduler), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_ends_the_wait() {
    let (scheduler, _, low) = scheduler(Some(4), 10);
    let mut seats = fill(&scheduler, low);
    {
        let mut gone = Box::pin(scheduler.enter(low, 1, SECOND));
        assert!(poll(gone.as_mut()).is_pending());
        assert_eq!(load(&scheduler), (4, 1));
    }
    assert_eq!(load(&scheduler), (4, 0));
    assert_eq!(scheduler.reading().classes[3].cancelled, 1);
    // A future that has its seat already, but is dropped before it is polled, frees the seat.
    let mut started = Box::pin(scheduler.enter(low, 1, SECOND));
    assert!(poll(started.as_mut()).is_pending());
    seats.pop();
    assert_eq!(load(&scheduler), (4, 0));
    drop(started);
    assert_eq!(load(&scheduler), (3, 0));
}

/// One thread starts a waiting request while another drops its future: the seat cannot be delivered.
#[test]
fn a_seat_that_cannot_be_delivered_is_freed() {
    let (scheduler, _, low) = scheduler(Some(4), 10);
    let mut seats = fill(&scheduler, low);
    let (wake_up, outcome) = oneshot::channel();
    let request = ArrivingRequest { class: low, key: 1, patience: SECOND };
    scheduler.shared.with(|machine| machine.wait(request, wake_up)).unwrap();
    drop(outcome);
    seats.pop();
    assert_eq!(load(&scheduler), (3, 0));
    assert_eq!(scheduler.reading().classes[3].started, 5);
}

#[tokio::test(start_paused = true)]
async fn a_new_limit_starts_those_that_wait() {
    let (scheduler, high, low) = scheduler(Some(4), 100);
    let seats = fill(&scheduler, low);
    let mut waits: Vec<_> =
        (0..10).map(|key| Box::pin(scheduler.enter(high, key, SECOND))).collect();
    waits.iter_mut().for_each(|wait| assert!(poll(wait.as_mut()).is_pending()));
    scheduler.set_limit(Some(8)).unwrap();
    assert_eq!(load(&scheduler), (8, 6));
    assert!(scheduler.set_limit(Some(3)).is_err());
    scheduler.set_limit(None).unwrap();
    assert_eq!(load(&scheduler), (14, 0));
    assert!(waits.iter_mut().all(|wait| matches!(poll(wait.as_mut()), Poll::Ready(Ok(_)))));
    drop((waits, seats));
    assert_eq!(load(&scheduler), (0, 0));
}

/// A seat was kept free for a class that is not used any more. When its peak is forgotten, no other event happens: the waiting
/// task itself must look.
#[tokio::test(start_paused = true)]
async fn a_request_gets_a_seat_when_another_class_has_not_used_it_for_long_enough() {
    let (scheduler, high, low) = scheduler(Some(4), 10);
    drop(scheduler.try_enter(high, 1));
    let _seats = fill(&scheduler, low);
    assert_eq!(load(&scheduler), (3, 0));
    let start = timers::now();
    let _seat = scheduler.enter(low, 1, Span::from_secs(60)).await.unwrap();
    let waited = (timers::now() - start).as_secs();
    assert!((10..=20).contains(&waited), "{waited} s");
}

#[test]
fn without_a_limit_every_request_starts() {
    let (scheduler, high, low) = scheduler(None, 0);
    let seats: Vec<_> = (0..1_000).map(|_| scheduler.try_enter(low, 1).unwrap()).collect();
    assert!(scheduler.try_enter(high, 1).is_some());
    assert_eq!(load(&scheduler), (1_000, 0));
    drop(seats);
}

/// Many threads enter, leave and give up at random points. Never are more in flight than seats, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn seats_are_neither_lost_nor_given_twice_with_many_threads() {
    let (scheduler, high, low) = scheduler(Some(5), 50);
    let in_flight = Arc::new(AtomicUsize::new(0));
    let tasks = (0..200_u64).map(|task| {
        let (scheduler, in_flight) = (scheduler.clone(), Arc::clone(&in_flight));
        let class = if task % 2 == 0 { high } else { low };
        tokio::spawn(async move {
            for round in 0..100 {
                let enter = scheduler.enter(class, task % 7, Span::from_secs(3_600));
                let yields = (task + round) % 5;
                let give_up = async {
                    for _ in 0..yields * 10 {
                        tokio::task::yield_now().await;
                    }
                };
                let seat = tokio::select! { seat = enter => seat.ok(), () = give_up => None };
                if seat.is_some() {
                    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 5);
                    tokio::task::yield_now().await;
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(load(&scheduler), (0, 0));
}
