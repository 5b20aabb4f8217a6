//! Which request goes to a busy upstream next: fair queueing by priority class and by key, with reserved seats.
//!
//! A rate limit says how much a client may send. The scheduler says what happens when all clients together send more than an
//! upstream can serve: payments still get through when analytics floods it, or when analytics becomes slow.
//!
//! ```text
//!                  per class: fair over keys       at most L in flight
//!   critical ──▶  alice ─ alice ─ bob          ┐
//!   high     ──▶  bob                          ├─▶  ▣ ▣ ▣ ▣ ▣ ▢ ▢ ▢  ──▶ upstream
//!   normal   ──▶                               │    each class has some reserved
//!   low      ──▶  carol ─ dave ─ carol ─ …     ┘
//! ```
//!
//! - [`machine`] decides: seats, classes, deadlines. It is pure: time is an argument, and nothing waits.
//! - [`fair_queue`] orders the keys within a class.
//! - [`key_shares`] keeps one key from using all seats.
//! - [`Classes::seats`] divides the seats among the classes.
//! - This file lets tasks wait for what the machine decides.
//!
//! It is not a rate limit, and it does not choose `L`.

mod fair_queue;
mod key_shares;
mod machine;
mod recent;
mod shed;
#[cfg(test)]
mod tests;

pub use shed::{Shed, ShedReason};

use crate::timers;
use arc_swap::ArcSwap;
use machine::{ArrivingRequest, EndedWait, Machine, Ticket, WaitEnd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{ClassIndex, Classes, ClassesError};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Lets at most a number of requests be in flight at the same time, and orders those that wait by priority class and by key.
///
/// Each class has some of the seats reserved; see [`Classes`]. A class may use seats that other classes have not needed for 10
/// to 20 s. The requests of one class are ordered fairly by key: a key with a thousand waiting requests delays another key by at
/// most one turn. And one key uses at most a quarter of the seats, unless the others need fewer than the rest: as many as they
/// used and waited for at a time in the last 10 to 20 s.
///
/// Clones share the same seats. Use one scheduler for each upstream, and share it between all threads.
///
/// ```
/// use tidegate::{Scheduler, SchedulerSettings, ShedReason, Span};
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(8), ..Default::default() })?;
/// let high = scheduler.classes().find("high").unwrap();
/// let low = scheduler.classes().find("low").unwrap();
/// let (alice, bob) = (1, 2); // in practice, hashes of the names
///
/// // While only the class low is used, it may use all seats.
/// let mut seats = vec![];
/// for _ in 0..8 {
///     seats.push(scheduler.enter(low, alice, Span::ZERO).await?);
/// }
/// let shed = scheduler.enter(low, alice, Span::from_millis(100)).await.unwrap_err();
/// assert_eq!(shed.reason, ShedReason::WaitedTooLong);
///
/// // The next seat that becomes free is for the class high, and stays so when its request is done.
/// let waiting = scheduler.enter(high, bob, Span::from_millis(500));
/// let (payment, _) = tokio::join!(waiting, async { seats.truncate(7) });
/// let payment = payment?;
/// assert!(scheduler.try_enter(low, alice).is_none() && scheduler.try_enter(high, bob).is_none());
/// drop(payment);
/// assert!(scheduler.try_enter(low, alice).is_none() && scheduler.try_enter(high, bob).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scheduler {
    shared: Arc<SharedMachine>,
}

/// What a scheduler is built from.
///
/// ```
/// use tidegate::{Classes, Scheduler, SchedulerSettings};
/// let settings = SchedulerSettings { limit: Some(3), ..SchedulerSettings::default() };
/// assert_eq!(settings.max_waiting, 10_000);
/// let error = Scheduler::new(settings).unwrap_err();
/// assert_eq!(error.to_string(), "3 seats are too few for 4 priority classes; allow at least 4");
/// ```
#[derive(Clone, Debug)]
pub struct SchedulerSettings {
    /// The priority classes. The default is critical, high, normal and low.
    pub classes: Classes,
    /// How many requests may be in flight at the same time. `None`, the default, means any number: then no request waits.
    pub limit: Option<usize>,
    /// How many requests may wait at the same time, in all classes together. The default is 10,000: a queue that is bounded to a
    /// hundred sheds half of a short burst (linkerd2-proxy #2449), so the time that each may wait should be the bound that counts.
    pub max_waiting: usize,
}

