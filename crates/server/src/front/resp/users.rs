//! The users file, which restricts RESP to clients with a token.
//!
//! ```text
//!   # name  role      token
//!   app     client    3f1c9a…
//!   ops     operator  9be027…
//! ```

use std::io;
use std::path::Path;
use tidegate::Secret;
use tidegate_store::read_private;

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UserRole {
    /// Check and report.
    Client,
    /// Check, report, and reset counters.
    Operator,
}

/// The users of a listener.
pub(crate) struct Users {
    secret: Secret,
    /// What a client may do without a token: nothing where there are users.
    unnamed: Option<UserRole>,
    known: Vec<User>,
}

struct User {
    name: String,
    role: UserRole,
    /// The signature of the token. Comparing signatures takes the same time wherever a guess is wrong.
    token: [u8; 32],
}

const MOST_USERS: usize = 1_000;
const SHORTEST_TOKEN: usize = 16;

impl Users {
    /// No users: every client has this role.
    pub(crate) const fn everybody(secret: Secret, role: UserRole) -> Self {
        Self { secret, unnamed: Some(role), known: Vec::new() }
    }

    /// Reads a users file.
    pub(crate) fn read(path: &Path, secret: Secret) -> io::Result<Self> {
        let wrong = |text: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
        };
        let bytes = read_private(path, 1024 * 1024).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| wrong("the users file is not valid UTF-8".to_owned()))?;
        let mut known: Vec<User> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let user = User::read(line, &secret)
                .map_err(|error| wrong(format!("line {number}: {error}")))?;
            let Some(user) = user else { continue };
            if known.iter().any(|known| known.name == user.name) {
                return Err(wrong(format!("line {number}: user `{}` is defined twice", user.name)));
            }
            if known.len() >= MOST_USERS {
                return Err(wrong(format!("line {number}: more than {MOST_USERS} users")));
            }
            known.push(user);
        }
        if known.is_empty() {
            return Err(wrong(
                "no users in this file; write `name client|operator token`".to_owned(),
            ));
        }
        Ok(Self { secret, unnamed: None, known })
    }

    /// What a client may do without a token.
    pub(crate) const fn unnamed(&self) -> Option<UserRole> {
        self.unnamed
    }

    /// The name and role of the user with this token. Without a name, or with the name `default`, the token alone decides.
    pub(crate) fn known(&self, name: Option<&[u8]>, token: &[u8]) -> Option<(&str, UserRole)> {
        let name = name.filter(|name| *name != b"default");
        let mut users = self.known.iter().filter(|user| {
            name.is_none_or(|name| name == user.name.as_bytes())
                && self.secret.signed(token, &user.token)
        });
        users.next().map(|user| (user.name.as_str(), user.role))
    }
}

impl User {
    /// Reads a line; `None` for an empty line or a comment.
    fn read(line: &str, secret: &Secret) -> Result<Option<Self>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, role, token) = match words.as_slice() {
            [] => return Ok(None),
            [first, ..] if first.starts_with('#') => return Ok(None),
            [name, "client", token] => (*name, UserRole::Client, *token),
            [name, "operator", token] => (*name, UserRole::Operator, *token),
            _ => return Err("write `name client|operator token`".to_owned()),
        };
        if token.len() < SHORTEST_TOKEN {
            return Err(format!("a token must have at least {SHORTEST_TOKEN} characters"));
        }
        let token = secret.sign(token.as_bytes());
        Ok(Some(Self { name: name.to_owned(), role, token }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Users> {
        let path = std::env::temp_dir().join(format!(
            "tidegate-users-{}-{}",
            std::process::id(),
            text.len()
        ));
        crate::files::replace(&path, text.as_bytes()).unwrap();
        let users = Users::read(&path, Secret::new([3; 32]));
        std::fs::remove_file(&path).unwrap();
        users
    }

    #[test]
    fn a_user_is_known_by_name_and_token() {
        let users = read("# users\n\napp client 0123456789abcdef\nops operator fedcba9876543210\n")
            .unwrap();
        let role = |name: Option<&str>, token: &str| {
            users.known(name.map(str::as_bytes), token.as_bytes()).map(|(_, role)| role)
        };
        assert_eq!(users.unnamed(), None);
        assert_eq!(role(Some("app"), "0123456789abcdef"), Some(UserRole::Client));
        assert_eq!(role(None, "fedcba9876543210"), Some(UserRole::Operator));
        assert_eq!(role(Some("default"), "fedcba9876543210"), Some(UserRole::Operator));
        assert_eq!(role(Some("app"), "fedcba9876543210"), None);
        assert_eq!(role(Some("app"), "0123456789abcde"), None);
        assert_eq!(role(Some("root"), "0123456789abcdef"), None);
        let everybody = Users::everybody(Secret::new([3; 32]), UserRole::Client);
        assert_eq!(
            (everybody.unnamed(), everybody.known(None, b"")),
            (Some(UserRole::Client), None)
        );
    }

    #[test]
    fn an_error_in_the_file_names_its_line() {
        for (text, part) in [
            ("app client\n", "line 1: write `name client|operator token`"),
            ("\napp boss 0123456789abcdef\n", "line 2: write"),
            ("app client short\n", "line 1: a token must have at least 16"),
            (
                "a client 0123456789abcdef\na client 0123456789abcdef\n",
                "line 2: user `a` is defined twice",
            ),
            ("# none\n", "no users in this file"),
        ] {
            let error = read(text).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
