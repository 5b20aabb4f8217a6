//! Sentinels: which server is the primary, and when a failover makes another server the primary.
//!
//! ```text
//!   topology refresh ──► query the sentinel that answered last, or else all of them in turn
//!   a listener per sentinel ── +switch-master  ──► query this sentinel ──────────────────────► refresh the topology now
//!                           └─ +selected-slave ──► poll the ROLE of that server until it is the primary ──┘
//! ```
//!
//! In a planned failover the old primary stays writable for seconds after the new one was promoted, and what is counted on
//! the old one meanwhile is lost. Sentinels name the new primary up to a second after they have promoted it. So the store
//! polls the selected server itself.
//!
//! Sentinels may disagree. Each failover has a number, the configuration epoch, and the highest epoch wins.

use super::address::{Address, ConnectOptions};
use super::command_error::{CommandError, unusable_if_broken};
use super::connection::{connect, is_replica};
use super::context::StoreContext;
use crate::error::StoreError;
use crate::remote::timers;
use crate::sync::{Mutex, lock};
use ::redis::aio::MultiplexedConnection;
use ::redis::{RedisError, Value};
use futures_util::StreamExt as _;
use std::collections::HashMap;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};

/// The sentinels of one primary.
pub(super) struct Sentinels {
    addresses: Vec<Address>,
    /// The name by which the sentinels know the primary.
    name: String,
    /// Connection to the sentinel that answered last. Locked while it is queried.
    last_answered: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    /// Locked to look or to change, never across an await.
    view: Mutex<PrimaryView>,
}

/// Which server is the primary, as far as this node knows.
#[derive(Default)]
struct PrimaryView {
    /// The statement with the highest epoch.
    named: Option<NamedPrimary>,
    /// A server that sentinels selected and whose own ROLE says primary. It overrides `named` until that time.
    promoted: Option<(Address, Timestamp)>,
}

/// A sentinel's statement about the primary.
struct NamedPrimary {
    /// The number of the failover that made it the primary.
    epoch: u64,
    primary: Address,
}

/// The events of a sentinel that the store subscribes to.
const EVENTS: [&str; 3] = [SELECTED, "+promoted-slave", "+switch-master"];
/// A sentinel is about to promote this server.
const SELECTED: &str = "+selected-slave";
/// A subscription is renewed after this time, in case its connection died unnoticed.
const SUBSCRIBED_FOR: Duration = Duration::from_secs(30);
/// Pause before a sentinel that does not answer is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often and for how long the ROLE of a selected server is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const POLLED_FOR: Duration = Duration::from_secs(10);
/// How long the server's own ROLE overrides the sentinels, which confirm it within about a second.
const PROMOTION_TRUSTED_FOR: Span = Span::from_secs(10);

// === impl Sentinels ===

impl Sentinels {
    pub(super) fn new(addresses: Vec<Address>, name: String) -> Self {
        let last_answered = tokio::sync::Mutex::new(None);
        Self { addresses, name, last_answered, view: Mutex::default() }
    }

    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The current primary. `unreachable` is a server whose breaker is open. If it is the primary, the newest statement wins
    /// whatever its epoch, because an operator may have set up the sentinels anew, with epochs from 0.
    pub(super) async fn primary(
        &self,
        context: &StoreContext,
        options: &ConnectOptions,
        unreachable: Option<&str>,
    ) -> Result<Address, StoreError> {
        let answer = self.query_any(context, options).await;
        let now = context.now();
        let mut view = lock(&self.view);
        let failed = answer.map(|named| view.update(named, unreachable)).err();
        match (view.promoted(now), failed, &view.named) {
            (Some(promoted), ..) => Ok(promoted.clone()),
            (None, Some(error), _) => Err(error),
            (None, None, Some(named)) => Ok(named.primary.clone()),
            (None, None, None) => Err(StoreError::Unavailable("no sentinel answers".into())),
        }
    }

