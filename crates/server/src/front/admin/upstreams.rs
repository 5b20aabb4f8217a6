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
use serde_json::{Value, json};
use tidegate::{ClassReading, SchedulerReading};

impl<S: Backend> AdminHandler<S> {
    /// All groups and their servers. Without a proxy there are none.
    pub(super) fn upstreams(&self) -> Answer {
        let groups = self.upstreams.as_ref().map(|live| live.readings()).unwrap_or_default();
        let groups: Vec<Value> = groups.iter().map(group_json).collect();
        Answer::json(StatusCode::OK, &json!({ "groups": groups }))
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

fn group_json(group: &GroupReading) -> Value {
    let servers: Vec<Value> = group.servers.iter().map(server_json).collect();
    let seats = group.seats.as_ref().map(seats_json);
    json!({ "group": group.group, "in_flight": group.in_flight, "seats": seats, "servers": servers })
}

fn seats_json(seats: &SchedulerReading) -> Value {
    let class = |class: &ClassReading| {
        json!({
            "class": class.name,
            "reserved": class.reserved,
            "in_flight": class.in_flight,
            "waiting": class.waiting,
            "started": class.started,
            "shed": { "waited_too_long": class.expired, "queue_full": class.refused, "evicted": class.evicted },
        })
    };
    let classes: Vec<Value> = seats.classes.iter().map(class).collect();
    json!({ "limit": seats.limit, "classes": classes })
}

fn server_json(server: &ServerReading) -> Value {
    let state = match (server.ejected_for, server.is_up) {
        (Some(_), _) => "ejected",
        (None, true) => "up",
        (None, false) => "down",
    };
    json!({
        "server": server.server,
        "state": state,
        "ejected_ms": server.ejected_for.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "draining": server.is_draining,
        "in_flight": server.in_flight,
        "requests": server.requests,
        "ejections": server.ejections,
    })
}
