//! What can be asked, and what is answered.

use super::reply::{self, Dialect};
use super::throttle::{self, Limits, Throttle};
use super::users::{UserRole, Users};
use super::wire::Words;
use crate::audit::Actor;
use crate::backend::Backend;
use crate::metrics::{Metrics, Refused, Tally};
use crate::rulebook::Rulebook;
use crate::supervise::contained;
use serde_json::json;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{
    Attributes, Check, DecidedBy, Decision, Limiter, NamedTake, Outcome, Report, ReportError,
};
use tidegate::{Settled, Span, StoreError, Verdict};
use tokio::time::{Instant, sleep};

/// Answers commands; one for each worker.
pub(crate) struct RespHandler<S> {
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    limits: RefCell<Limits>,
    tally: Arc<Tally>,
    metrics: Arc<Metrics>,
    users: Arc<Users>,
    /// How many connections this worker has had, for their numbers.
    sessions: Cell<u64>,
}

/// What a connection has said of itself.
#[derive(Debug)]
pub(crate) struct Session {
    number: u64,
    peer: IpAddr,
    dialect: Dialect,
    pub(crate) role: Option<UserRole>,
    /// Whose token it showed.
    user: Option<String>,
    /// What the client calls itself.
    name: Vec<u8>,
    /// Wrong tokens so far.
    wrong: u32,
}

/// What becomes of a connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterCommand {
    Command,
    Close,
}

/// Throttles that arrived together: whose bucket, and how much of it.
pub(crate) type Batch<'b> = SmallVec<[(&'b [u8], Throttle); 4]>;

/// Wrong tokens after which a connection is closed.
const MOST_WRONG: u32 = 6;
/// How long the answer to the first wrong token takes; every further one takes twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// A name of a client.
const LONGEST_NAME: usize = 128;

