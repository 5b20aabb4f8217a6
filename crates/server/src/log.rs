//! The log: text on a terminal, JSON otherwise, and a bounded number of lines.
//!
//! An attacker could make the server write huge logs. So each kind of line is limited to ten a second. The rest is counted, and
//! the count is logged.

use crate::metrics::Metrics;
use anstream::{AutoStream, ColorChoice};
use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate::Clock;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

/// Limits each kind of line to ten a second.
pub(crate) struct LogLimiter {
    level: tracing::Level,
    clock: Clock,
    /// By the place in the code that writes the line (its callsite); there are a few dozen of them.
    kinds: Mutex<HashMap<Identifier, LineKind>>,
}

/// How many lines of one kind were written.
struct LineKind {
    /// The second that `lines` counts for.
    second: u64,
    lines: u32,
    /// Lines that were left out since the last report.
    left_out: u64,
    name: String,
}

/// About as many as a person can read.
const LINES_PER_SECOND: u32 = 10;

/// Starts to log to the standard error.
pub(crate) fn start(format: LogFormat, level: tracing::Level, clock: &Clock) -> Arc<LogLimiter> {
    let bounded = Arc::new(LogLimiter { level, clock: clock.clone(), kinds: Mutex::default() });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let filter = LogLimitFilter(Arc::clone(&bounded));
    let started = if format.is_json() {
        let lines = lines.json().flatten_event(true).with_filter(filter);
        tracing_subscriber::registry().with(lines).try_init()
    } else {
        // Also says no if the environment has `NO_COLOR`, and yes for `CLICOLOR_FORCE`.
        let ansi = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
        tracing_subscriber::registry().with(lines.with_ansi(ansi).with_filter(filter)).try_init()
    };
    // This fails only in tests, where another test may have started a log.
    let _ = started;
    bounded
}

impl LogFormat {
    /// Whether the log has lines of JSON and not lines for people.
    pub(crate) fn is_json(self) -> bool {
        match self {
            Self::Json => true,
            Self::Text => false,
            Self::Auto => !std::io::stderr().is_terminal(),
        }
    }
}

/// Logs every second how many lines were left out; never returns.
pub(crate) async fn report_left_out(bounded: Arc<LogLimiter>, metrics: Arc<Metrics>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        for (name, count) in bounded.take_left_out() {
            metrics.lines_left_out.inc_by(count);
            tracing::warn!(count, "lines of this kind were left out: {name}");
        }
    }
}

impl LogLimiter {
    /// Whether another line of this kind may be written.
    fn passes(&self, kind: Identifier, name: impl FnOnce() -> String) -> bool {
        let second = self.clock.now().steady.as_nanos().checked_div(1_000_000_000).unwrap_or(0);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = kinds.entry(kind).or_insert_with(|| LineKind {
            second,
            lines: 0,
            left_out: 0,
            name: name(),
        });
        if kind.second != second {
            (kind.second, kind.lines) = (second, 0);
        }
        if kind.lines >= LINES_PER_SECOND {
            kind.left_out = kind.left_out.saturating_add(1);
            return false;
        }
        kind.lines = kind.lines.saturating_add(1);
        true
    }

    fn take_left_out(&self) -> Vec<(String, u64)> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = kinds.values_mut().filter(|kind| kind.left_out > 0);
        left_out.map(|kind| (kind.name.clone(), std::mem::take(&mut kind.left_out))).collect()
    }
}

/// The limiter as a filter of the log.
struct LogLimitFilter(Arc<LogLimiter>);

impl<S> Filter<S> for LogLimitFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        *metadata.level() <= self.0.level
    }

    /// Called once for each callsite. Callsites that are disabled must cost nothing: the HTTP/2 library has a dozen of them on
    /// the path of every request, which took as long as the request itself.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() <= self.0.level { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.0.level))
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let name = || {
            let file = metadata.file().unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or_default();
            format!("{}:{}", file, metadata.line().unwrap_or_default())
        };
        self.0.passes(metadata.callsite(), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Timestamp;
    use tracing::callsite::{Callsite, DefaultCallsite};
    use tracing::field::FieldSet;

    /// Spans of libraries were recorded although their level was never logged.
    #[test]
    fn disabled_levels_cost_nothing() {
        let bounded = LogLimiter {
            level: tracing::Level::INFO,
            clock: Clock::manual(Timestamp::from_nanos(0)),
            kinds: Mutex::default(),
        };
        let filter = LogLimitFilter(Arc::new(bounded));
        let lines = tracing_subscriber::fmt::layer().with_filter(filter);
        let log = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(log, || {
            assert_eq!(LevelFilter::current(), LevelFilter::INFO);
            assert!(tracing::trace_span!("h2").is_disabled());
            assert!(!tracing::info_span!("tidegate").is_disabled());
        });
    }

    #[test]
    fn ten_lines_a_second_and_the_rest_is_counted() {
        static META: Metadata<'static> = Metadata::new(
            "test",
            "test",
            tracing::Level::INFO,
            None,
            None,
            None,
            FieldSet::new(&[], Identifier(&CALLSITE)),
            tracing::metadata::Kind::EVENT,
        );
        static CALLSITE: DefaultCallsite = DefaultCallsite::new(&META);
        let clock = Clock::manual(Timestamp::from_nanos(0));
        let level = tracing::Level::INFO;
        let bounded = LogLimiter { level, clock: clock.clone(), kinds: Mutex::default() };
        let write = |count: usize| {
            (0..count)
                .filter(|_| bounded.passes(CALLSITE.metadata().callsite(), || "x".to_owned()))
                .count()
        };
        assert_eq!(write(1_000), 10);
        assert_eq!(bounded.take_left_out(), [("x".to_owned(), 990)]);
        assert_eq!(bounded.take_left_out(), []);
        clock.set(Timestamp::from_nanos(1_000_000_000));
        assert_eq!(write(5), 5);
        assert_eq!(bounded.take_left_out(), []);
    }
}
