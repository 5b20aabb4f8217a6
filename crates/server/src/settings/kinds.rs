//! Kinds of values: what each looks like, and how its text is read.

use super::reader::Kind;
use crate::bounds::LEAST_BUDGET;
use crate::front::grpc::HeaderChoice;
use crate::line_writer::LogPlace;
use crate::log::LogFormat;
use crate::net::Listener;
use crate::recorder::SampleBy;
use crate::shown_key::KeyForm;
use data_encoding::HEXLOWER_PERMISSIVE;
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tidegate::http::LegacyReset;
use tidegate_store::RedisClock;

/// Which store keeps the counters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    /// In memory, and in the data directory.
    File,
    /// The URL. It may contain a password, so it is never printed.
    Redis(String),
    /// The URL, with the addresses of the servers.
    Memcached(String),
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory:",
            Self::File => "file:",
            Self::Redis(_) => "redis:",
            Self::Memcached(_) => "memcached:",
        })
    }
}

// === texts and files ===

pub(super) const TEXT: Kind<Option<String>> = Kind::new("TEXT", |text| Ok(optional(text)));
pub(super) const URL: Kind<Option<String>> = Kind::new("URL", |text| Ok(optional(text)));
pub(super) const FILE: Kind<Option<PathBuf>> = Kind::new("FILE", |text| Ok(optional(text)));
pub(super) const DIR: Kind<Option<PathBuf>> = Kind::new("DIR", |text| Ok(optional(text)));
pub(super) const DATA_DIR: Kind<PathBuf> = Kind::new("DIR", |text| Ok(text.into()));

/// Files, separated by commas.
pub(super) const FILES: Kind<Vec<PathBuf>> = Kind::new("FILES", |text| {
    let paths = text.split(',').map(str::trim).filter(|path| !path.is_empty());
    Ok(paths.map(PathBuf::from).collect())
});

/// `off`, or a file.
pub(super) const RECORDING: Kind<Option<PathBuf>> =
    Kind::new("FILE", |text| Ok(optional(text).filter(|_| text != "off")));

/// `off`, `stdout`, or a file.
pub(super) const LOG_PLACE: Kind<Option<LogPlace>> = Kind::new("FILE", |text| match text {
    "off" => Ok(None),
    "stdout" => Ok(Some(LogPlace::Stdout)),
    "" => Err("a file, `stdout` or `off`".to_owned()),
    path => Ok(Some(LogPlace::File(path.into()))),
});

/// Host names, in which case does not matter.
pub(super) const HOSTS: Kind<Vec<String>> =
    Kind::new("NAMES", |text| Ok(words(text).map(str::to_ascii_lowercase).collect()));

pub(super) const AUDIENCES: Kind<Vec<String>> =
    Kind::new("NAMES", |text| Ok(words(text).map(str::to_owned).collect()));

pub(super) const LISTENERS: Kind<Vec<Listener>> = Kind::new("NAMES", |text| {
    let listener = |word: &str| Listener::named(&word.to_ascii_lowercase());
    let found: Option<Vec<Listener>> = words(text).map(listener).collect();
    found.ok_or_else(|| {
        format!("listeners are {}", listed(&Listener::ALL.map(Listener::name), "and"))
    })
});

// === one of several words ===

pub(super) const SWITCH: Kind<bool> =
    Kind::new("on|off", |text| one_of(text, [("on", true), ("off", false)]));

pub(super) const REDIS_CLOCK: Kind<RedisClock> = Kind::new("server|node", |text| {
    one_of(text, [("server", RedisClock::Server), ("node", RedisClock::Node)])
});

pub(super) const LEGACY_HEADERS: Kind<Option<LegacyReset>> = Kind::new("FORM", |text| {
    let forms =
        [("off", None), ("delta", Some(LegacyReset::Delta)), ("epoch", Some(LegacyReset::Epoch))];
    one_of(text, forms)
});

