//! The users and visitors of the demo, each with a steady rate of requests.
//!
//! Some stay within their limits, some do not. carol uses up her hour after 100 s: 2 a second, and 200 an hour. For ten seconds of
//! each half a minute, analytics asks for twelve times as much as usual, and more than the servers can give.

use super::board::{Board, Call, Plan, Sender};
use super::client;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// A client: who it is, and how often it sends how many requests together.
struct Habit {
    sender: Sender,
    every: Duration,
    together: usize,
    /// How many times as many it sends during a spike.
    spike: usize,
}

/// What all clients share.
struct Crowd {
    proxy: SocketAddr,
    board: Arc<Board>,
    codes: Mutex<Codes>,
    /// Bounds the requests in flight.
    seats: Arc<Semaphore>,
}

/// The short URLs that were created.
#[derive(Default)]
struct Codes {
    /// How many codes were made up.
    made: u64,
    by_user: BTreeMap<&'static str, VecDeque<String>>,
    /// The codes that visitors follow.
    latest: VecDeque<String>,
}

/// Requests in flight at most. More are not sent; with the limits of the demo there are never so many.
const IN_FLIGHT: usize = 256;
/// Codes that are remembered of each user, and for the visitors.
const REMEMBERED: usize = 200;

/// A spike lasts for the second third of this time, again and again.
const SPIKE_EVERY: Duration = Duration::from_secs(30);

/// About 60 requests a second, and 280 during a spike.
static HABITS: [Habit; 13] = [
    habit(Call::Create, Plan::Free, "alice", 2_000, 1),
    habit(Call::Create, Plan::Free, "bob", 2_000, 1),
    habit(Call::Create, Plan::Pro, "carol", 500, 1),
    habit(Call::Create, Plan::Pro, "dave", 1_000, 1),
    habit(Call::Delete, Plan::Free, "alice", 4_000, 3),
    habit(Call::Delete, Plan::Free, "bob", 5_000, 8),
    habit(Call::Delete, Plan::Pro, "carol", 3_000, 6),
    habit(Call::Visit, Plan::Visitor, "198.51.100.1", 1_000, 1),
    habit(Call::Visit, Plan::Visitor, "198.51.100.2", 1_000, 1),
    habit(Call::Visit, Plan::Visitor, "198.51.100.3", 1_000, 1),
    habit(Call::Visit, Plan::Visitor, "203.0.113.7", 125, 1), // 8 a second, and the limit is 5
    habit(Call::Pay, Plan::Service, "checkout", 50, 1),
    Habit { spike: 12, ..habit(Call::Analyze, Plan::Service, "reports", 50, 1) },
];

const fn habit(
    call: Call,
    plan: Plan,
    name: &'static str,
    every_ms: u64,
    together: usize,
) -> Habit {
    let every = Duration::from_millis(every_ms);
    Habit { sender: Sender { call, plan, name }, every, together, spike: 1 }
}

/// Starts all clients. They run until the runtime ends.
pub(crate) fn start(proxy: SocketAddr, board: &Arc<Board>) {
    let crowd = Arc::new(Crowd {
        proxy,
        board: Arc::clone(board),
        codes: Mutex::default(),
        seats: Arc::new(Semaphore::new(IN_FLIGHT)),
    });
    for habit in &HABITS {
        tokio::spawn(follow(habit, Arc::clone(&crowd)));
    }
}

