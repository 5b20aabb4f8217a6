//! What a server may answer besides what it was asked for, and what each of these means.
//!
//! | it says | its caller | the connection |
//! |---|---|---|
//! | MOVED, ASK | goes there: nothing was done | stays |
//! | TRYAGAIN | asks again in a moment: nothing was done | stays |
//! | NOSCRIPT | sends the script and asks again: nothing was done | stays |
//! | CLUSTERDOWN, LOADING, READONLY, OOM, BUSY, NOAUTH… | is told that the store is away | begins anew |
//! | another program's data, an unknown command | is told that somebody must look | stays |
//! | bytes that are no reply | is told that somebody must look | begins anew |

use super::address::Address;
use crate::error::StoreError;
use ::redis::{ErrorKind, RedisError, ServerErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::Span;

/// Why a question has no answer yet, or will have none.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Another server has the slot, for good or for this question only.
    Elsewhere { to: Option<Address>, asking: bool },
    /// The keys of the question are just being moved.
    TryAgain,
    /// The server does not know the script.
    NoScript,
    /// There is no answer.
    Failed(Class, StoreError),
}

/// Kinds of failures, as operators see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// No answer in time.
    TimedOut,
    /// No connection, or one that ended.
    Disconnected,
    /// Too many wait already.
    Overloaded,
    /// The cluster or the primary is down, or nobody has the slot.
    Down,
    /// It is reading its data.
    Loading,
    /// It is a replica.
    ReadOnly,
    /// It has no room, or cannot write its data.
    Full,
    /// It is busy with another script.
    Busy,
    /// It does not let us in, or not do what we must.
    Refused,
    /// It sent us from server to server.
    Redirected,
    /// Another program's data, an answer that cannot be.
    Wrong,
    /// Anything else.
    Other,
}

/// How often each of them was met, redirections included.
#[derive(Debug, Default)]
pub(super) struct Counts {
    // Relaxed: read by whoever looks at metrics.
    classes: [AtomicU64; Class::ALL.len()],
}

/// As much of a server's words as anybody wants to read.
const MOST_TEXT: usize = 200;

impl Class {
    pub(super) const ALL: [Self; 12] = [
        Self::TimedOut,
        Self::Disconnected,
        Self::Overloaded,
        Self::Down,
        Self::Loading,
        Self::ReadOnly,
        Self::Full,
        Self::Busy,
        Self::Refused,
        Self::Redirected,
        Self::Wrong,
        Self::Other,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Disconnected => "disconnected",
            Self::Overloaded => "overloaded",
            Self::Down => "down",
            Self::Loading => "loading",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Redirected => "redirected",
            Self::Wrong => "wrong",
            Self::Other => "other",
        }
    }

    /// Whether the server answers, and only does not do it.
    const fn is_refusal(self) -> bool {
        match self {
            Self::Down
            | Self::Loading
            | Self::ReadOnly
            | Self::Full
            | Self::Busy
            | Self::Refused => true,
            Self::TimedOut
            | Self::Disconnected
            | Self::Overloaded
            | Self::Redirected
            | Self::Wrong
            | Self::Other => false,
        }
    }

    fn of(error: &RedisError) -> Self {
        if error.is_timeout() {
            return Self::TimedOut;
        }
        match error.code().unwrap_or_default() {
            "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => Self::Down,
            "LOADING" => Self::Loading,
            "READONLY" => Self::ReadOnly,
            "OOM" | "MISCONF" => Self::Full,
            "BUSY" => Self::Busy,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Refused,
            "WRONGTYPE" | "ERR" => Self::Wrong,
            _ => Self::of_kind(error.kind()),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the client's errors are an open set")]
    const fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Io => Self::Disconnected,
            ErrorKind::AuthenticationFailed => Self::Refused,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::InvalidClientConfig => {
                Self::Wrong
            }
            _ => Self::Other,
        }
    }
}

impl Trouble {
    /// What a failed command means.
    pub(super) fn of(error: &RedisError, timeout: Span) -> Self {
        let kind = error.kind();
        let says = |wanted| kind == ErrorKind::Server(wanted);
        let asking = says(ServerErrorKind::Ask);
        if asking || says(ServerErrorKind::Moved) {
            let to = error.redirect_node().and_then(|(to, _)| Address::parse(to));
            return Self::Elsewhere { to, asking };
        }
        if says(ServerErrorKind::TryAgain) {
            return Self::TryAgain;
        }
        if says(ServerErrorKind::NoScript) {
            return Self::NoScript;
        }
        let class = Class::of(error);
        let told: String = error.to_string().chars().take(MOST_TEXT).collect();
        let error = if class == Class::TimedOut {
            StoreError::TimedOut(timeout)
        } else if class == Class::Wrong {
            StoreError::Broken(told)
        } else if class.is_refusal() {
            StoreError::Refuses(told)
        } else {
            StoreError::Unavailable(told.into())
        };
        Self::Failed(class, error)
    }