/// The right to have one request in flight. Dropping it lets the next one start.
#[derive(Debug)]
#[must_use = "dropping the seat says that the request is over"]
pub struct Seat {
    shared: Arc<SharedMachine>,
    class: ClassIndex,
    key: u64,
}

/// What a scheduler does at the moment; see [`Scheduler::reading`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerReading {
    /// How many requests may be in flight; `None` means any number.
    pub limit: Option<usize>,
    /// The classes, the highest priority first.
    pub classes: Vec<ClassReading>,
}

/// What one class does at the moment, and what it did since the scheduler was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassReading {
    /// The name of the class.
    pub name: String,
    /// How many seats the class has reserved.
    pub reserved: usize,
    /// How many of its requests have a seat.
    pub in_flight: usize,
    /// How many of its requests wait.
    pub waiting: usize,
    /// How many got a seat so far.
    pub started: u64,
    /// How many were refused because too many requests waited.
    pub refused: u64,
    /// How many lost their place in the queue to a request of a higher class.
    pub evicted: u64,
    /// How many waited too long.
    pub expired: u64,
    /// How many stopped waiting because their future was dropped.
    pub cancelled: u64,
}

#[derive(Debug)]
struct SharedMachine {
    classes: ArcSwap<Classes>,
    /// A plain mutex: it is held for one step of the machine, which takes less than a microsecond, and never across an await.
    machine: Mutex<Machine<WakeUp>>,
    /// The instant that the machine calls [`Timestamp::EPOCH`].
    epoch: Instant,
}

/// Sends the outcome to the task that waits. A seat that cannot be delivered, because the task is gone, is dropped and so freed.
type WakeUp = oneshot::Sender<Result<Seat, Shed>>;

/// Whether a request starts at once.
enum Entrance {
    /// It has a seat of this class.
    Open(ClassIndex),
    /// It waits, until this time.
    Queue(Ticket, oneshot::Receiver<Result<Seat, Shed>>, Option<Timestamp>),
}

