//! Authentication of operators by token, and protection against requests that a foreign web page causes.

use super::users::AdminUsers;
use crate::files;
use crate::web::Call;
use data_encoding::BASE32_NOPAD;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tidegate::Secret;
use tidegate_store::read_private;

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AdminRole {
    /// Inspect.
    Reader,
    /// Inspect and change.
    Operator,
}

/// The tokens, kept as signatures. Comparing signatures takes the same time wherever a guess is wrong, so an attacker cannot
/// find a token byte by byte.
pub(crate) struct Tokens {
    secret: Secret,
    operator: [u8; 32],
    reader: [u8; 32],
    /// The users with tokens of their own, if there is a users file.
    users: Option<Arc<AdminUsers>>,
}

/// Who sent a request: by whose token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminIdentity {
    /// The name of the user; for a token of the data directory, its role.
    pub(crate) name: Arc<str>,
    pub(crate) role: AdminRole,
}

/// The `Host` values under which this listener may be addressed.
pub(crate) struct Hosts(Vec<String>);

/// Characters of a token; shorter ones can be guessed.
pub(super) const SHORTEST_TOKEN: usize = 16;

impl AdminRole {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
        }
    }
}

impl Tokens {
    pub(crate) fn new(secret: Secret, operator: &str, reader: &str) -> Self {
        let operator = secret.sign(operator.as_bytes());
        let reader = secret.sign(reader.as_bytes());
        Self { secret, operator, reader, users: None }
    }

    /// Also accepts the tokens of these users.
    pub(crate) fn with_users(self, users: Option<Arc<AdminUsers>>) -> Self {
        Self { users, ..self }
    }

    /// The users with tokens of their own.
    pub(crate) fn users(&self) -> Option<Arc<AdminUsers>> {
        self.users.clone()
    }

    /// Who sent a request, by the token in its `Authorization` header.
    pub(crate) fn identity(&self, call: &Call<'_>) -> Option<AdminIdentity> {
        let mut fields = call.headers.all("authorization");
        let (Some(field), None) = (fields.next(), fields.next()) else { return None };
        let token = bearer(field)?;
        let operator = self.secret.signed(token, &self.operator);
        let reader = self.secret.signed(token, &self.reader);
        let users = self.users.as_ref();
        let user = users.and_then(|users| users.known(&self.secret.sign(token)));
        let unnamed = |role: AdminRole| AdminIdentity { name: role.name().into(), role };
        match (operator, reader) {
            (true, _) => Some(unnamed(AdminRole::Operator)),
            (false, true) => Some(unnamed(AdminRole::Reader)),
            (false, false) => user.map(|(name, role)| AdminIdentity { name, role }),
        }
    }
}

/// The token after `Bearer `, byte for byte: nothing is trimmed from it.
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token).filter(|token| !token.is_empty())
}

/// Reads a token from a file. If `make` is set and there is no such file, generates a token and writes it there.
pub(crate) fn read_or_make(path: &Path, prefix: &str, make: bool) -> io::Result<String> {
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    if make && !path.exists() {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let token = format!("{prefix}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase());
        files::replace(path, format!("{token}\n").as_bytes())?;
        return Ok(token);
    }
    let bytes = read_private(path, 4 * 1024)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("the token is not valid UTF-8"))?;
    let token = text.trim();
    let word = token.bytes().all(|byte| byte.is_ascii_graphic());
    if token.len() < SHORTEST_TOKEN || !word {
        return Err(wrong(&format!(
            "a token must be one word of at least {SHORTEST_TOKEN} ASCII characters"
        )));
    }
    Ok(token.to_owned())
}

// === impl Hosts ===

impl Hosts {
    pub(crate) fn new(listens: SocketAddr, others: &[String]) -> Self {
        let port = listens.port();
        let mut names = vec![listens.ip().to_string(), "localhost".to_owned()];
        if listens.ip().is_loopback() {
            names.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
        }
        let own = names.iter().flat_map(|name| {
            let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
            [format!("{name}:{port}"), name]
        });
        let others = others.iter().flat_map(|name| [name.clone(), format!("{name}:{port}")]);
        Self(own.chain(others).collect())
    }

