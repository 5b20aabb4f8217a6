//! The rate-limited endpoint of the README: `cargo run -p tidegate --example axum --features tower`
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use axum::{Router, extract::ConnectInfo, routing::get};
use std::net::SocketAddr;
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Policy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::parse(
        "
version: 1
rules:
  - { name: per-client, key: [ip], limits: [5/s, 100/h] }
",
    )?;
    let limit = RateLimitLayer::new(Limiter::in_memory(policy)?)
        .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip()));
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
