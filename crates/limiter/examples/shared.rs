//! Two nodes that share a limit in Redis.
//!
//! `cargo run -p tidegate --example shared --features redis -- redis://127.0.0.1/`

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use tidegate::{Attributes, Check, Clock, Limiter, Policy, Redis, RedisSettings, Secret, Span};

/// What every node does at its start.
async fn node(url: &str) -> Result<Limiter<Redis>, Box<dyn Error>> {
    let policy =
        Policy::parse("{ version: 1, rules: [{ name: api, key: [user], limits: [10/h] }] }")?;
    // Created by the first node. On another machine, copy the file of the first.
    let secret = Secret::load_or_create(Path::new("tidegate.secret"))?;
    // The defaults are 50 ms and 1 s. This example prefers a late answer to none, so that it shows the same on a busy machine.
    let patience = Span::from_secs(60);
    let settings =
        RedisSettings { timeout: patience, connect_timeout: patience, ..RedisSettings::new(url) };
    let store = Redis::connect(&settings, &secret).await?;
    Ok(Limiter::new(policy, store, secret, Clock::system())?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("redis://127.0.0.1/".to_owned());
    let nodes = [node(&url).await?, node(&url).await?];
    let alice = Attributes::new().with("user", "alice")?;
    let mut passed = Vec::new();
    for _ in 0..10 {
        for (name, node) in ["first", "second"].iter().zip(&nodes) {
            if node.check(&Check::new(&alice)).await?.allowed() {
                passed.push(*name);
            }
        }
    }
    let [first, second] =
        ["first", "second"].map(|name| passed.iter().filter(|passed| **passed == name).count());
    let text = format!("of 20 requests, the first node passed {first}, the second {second}");
    writeln!(io::stdout(), "{text}")?;
    Ok(())
}
