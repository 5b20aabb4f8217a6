//! The state of one connection: who is logged in, the protocol version and the client's name.

use super::reply::{self, Dialect};
use super::users::{UserRole, Users};
use std::net::IpAddr;

/// What is known of the client of a connection.
#[derive(Debug)]
pub(crate) struct Session {
    /// The number of the connection, as `CLIENT ID` shows it.
    pub(super) number: u64,
    pub(super) peer: IpAddr,
    pub(super) dialect: Dialect,
    /// What the client may do; `None` until it has authenticated.
    pub(crate) role: Option<UserRole>,
    /// The user whose token the client sent.
    pub(super) user: Option<String>,
    /// The name that the client gave itself with `CLIENT SETNAME`.
    name: Vec<u8>,
    /// Wrong tokens so far.
    pub(super) wrong: u32,
}

/// Bytes of a client's name.
const LONGEST_NAME: usize = 128;
pub(super) const INVALID_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";

impl Session {
    pub(super) const fn new(number: u64, peer: IpAddr, users: &Users) -> Self {
        let (dialect, role) = (Dialect::Two, users.unnamed());
        Self { number, peer, dialect, role, user: None, name: Vec::new(), wrong: 0 }
    }

    /// Starts over, as `RESET` asks. Wrong tokens stay counted, so that a client cannot guess on.
    pub(super) fn reset(&mut self, users: &Users) {
        *self = Self { wrong: self.wrong, ..Self::new(self.number, self.peer, users) };
    }

    pub(super) fn log_in(&mut self, user: &str, role: UserRole) {
        self.role = Some(role);
        self.user = Some(user.to_owned());
    }

    pub(super) fn set_name(&mut self, name: &[u8]) {
        self.name = name.to_vec();
    }

    /// `CLIENT …`, as far as client libraries use it when they connect.
    pub(super) fn client(&mut self, words: &[&[u8]], out: &mut Vec<u8>) {
        let Some((sub, rest)) = words.split_first() else { return reply::arity(out, "client") };
        match (sub.to_ascii_uppercase().as_slice(), rest) {
            (b"SETNAME", [name]) if is_name(name) => {
                self.set_name(name);
                reply::simple(out, "OK");
            }
            (b"SETNAME", [_]) => reply::error(out, INVALID_NAME),
            (b"GETNAME", []) if self.name.is_empty() => reply::null(out, self.dialect),
            (b"GETNAME", []) => reply::bulk(out, &self.name),
            (b"ID", []) => reply::integer(out, i64::try_from(self.number).unwrap_or(i64::MAX)),
            (b"INFO", []) => {
                let name = String::from_utf8_lossy(&self.name);
                reply::bulk(out, format!("id={} name={name}\n", self.number).as_bytes());
            }
            (b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" | b"TRACKING" | b"MAINT_NOTIFICATIONS", _) => {
                reply::simple(out, "OK");
            }
            _ => reply::error(
                out,
                "ERR unknown subcommand or wrong number of arguments for 'client'",
            ),
        }
    }

    /// `COMMAND …`: client libraries ask for the list of commands, and are content with an empty one.
    pub(super) fn command(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
            Some(b"COUNT") => reply::integer(out, 0),
            Some(b"DOCS") => reply::map(out, 0, self.dialect),
            _ => reply::list(out, 0),
        }
    }
}

/// Whether a client may call itself so.
pub(super) fn is_name(name: &[u8]) -> bool {
    name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic)
}