    /// Queries the sentinel that answered last, or else all of them in turn.
    async fn query_any(
        &self,
        context: &StoreContext,
        options: &ConnectOptions,
    ) -> Result<NamedPrimary, StoreError> {
        let timeout = context.settings.longest_timeout();
        let mut last_answered = self.last_answered.lock().await;
        if let Some(connection) = last_answered.as_mut() {
            let query = tokio::time::timeout(timeout.into(), self.query(connection, context));
            if let Ok(Ok(named)) = query.await {
                return Ok(named);
            }
        }
        *last_answered = None;
        let mut last_error = StoreError::Unavailable("no sentinel answers".into());
        for address in &self.addresses {
            let answer = async {
                let client = options.client_of_sentinel(address)?;
                let mut connection = connect(&client, &context.settings).await?;
                let named = self.query(&mut connection, context).await?;
                Ok((connection, named))
            };
            match tokio::time::timeout(timeout.into(), answer).await {
                Ok(Ok((connection, named))) => {
                    *last_answered = Some(connection);
                    return Ok(named);
                }
                Ok(Err(error)) => last_error = error,
                Err(_late) => last_error = StoreError::TimedOut(timeout),
            }
        }
        Err(last_error)
    }

    /// Queries one sentinel: the epoch before the address, so that the address is at least as new as the epoch.
    async fn query(
        &self,
        connection: &mut MultiplexedConnection,
        context: &StoreContext,
    ) -> Result<NamedPrimary, StoreError> {
        let to_store_error = |error: RedisError| {
            unusable_if_broken(CommandError::of(&error, context.settings.timeout).into_error())
        };
        let mut get_address = ::redis::cmd("SENTINEL");
        get_address.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let mut get_details = ::redis::cmd("SENTINEL");
        get_details.arg("MASTER").arg(&self.name);
        // An error of this command is ignored: a sentinel that does not know the name gives the clearer reply to the other one.
        let details: Result<HashMap<String, String>, RedisError> =
            get_details.query_async(connection).await;
        let address: Option<(String, u16)> =
            get_address.query_async(connection).await.map_err(to_store_error)?;
        let (host, port) = address.ok_or_else(|| {
            StoreError::Unusable(format!("the sentinels have no primary called `{}`", self.name))
        })?;
        let epoch = details.ok().and_then(|details| details.get("config-epoch")?.parse().ok());
        Ok(NamedPrimary { epoch: epoch.unwrap_or(0), primary: Address { host, port } })
    }

    /// Subscribes to one sentinel, for ever.
    pub(super) async fn listen(
        &self,
        sentinel: &Address,
        context: &StoreContext,
        options: &ConnectOptions,
    ) {
        loop {
            // A new subscription begins with a query, so that no event between two subscriptions is missed.
            let listening = self.listen_once(sentinel, context, options);
            let _ = tokio::time::timeout(SUBSCRIBED_FOR, listening).await;
            timers::sleep(RETRY_PAUSE).await;
        }
    }

    async fn listen_once(
        &self,
        sentinel: &Address,
        context: &StoreContext,
        options: &ConnectOptions,
    ) -> Result<(), StoreError> {
        let to_store_error =
            |error: RedisError| CommandError::of(&error, context.settings.timeout).into_error();
        let server = options.client_of_sentinel(sentinel)?;
        let mut events = server.client.get_async_pubsub().await.map_err(to_store_error)?;
        events.subscribe(&EVENTS).await.map_err(to_store_error)?;
        let mut events = events.into_on_message();
        let mut connection = connect(&server, &context.settings).await?;
        loop {
            let named = self.query(&mut connection, context).await?;
            lock(&self.view).update(named, None);
            context.topology_stale.notify_one();
            let Some(event) = events.next().await else { return Ok(()) };
            let text: String = event.get_payload().unwrap_or_default();
            if event.get_channel_name() == SELECTED
                && let Some(selected) = selected_server(&text, &self.name)
            {
                self.follow(selected, context, options).await;
            }
        }
    }

    /// Polls a selected server until its own ROLE says that it is the primary.
    async fn follow(&self, selected: Address, context: &StoreContext, options: &ConnectOptions) {
        let polling = async {
            // A sentinel that promotes a server closes the connections of its clients (`CLIENT KILL`), this one too.
            while until_primary(&selected, context, options).await.is_err() {
                timers::sleep(POLL_INTERVAL).await;
            }
        };
        // If the server cannot be reached, the sentinels name the new primary later.
        if tokio::time::timeout(POLLED_FOR, polling).await.is_ok() {
            let until = context.now().after(PROMOTION_TRUSTED_FOR).unwrap_or(Timestamp::END);
            lock(&self.view).promoted = Some((selected, until));
        }
    }
}

