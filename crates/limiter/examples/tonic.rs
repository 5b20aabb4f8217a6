//! A gRPC service behind the layer: a denied call gets `RESOURCE_EXHAUSTED` and the time to wait.
//!
//! `cargo run -p tidegate --example tonic --features tower`

use std::error::Error;
use std::io::{self, Write};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Policy};
use tokio::net::TcpListener;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::parse(
        "
version: 1
rules: [{ name: health, match: { path: /grpc.health.v1.Health/* }, key: [ip], limits: [3/h] }]
",
    )?;
    let layer = RateLimitLayer::new(Limiter::in_memory(policy)?).peer(|extensions| {
        let address = extensions.get::<TcpConnectInfo>()?.remote_addr()?;
        Some(address.ip())
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for call in 1..=4 {
        let text = match client.check(HealthCheckRequest::default()).await {
            Ok(_) => "served".to_owned(),
            Err(status) => {
                let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
                let minutes = retry.map_or(0, |delay| delay.as_secs().div_ceil(60));
                format!("{:?}, try again in {minutes} min", status.code())
            }
        };
        writeln!(io::stdout(), "call {call}: {text}")?;
    }
    Ok(())
}