pub(super) const RESPONSE_HEADERS: Kind<HeaderChoice> = Kind::new("FORM", |text| {
    let choices = [
        ("off", HeaderChoice::Off),
        ("ratelimit", HeaderChoice::Current),
        ("legacy", HeaderChoice::Legacy),
        ("reference", HeaderChoice::Reference),
    ];
    one_of(text, choices)
});

pub(super) const KEY_FORM: Kind<KeyForm> = Kind::new("FORM", |text| {
    let forms =
        [("clear", KeyForm::Clear), ("hashed", KeyForm::Hashed), ("omitted", KeyForm::Omitted)];
    one_of(text, forms)
});

/// Whether the recording has clear values.
pub(super) const CLEAR: Kind<bool> =
    Kind::new("FORM", |text| one_of(text, [("hashed", false), ("clear", true)]));

pub(super) const SAMPLE_BY: Kind<SampleBy> =
    Kind::new("FORM", |text| one_of(text, [("user", SampleBy::User), ("ip", SampleBy::Ip)]));

pub(super) const LOG_FORMAT: Kind<LogFormat> = Kind::new("FORM", |text| {
    let formats = [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
    one_of(text, formats)
});

pub(super) const LEVEL: Kind<tracing::Level> = Kind::new("LEVEL", |text| {
    text.parse().map_err(|_| "`error`, `warn`, `info`, `debug` or `trace`".to_owned())
});

// === numbers ===

pub(super) const COUNT: Kind<usize> = Kind::new("N", |text| number(text, 1..=1_000_000));
pub(super) const SAMPLE: Kind<u64> = Kind::new("N", |text| number(text, 1..=1_000_000));

/// A number, or `auto`.
pub(super) const NODES: Kind<Option<u32>> =
    Kind::new("N", |text| or_auto(text, |text| number(text, 1..=10_000)));

/// A number, or `auto` for one to each core.
pub(super) const WORKERS: Kind<usize> = Kind::new("N", |text| {
    let workers = or_auto(text, |text| number(text, 1..=1_024))?;
    Ok(workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)))
});

/// A number, or `auto` for as many as the system allows.
pub(super) const OPEN_FILES: Kind<Option<u64>> = Kind::new("N", |text| {
    or_auto(text, |text| number(text, 64..=1 << 30).map_err(|_| "a number from 64 on".to_owned()))
});

// === sizes ===

pub(super) const SIZE: Kind<usize> = Kind::new("SIZE", bytes);

/// Less would be rotated away before anybody can replay it, or be written too slowly.
pub(super) const MEBIBYTES: Kind<u64> = Kind::new("SIZE", |text| {
    let size = bytes(text).ok().and_then(|size| u64::try_from(size).ok());
    let size = size.filter(|size| *size >= 1 << 20);
    size.ok_or_else(|| "a size is written like `64MiB`, at least `1MiB`".to_owned())
});

/// A size with a minimum that has room for the largest request.
pub(super) const BUDGET: Kind<usize> = Kind::new("SIZE", |text| {
    let size = bytes(text).ok().filter(|size| *size >= LEAST_BUDGET);
    size.ok_or_else(|| "a size is written like `64MiB`, at least 8MiB".to_owned())
});

/// A size, or `0` for none.
pub(super) const TOP_KEYS_MEMORY: Kind<usize> = Kind::new("SIZE", |text| {
    if text == "0" {
        return Ok(0);
    }
    let size = bytes(text).ok().filter(|size| *size <= 1 << 30);
    size.ok_or_else(|| {
        "a size is written like `4MiB`, from 64KiB to 1GiB; `0` disables it".to_owned()
    })
});

// === others ===

/// `127.0.0.1:8080`, or `off`.
pub(super) const ADDRESS: Kind<Option<SocketAddr>> = Kind::new("ADDR", |text| {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        "an address is written like `127.0.0.1:8080` or `[::1]:8080`, or `off`".to_owned()
    })
});

