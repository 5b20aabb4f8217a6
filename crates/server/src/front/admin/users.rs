//! The users file of the admin listener: named tokens, so that the audit log says who made a change.
//!
//! ```text
//!   # name  role      token
//!   alice   operator  9be027…
//!   grafana reader    3f1c9a…
//! ```
//!
//! The file is read again when it changes. If it then has errors, the users of before stay.

use super::auth::{AdminRole, SHORTEST_TOKEN};
use crate::health::Health;
use arc_swap::ArcSwap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate::Secret;
use tidegate_store::read_private;

/// The users of the admin listener, by their tokens.
pub(crate) struct AdminUsers {
    path: PathBuf,
    secret: Secret,
    /// Replaced as a whole when the file changes.
    users: ArcSwap<Vec<AdminUser>>,
}

/// A user, with the signature of the token.
struct AdminUser {
    name: Arc<str>,
    role: AdminRole,
    token: [u8; 32],
}

const MOST_USERS: usize = 1_000;
const MOST_BYTES: u64 = 1024 * 1024;
/// Characters of a name.
const LONGEST_NAME: usize = 64;
/// How the audit log names the tokens of the data directory, and the server itself.
const RESERVED: [&str; 3] = ["operator", "reader", "tidegate"];
const FORM: &str = "write `name reader|operator token`";

impl AdminUsers {
    /// Reads a users file. An error says the line.
    pub(crate) fn open(path: &Path, secret: Secret) -> io::Result<Self> {
        let users = ArcSwap::from_pointee(read(path, &secret)?);
        Ok(Self { path: path.to_owned(), secret, users })
    }

    /// Reads the file again. If it is not valid, the log and `/ready` say so.
    pub(crate) fn reload(&self, health: &Health) {
        let problem = match read(&self.path, &self.secret) {
            Ok(users) => {
                tracing::info!(users = users.len(), "the users of the admin listener were read");
                self.users.store(Arc::new(users));
                None
            }
            Err(error) => {
                tracing::error!("the users of the admin listener are not changed: {error}");
                Some(error.to_string())
            }
        };
        health.set_problem("admin users", problem);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name and role of the user with this token, by its signature. All users are compared, and each comparison takes the same
    /// time, so the time says nothing about which of them is close.
    pub(super) fn known(&self, signature: &[u8; 32]) -> Option<(Arc<str>, AdminRole)> {
        let users = self.users.load();
        let found =
            users.iter().fold(
                None,
                |found, user| {
                    if same(&user.token, signature) { Some(user) } else { found }
                },
            );
        found.map(|user| (Arc::clone(&user.name), user.role))
    }
}

/// Compares all bytes, also behind one that differs.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let differs = a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b));
    std::hint::black_box(differs) == 0
}

fn read(path: &Path, secret: &Secret) -> io::Result<Vec<AdminUser>> {
    let wrong = |text: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
    };
    let bytes = read_private(path, MOST_BYTES).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not valid UTF-8".to_owned()))?;
    let mut users: Vec<AdminUser> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let user = user(line, secret).map_err(|error| wrong(format!("line {number}: {error}")))?;
        let Some(user) = user else { continue };
        let repeated = if users.iter().any(|known| known.name == user.name) {
            Some(format!("user `{}` is defined twice", user.name))
        } else if users.iter().any(|known| known.token == user.token) {
            Some("another user has the same token".to_owned())
        } else if users.len() >= MOST_USERS {
            Some(format!("more than {MOST_USERS} users"))
        } else {
            None
        };
        if let Some(error) = repeated {
            return Err(wrong(format!("line {number}: {error}")));
        }
        users.push(user);
    }
    if users.is_empty() {
        return Err(wrong(format!("no users in this file; {FORM}")));
    }
    Ok(users)
}