    pub(super) fn timed_out(timeout: Span) -> Self {
        Self::Failed(Class::TimedOut, StoreError::TimedOut(timeout))
    }

    /// The server is not asked, because of what went wrong before: nothing was counted.
    pub(super) fn away(why: &StoreError) -> Self {
        let error = match why {
            StoreError::Unavailable(why) => StoreError::Unavailable(why.to_string().into()),
            StoreError::Refuses(why) => StoreError::Refuses(why.clone()),
            StoreError::Unusable(why) => StoreError::Unusable(why.clone()),
            StoreError::Broken(why) => StoreError::Broken(why.clone()),
            StoreError::TimedOut(after) => {
                StoreError::Unavailable(format!("it did not answer within {after}").into())
            }
            other @ (StoreError::Partly(_)
            | StoreError::Overloaded
            | StoreError::TooManyLimits
            | StoreError::Unsupported { .. }) => StoreError::Unavailable(other.to_string().into()),
        };
        Self::Failed(Class::Disconnected, error)
    }

    /// An answer that cannot be.
    pub(super) fn wrong(error: StoreError) -> Self {
        Self::Failed(Class::Wrong, error)
    }

    /// For those who have nowhere else to go.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Failed(_, error) => error,
            Self::Elsewhere { .. } => StoreError::Unusable(
                "the server is one of a cluster; its address begins with `redis+cluster://`"
                    .to_owned(),
            ),
            Self::TryAgain => StoreError::Unavailable("keys are being moved".into()),
            Self::NoScript => StoreError::Unavailable("it does not keep the script".into()),
        }
    }
}

impl Counts {
    pub(super) fn count(&self, class: Class) {
        let place = Class::ALL.iter().position(|one| *one == class);
        if let Some(count) = place.and_then(|place| self.classes.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self.classes.iter().map(|count| count.load(Ordering::Relaxed));
        Class::ALL.iter().map(|class| class.name()).zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server says, as the client hands it on.
    fn said(line: &str) -> RedisError {
        let reply = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    fn trouble(line: &str) -> Trouble {
        Trouble::of(&said(line), Span::from_millis(50))
    }

    #[test]
    fn redirections_say_where_to_go() {
        for (line, asks) in
            [("MOVED 3999 127.0.0.1:6381", false), ("ASK 3999 127.0.0.1:6381", true)]
        {
            let Trouble::Elsewhere { to, asking } = trouble(line) else { panic!("{line}") };
            assert_eq!((to.unwrap().to_string().as_str(), asking), ("127.0.0.1:6381", asks));
        }
        for line in ["MOVED", "MOVED x", "MOVED 1 nowhere", "ASK 1 host:99999", "MOVED 1 :0"] {
            assert!(
                matches!(trouble(line), Trouble::Elsewhere { to: None, .. }),
                "{line}: {:?}",
                trouble(line)
            );
        }
    }

    #[test]
    fn every_answer_has_its_class() {
        for (line, class) in [
            ("CLUSTERDOWN Hash slot not served", Class::Down),
            ("MASTERDOWN Link with MASTER is down", Class::Down),
            ("LOADING Redis is loading the dataset in memory", Class::Loading),
            ("READONLY You can't write against a read only replica.", Class::ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", Class::Full),
            ("MISCONF Redis is configured to save RDB snapshots", Class::Full),
            ("BUSY Redis is busy running a script.", Class::Busy),
            ("NOAUTH Authentication required.", Class::Refused),
            ("WRONGPASS invalid username-password pair", Class::Refused),
            ("NOPERM this user has no permissions", Class::Refused),
            ("WRONGTYPE Operation against a key", Class::Wrong),
            ("ERR unknown command 'EVALSHA'", Class::Wrong),
            ("WHATEVER comes next", Class::Other),
        ] {
            assert!(
                matches!(trouble(line), Trouble::Failed(found, _) if found == class),
                "{line}: {:?}",
                trouble(line)
            );
        }
        assert!(matches!(trouble("TRYAGAIN Multiple keys"), Trouble::TryAgain));
        assert!(matches!(trouble("NOSCRIPT No matching script."), Trouble::NoScript));
    }

    #[test]
    fn a_server_that_answers_is_not_called_unreachable() {
        for line in ["OOM no room", "NOPERM no", "READONLY no", "LOADING wait", "BUSY wait"] {
            let error = trouble(line).into_error();
            assert!(matches!(error, StoreError::Refuses(_)), "{line}: {error}");
            assert!(
                Trouble::away(&error).into_error().to_string().starts_with("the store refuses: "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_long_answer_is_cut() {
        let told = trouble(&format!("OOM {}", "x".repeat(1_000_000))).into_error().to_string();
        assert!(told.len() < 300, "{}", told.len());
    }

    #[test]
    fn every_class_is_counted_under_its_own_name() {
        let counts = Counts::default();
        for class in Class::ALL {
            counts.count(class);
        }
        let all = counts.all();
        assert!(all.iter().all(|(_, count)| *count == 1));
        let mut names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Class::ALL.len());
    }
}
