//! Runs commands: batches of `CL.THROTTLE`, several commands that ask the policy together, and every other command on its own.
//!
//! A command that causes a panic costs one error reply; the connection and the other commands of its pipeline go on.

use super::reply::{self, Dialect};
use super::session::Session;
use super::throttle::{Limits, Throttle};
use super::users::{UserRole, Users};
use super::wire::Words;
use crate::backend::Backend;
use crate::bounds;
use crate::desk::Desk;
use crate::net::{LongWorkQueue, PIECE, Together};
use crate::rulebook::Rulebook;
use crate::supervise::{Panicked, contained};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::{NamedTake, StoreError};

/// Answers commands; every worker has one.
pub(crate) struct RespHandler<S> {
    pub(super) desk: Desk<S>,
    pub(super) rulebook: Arc<Rulebook<S>>,
    pub(super) limits: RefCell<Limits>,
    pub(super) users: Arc<Users>,
    /// How many connections this worker has had; gives each its number.
    sessions: Cell<u64>,
}

/// What happens to the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterCommand {
    Continue,
    Close,
}

/// `CL.THROTTLE` commands that arrived together: the key of each, and its limit and cost.
pub(crate) type Batch<'b> = SmallVec<[(&'b [u8], Throttle); 4]>;

/// A command that asks the store and changes nothing in the session. Such commands of a pipeline are decided together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    Check,
    Peek,
    Report,
    Renew,
}

/// Commands that arrived one behind the other, and are decided together.
pub(crate) type AskingBatch<'b> = SmallVec<[(Asking, Words<'b>); 1]>;

impl Asking {
    /// Whether the two may be under way at the same time. A check must find what a report before it has given back.
    pub(crate) fn joins(self, other: Self) -> bool {
        let settles = |asking| matches!(asking, Self::Report | Self::Renew);
        settles(self) == settles(other)
    }
}

/// Longer than the name of any command; of a longer word only this much is compared.
const LONGEST_COMMAND: usize = 32;
/// Commands that take about as long as one piece of long work.
const AT_A_TIME: usize = 32;

impl<S: Backend> RespHandler<S> {
    pub(crate) fn new(desk: Desk<S>, rulebook: Arc<Rulebook<S>>, users: Arc<Users>) -> Self {
        Self { desk, rulebook, limits: RefCell::default(), users, sessions: Cell::new(0) }
    }

    pub(crate) fn session(&self, peer: IpAddr) -> Session {
        let number = self.sessions.get().saturating_add(1);
        self.sessions.set(number);
        Session::new(number, peer, &self.users)
    }

    // === CL.THROTTLE ===

