//! `HELLO` and `AUTH`: the protocol version, and who the client is.

use super::handler::{AfterCommand, RespHandler};
use super::reply::{self, Dialect};
use super::session::{INVALID_NAME, Session, is_name};
use crate::backend::Backend;
use crate::metrics::Refused;
use crate::timers;
use std::time::Duration;

/// Wrong tokens after which a connection is closed.
const MOST_WRONG: u32 = 6;
/// The delay of the reply to the first wrong token. It doubles with every further one (exponential backoff).
const FIRST_WAIT: Duration = Duration::from_millis(20);

impl<S: Backend> RespHandler<S> {
    /// `AUTH [name] token`
    pub(super) async fn auth(
        &self,
        words: &[&[u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let (name, token) = match words {
            [token] => (None, *token),
            [name, token] => (Some(*name), *token),
            _ => {
                reply::arity(out, "auth");
                return AfterCommand::Continue;
            }
        };
        if self.users.unnamed().is_some() {
            reply::error(out, "ERR AUTH is not needed: this server has no users");
            return AfterCommand::Continue;
        }
        if self.log_in(name, token, session) {
            reply::simple(out, "OK");
            return AfterCommand::Continue;
        }
        self.wrong_token(session, out).await
    }

    fn log_in(&self, name: Option<&[u8]>, token: &[u8], session: &mut Session) -> bool {
        let Some((user, role)) = self.users.known(name, token) else { return false };
        session.log_in(user, role);
        true
    }

    /// Slows down a client that guesses tokens, with exponential backoff. Only its own connection waits.
    async fn wrong_token(&self, session: &mut Session, out: &mut Vec<u8>) -> AfterCommand {
        self.desk.metrics().refused(Refused::Unauthorized);
        timers::sleep(
            FIRST_WAIT.saturating_mul(1_u32.checked_shl(session.wrong).unwrap_or(u32::MAX)),
        )
        .await;
        session.wrong = session.wrong.saturating_add(1);
        reply::error(out, "WRONGPASS invalid username-password pair or user is disabled.");
        if session.wrong >= MOST_WRONG { AfterCommand::Close } else { AfterCommand::Continue }
    }

    /// `HELLO [2|3 [AUTH name token] [SETNAME name]]`
    pub(super) async fn hello(
        &self,
        words: &[&[u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let hello = match Hello::read(words) {
            Ok(hello) => hello,
            Err(error) => {
                reply::error(out, error);
                return AfterCommand::Continue;
            }
        };
        if let Some([user, token]) = hello.credentials
            && self.users.unnamed().is_none()
            && !self.log_in(Some(user), token, session)
        {
            return self.wrong_token(session, out).await;
        }
        if session.role.is_none() {
            reply::error(out, HELLO_NEEDS_AUTH);
            return AfterCommand::Continue;
        }
        session.dialect = hello.dialect.unwrap_or(session.dialect);
        if let Some(name) = hello.name {
            session.set_name(name);
        }
        greet(session, out);
        AfterCommand::Continue
    }
}

const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used";

/// The arguments of `HELLO`.
#[derive(Default)]
struct Hello<'b> {
    dialect: Option<Dialect>,
    /// The name and token of a user.
    credentials: Option<[&'b [u8]; 2]>,
    name: Option<&'b [u8]>,
}

impl<'b> Hello<'b> {
    /// Reads all arguments before any of them takes effect.
    fn read(words: &[&'b [u8]]) -> Result<Self, &'static str> {
        let mut hello = Self::default();
        let Some((version, mut words)) = words.split_first() else { return Ok(hello) };
        hello.dialect = match *version {
            b"2" => Some(Dialect::Two),
            b"3" => Some(Dialect::Three),
            _ => return Err("NOPROTO unsupported protocol version"),
        };
        while let [option, others @ ..] = words {
            words = match (option.to_ascii_uppercase().as_slice(), others) {
                (b"AUTH", [name, token, others @ ..]) => {
                    hello.credentials = Some([*name, *token]);
                    others
                }
                (b"SETNAME", [name, others @ ..]) => {
                    hello.name = Some(*name);
                    others
                }
                _ => return Err("ERR Syntax error in HELLO option"),
            };
        }
        if hello.name.is_some_and(|name| !is_name(name)) { Err(INVALID_NAME) } else { Ok(hello) }
    }
}

/// The reply to `HELLO`, with the fields that Redis sends.
fn greet(session: &Session, out: &mut Vec<u8>) {
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