/// Reads a line; `None` for an empty line or a comment. Errors do not repeat the line, which has a token.
fn user(line: &str, secret: &Secret) -> Result<Option<AdminUser>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, role, token) = match words.as_slice() {
        [] => return Ok(None),
        [first, ..] if first.starts_with('#') => return Ok(None),
        [name, "reader", token] => (*name, AdminRole::Reader, *token),
        [name, "operator", token] => (*name, AdminRole::Operator, *token),
        _ => return Err(FORM.to_owned()),
    };
    let letter = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    if name.len() > LONGEST_NAME || !name.bytes().all(letter) {
        return Err(format!("a name has 1 to {LONGEST_NAME} of `a-z 0-9 . _ -`"));
    }
    if RESERVED.contains(&name) {
        return Err(format!("the name `{name}` is taken; give the user another name"));
    }
    if token.len() < SHORTEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "a token must be one word of at least {SHORTEST_TOKEN} ASCII characters"
        ));
    }
    let token = secret.sign(token.as_bytes());
    Ok(Some(AdminUser { name: name.into(), role, token }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "alice operator 0123456789abcdef\n";
    const BOB: &str = "bob reader fedcba9876543210\n";

    fn secret() -> Secret {
        Secret::new([3; 32])
    }

    struct UsersFile(PathBuf);

    impl UsersFile {
        fn new(name: &str, text: &str) -> Self {
            let file = format!("tidegate-admin-users-{}-{name}", std::process::id());
            let file = Self(std::env::temp_dir().join(file));
            file.write(text);
            file
        }

        fn write(&self, text: &str) {
            crate::files::replace(&self.0, text.as_bytes()).unwrap();
        }
    }

    impl Drop for UsersFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn known(users: &AdminUsers, token: &str) -> Option<(String, AdminRole)> {
        let known = users.known(&secret().sign(token.as_bytes()));
        known.map(|(name, role)| (name.to_string(), role))
    }

    #[test]
    fn a_user_is_known_by_the_token() {
        let file = UsersFile::new("known", &format!("# name role token\n\n{ALICE}{BOB}"));
        let users = AdminUsers::open(&file.0, secret()).unwrap();
        let alice = Some(("alice".to_owned(), AdminRole::Operator));
        assert_eq!(known(&users, "0123456789abcdef"), alice);
        assert_eq!(known(&users, "fedcba9876543210"), Some(("bob".to_owned(), AdminRole::Reader)));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "alice"] {
            assert_eq!(known(&users, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_that_becomes_invalid_changes_nothing() {
        let file = UsersFile::new("reload", ALICE);
        let (users, health) = (AdminUsers::open(&file.0, secret()).unwrap(), Health::default());
        file.write("alice boss 0123456789abcdef\n");
        users.reload(&health);
        assert!(known(&users, "0123456789abcdef").is_some());
        assert!(health.report().reasons[0].contains("line 1: write `name reader|operator token`"));
        file.write(BOB);
        users.reload(&health);
        assert_eq!((known(&users, "0123456789abcdef"), health.report().reasons.len()), (None, 0));
        assert!(known(&users, "fedcba9876543210").is_some());
    }

    #[test]
    fn an_error_in_the_file_names_its_line_and_no_token() {
        let long = format!("{} reader 0123456789abcdef", "x".repeat(65));
        let many: String = (0..=MOST_USERS)
            .map(|number| format!("user{number} reader the-token-of-user-{number}\n"))
            .collect();
        for (text, part) in [
            ("alice operator\n".to_owned(), "line 1: write `name reader|operator token`"),
            (format!("\n{ALICE}bob boss 0123456789abcdef"), "line 3: write"),
            ("alice operator short".to_owned(), "line 1: a token must be one word of at least 16"),
            ("Alice operator 0123456789abcdef".to_owned(), "line 1: a name has 1 to 64"),
            (long, "line 1: a name has"),
            (
                "operator operator 0123456789abcdef".to_owned(),
                "line 1: the name `operator` is taken",
            ),
            (format!("{ALICE}{ALICE}"), "line 2: user `alice` is defined twice"),
            (
                format!("{ALICE}eve reader 0123456789abcdef"),
                "line 2: another user has the same token",
            ),
            (many, "line 1001: more than 1000 users"),
            ("# none\n".to_owned(), "no users in this file"),
        ] {
            let file = UsersFile::new(&part.len().to_string(), &text);
            let error = AdminUsers::open(&file.0, secret()).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
    }
}