    /// Reads a `CL.THROTTLE`; `None` for any other command, and for a client that has not authenticated.
    pub(crate) fn throttle<'b>(
        &self,
        words: &Words<'b>,
        session: &Session,
    ) -> Option<Result<(&'b [u8], Throttle), String>> {
        let (name, rest) = words.split_first()?;
        if session.role.is_none() || !name.eq_ignore_ascii_case(b"cl.throttle") {
            return None;
        }
        let throttle = self.limits.borrow_mut().read(rest);
        Some(throttle.map(|throttle| (rest.first().copied().unwrap_or_default(), throttle)))
    }

    /// Decides a batch, and writes the replies in its order. If that panics, the commands are decided again one by one, so
    /// that the panic costs one reply; some of them are then counted twice.
    pub(crate) async fn decide(&self, batch: &Batch<'_>, out: &mut Vec<u8>) {
        if batch.is_empty() || self.try_decide(batch, out).await.is_ok() {
            return;
        }
        for throttle in batch {
            let alone = std::slice::from_ref(throttle);
            if let Err(panicked) = self.try_decide(alone, out).await {
                self.reply_panicked(panicked, out);
            }
        }
    }

    /// Decides a batch. After a panic nothing was written.
    async fn try_decide(
        &self,
        batch: &[(&[u8], Throttle)],
        out: &mut Vec<u8>,
    ) -> Result<(), Panicked> {
        let before = out.len();
        let decided = contained(Box::pin(self.decide_together(batch, out)).as_mut()).await;
        decided.inspect_err(|_| out.truncate(before))
    }

    /// Decides a batch and writes exactly one reply for each command.
    async fn decide_together(&self, batch: &[(&[u8], Throttle)], out: &mut Vec<u8>) {
        let admitted = self.admit_limits(batch);
        let mut takes = SmallVec::<[NamedTake<'_>; 4]>::with_capacity(batch.len());
        for ((key, throttle), _) in batch.iter().zip(&admitted).filter(|(_, admitted)| **admitted) {
            takes.push(NamedTake { key, limit: &throttle.limit.named, cost: throttle.cost });
        }
        // Those of the admitted commands only, in their order.
        let mut decisions = self.desk.take_named(&takes).await.into_iter();
        for ((_, throttle), admitted) in batch.iter().zip(admitted) {
            if !admitted {
                reply::error(out, &format!("BUSY {}", StoreError::TooManyLimits));
            } else if let Some((decision, _)) = decisions.next() {
                throttle.limit.write(out, &decision);
            } else {
                reply::error(out, "ERR no decision could be made");
            }
        }
    }

    /// Whether the store has room for the limits. Commands that follow each other usually have the same, which is asked for once.
    fn admit_limits(&self, batch: &[(&[u8], Throttle)]) -> SmallVec<[bool; 4]> {
        let runs = batch.chunk_by(|(_, one), (_, next)| Rc::ptr_eq(&one.limit, &next.limit));
        let admitted = runs.flat_map(|run| {
            let limit = run.first().map(|(_, throttle)| throttle.limit.named.limit());
            let is_admitted =
                limit.is_some_and(|limit| self.desk.limiter.admit_limit(limit).is_ok());
            std::iter::repeat_n(is_admitted, run.len())
        });
        admitted.collect()
    }

    // === commands that ask the policy ===

    /// Which of them a command is; `None` for other commands, and for a client that has not authenticated.
    pub(crate) fn asking(words: &Words<'_>, session: &Session) -> Option<Asking> {
        const NAMES: [(&[u8], Asking); 4] = [
            (b"TG.CHECK", Asking::Check),
            (b"TG.PEEK", Asking::Peek),
            (b"TG.REPORT", Asking::Report),
            (b"TG.RENEW", Asking::Renew),
        ];
        let name = words.first().filter(|_| session.role.is_some())?;
        let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, asking)| *asking)
    }

    /// How many of them are decided together. With a store in this process that has no advantage, so other connections have their turn.
    pub(crate) const fn most_asked() -> usize {
        if S::IN_PROCESS { AT_A_TIME } else { bounds::RESP_TOGETHER }
    }

    /// Decides commands together, and writes the replies in their order. They are sent in that order, too.
    pub(crate) async fn answer_asked(
        &self,
        asked: &AskingBatch<'_>,
        session: &Session,
        queue: &LongWorkQueue,
        out: &mut Vec<u8>,
    ) {
        if let [(asking, words)] = asked.as_slice() {
            return self.ask(*asking, words, session.dialect, out).await;
        }
        // Boxed because it is large: otherwise every connection would reserve memory for it.
        Box::pin(self.ask_together(asked, session, queue, out)).await;
    }

    async fn ask_together(
        &self,
        asked: &AskingBatch<'_>,
        session: &Session,
        queue: &LongWorkQueue,
        out: &mut Vec<u8>,
    ) {
        let mut done = |reply: Vec<u8>| out.extend_from_slice(&reply);
        let mut together = Together::new(queue);
        for (number, (asking, words)) in asked.iter().enumerate() {
            if number > 0 && number.is_multiple_of(AT_A_TIME) {
                queue.pass(PIECE).await;
            }
            let ask = async {
                let mut reply = Vec::new();
                self.ask(*asking, words, session.dialect, &mut reply).await;
                reply
            };
            together.ask(ask, &mut done).await;
        }
        together.finish(&mut done).await;
    }

    async fn ask(&self, asking: Asking, words: &Words<'_>, dialect: Dialect, out: &mut Vec<u8>) {
        let before = out.len();
        let words = words.get(1..).unwrap_or_default();
        let answered = match asking {
            Asking::Check => contained(pin!(self.check(words, dialect, out))).await,
            Asking::Peek => contained(pin!(self.peek(words, dialect, out))).await,
            Asking::Report => contained(pin!(self.report(words, out))).await,
            Asking::Renew => contained(pin!(self.renew(words, out))).await,
        };
        if let Err(panicked) = answered {
            out.truncate(before);
            self.reply_panicked(panicked, out);
        }
    }

    // === other commands ===

    pub(crate) async fn run(
        &self,
        words: &Words<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let before = out.len();
        let next = contained(pin!(self.dispatch(words, session, out))).await;
        next.unwrap_or_else(|panicked| {
            out.truncate(before);
            self.reply_panicked(panicked, out);
            AfterCommand::Continue
        })
    }

    /// The reply to a command that caused a panic.
    fn reply_panicked(&self, Panicked: Panicked, out: &mut Vec<u8>) {
        self.desk.metrics().panicked();
        tracing::error!("a command met a bug in tidegate and was answered with an error");
        reply::error(out, "ERR internal error; it has been logged");
    }

    /// Runs a command. Only `QUIT`, `AUTH`, `HELLO` and `RESET` work before authentication.
    async fn dispatch(
        &self,
        words: &Words<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let Some((name, rest)) = words.split_first() else { return AfterCommand::Continue };
        let upper = name.get(..name.len().min(LONGEST_COMMAND)).unwrap_or_default();
        let upper = upper.to_ascii_uppercase();
        match (&upper[..], session.role) {
            (b"QUIT", _) => {
                reply::simple(out, "OK");
                return AfterCommand::Close;
            }
            (b"AUTH", _) => return self.auth(rest, session, out).await,
            (b"HELLO", _) => return self.hello(rest, session, out).await,
            (b"RESET", _) => {
                session.reset(&self.users);
                reply::simple(out, "RESET");
            }
            (_, None) => reply::error(out, "NOAUTH Authentication required."),
            (b"PING", _) => ping(rest, out),
            (b"ECHO", _) => echo(rest, out),
            (b"SELECT", _) => reply::simple(out, "OK"),
            (b"CLIENT", _) => session.client(rest, out),
            (b"COMMAND", _) => session.command(rest, out),
            (b"INFO", _) => self.info(out),
            (b"TG.RESET", Some(UserRole::Operator)) => self.reset(rest, session, out).await,
            (b"DEL", Some(UserRole::Operator)) => self.delete(rest, session, out).await,
            (b"TG.RESET" | b"DEL", Some(UserRole::Client)) => {
                let name = String::from_utf8_lossy(&upper);
                let text = format!("NOPERM {name} needs the role `operator`: see resp.users_file");
                reply::error(out, &text);
            }
            _ => reply::error(out, &format!("ERR unknown command '{}'", reply::quoted(name))),
        }
        AfterCommand::Continue
    }

    fn info(&self, out: &mut Vec<u8>) {
        let version = self.desk.limiter.version();
        let text = format!(
            "# Server\r\ntidegate_version:{}\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n# Tidegate\r\npolicy_version:{version}\r\n",
            env!("CARGO_PKG_VERSION")
        );
        reply::bulk(out, text.as_bytes());
    }
}

fn ping(words: &[&[u8]], out: &mut Vec<u8>) {
    match words {
        [] => reply::simple(out, "PONG"),
        [word] => reply::bulk(out, word),
        _ => reply::arity(out, "ping"),
    }
}

fn echo(words: &[&[u8]], out: &mut Vec<u8>) {
    match words {
        [word] => reply::bulk(out, word),
        _ => reply::arity(out, "echo"),
    }
}
