//! Active health checks: a `GET` to every server of a group that has `health`, again and again.

use super::connection::UpstreamConnection;
use super::group::UpstreamGroup;
use super::health::{CHECKS_DOWN, Observed};
use super::stream::UpstreamStream;
use crate::proxy::live_routes::LiveRoutes;
use crate::proxy::request_body::RequestBody;
use crate::proxy::routes::HealthSpec;
use http::{Request, header};
use rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often it is looked whether other routes are in force.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Checks the servers of all groups; never returns.
pub(crate) async fn check_upstreams(live: Arc<LiveRoutes>, tls: Option<Arc<ClientConfig>>) {
    loop {
        let table = live.load();
        let mut checks = JoinSet::new();
        for group in &table.groups {
            let Some(health) = group.spec.health.clone() else { continue };
            for server in 0..group.len() {
                let check = check_server(Arc::clone(group), server, health.clone(), tls.clone());
                checks.spawn_local(check);
            }
        }
        let mut looks = interval(LOOK_EVERY);
        while live.is(&table) {
            looks.tick().await;
        }
    }
}

async fn check_server(
    group: Arc<UpstreamGroup>,
    server: usize,
    health: HealthSpec,
    tls: Option<Arc<ClientConfig>>,
) {
    let mut ticks = interval(health.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let patience = health.every.checked_div(2).unwrap_or(health.every);
    let mut failed: u32 = 0;
    loop {
        // After a failure the next check follows at once, until the server is out. So a server that hangs is out within two
        // and a half intervals.
        if !(1..CHECKS_DOWN).contains(&failed) {
            ticks.tick().await;
        }
        let checked = timeout(patience, passes(&group, server, &health.path, tls.as_ref()));
        let passed = matches!(checked.await, Ok(Some(true)));
        failed = if passed { 0 } else { failed.saturating_add(1) };
        let observed = if passed { Observed::CheckPassed } else { Observed::CheckFailed };
        group.observe(server, observed);
    }
}

/// Whether a server answers a check with a status below 400. `None`: it does not answer.
async fn passes(
    group: &UpstreamGroup,
    server: usize,
    path: &str,
    tls: Option<&Arc<ClientConfig>>,
) -> Option<bool> {
    let url = group.url(server)?;
    let (stream, _) = UpstreamStream::connect(url, tls).await.ok()?;
    let mut connection = UpstreamConnection::new(stream).await.ok()?;
    let request = Request::get(path)
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, "tidegate-health-check")
        .body(RequestBody::empty())
        .ok()?;
    let answer = connection.send(request).await.ok()?;
    Some(answer.status().as_u16() < 400)
}
