//! Error replies of a server, and what each of them means for the caller and for the connection.
//!
//! | reply | caller | connection |
//! |---|---|---|
//! | MOVED, ASK | follows the redirect: nothing was done | kept |
//! | TRYAGAIN | retries after a short pause: nothing was done | kept |
//! | NOSCRIPT, `Function not found` | loads the programs and calls again: nothing was done | kept |
//! | no FCALL, or the user may not run it | uses scripts instead of functions: nothing was done | kept |
//! | CLUSTERDOWN, LOADING, READONLY, OOM, BUSY, NOAUTH… | gets an error: the store refuses | replaced |
//! | another program's data, an unknown command | gets an error that an operator must look into | kept |
//! | none, because the connection ended; an error of an unknown kind | gets an error: the store cannot be reached | replaced |
//! | bytes that are not a valid reply | gets an error that an operator must look into | replaced |

use super::address::Address;
use crate::error::StoreError;
use crate::remote::ErrorClass;
use ::redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::Span;

/// Why a command has no result yet, or will have none.
#[derive(Debug)]
pub(super) enum CommandError {
    /// Another server owns the slot: from now on (MOVED), or for this command only (ASK, `asking`).
    Redirect { to: Option<Address>, asking: bool },
    /// The keys of the command are being migrated right now.
    TryAgain,
    /// The server does not have the script or the function.
    NotLoaded,
    /// The server has no functions, or the user may not call them. This is why.
    NoFunctions(StoreError),
    /// The command failed.
    Failed(ErrorClass, StoreError),
}

/// Longer error texts of a server are cut.
const MAX_TEXT: usize = 200;

impl CommandError {
    /// Classifies an error of the client library.
    pub(super) fn of(error: &RedisError, timeout: Span) -> Self {
        let kind = error.kind();
        let is = |wanted| kind == ErrorKind::Server(wanted);
        let asking = is(ServerErrorKind::Ask);
        if asking || is(ServerErrorKind::Moved) {
            let to = error.redirect_node().and_then(|(to, _)| Address::parse(to));
            return Self::Redirect { to, asking };
        }
        if is(ServerErrorKind::TryAgain) {
            return Self::TryAgain;
        }
        let text: String = error.to_string().chars().take(MAX_TEXT).collect();
        if is(ServerErrorKind::NoScript) || text.contains("Function not found") {
            return Self::NotLoaded;
        }
        let class = class_of(error);
        let lacks_functions = is_about_functions(&text);
        let error = if class == ErrorClass::TimedOut {
            StoreError::TimedOut(timeout)
        } else if class == ErrorClass::Wrong {
            StoreError::Broken(text)
        } else if class.is_refusal() {
            StoreError::Refuses(text)
        } else {
            StoreError::Unavailable(text.into())
        };
        if lacks_functions {
            return Self::NoFunctions(error);
        }
        Self::Failed(class, error)
    }

    pub(super) fn timed_out(timeout: Span) -> Self {
        Self::Failed(ErrorClass::TimedOut, StoreError::TimedOut(timeout))
    }

    /// A reply that is not valid.
    pub(super) fn wrong(error: StoreError) -> Self {
        Self::Failed(ErrorClass::Wrong, error)
    }

    /// Whether FUNCTION LOAD failed because another node was faster.
    pub(super) fn is_loaded_already(&self) -> bool {
        matches!(self, Self::Failed(_, StoreError::Broken(text)) if text.contains("already exists"))
    }

    /// Whether functions cannot be used on this server: it has none, the user may not load them, or it cannot compile ours.
    pub(super) const fn forbids_functions(&self) -> bool {
        matches!(
            self,
            Self::NoFunctions(_) | Self::Failed(ErrorClass::Refused | ErrorClass::Wrong, _)
        )
    }

    /// The error for a caller that cannot follow redirects or retry.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Failed(_, error) => error,
            Self::Redirect { .. } => StoreError::Unusable(
                "the server belongs to a cluster; use an address that begins with `redis+cluster://`"
                    .to_owned(),
            ),
            Self::TryAgain => {
                StoreError::Unavailable("its keys are being migrated to another server".into())
            }
            Self::NotLoaded => {
                StoreError::Unavailable("it loses the programs right after they are loaded".into())
            }
            Self::NoFunctions(error) => error,
        }
    }
}

