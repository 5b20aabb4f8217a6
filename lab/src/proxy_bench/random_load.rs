//! Requests at random instants (a Poisson process), as in the experiments with classes and with elastic limits.

#![expect(clippy::float_arithmetic, reason = "random times")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use super::class_server::Random;
use crate::http_bench::load::HttpConnection;
use crate::http_bench::wire::get;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// Requests of one class.
#[derive(Clone, Copy)]
pub(crate) struct RandomLoad {
    /// The number of the class, for its outcomes.
    pub(crate) class: usize,
    /// The path without its last segment, which is the number of a user.
    pub(crate) path: &'static str,
    pub(crate) users: u64,
    /// How many requests a second there are, at a time since the start.
    pub(crate) rate: Rate,
    pub(crate) length: Duration,
}

/// How many requests a second a load has.
#[derive(Clone, Copy)]
pub(crate) enum Rate {
    Constant(f64),
    /// It may depend on the time since the start.
    At(fn(Duration) -> f64),
}

/// What happened to a request.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) class: usize,
    /// When it was sent, since the start.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// 0 if there was no answer.
    pub(crate) status: u16,
}

impl Rate {
    fn at(self, time: Duration) -> f64 {
        match self {
            Self::Constant(per_second) => per_second,
            Self::At(per_second) => per_second(time),
        }
    }
}

/// Sends all requests from a thread of its own, and waits for their answers.
pub(crate) async fn send(
    address: SocketAddr,
    loads: Vec<RandomLoad>,
) -> Result<Vec<Outcome>, String> {
    let sending = tokio::task::spawn_blocking(move || send_all(address, loads));
    sending.await.map_err(|error| error.to_string())?
}

fn send_all(address: SocketAddr, loads: Vec<RandomLoad>) -> Result<Vec<Outcome>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let outcomes = Rc::<RefCell<Vec<Outcome>>>::default();
    let local = LocalSet::new();
    let sent = local.run_until(async {
        let start = Instant::now();
        let mut classes = JoinSet::new();
        for load in loads {
            classes.spawn_local(load.send(address, start, Rc::clone(&outcomes)));
        }
        while classes.join_next().await.is_some() {}
    });
    runtime.block_on(sent);
    Ok(outcomes.take())
}

/// How long a load pauses before it looks again whether it has requests to send.
const PAUSE: Duration = Duration::from_millis(50);

impl RandomLoad {
    async fn send(self, address: SocketAddr, start: Instant, outcomes: Rc<RefCell<Vec<Outcome>>>) {
        let Self { class, path, users, rate, length } = self;
        let mut random = Random::new(u64::try_from(class).unwrap_or(0));
        let idle = Rc::<RefCell<Vec<HttpConnection>>>::default();
        let mut requests = JoinSet::new();
        let (mut due, mut number) = (Duration::ZERO, 0_u64);
        while due < length {
            let per_second = rate.at(due);
            let has_requests = per_second > 0.0;
            due = due.saturating_add(match has_requests {
                true => random.exponential(1.0 / per_second),
                false => PAUSE,
            });
            if !has_requests || due >= length {
                continue;
            }
            tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
            let path = format!("{path}/{}", number.checked_rem(users).unwrap_or(0));
            number = number.saturating_add(1);
            let (idle, outcomes) = (Rc::clone(&idle), Rc::clone(&outcomes));
            requests.spawn_local(async move {
                let sent = Instant::now();
                let status = exchange(address, &path, &idle).await.unwrap_or(0);
                let (at, took) = (sent.duration_since(start), sent.elapsed());
                outcomes.borrow_mut().push(Outcome { class, at, took, status });
            });
        }
        while requests.join_next().await.is_some() {}
    }
}

/// Sends a request over an idle connection, or a new one.
async fn exchange(
    address: SocketAddr,
    path: &str,
    idle: &RefCell<Vec<HttpConnection>>,
) -> Result<u16, String> {
    let kept = idle.borrow_mut().pop();
    let mut connection = match kept {
        Some(connection) => connection,
        None => HttpConnection::open(address).await?,
    };
    let answer = connection.exchange(get(path).of(|| 0)).await?;
    idle.borrow_mut().push(connection);
    Ok(answer.status)
}
