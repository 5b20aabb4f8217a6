//! Authentication of operators by token.

use super::users::AdminUsers;
use crate::files;
use crate::web::Call;
use data_encoding::BASE32_NOPAD;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tidegate::Secret;
use tidegate_store::read_private;

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
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
}