/// `10s`, `500ms`, `2min`.
pub(super) const TIME: Kind<Duration> = Kind::new("TIME", |text| {
    let units =
        [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("day", 86_400_000_u64)];
    let wrong = "a time is written like `10s`, `500ms` or `2min`, from 1ms to 1day";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = units.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
    let millis = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
    millis
        .filter(|millis| (1..=86_400_000).contains(millis))
        .map(Duration::from_millis)
        .ok_or_else(|| wrong.to_owned())
});

/// `memory:`, `file:`, or where Redis, Valkey or memcached is.
pub(super) const STORE: Kind<StoreUrl> = Kind::new("URL", store).hidden();

fn store(text: &str) -> Result<StoreUrl, String> {
    match text {
        "memory:" => return Ok(StoreUrl::Memory),
        "file:" => return Ok(StoreUrl::File),
        _ => {}
    }
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let (family, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let known = match family {
        "redis" => ["", "unix", "cluster", "sentinel"].contains(&kind),
        "rediss" => ["", "cluster", "sentinel"].contains(&kind),
        _ => false,
    };
    if known {
        return Ok(StoreUrl::Redis(text.to_owned()));
    }
    if scheme == "memcached" {
        return Ok(StoreUrl::Memcached(text.to_owned()));
    }
    Err("a store is written like `memory:`, `file:`, `redis://user:password@host:6379/`, `redis+unix:///path`, `redis+cluster://host:port,host:port`, `redis+sentinel://host:port/name` or `memcached://host:port,host:port`".to_owned())
}

// === helpers ===

/// A text that may be empty, which means that nothing is set.
fn optional<T: for<'t> From<&'t str>>(text: &str) -> Option<T> {
    (!text.is_empty()).then(|| T::from(text))
}

/// Names, separated by commas or spaces.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ']).filter(|word| !word.is_empty())
}

/// The value of a word; or all words, as an error.
fn one_of<T, const N: usize>(text: &str, words: [(&str, T); N]) -> Result<T, String> {
    let names = words.each_ref().map(|(word, _)| *word);
    let found = words.into_iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| value).ok_or_else(|| listed(&names, "or"))
}

/// `a`, `b` or `c`.
fn listed(names: &[&str], conjunction: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let Some((last, first)) = quoted.split_last() else { return String::new() };
    format!("{} {conjunction} {last}", first.join(", "))
}

fn number<N: Display + FromStr + PartialOrd>(
    text: &str,
    range: RangeInclusive<N>,
) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("a number from {} to {}", range.start(), range.end()))
}

/// The value, or nothing for `auto`.
fn or_auto<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text == "auto" {
        return Ok(None);
    }
    read(text).map(Some).map_err(|error| format!("{error}, or `auto`"))
}

/// `256MiB`.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 1_usize << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let found = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let size =
        found.and_then(|(number, size)| number.trim().parse::<usize>().ok()?.checked_mul(size));
    size.filter(|size| (1 << 16..=1_usize << 40).contains(size))
        .ok_or_else(|| "a size is written like `256MiB` or `1GiB`, at least 64KiB".to_owned())
}

/// The 32 bytes of a secret, as `tidegate secret show` prints them.
pub(crate) fn secret(text: &str) -> Result<[u8; 32], String> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).ok();
    let secret = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    secret.ok_or_else(|| {
        "a secret is 64 hexadecimal digits, as `tidegate secret show` prints it".to_owned()
    })
}

/// A URL with its password, if it has one, replaced by `***`.
pub(super) fn without_password(text: &str) -> Cow<'_, str> {
    let hidden = || {
        let (scheme, rest) = text.split_once("://")?;
        let (user, place) = rest.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}:***@{place}"))
    };
    hidden().map_or(Cow::Borrowed(text), Cow::Owned)
}

/// A text as YAML, in quotes if it needs them.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let bare = !text.is_empty() && text.chars().all(plain) && !text.starts_with('-');
    if bare { text.to_owned() } else { format!("{:?}", text) }
}
