//! A client that paces itself: it keeps its own rate, and does not ask a server again before the time that the server gave.
//!
//! `cargo run -p tidegate --example outbound --features http`

use http::{HeaderMap, StatusCode};
use std::error::Error;
use std::io::{self, Write};
use tidegate::http::{HeaderStyle, Pacer, status};
use tidegate::{Attributes, Check, Clock, Limiter, Policy, Span};

/// A remote service that allows fewer calls than the client wants to send.
struct Service(Limiter);

impl Service {
    fn call(&self) -> Result<(StatusCode, HeaderMap), Box<dyn Error>> {
        let caller = Attributes::new();
        let verdict = self.0.check_now(&Check::new(&caller))?;
        let mut headers = HeaderMap::new();
        HeaderStyle::default().write(&verdict, &mut headers);
        Ok((status(&verdict), headers))
    }
}

fn limiter(rate: &str) -> Result<Limiter, Box<dyn Error>> {
    let rules = format!("version: 1\nrules: [{{ name: calls, key: [], limits: [{rate}] }}]");
    Ok(Limiter::in_memory(Policy::parse(rules)?)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = Service(limiter("5/h")?);
    let mine = limiter("{ rate: 100/s, burst: 1 }")?; // the rate that the client keeps by itself
    let pacer = Pacer::new(Clock::system());
    let mut calls = Vec::new();
    for _ in 0..8 {
        // The service said when to try again, so do not call it before. A job that can wait uses `pacer.ready(…).await`.
        if pacer.wait("service") > Span::ZERO {
            calls.push("not sent");
            continue;
        }
        let me = Attributes::new();
        mine.acquire(&Check::new(&me).waiting(Span::from_secs(10))).await?;
        let (status, headers) = service.call()?;
        pacer.heard("service", status, &headers);
        calls.push(if status.is_success() { "served" } else { "denied" });
    }
    let minutes = pacer.wait("service").as_secs_ceil().div_ceil(60);
    let [served, refused, spared] = ["served", "denied", "not sent"]
        .map(|kind| calls.iter().filter(|call| **call == kind).count());
    let counts = format!("served {served}, denied {refused}, not sent {spared}");
    writeln!(io::stdout(), "{counts}; try again in {minutes} min")?;
    Ok(())
}