impl<S: Backend> RespHandler<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        rulebook: Arc<Rulebook<S>>,
        metrics: Arc<Metrics>,
        users: Arc<Users>,
    ) -> Self {
        let tally = metrics.tally("resp");
        let (limits, sessions) = (RefCell::default(), Cell::new(0));
        Self { limiter, rulebook, limits, tally, metrics, users, sessions }
    }

    pub(crate) fn session(&self, peer: IpAddr) -> Session {
        let number = self.sessions.get().saturating_add(1);
        self.sessions.set(number);
        let (dialect, role) = (Dialect::Two, self.users.unnamed());
        Session { number, peer, dialect, role, user: None, name: Vec::new(), wrong: 0 }
    }

    // === CL.THROTTLE ===

    /// Reads a throttle, if that is what a command is and its sender may ask for it.
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

    /// Decides throttles together, and writes their replies in order. Should one of them cause a panic, they are decided one by
    /// one, so that it costs one reply; some are then counted twice.
    pub(crate) async fn decide(&self, batch: &Batch<'_>, out: &mut Vec<u8>) {
        if batch.is_empty() || self.decided(batch, out).await {
            return;
        }
        for throttle in batch {
            if !self.decided(std::slice::from_ref(throttle), out).await {
                self.panicked(out);
            }
        }
    }

    /// Whether throttles could be decided without a panic; otherwise nothing was written.
    async fn decided(&self, batch: &[(&[u8], Throttle)], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let done = contained(Box::pin(self.decide_together(batch, out)).as_mut()).await.is_ok();
        if !done {
            out.truncate(before);
        }
        done
    }

    async fn decide_together(&self, batch: &[(&[u8], Throttle)], out: &mut Vec<u8>) {
        let began = Instant::now();
        let admitted: SmallVec<[bool; 4]> = batch
            .iter()
            .map(|(_, throttle)| self.limiter.admit_limit(throttle.limit.limit()).is_ok())
            .collect();
        let takes: SmallVec<[NamedTake<'_>; 4]> = (batch.iter().zip(&admitted))
            .filter(|(_, admitted)| **admitted)
            .map(|((key, throttle), _)| NamedTake {
                key,
                limit: &throttle.limit,
                cost: throttle.cost,
            })
            .collect();
        let admitted = &admitted;
        let decisions = self.limiter.take_named(&takes).await;
        self.write_each(batch, admitted, decisions.as_deref().unwrap_or_default(), out);
        self.tally.took_each(began.elapsed(), batch.len());
    }

    /// A reply for every throttle, whatever happened; the decisions are those of the throttles that were admitted.
    fn write_each(
        &self,
        batch: &[(&[u8], Throttle)],
        admitted: &[bool],
        decisions: &[(Decision, DecidedBy)],
        out: &mut Vec<u8>,
    ) {
        let mut decisions = decisions.iter();
        for ((_, throttle), admitted) in batch.iter().zip(admitted) {
            if !admitted {
                reply::error(out, &format!("BUSY {}", StoreError::TooManyLimits));
            } else if let Some((decision, by)) = decisions.next() {
                throttle::write(out, throttle.limit.limit(), decision);
                self.tally.count_bare(decision.outcome, *by);
            } else {
                reply::error(out, "ERR no decision could be made");
            }
        }
    }

    // === the other commands ===

    pub(crate) async fn run(
        &self,
        words: &Words<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let before = out.len();
        if let Ok(next) = contained(pin!(self.answered(words, session, out))).await {
            return next;
        }
        out.truncate(before);
        self.panicked(out);
        AfterCommand::Command
    }

    /// The reply to a command that caused a panic.
    fn panicked(&self, out: &mut Vec<u8>) {
        self.metrics.panicked();
        tracing::error!("a command caused a panic");
        reply::error(out, "ERR internal error; it has been logged");
    }

    async fn answered(
        &self,
        words: &Words<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let Some((name, rest)) = words.split_first() else { return AfterCommand::Command };
        let upper = name.get(..name.len().min(32)).unwrap_or_default().to_ascii_uppercase();
        match (&upper[..], session.role) {
            (b"QUIT", _) => {
                reply::simple(out, "OK");
                return AfterCommand::Close;
            }
            (b"AUTH", _) => return self.auth(rest, session, out).await,
            (b"HELLO", _) => return self.hello(rest, session, out).await,
            (b"RESET", _) => {
                // Guesses stay counted: whoever starts over has not guessed less.
                let (number, wrong) = (session.number, session.wrong);
                *session = Session { number, wrong, ..self.session(session.peer) };
                reply::simple(out, "RESET");
            }
            (_, None) => reply::error(out, "NOAUTH Authentication required."),
            (b"PING", _) => match rest {
                [] => reply::simple(out, "PONG"),
                [word] => reply::bulk(out, word),
                _ => arity(out, "ping"),
            },
            (b"ECHO", _) => match rest {
                [word] => reply::bulk(out, word),
                _ => arity(out, "echo"),
            },
            (b"SELECT", _) => reply::simple(out, "OK"),
            (b"CLIENT", _) => client(rest, session, out),
            (b"COMMAND", _) => command(rest, session, out),
            (b"INFO", _) => self.info(out),
            (b"TG.CHECK", _) => self.check(rest, Asking::Check, session, out).await,
            (b"TG.PEEK", _) => self.check(rest, Asking::Peek, session, out).await,
            (b"TG.REPORT", _) => self.report(rest, out).await,
            (b"TG.RESET", Some(UserRole::Operator)) => self.reset(rest, session, out).await,
            (b"TG.RESET", Some(UserRole::Client)) => {
                reply::error(out, "NOPERM TG.RESET needs the role `operator`: see resp.users_file");
            }
            _ => unknown(name, out),
        }
        AfterCommand::Command
    }

    async fn auth(
        &self,
        words: &[&[u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let (name, token) = match words {
            [token] => (None, *token),
            [name, token] => (Some(*name), *token),
            _ => {
                arity(out, "auth");
                return AfterCommand::Command;
            }
        };
        if self.users.unnamed().is_some() {
            reply::error(out, "ERR AUTH is not needed here: there are no users");
            return AfterCommand::Command;
        }
        if self.login(name, token, session) {
            reply::simple(out, "OK");
            return AfterCommand::Command;
        }
        self.refused(session, out).await
    }

    fn login(&self, name: Option<&[u8]>, token: &[u8], session: &mut Session) -> bool {
        let Some((user, role)) = self.users.known(name, token) else { return false };
        session.role = Some(role);
        session.user = Some(user.to_owned());
        true
    }

    /// Whoever guesses waits longer from guess to guess; nobody else waits with them.
    async fn refused(&self, session: &mut Session, out: &mut Vec<u8>) -> AfterCommand {
        self.metrics.refused(Refused::Unauthorized);
        sleep(FIRST_WAIT.saturating_mul(1_u32.checked_shl(session.wrong).unwrap_or(u32::MAX)))
            .await;
        session.wrong = session.wrong.saturating_add(1);
        reply::error(out, "WRONGPASS invalid username-password pair or user is disabled.");
        if session.wrong >= MOST_WRONG { AfterCommand::Close } else { AfterCommand::Command }
    }

    /// `HELLO [2|3 [AUTH name token] [SETNAME name]]`
    async fn hello(
        &self,
        words: &[&[u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let dialect = match words.first().copied() {
            None => session.dialect,
            Some(b"2") => Dialect::Two,
            Some(b"3") => Dialect::Three,
            Some(_) => {
                reply::error(out, "NOPROTO unsupported protocol version");
                return AfterCommand::Command;
            }
        };
        let Some((user, name)) = introduction(words.get(1..).unwrap_or_default()) else {
            reply::error(out, "ERR Syntax error in HELLO option");
            return AfterCommand::Command;
        };
        if name.is_some_and(|name| !is_name(name)) {
            reply::error(out, NO_NAME);
            return AfterCommand::Command;
        }
        if let Some([user, token]) = user
            && self.users.unnamed().is_none()
            && !self.login(Some(user), token, session)
        {
            return self.refused(session, out).await;
        }
        if session.role.is_none() {
            reply::error(
                out,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used",
            );
            return AfterCommand::Command;
        }
        session.dialect = dialect;
        if let Some(name) = name {
            session.name = name.to_vec();
        }
        greeting(session, out);
        AfterCommand::Command
    }

    fn info(&self, out: &mut Vec<u8>) {
        let version = self.limiter.version();
        let text = format!(
            "# Server\r\ntidegate_version:{}\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n# Tidegate\r\npolicy_version:{version}\r\n",
            env!("CARGO_PKG_VERSION")
        );
        reply::bulk(out, text.as_bytes());
    }

    // === TG.* ===

    async fn check(&self, words: &[&[u8]], asking: Asking, session: &Session, out: &mut Vec<u8>) {
        let began = Instant::now();
        let asked = match CheckCommand::read(words) {
            Ok(asked) => asked,
            Err(error) => return reply::error(out, &error),
        };
        let check = asked.check();
        let verdict = match asking {
            Asking::Peek => self.limiter.peek(&check).await,
            Asking::Check => self.limiter.check(&check).await,
        };
        match verdict {
            Ok(verdict) => {
                if asking == Asking::Check {
                    self.tally.count(&verdict);
                    self.tally.took(began.elapsed());
                }
                self.write(&verdict, session.dialect, out);
            }
            Err(error) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// `[allowed, outcome, delay_ms, retry_after_ms (-1: never), remaining, reset_ms, rule, receipt|nil]`
    fn write(&self, verdict: &Verdict, dialect: Dialect, out: &mut Vec<u8>) {
        let millis = |span: Span| i64::try_from(span.as_millis_ceil()).unwrap_or(i64::MAX);
        // The limit that says most: one that refuses, else the one with least left.
        let tightest = verdict
            .limits()
            .min_by_key(|limit| (limit.decision.passes(), limit.decision.remaining));
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let resets = verdict.limits().filter_map(|limit| limit.decision.reset);
        reply::list(out, 8);
        reply::integer(out, i64::from(verdict.allowed()));
        reply::bulk(
            out,
            match verdict.outcome {
                Outcome::Allow => b"allow",
                Outcome::Delay(_) => b"delay",
                Outcome::Deny(_) => b"deny",
            },
        );
        reply::integer(out, millis(verdict.delay()));
        reply::integer(out, verdict.retry_after().map_or(-1, millis));
        reply::integer(out, tightest.map_or(-1, |limit| whole(limit.decision.remaining)));
        reply::integer(out, resets.max().map_or(0, millis));
        match tightest {
            Some(limit) => reply::bulk(out, limit.rule.as_bytes()),
            None => reply::null(out, dialect),
        }
        match verdict.receipt() {
            Some(receipt) => reply::bulk(out, self.limiter.sealed(receipt).as_bytes()),
            None => reply::null(out, dialect),
        }
    }

    async fn report(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        let [receipt, outcome] = words else { return arity(out, "tg.report") };
        let cost = str::from_utf8(outcome).ok().and_then(|text| text.parse::<u64>().ok());
        let report = match (outcome.to_ascii_lowercase().as_slice(), cost) {
            (b"success", _) => Report::Success,
            (b"failure", _) => Report::Failure,
            (b"cancelled", _) => Report::Cancelled,
            (_, Some(cost)) => Report::Cost(cost.into()),
            _ => {
                return reply::error(
                    out,
                    "ERR the outcome is success, failure, cancelled or a cost",
                );
            }
        };
        let settled = match self.limiter.opened(&String::from_utf8_lossy(receipt)) {
            Ok(receipt) => self.limiter.report(&receipt, report).await,
            Err(error) => Err(error),
        };
        match settled {
            Ok(Settled::Done) => reply::simple(out, "OK"),
            Ok(Settled::Already) => reply::error(out, "CONFLICT this receipt was settled before"),
            Ok(Settled::Late) => {
                reply::error(out, "CONFLICT the time to settle this receipt is over");
            }
            Ok(Settled::Full) => {
                let why = "BUSY there is no memory to remember that this receipt is settled; it was not settled, try again later";
                reply::error(out, why);
            }
            Err(ReportError::Forged) => {
                reply::error(out, "ERR this is no receipt of this deployment");
            }
            Err(ReportError::Store(error)) => reply::error(out, &format!("ERR {error}")),
        }
    }

    async fn reset(&self, words: &[&[u8]], session: &Session, out: &mut Vec<u8>) {
        let Some((rule, pairs)) = words.split_first() else { return arity(out, "tg.reset") };
        let attributes = match attributes(pairs) {
            Ok(attributes) => attributes,
            Err(error) => return reply::error(out, &error),
        };
        let rule = String::from_utf8_lossy(rule);
        match self.limiter.reset(&rule, &attributes).await {
            Ok(states) => {
                // Names are kept, and their values are not: they may be secrets.
                let names: Vec<String> =
                    attributes.iter().map(|(name, _)| name.to_owned()).collect();
                let details = json!({ "rule": rule, "by": names, "states": states });
                self.note(session, details).await;
                reply::integer(out, i64::try_from(states).unwrap_or(i64::MAX));
            }
            Err(error) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// Writes a reset into the audit log, on a thread that may wait for the disk.
    async fn note(&self, session: &Session, details: serde_json::Value) {
        let (rulebook, peer) = (Arc::clone(&self.rulebook), session.peer);
        let who = session.user.clone().unwrap_or_else(|| "resp".to_owned());
        let noted = tokio::task::spawn_blocking(move || {
            rulebook.note(Actor { who: &who, peer }, "reset", &details);
        });
        if noted.await.is_err() {
            tracing::error!("writing the audit log met a mistake of ours");
        }
    }
}

/// Whether what passes is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    Check,
    Peek,
}

/// `cost [MAXWAIT ms] [RECEIPT] attr value …`
struct CheckCommand<'b> {
    cost: u64,
    max_wait: Span,
    receipt: bool,
    attributes: Attributes<'b>,
}

impl<'b> CheckCommand<'b> {
    fn read(words: &[&'b [u8]]) -> Result<Self, String> {
        let usage =
            || "ERR write `TG.CHECK cost [MAXWAIT ms] [RECEIPT] attribute value …`".to_owned();
        let number =
            |word: &[u8]| str::from_utf8(word).ok().and_then(|text| text.parse::<u64>().ok());
        let (cost, mut rest) = words.split_first().ok_or_else(usage)?;
        let cost = number(cost).ok_or_else(|| "ERR the cost is a whole number".to_owned())?;
        let (mut max_wait, mut receipt) = (Span::ZERO, false);
        // Words of the command in either case, as Redis has it; an attribute of such a name comes behind another.
        while let Some((option, others)) = rest.split_first() {
            rest = match (option.to_ascii_uppercase().as_slice(), others) {
                (b"MAXWAIT", [wait, others @ ..]) => {
                    let wait =
                        number(wait).ok_or_else(|| "ERR MAXWAIT is in milliseconds".to_owned())?;
                    max_wait = Span::from_millis(wait);
                    others
                }
                (b"RECEIPT", others) => {
                    receipt = true;
                    others
                }
                _ => break,
            };
        }
        Ok(Self { cost, max_wait, receipt, attributes: attributes(rest)? })
    }

    fn check(&self) -> Check<'_> {
        let check = Check::new(&self.attributes).cost(self.cost).waiting(self.max_wait);
        if self.receipt { check.with_receipt() } else { check }
    }
}

/// Names and values in turn.
fn attributes<'b>(words: &[&'b [u8]]) -> Result<Attributes<'b>, String> {
    let mut attributes = Attributes::new();
    let mut names: SmallVec<[&[u8]; 8]> = SmallVec::new();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err("ERR attributes are names and values in turn".to_owned());
        };
        if names.contains(name) {
            return Err(format!("ERR attribute `{}` is there twice", reply::quoted(name)));
        }
        names.push(name);
        let Ok(name) = str::from_utf8(name) else {
            return Err("ERR names of attributes are text in UTF-8".to_owned());
        };
        // A client wrote the value, and must not choose whether there is an answer: bytes that are no text become U+FFFD.
        let value = String::from_utf8_lossy(value);
        attributes.set_from_client(name, value).map_err(|error| format!("ERR {error}"))?;
    }
    Ok(attributes)
}

// === what client libraries say when they connect ===

fn greeting(session: &Session, out: &mut Vec<u8>) {
    let protocol = if session.dialect == Dialect::Three { 3 } else { 2 };
    reply::map(out, 7, session.dialect);
    reply::bulk(out, b"server");
    reply::bulk(out, b"tidegate");
    reply::bulk(out, b"version");
    reply::bulk(out, env!("CARGO_PKG_VERSION").as_bytes());
    reply::bulk(out, b"proto");
    reply::integer(out, protocol);
    reply::bulk(out, b"id");
    reply::integer(out, i64::try_from(session.number).unwrap_or(i64::MAX));
    reply::bulk(out, b"mode");
    reply::bulk(out, b"standalone");
    reply::bulk(out, b"role");
    reply::bulk(out, b"master");
    reply::bulk(out, b"modules");
    reply::list(out, 0);
}

fn client(words: &[&[u8]], session: &mut Session, out: &mut Vec<u8>) {
    let Some((sub, rest)) = words.split_first() else { return arity(out, "client") };
    match (sub.to_ascii_uppercase().as_slice(), rest) {
        (b"SETNAME", [name]) if is_name(name) => {
            session.name = name.to_vec();
            reply::simple(out, "OK");
        }
        (b"SETNAME", [_]) => reply::error(out, NO_NAME),
        (b"GETNAME", []) if session.name.is_empty() => reply::null(out, session.dialect),
        (b"GETNAME", []) => reply::bulk(out, &session.name),
        (b"ID", []) => reply::integer(out, i64::try_from(session.number).unwrap_or(i64::MAX)),
        (b"INFO", []) => {
            let name = String::from_utf8_lossy(&session.name);
            reply::bulk(out, format!("id={} name={name}\n", session.number).as_bytes());
        }
        (b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" | b"TRACKING" | b"MAINT_NOTIFICATIONS", _) => {
            reply::simple(out, "OK");
        }
        _ => reply::error(out, "ERR unknown subcommand or wrong number of arguments for 'client'"),
    }
}

fn is_name(name: &[u8]) -> bool {
    name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic)
}