/// A request that waits. Dropping it ends the wait.
struct WaitingRequest {
    shared: Arc<SharedMachine>,
    ticket: Ticket,
    outcome: oneshot::Receiver<Result<Seat, Shed>>,
    deadline: Timestamp,
    /// When to look again if nothing is heard.
    look_at: Timestamp,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self { classes: Classes::default(), limit: None, max_waiting: 10_000 }
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// A scheduler with no request in flight. Fails if there are fewer seats than classes.
    pub fn new(settings: SchedulerSettings) -> Result<Self, ClassesError> {
        let SchedulerSettings { classes, limit, max_waiting } = settings;
        let machine = Machine::new(&classes, limit, max_waiting, Timestamp::EPOCH)?;
        let (classes, machine) = (ArcSwap::from_pointee(classes), Mutex::new(machine));
        let shared = SharedMachine { classes, machine, epoch: timers::now() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The priority classes.
    #[must_use]
    pub fn classes(&self) -> Arc<Classes> {
        self.shared.classes.load_full()
    }

    /// Waits for a seat, for at most `patience`. Hold the seat while the request is in flight.
    ///
    /// `key` says who sent the request, for example a hash of the user's name. The keys of one class take turns. An index that
    /// this scheduler's classes do not have means the lowest class. Dropping the future ends the wait.
    ///
    /// ```
    /// use tidegate::{Scheduler, SchedulerSettings};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(20), ..Default::default() })?;
    /// let class = scheduler.classes().find("normal").unwrap();
    /// let patience = scheduler.classes().get(class).patience();
    /// let seat = scheduler.enter(class, 7, patience).await?;
    /// // … send the request, and read the response …
    /// drop(seat);
    /// assert_eq!(scheduler.reading().classes[2].started, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn enter(&self, class: ClassIndex, key: u64, patience: Span) -> Result<Seat, Shed> {
        let request = ArrivingRequest { class, key, patience };
        let waiting: Result<_, Shed> = self.shared.with(|machine| {
            if let Some(class) = machine.start(class, key) {
                return Ok(Entrance::Open(class));
            }
            let (wake_up, outcome) = oneshot::channel();
            let ticket = machine.wait(request, wake_up)?;
            Ok(Entrance::Queue(ticket, outcome, machine.now().after(patience)))
        });
        let (ticket, outcome, deadline) = match waiting? {
            Entrance::Open(class) => {
                return Ok(Seat { shared: Arc::clone(&self.shared), class, key });
            }
            Entrance::Queue(ticket, outcome, deadline) => (ticket, outcome, deadline),
        };
        let shared = Arc::clone(&self.shared);
        let deadline = deadline.unwrap_or(Timestamp::END);
        WaitingRequest { shared, ticket, outcome, deadline, look_at: Timestamp::EPOCH }.wait().await
    }

    /// Takes a seat if one is free for the class and the key. Otherwise it does nothing; the caller may use
    /// [`Scheduler::enter`].
    ///
    /// ```
    /// use tidegate::{Scheduler, SchedulerSettings};
    /// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(4), ..Default::default() })?;
    /// let (low, alice) = (scheduler.classes().find("low").unwrap(), 1);
    /// let seats: Vec<_> = (0..4).map(|_| scheduler.try_enter(low, alice).unwrap()).collect();
    /// assert!(scheduler.try_enter(low, alice).is_none());
    /// drop(seats);
    /// assert!(scheduler.try_enter(low, alice).is_some());
    /// # Ok::<(), tidegate::ClassesError>(())
    /// ```
    pub fn try_enter(&self, class: ClassIndex, key: u64) -> Option<Seat> {
        let class = self.shared.with(|machine| machine.start(class, key))?;
        Some(Seat { shared: Arc::clone(&self.shared), class, key })
    }

    /// Changes how many requests may be in flight. Fails, without a change, if there are fewer seats than classes.
    ///
    /// Requests that are in flight keep their seats, also if they are more than the new limit.
    ///
    /// ```
    /// use tidegate::{Scheduler, SchedulerSettings};
    /// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(4), ..Default::default() })?;
    /// scheduler.set_limit(Some(8))?;
    /// assert_eq!(scheduler.reading().classes[0].reserved, 3);
    /// assert!(scheduler.set_limit(Some(3)).is_err());
    /// assert_eq!(scheduler.reading().limit, Some(8));
    /// # Ok::<(), tidegate::ClassesError>(())
    /// ```
    pub fn set_limit(&self, limit: Option<usize>) -> Result<(), ClassesError> {
        self.shared.with(|machine| machine.configure(&self.shared.classes.load(), limit))
    }

    /// Changes the priority classes, for example when a new policy has others. Fails, without a change, if there are fewer seats
    /// than classes.
    ///
    /// A class is the same as before if it is in the same place. Requests that are in flight keep their seats.
    ///
    /// ```
    /// use tidegate::{Classes, PriorityClass, Scheduler, SchedulerSettings};
    /// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(4), ..Default::default() })?;
    /// let two = vec![PriorityClass::new("web", 4, 75)?, PriorityClass::new("batch", 1, 25)?];
    /// scheduler.set_classes(Classes::new(two)?)?;
    /// assert_eq!(scheduler.reading().classes[0].reserved, 3);
    /// # Ok::<(), tidegate::ClassesError>(())
    /// ```
    pub fn set_classes(&self, classes: Classes) -> Result<(), ClassesError> {
        self.shared.with(|machine| {
            machine.configure(&classes, machine.limit())?;
            self.shared.classes.store(Arc::new(classes));
            Ok(())
        })
    }

    /// What the classes do at the moment, for metrics.
    ///
    /// ```
    /// use tidegate::{Scheduler, SchedulerSettings};
    /// let scheduler = Scheduler::new(SchedulerSettings { limit: Some(8), ..Default::default() })?;
    /// let _seat = scheduler.try_enter(scheduler.classes().find("high").unwrap(), 7);
    /// let high = &scheduler.reading().classes[1];
    /// assert_eq!((high.name.as_str(), high.reserved, high.in_flight), ("high", 2, 1));
    /// # Ok::<(), tidegate::ClassesError>(())
    /// ```
    #[must_use]
    pub fn reading(&self) -> SchedulerReading {
        self.shared.with(|machine| {
            let named = self.shared.classes.load();
            let classes = named.iter().zip(machine.states());
            let classes = classes.map(|(class, state)| ClassReading {
                name: class.name().to_owned(),
                reserved: state.reserved,
                in_flight: state.in_flight,
                waiting: state.waiting,
                started: state.counts.started,
                refused: state.counts.refused,
                evicted: state.counts.evicted,
                expired: state.counts.expired,
                cancelled: state.counts.cancelled,
            });
            SchedulerReading { limit: machine.limit(), classes: classes.collect() }
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.with(|machine| machine.finish(self.class, self.key));
    }
}

// === impl WaitingRequest ===

impl WaitingRequest {
    /// Waits for the outcome. The machine has no timer, so each waiting task moves its time on, at its own deadline and when
    /// peaks may be forgotten.
    async fn wait(mut self) -> Result<Seat, Shed> {
        loop {
            self.look_at = self.shared.with(|machine| machine.next_change(self.deadline));
            let timer = timers::sleep_until(self.shared.instant(self.look_at));
            tokio::select! {
                biased; // an outcome that is there counts, also if the time is over
                outcome = &mut self.outcome => return outcome.unwrap_or(Err(GONE)),
                () = timer => {}
            }
        }
    }
}

/// The outcome if the machine is gone. It is not, while a request holds it.
const GONE: Shed = Shed { reason: ShedReason::WaitedTooLong, retry_after: Span::from_secs(1) };

impl Drop for WaitingRequest {
    /// Leaves the queue, if it still waits. Otherwise the outcome was sent, or is just being sent by another thread: a seat in
    /// it is freed when the receiver is dropped after this.
    fn drop(&mut self) {
        drop(self.shared.with(|machine| machine.cancel(self.ticket)));
    }
}

// === impl SharedMachine ===

impl SharedMachine {
    /// Takes one step of the machine, now, and then wakes those whose wait ended.
    fn with<T>(self: &Arc<Self>, step: impl FnOnce(&mut Machine<WakeUp>) -> T) -> T {
        let now = Timestamp::from_nanos(timers::since(self.epoch).as_nanos());
        let (done, ended) = {
            let mut machine = self.lock();
            machine.advance(now);
            (step(&mut machine), machine.take_ended())
        };
        // Without the lock: a seat that cannot be delivered is dropped here, and its drop takes the lock.
        ended.into_iter().for_each(|wait| self.wake(wait));
        done
    }

    fn wake(self: &Arc<Self>, EndedWait { class, key, waiter, end }: EndedWait<WakeUp>) {
        let outcome = match end {
            WaitEnd::Started => Ok(Seat { shared: Arc::clone(self), class, key }),
            WaitEnd::Shed(shed) => Err(shed),
        };
        drop(waiter.send(outcome));
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let since = Duration::from_nanos(at.since(Timestamp::EPOCH).as_nanos());
        self.epoch.checked_add(since).unwrap_or(self.epoch)
    }

    fn lock(&self) -> MutexGuard<'_, Machine<WakeUp>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