async fn follow(habit: &'static Habit, crowd: Arc<Crowd>) {
    let mut ticks = interval(habit.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let begun = ticks.tick().await;
    loop {
        let now = ticks.tick().await;
        let times = if is_spike(now.duration_since(begun)) { habit.spike } else { 1 };
        for _ in 0..habit.together.saturating_mul(times) {
            crowd.ask(habit.sender, now);
        }
    }
}

/// Whether there is a spike at this time since the start.
fn is_spike(since: Duration) -> bool {
    let within = since.as_secs().checked_rem(SPIKE_EVERY.as_secs()).unwrap_or(0);
    (10..20).contains(&within)
}

// === impl Crowd ===

impl Crowd {
    /// Sends a request, and counts what becomes of it.
    fn ask(self: &Arc<Self>, sender: Sender, now: Instant) {
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else { return };
        let Some(code) = self.codes().choose(sender) else { return };
        let crowd = Arc::clone(self);
        tokio::spawn(async move {
            crowd.board.offered(sender);
            let heard = client::send(crowd.proxy, &request(sender, &code)).await;
            if sender.call == Call::Create && heard.as_ref().is_ok_and(|heard| heard.status == 201)
            {
                crowd.codes().created(sender.name, code);
            }
            crowd.board.ended(sender, heard, since(now));
            drop(seat);
        });
    }

    fn codes(&self) -> MutexGuard<'_, Codes> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "the picture shows real delays")]
fn since(then: Instant) -> Duration {
    then.elapsed()
}

// === impl Codes ===

impl Codes {
    /// The code for the next request. `None`: there is nothing to visit yet.
    fn choose(&mut self, sender: Sender) -> Option<String> {
        match sender.call {
            Call::Create | Call::Pay | Call::Analyze => Some(self.make_up()),
            Call::Delete => {
                let own = self.by_user.get_mut(sender.name).and_then(VecDeque::pop_front);
                own.or_else(|| Some(self.make_up()))
            }
            Call::Visit => {
                self.latest.rotate_left(1.min(self.latest.len()));
                self.latest.front().cloned()
            }
        }
    }

    fn make_up(&mut self) -> String {
        self.made = self.made.wrapping_add(1);
        // Multiplied by an odd constant, so that neighbours do not look alike.
        format!("{:07x}", self.made.wrapping_mul(0x9e37_79b1) & 0x0fff_ffff)
    }

    fn created(&mut self, user: &'static str, code: String) {
        remember(self.by_user.entry(user).or_default(), code.clone());
        remember(&mut self.latest, code);
    }
}

fn remember(codes: &mut VecDeque<String>, code: String) {
    codes.push_back(code);
    if codes.len() > REMEMBERED {
        codes.pop_front();
    }
}

/// The bytes of a request. `x-user` and `x-plan` are the fields that a gateway would set.
fn request(sender: Sender, code: &str) -> String {
    let Sender { call, plan, name } = sender;
    let who = match plan {
        Plan::Free => format!("x-user: {name}\r\nx-plan: free\r\n"),
        Plan::Pro => format!("x-user: {name}\r\nx-plan: pro\r\n"),
        Plan::Visitor => format!("x-forwarded-for: {name}\r\n"),
        Plan::Service => format!("x-user: {name}\r\n"),
    };
    let (line, body) = match call {
        Call::Create => ("POST /createURL".to_owned(), format!("https://example.com/{code}")),
        Call::Delete => (format!("DELETE /deleteURL/{code}"), String::new()),
        Call::Visit => (format!("GET /{code}"), String::new()),
        Call::Pay => (format!("POST /payments/{code}"), String::new()),
        Call::Analyze => (format!("GET /analytics/{code}"), String::new()),
    };
    let length = body.len();
    format!(
        "{line} HTTP/1.1\r\nhost: demo\r\nconnection: close\r\nx-code: {code}\r\n{who}content-length: {length}\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const VISITOR: Sender = Sender { call: Call::Visit, plan: Plan::Visitor, name: "203.0.113.7" };

    #[test]
    fn users_delete_what_they_created_and_visitors_follow_it() {
        let mut codes = Codes::default();
        let [create, delete] = [Call::Create, Call::Delete].map(|call| Sender {
            call,
            plan: Plan::Free,
            name: "alice",
        });
        assert_eq!(codes.choose(VISITOR), None);
        let code = codes.choose(create).unwrap();
        codes.created("alice", code.clone());
        assert_eq!(codes.choose(VISITOR).as_ref(), Some(&code));
        assert_eq!(codes.choose(delete).as_ref(), Some(&code));
        assert_ne!(codes.choose(delete), Some(code));
    }

    #[test]
    fn the_remembered_codes_are_bounded() {
        let mut codes = Codes::default();
        for _ in 0..1_000 {
            let code = codes.make_up();
            codes.created("alice", code);
        }
        assert_eq!((codes.latest.len(), codes.by_user["alice"].len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn a_spike_lasts_for_ten_seconds_of_thirty() {
        let spikes = (0..60).filter(|second| is_spike(Duration::from_secs(*second)));
        assert_eq!(spikes.collect::<Vec<_>>(), (10..20).chain(40..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_says_who_sends_it() {
        let visit = request(VISITOR, "abc");
        assert!(visit.starts_with("GET /abc HTTP/1.1\r\n"), "{visit}");
        assert!(visit.contains("x-forwarded-for: 203.0.113.7\r\n"), "{visit}");
        let carol = Sender { call: Call::Create, plan: Plan::Pro, name: "carol" };
        let create = request(carol, "abc");
        assert!(create.contains("x-user: carol\r\nx-plan: pro\r\n"), "{create}");
        assert!(create.ends_with("content-length: 23\r\n\r\nhttps://example.com/abc"), "{create}");
    }
}