/// The class of an error of the client library.
fn class_of(error: &RedisError) -> ErrorClass {
    if error.is_timeout() {
        return ErrorClass::TimedOut;
    }
    match error.code().unwrap_or_default() {
        "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => ErrorClass::Down,
        "LOADING" => ErrorClass::Loading,
        "READONLY" => ErrorClass::ReadOnly,
        "OOM" | "MISCONF" => ErrorClass::Full,
        "BUSY" => ErrorClass::Busy,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => ErrorClass::Refused,
        "WRONGTYPE" | "ERR" => ErrorClass::Wrong,
        _ => class_of_kind(error.kind()),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's errors are an open set")]
const fn class_of_kind(kind: ErrorKind) -> ErrorClass {
    match kind {
        ErrorKind::Io => ErrorClass::Disconnected,
        ErrorKind::AuthenticationFailed => ErrorClass::Refused,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::InvalidClientConfig => {
            ErrorClass::Wrong
        }
        _ => ErrorClass::Other,
    }
}

/// Whether a server says that it has no functions, or that this user may not use them.
fn is_about_functions(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let refused = text.contains("unknown command") || text.contains("no permissions");
    refused && (text.contains("fcall") || text.contains("function"))
}

/// A server that does not know the commands of a cluster or of a sentinel is the wrong kind of server: retrying does not help.
pub(super) fn unusable_if_broken(error: StoreError) -> StoreError {
    match error {
        StoreError::Broken(why) => StoreError::Unusable(why),
        other @ (StoreError::Unavailable(_)
        | StoreError::Refuses(_)
        | StoreError::TimedOut(_)
        | StoreError::Partly(_)
        | StoreError::Overloaded
        | StoreError::TooManyLimits
        | StoreError::Unsupported { .. }
        | StoreError::Unusable(_)
        | StoreError::OtherSecret) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error reply, as the client library returns it.
    fn error_reply(line: &str) -> RedisError {
        let reply = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    fn classified(line: &str) -> CommandError {
        CommandError::of(&error_reply(line), Span::from_millis(50))
    }

    #[test]
    fn redirects_name_their_target() {
        for (line, asks) in
            [("MOVED 3999 127.0.0.1:6381", false), ("ASK 3999 127.0.0.1:6381", true)]
        {
            let CommandError::Redirect { to, asking } = classified(line) else { panic!("{line}") };
            assert_eq!((to.unwrap().to_string().as_str(), asking), ("127.0.0.1:6381", asks));
        }
        for line in ["MOVED", "MOVED x", "MOVED 1 nowhere", "ASK 1 host:99999", "MOVED 1 :0"] {
            assert!(
                matches!(classified(line), CommandError::Redirect { to: None, .. }),
                "{line}: {:?}",
                classified(line)
            );
        }
    }

    #[test]
    fn every_error_reply_has_its_class() {
        for (line, class) in [
            ("CLUSTERDOWN Hash slot not served", ErrorClass::Down),
            ("MASTERDOWN Link with MASTER is down", ErrorClass::Down),
            ("LOADING Redis is loading the dataset in memory", ErrorClass::Loading),
            ("READONLY You can't write against a read only replica.", ErrorClass::ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorClass::Full),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorClass::Full),
            ("BUSY Redis is busy running a script.", ErrorClass::Busy),
            ("NOAUTH Authentication required.", ErrorClass::Refused),
            ("WRONGPASS invalid username-password pair", ErrorClass::Refused),
            ("NOPERM this user has no permissions", ErrorClass::Refused),
            ("WRONGTYPE Operation against a key", ErrorClass::Wrong),
            ("ERR unknown command 'EVALSHA'", ErrorClass::Wrong),
            ("WHATEVER comes next", ErrorClass::Other),
        ] {
            assert!(
                matches!(classified(line), CommandError::Failed(found, _) if found == class),
                "{line}: {:?}",
                classified(line)
            );
        }
        assert!(matches!(classified("TRYAGAIN Multiple keys"), CommandError::TryAgain));
        assert!(matches!(classified("NOSCRIPT No matching script."), CommandError::NotLoaded));
    }

    #[test]
    fn a_server_that_refuses_is_not_reported_as_unreachable() {
        for line in ["OOM no room", "NOPERM no", "READONLY no", "LOADING wait", "BUSY wait"] {
            let error = classified(line).into_error();
            assert!(matches!(error, StoreError::Refuses(_)), "{line}: {error}");
            assert!(error.not_sent().to_string().starts_with("the store refuses: "), "{error}");
        }
    }

    /// An error that is passed on once more does not repeat itself: `the store cannot be reached: the store cannot be reached: …`.
    #[test]
    fn an_error_that_is_passed_on_says_everything_once() {
        for error in [
            StoreError::Unavailable("Connection refused".into()),
            StoreError::Refuses("OOM".to_owned()),
            StoreError::TimedOut(Span::from_millis(50)),
            StoreError::Partly(vec![1]),
            StoreError::Overloaded,
            StoreError::Unusable("no such user".to_owned()),
        ] {
            let once = error.not_sent();
            let twice = once.not_sent().to_string();
            assert_eq!(once.to_string(), twice);
            assert!(twice.matches("cannot be reached").count() <= 1, "{twice}");
        }
    }

    #[test]
    fn a_long_error_text_is_cut() {
        let text = classified(&format!("OOM {}", "x".repeat(1_000_000))).into_error().to_string();
        assert!(text.len() < 300, "{}", text.len());
    }
}