    /// Refuses a request that names another host, or that a web page of another origin sends.
    pub(crate) fn check(&self, call: &Call<'_>) -> Result<(), ForeignRequest> {
        let host = call.headers.one("host").ok_or(ForeignRequest::Host)?;
        if !self.knows(host) {
            return Err(ForeignRequest::Host);
        }
        let mut origins = call.headers.all("origin");
        let foreign = origins.any(|origin| {
            let origin = str::from_utf8(origin).unwrap_or_default();
            let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            !host.is_some_and(|host| self.knows(host))
        });
        let cross = call.headers.all("sec-fetch-site").any(|site| site == b"cross-site");
        if foreign || cross { Err(ForeignRequest::Page) } else { Ok(()) }
    }

    fn knows(&self, host: &str) -> bool {
        self.0.iter().any(|known| known.eq_ignore_ascii_case(host))
    }
}

/// Why a request is refused before its token is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignRequest {
    /// `Host` is missing, or is not a name of this listener.
    Host,
    /// A browser sent it for a page of another origin.
    Page,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Reservation;
    use crate::web::Headers;

    fn with<T>(lines: &[(&str, &str)], ask: impl FnOnce(&Call<'_>) -> T) -> T {
        let lines: Vec<httparse::Header<'_>> = lines
            .iter()
            .map(|(name, value)| httparse::Header { name, value: value.as_bytes() })
            .collect();
        ask(&Call {
            peer: [127, 0, 0, 1].into(),
            method: "GET",
            path: "/",
            query: None,
            headers: Headers::Lines(&lines),
            body: b"",
            room: &Reservation::default(),
        })
    }

    #[test]
    fn only_the_exact_token_authenticates() {
        let tokens = Tokens::new(Secret::new([1; 32]), "operator-token-1234", "reader-token-12345");
        for (field, role) in [
            ("Bearer operator-token-1234", Some(AdminRole::Operator)),
            ("bearer reader-token-12345", Some(AdminRole::Reader)),
            ("Bearer operator-token-1234 ", None),
            ("Bearer operator-token-1234\t", None),
            ("Bearer operator-token-123", None),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic operator-token-1234", None),
            ("operator-token-1234", None),
        ] {
            assert_eq!(
                with(&[("Authorization", field)], |call| tokens.identity(call)),
                role.map(|role: AdminRole| AdminIdentity { name: role.name().into(), role }),
                "{field}"
            );
        }
        assert_eq!(with(&[], |call| tokens.identity(call)), None);
        let twice = [("Authorization", "Bearer operator-token-1234"); 2];
        assert_eq!(with(&twice, |call| tokens.identity(call)), None);
    }

    #[test]
    fn foreign_hosts_and_pages_are_refused() {
        let hosts = Hosts::new("127.0.0.1:8082".parse().unwrap(), &["admin.example".to_owned()]);
        for (lines, expected) in [
            (&[("Host", "127.0.0.1:8082")][..], Ok(())),
            (&[("Host", "localhost:8082")], Ok(())),
            (&[("Host", "[::1]:8082")], Ok(())),
            (&[("Host", "Admin.Example")], Ok(())),
            (&[("Host", "evil.example")], Err(ForeignRequest::Host)),
            (&[("Host", "evil.example:8082")], Err(ForeignRequest::Host)),
            (&[("Host", "127.0.0.1:8082@evil.example")], Err(ForeignRequest::Host)),
            (&[("Host", "192.0.2.1:8082")], Err(ForeignRequest::Host)),
            (&[("Host", "")], Err(ForeignRequest::Host)),
            (&[], Err(ForeignRequest::Host)),
            (&[("Host", "localhost"), ("Origin", "http://localhost:8082")], Ok(())),
            (&[("Host", "localhost"), ("Origin", "null")], Err(ForeignRequest::Page)),
            (
                &[("Host", "localhost"), ("Origin", "http://evil.example")],
                Err(ForeignRequest::Page),
            ),
            (&[("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")], Err(ForeignRequest::Page)),
            (&[("Host", "localhost"), ("Sec-Fetch-Site", "same-origin")], Ok(())),
        ] {
            assert_eq!(with(lines, |call| hosts.check(call)), expected, "{lines:?}");
        }
    }
}
