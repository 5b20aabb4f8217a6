//! Parsers for the values of settings.

use super::{LogFormat, StoreUrl};
use crate::front::grpc::HeaderChoice;
use crate::line_writer::LogPlace;
use crate::recorder::SampleBy;
use crate::shown_key::KeyForm;
use data_encoding::HEXLOWER_PERMISSIVE;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate::http::LegacyReset;
use tidegate_store::RedisClock;

/// `127.0.0.1:8080`, or `off`.
pub(super) fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        "an address is written like `127.0.0.1:8080` or `[::1]:8080`, or `off`".to_owned()
    })
}

/// `10s`, `500ms`, `2min`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
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

/// A size, or `0` for none.
pub(super) fn top_keys_memory(text: &str) -> Result<usize, String> {
    if text == "0" {
        return Ok(0);
    }
    let size = bytes(text).ok().filter(|size| *size <= 1 << 30);
    size.ok_or_else(|| {
        "a size is written like `4MiB`, from 64KiB to 1GiB; `0` disables it".to_owned()
    })
}

/// A size with a minimum that has room for the largest request.
pub(super) fn connection_budget(text: &str) -> Result<usize, String> {
    let least = crate::bounds::LEAST_BUDGET;
    let size = bytes(text).ok().filter(|size| *size >= least);
    size.ok_or_else(|| "a size is written like `64MiB`, at least 8MiB".to_owned())
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "a number from 1 to 1000000".to_owned())
}

/// `off`, `stdout`, or a file.
pub(super) fn log_place(text: &str) -> Result<Option<LogPlace>, String> {
    match text {
        "off" => Ok(None),
        "stdout" => Ok(Some(LogPlace::Stdout)),
        "" => Err("a file, `stdout` or `off`".to_owned()),
        path => Ok(Some(LogPlace::File(path.into()))),
    }
}

/// The 32 bytes of a secret, as `tidegate secret show` prints them.
pub(crate) fn secret(text: &str) -> Result<[u8; 32], String> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).ok();
    let secret = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    secret.ok_or_else(|| {
        "a secret is 64 hexadecimal digits, as `tidegate secret show` prints it".to_owned()
    })
}

/// A number, or `auto` for as many as the system allows.
pub(super) fn open_files(text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let count = text.parse().ok().filter(|count| (64..=1 << 30).contains(count));
    count.map(Some).ok_or_else(|| "a number from 64 on, or `auto`".to_owned())
}

/// A number, or `auto` for one to each core.
pub(super) fn workers(text: &str) -> Result<usize, String> {
    if text == "auto" {
        return Ok(std::thread::available_parallelism().map_or(1, usize::from));
    }
    let count = text.parse().ok().filter(|count| (1..=1_024).contains(count));
    count.ok_or_else(|| "a number from 1 to 1024, or `auto`".to_owned())
}

pub(super) fn legacy(text: &str) -> Result<Option<LegacyReset>, String> {
    match text {
        "off" => Ok(None),
        "delta" => Ok(Some(LegacyReset::Delta)),
        "epoch" => Ok(Some(LegacyReset::Epoch)),
        _ => Err("`off`, `delta` or `epoch`".to_owned()),
    }
}

pub(super) fn response_headers(text: &str) -> Result<HeaderChoice, String> {
    match text {
        "off" => Ok(HeaderChoice::Off),
        "ratelimit" => Ok(HeaderChoice::Current),
        "legacy" => Ok(HeaderChoice::Legacy),
        "reference" => Ok(HeaderChoice::Reference),
        _ => Err("`off`, `ratelimit`, `legacy` or `reference`".to_owned()),
    }
}

pub(super) fn key_form(text: &str) -> Result<KeyForm, String> {
    match text {
        "clear" => Ok(KeyForm::Clear),
        "hashed" => Ok(KeyForm::Hashed),
        "omitted" => Ok(KeyForm::Omitted),
        _ => Err("`clear`, `hashed` or `omitted`".to_owned()),
    }
}

pub(super) fn sample_by(text: &str) -> Result<SampleBy, String> {
    match text {
        "user" => Ok(SampleBy::User),
        "ip" => Ok(SampleBy::Ip),
        _ => Err("`user` or `ip`".to_owned()),
    }
}

/// Whether the recording has clear values.
pub(super) fn recorded_attributes(text: &str) -> Result<bool, String> {
    match text {
        "clear" => Ok(true),
        "hashed" => Ok(false),
        _ => Err("`hashed` or `clear`".to_owned()),
    }
}

/// Less than 1 MiB would be rotated away before anybody can replay it.
pub(super) fn recording_bytes(text: &str) -> Result<u64, String> {
    let size = bytes(text).ok().filter(|size| *size >= 1 << 20);
    let size = size.and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "a size is written like `64MiB`, at least `1MiB`".to_owned())
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("`auto`, `text` or `json`".to_owned()),
    }
}

pub(super) fn level(text: &str) -> Result<tracing::Level, String> {
    text.parse().map_err(|_| "`error`, `warn`, `info`, `debug` or `trace`".to_owned())
}

/// Names, separated by commas or spaces.
pub(super) fn words(text: &str) -> Vec<String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect()
}

/// `memory:`, `file:`, or where Redis, Valkey or memcached is.
pub(super) fn store(text: &str) -> Result<StoreUrl, String> {
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

/// Bytes in a second: at least a mebibyte.
pub(super) fn write_rate(text: &str) -> Result<usize, String> {
    bytes(text).and_then(
        |rate| {
            if rate >= 1 << 20 { Ok(rate) } else { Err("at least `1MiB`".to_owned()) }
        },
    )
}

/// `on` or `off`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("`on` or `off`".to_owned()),
    }
}

pub(super) fn redis_clock(text: &str) -> Result<RedisClock, String> {
    match text {
        "server" => Ok(RedisClock::Server),
        "node" => Ok(RedisClock::Node),
        _ => Err("`server` or `node`".to_owned()),
    }
}

/// A number, or `auto`.
pub(super) fn nodes(text: &str) -> Result<Option<u32>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let count = text.parse().ok().filter(|count| (1..=10_000).contains(count));
    count.map(Some).ok_or_else(|| "a number from 1 to 10000, or `auto`".to_owned())
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

/// A list of listeners.
pub(super) fn listeners(text: &str) -> Result<(), String> {
    match words(text).iter().find(|name| {
        !["http", "grpc", "resp", "proxy", "admin", "metrics"].contains(&name.as_str())
    }) {
        None => Ok(()),
        Some(_) => {
            Err("listeners are `http`, `grpc`, `resp`, `proxy`, `admin` and `metrics`".to_owned())
        }
    }
}

/// A text as YAML, in quotes if it needs them.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let bare = !text.is_empty() && text.chars().all(plain) && !text.starts_with('-');
    if bare { text.to_owned() } else { format!("{:?}", text) }
}
