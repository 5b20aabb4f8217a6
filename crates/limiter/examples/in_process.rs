//! A limiter inside a program: a policy, and one call for each request.
//!
//! `cargo run -p tidegate --example in_process`

use std::error::Error;
use std::io::{self, Write};
use tidegate::{Attributes, Check, Limiter, Policy, Report, Verdict};

fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::parse(
        "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: api, key: [user], limits: [5/h, 100/day], tiers: { pro: { scale: 10 } } }
  - { name: logins, match: { path: /login }, key: [user], limits: [3/h], count: failures }
",
    )?;
    let limiter = Limiter::in_memory(policy)?;
    let mut out = io::stdout().lock();

    for tier in ["free", "pro"] {
        let user = Attributes::new().with("user", format!("{tier}-user"))?.with("tier", tier)?;
        let passed = (0..40).filter_map(|_| limiter.check_now(&Check::new(&user)).ok());
        writeln!(out, "{tier}: {} of 40 requests passed", passed.filter(Verdict::allowed).count())?;
    }

    // Wrong passwords count; successful logins are given back.
    let alice = Attributes::new().with("user", "alice")?.with("path", "/login")?;
    for report in [Report::Failure, Report::Success, Report::Failure, Report::Failure] {
        let verdict = limiter.check_now(&Check::new(&alice))?;
        if let Some(receipt) = verdict.receipt() {
            limiter.report_now(receipt, report)?;
        }
    }
    let verdict = limiter.check_now(&Check::new(&alice))?;
    let refusing: Vec<&str> = verdict.refusing().map(|limit| limit.rule).collect();
    writeln!(out, "alice: allowed {}, denied by {refusing:?}", verdict.allowed())?;
    Ok(())
}
