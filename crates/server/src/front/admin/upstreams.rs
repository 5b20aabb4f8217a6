//! The upstream servers of the proxy: their state, and draining them.
//!
//! A server that is drained gets no new requests; those in flight are finished. It is drained on this node only, until it is
//! brought back, leaves the routes, or tidegate is restarted.

use super::answers::{UpstreamGroup, Upstreams};
use super::handler::AdminHandler;
use super::request::{read, unprocessable};
use super::wire::PutUpstreamBody;
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::rulebook::Rulebook;
use crate::web::{Answer, Call};
use http::StatusCode;
use serde_json::json;

impl<S: Backend> AdminHandler<S> {
    /// All groups and their servers. Without a proxy there are none.
    pub(super) fn upstreams(&self) -> Answer {
        let groups = self.upstreams.as_ref().map(|live| live.readings()).unwrap_or_default();
        let groups = groups.into_iter().map(UpstreamGroup::from).collect();
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