/// Polls the ROLE of a server over one connection until it is the primary; an error if the connection ends before.
async fn until_primary(
    server: &Address,
    context: &StoreContext,
    options: &ConnectOptions,
) -> Result<(), StoreError> {
    let client = options.client(server)?;
    let mut connection = connect(&client, &context.settings).await?;
    loop {
        let role: Value = ::redis::cmd("ROLE")
            .query_async(&mut connection)
            .await
            .map_err(|error| CommandError::of(&error, context.settings.timeout).into_error())?;
        if !is_replica(&role) {
            return Ok(());
        }
        timers::sleep(POLL_INTERVAL).await;
    }
}

// === impl PrimaryView ===

impl PrimaryView {
    /// Takes in a sentinel's statement.
    fn update(&mut self, named: NamedPrimary, unreachable: Option<&str>) {
        if self.promoted.as_ref().is_some_and(|(promoted, _)| *promoted == named.primary) {
            self.promoted = None;
        }
        let newer = |last: &NamedPrimary| {
            last.epoch <= named.epoch || unreachable == Some(last.primary.to_string().as_str())
        };
        if self.named.as_ref().is_none_or(newer) {
            self.named = Some(named);
        }
    }

    fn promoted(&self, now: Timestamp) -> Option<&Address> {
        self.promoted.as_ref().filter(|(_, until)| now < *until).map(|(promoted, _)| promoted)
    }
}

/// The server that an event selects: `slave name host port @ primary host port`.
fn selected_server(text: &str, primary: &str) -> Option<Address> {
    let words: Vec<&str> = text.split(' ').collect();
    let ["slave", _, host, port, "@", of, ..] = words[..] else { return None };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (of == primary).then(|| Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn named(epoch: u64, port: u16) -> NamedPrimary {
        NamedPrimary { epoch, primary: at(port) }
    }

    fn primary(view: &PrimaryView) -> u16 {
        view.named.as_ref().map_or(0, |named| named.primary.port)
    }

    #[test]
    fn a_statement_with_an_older_epoch_is_ignored() {
        let mut view = PrimaryView::default();
        for (epoch, port, expected) in [(3, 1, 1), (4, 2, 2), (3, 1, 2), (4, 2, 2), (5, 1, 1)] {
            view.update(named(epoch, port), None);
            assert_eq!(primary(&view), expected, "epoch {epoch}");
        }
    }

    #[test]
    fn an_older_epoch_wins_when_the_primary_is_unreachable() {
        let mut view = PrimaryView::default();
        view.update(named(9, 1), None);
        view.update(named(0, 2), None);
        view.update(named(0, 2), Some("10.0.0.1:3"));
        assert_eq!(primary(&view), 1);
        view.update(named(0, 2), Some("10.0.0.1:1"));
        assert_eq!(primary(&view), 2);
    }

    #[test]
    fn the_role_of_a_promoted_server_counts_until_it_is_confirmed_or_expires() {
        let mut view = PrimaryView::default();
        let (now, until) = (Timestamp::EPOCH, Timestamp::from_nanos(10));
        view.update(named(3, 1), None);
        view.promoted = Some((at(2), until));
        // The other sentinels have not heard of the failover yet.
        view.update(named(3, 1), None);
        assert_eq!(view.promoted(now), Some(&at(2)));
        assert_eq!(view.promoted(until), None);
        view.update(named(4, 2), None);
        assert_eq!((view.promoted(now), primary(&view)), (None, 2));
    }

    #[test]
    fn events_of_other_primaries_and_invalid_events_select_no_server() {
        let event = "slave 10.0.0.1:7 10.0.0.1 7 @ ours 10.0.0.1 6";
        assert_eq!(selected_server(event, "ours"), Some(at(7)));
        assert_eq!(selected_server(event, "theirs"), None);
        for text in ["", "slave", "slave a b c @ ours", "slave a b 0 @ ours", "master a b 1 @ ours"]
        {
            assert_eq!(selected_server(text, "ours"), None, "{text}");
        }
    }
}
