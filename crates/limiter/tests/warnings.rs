//! Warnings about a policy reach the log of the program that embeds the limiter, each once.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use std::io;
use std::sync::{Arc, Mutex};
use tidegate::{Changes, Limiter, Policy};
use tracing_subscriber::fmt::MakeWriter;

/// The lines that were logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What was logged meanwhile, line by line.
fn logged(program: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    let log = tracing_subscriber::fmt().with_writer(lines.clone()).without_time().finish();
    tracing::subscriber::with_default(log, program);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn policy(limits: &str) -> Policy {
    let text =
        format!("{{ version: 1, rules: [{{ name: a, key: [user|ip], limits: [{limits}] }}] }}");
    Policy::parse(text).unwrap()
}

/// A limit without effect was found by `tidegate policy lint` only. A program that embeds the library never heard of it.
#[test]
fn each_warning_is_logged_once_when_a_policy_comes_into_force() {
    let useless = |limit: &str| format!("`{limit}` has no effect, because `1/s` is stricter");
    let lines = logged(|| {
        let limiter = Limiter::in_memory(policy("1/s, 100/min")).unwrap();
        // Changes, and another policy with the same warning, say nothing new.
        limiter.set_enabled("a", Some(false)).unwrap();
        limiter.install(policy("1/s, 100/min"), Changes::default()).unwrap();
        limiter.reload(policy("1/s, 200/min")).unwrap();
        limiter.reload(policy("1/s")).unwrap();
    });
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for (line, limit) in lines.iter().zip(["100/min", "200/min"]) {
        assert!(line.contains("WARN") && line.contains(&useless(limit)), "{line}");
    }
    // A policy that is refused is not in force.
    let refused = logged(|| {
        let limiter = Limiter::in_memory(policy("1/s")).unwrap();
        assert!(limiter.change(|changes, policy| changes.set_enabled(policy, "b", None)).is_err());
    });
    assert_eq!(refused, [""; 0]);
}