const NO_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// Who somebody is, with a token, and what they want to be called.
type Introduction<'b> = (Option<[&'b [u8]; 2]>, Option<&'b [u8]>);

/// `[AUTH name token] [SETNAME name]`: read whole before any of it counts.
fn introduction<'b>(mut words: &[&'b [u8]]) -> Option<Introduction<'b>> {
    let (mut user, mut called) = (None, None);
    while let [option, others @ ..] = words {
        words = match (option.to_ascii_uppercase().as_slice(), others) {
            (b"AUTH", [name, token, others @ ..]) => {
                user = Some([*name, *token]);
                others
            }
            (b"SETNAME", [name, others @ ..]) => {
                called = Some(*name);
                others
            }
            _ => return None,
        };
    }
    Some((user, called))
}

fn command(words: &[&[u8]], session: &Session, out: &mut Vec<u8>) {
    match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
        Some(b"COUNT") => reply::integer(out, 0),
        Some(b"DOCS") => reply::map(out, 0, session.dialect),
        _ => reply::list(out, 0),
    }
}

fn arity(out: &mut Vec<u8>, name: &str) {
    reply::error(out, &format!("ERR wrong number of arguments for '{name}' command"));
}

fn unknown(name: &[u8], out: &mut Vec<u8>) {
    reply::error(out, &format!("ERR unknown command '{}'", reply::quoted(name)));
}
