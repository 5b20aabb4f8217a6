//! The upstream servers of the proxy: their state, and draining them.
//!
//! A server that is drained gets no new requests; those in flight are finished. It is drained on this node only, until it is
//! brought back, leaves the routes, or tidegate is restarted.

use super::handler::AdminHandler;
use super::request::{read, unprocessable};
use super::wire::PutUpstreamBody;
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::proxy::{GroupReading, ServerReading};
use crate::rulebook::Rulebook;
use crate::web::{Answer, Call};
use http::StatusCode;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use tidegate::{ClassReading, SchedulerReading};

/// The upstream servers of the reverse proxy.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Upstreams {
    pub(super) groups: Vec<GroupStatus>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct GroupStatus {
    group: String,
    in_flight: u64,
    /// `null` if the number of requests in flight has no bound.
    seats: Option<Seats>,
    servers: Vec<ServerStatus>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Seats {
    limit: Option<usize>,
    classes: Vec<SeatClass>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct SeatClass {
    class: String,
    reserved: usize,
    in_flight: usize,
    waiting: usize,
    started: u64,
    shed: ShedCounts,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct ShedCounts {
    waited_too_long: u64,
    queue_full: u64,
    evicted: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct ServerStatus {
    /// Its URL.
    server: String,
    #[cfg_attr(test, schemars(extend("enum" = ["up", "down", "ejected"])))]
    state: &'static str,
    /// How long it still gets no requests, if it was ejected.
    ejected_ms: Option<u64>,
    draining: bool,
    in_flight: u64,
    requests: u64,
    ejections: u64,
}

impl<S: Backend> AdminHandler<S> {
    /// All groups and their servers. Without a proxy there are none.
    pub(super) fn upstreams(&self) -> Answer {
        let groups = self.upstreams.as_ref().map(|live| live.readings()).unwrap_or_default();
        let groups = groups.into_iter().map(GroupStatus::from).collect();
        Answer::json(StatusCode::OK, &json!(Upstreams { groups }))
    }

    pub(super) async fn put_upstream(
        &self,
        call: &Call<'_>,
        actor: Actor<'_>,
    ) -> Result<Answer, Answer> {
        let PutUpstreamBody { group, server, drain } = read(call)?;
        let Some(live) = &self.upstreams else {
            return Err(unprocessable("the proxy is off; turn it on with proxy.listen"));
        };
        live.has(&group, &server).map_err(|error| unprocessable(&error))?;
        let details = json!({ "group": group, "server": server, "drain": drain });
        let note = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            rulebook.note(AuditEvent { actor, what: "upstream", details: &details, reason: None })
        };
        self.on_blocking_thread(actor, note).await?;
        live.drain(&group, &server, drain).map_err(|error| unprocessable(&error))?;
        Ok(self.upstreams())
    }
}

impl From<GroupReading> for GroupStatus {
    fn from(group: GroupReading) -> Self {
        let GroupReading { group, in_flight, seats, servers } = group;
        let servers = servers.into_iter().map(ServerStatus::from).collect();
        Self { group, in_flight, seats: seats.map(Seats::from), servers }
    }
}

impl From<SchedulerReading> for Seats {
    fn from(seats: SchedulerReading) -> Self {
        let class = |class: ClassReading| SeatClass {
            class: class.name,
            reserved: class.reserved,
            in_flight: class.in_flight,
            waiting: class.waiting,
            started: class.started,
            shed: ShedCounts {
                waited_too_long: class.expired,
                queue_full: class.refused,
                evicted: class.evicted,
            },
        };
        Self { limit: seats.limit, classes: seats.classes.into_iter().map(class).collect() }
    }
}

impl From<ServerReading> for ServerStatus {
    fn from(server: ServerReading) -> Self {
        let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Self {
            state: match (server.ejected_for, server.is_up) {
                (Some(_), _) => "ejected",
                (None, true) => "up",
                (None, false) => "down",
            },
            server: server.server,
            ejected_ms: server.ejected_for.map(millis),
            draining: server.is_draining,
            in_flight: server.in_flight,
            requests: server.requests,
            ejections: server.ejections,
        }
    }
}
