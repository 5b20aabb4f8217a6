//! Rolling out a limit safely: first in shadow mode, where it only counts, then enforced.
//!
//! `cargo run -p tidegate --example shadow`

use std::error::Error;
use std::io::{self, Write};
use tidegate::{Attributes, Check, Limiter, Policy};

fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::parse(
        "
version: 1
rules:
  - { name: generous, key: [user], limits: [1000/h] }
  - { name: strict, key: [user], limits: [10/h], shadow: true }
",
    )?;
    let limiter = Limiter::in_memory(policy)?;
    let mut out = io::stdout().lock();
    let traffic = |out: &mut io::StdoutLock<'_>, phase: &str| -> Result<(), Box<dyn Error>> {
        for (user, requests) in [("quiet", 8), ("busy", 50)] {
            let user = Attributes::new().with("user", user)?;
            for _ in 0..requests {
                limiter.check_now(&Check::new(&user))?;
            }
        }
        let stats = limiter.stats();
        let strict = stats.rules.iter().find(|(name, _)| name == "strict");
        let (_, strict) = strict.ok_or("the policy has a rule named strict")?;
        writeln!(
            out,
            "{phase}: would have denied {}, denied {}",
            strict.would_deny, strict.denied
        )?;
        Ok(())
    };
    traffic(&mut out, "shadow")?;
    limiter.set_shadow("strict", Some(false))?; // the numbers look right, so enforce it
    traffic(&mut out, "enforced")?;
    Ok(())
}
