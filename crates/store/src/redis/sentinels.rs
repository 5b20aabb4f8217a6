//! Sentinels: who is the primary, and since when another server is.
//!
//! ```text
//!   map is drawn ──► ask the sentinel that answered last, or else all of them in turn
//!   a listener for each sentinel ── +switch-master ──► ask this sentinel ───────────────────────► draw the map now
//!                                └─ +selected-slave ──► ask that server its ROLE until it is the primary ──┘
//! ```
//!
//! In a planned failover the old primary can be written to for seconds while the new one is in office already, and what is
//! counted there meanwhile is lost. Sentinels name the new one up to a second after they have made it one. So whoever is told
//! that a server was chosen asks the server itself.
//!
//! Sentinels may disagree. Each failover has a number, the epoch, and the word with the highest one counts.

use super::address::{Address, Manners};
use super::connection::{connect, is_replica};
use super::fleet::not_one_of_them;
use super::link::Common;
use super::trouble::Trouble;
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use ::redis::aio::MultiplexedConnection;
use ::redis::{RedisError, Value};
use futures_util::StreamExt as _;
use std::collections::HashMap;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};

/// The sentinels of one primary.
pub(super) struct Sentinels {
    places: Vec<Address>,
    /// What they call it.
    name: String,
    /// The one that answered last. Held while it is asked.
    asked: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    /// Locked to look or to change, never across an await.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The word with the highest epoch.
    named: Option<Named>,
    /// A server that sentinels chose and that is the primary by its own word; believed until then.
    promoted: Option<(Address, Timestamp)>,
}

/// Who is the primary by the word of a sentinel.
struct Named {
    /// The number of the failover that made it the primary.
    epoch: u64,
    primary: Address,
}

/// What a sentinel tells whoever listens.
const EVENTS: [&str; 3] = [CHOSEN, "+promoted-slave", "+switch-master"];
/// It is about to make this server the primary.
const CHOSEN: &str = "+selected-slave";
/// How long a connection is listened on: one that died without a word is replaced at last.
const LISTENED_FOR: Duration = Duration::from_secs(30);
/// How soon a sentinel that does not answer is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// How often and how long a server that was chosen is asked whether it is the primary yet.
const ASKED_EVERY: Duration = Duration::from_millis(20);
const ASKED_FOR: Duration = Duration::from_secs(10);
/// How long its word counts for more than that of the sentinels, which confirm it within about a second.
const BELIEVED_FOR: Span = Span::from_secs(10);

// === impl Sentinels ===

impl Sentinels {
    pub(super) fn new(places: Vec<Address>, name: String) -> Self {
        Self { places, name, asked: tokio::sync::Mutex::new(None), known: Mutex::default() }
    }

    /// Where they are.
    pub(super) fn places(&self) -> &[Address] {
        &self.places
    }

    /// Who is the primary. `silent` is a server that does not answer: if it was the primary, the newest word counts, whatever
    /// its epoch, for somebody may have begun to count epochs anew.
    pub(super) async fn primary(
        &self,
        common: &Common,
        manners: &Manners,
        silent: Option<&str>,
    ) -> Result<Address, StoreError> {
        let heard = self.ask_any(common, manners).await;
        let now = common.clock.now().steady;
        let mut known = lock(&self.known);
        let failed = heard.map(|named| known.hear(named, silent)).err();
        match (known.promoted(now), failed, &known.named) {
            (Some(promoted), ..) => Ok(promoted.clone()),
            (None, Some(error), _) => Err(error),
            (None, None, Some(named)) => Ok(named.primary.clone()),
            (None, None, None) => Err(StoreError::Unavailable("no sentinel answers".into())),
        }
    }

    /// Asks the sentinel that answered last, or else all of them in turn.
    async fn ask_any(&self, common: &Common, manners: &Manners) -> Result<Named, StoreError> {
        let patience = common.settings.patience();
        let mut asked = self.asked.lock().await;
        if let Some(connection) = asked.as_mut() {
            let asking = tokio::time::timeout(patience.into(), self.ask(connection, common));
            if let Ok(Ok(named)) = asking.await {
                return Ok(named);
            }
        }
        *asked = None;
        let mut last = StoreError::Unavailable("no sentinel answers".into());
        for place in &self.places {
            let answer = async {
                let client = manners.client_of_sentinel(place)?;
                let mut connection = connect(&client, &common.settings).await?;
                let named = self.ask(&mut connection, common).await?;
                Ok((connection, named))
            };
            match tokio::time::timeout(patience.into(), answer).await {
                Ok(Ok((connection, named))) => {
                    *asked = Some(connection);
                    return Ok(named);
                }
                Ok(Err(error)) => last = error,
                Err(_late) => last = StoreError::TimedOut(patience),
            }
        }
        Err(last)
    }

    /// Asks one sentinel: first for the epoch, so that the address is at least as new.
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        common: &Common,
    ) -> Result<Named, StoreError> {
        let told = |error: RedisError| {
            not_one_of_them(Trouble::of(&error, common.settings.timeout).into_error())
        };
        let mut question = ::redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let mut details = ::redis::cmd("SENTINEL");
        details.arg("MASTER").arg(&self.name);
        // Who does not know the name answers the second question better.
        let details: Result<HashMap<String, String>, RedisError> =
            details.query_async(connection).await;
        let answer: Option<(String, u16)> = question.query_async(connection).await.map_err(told)?;
        let (host, port) = answer.ok_or_else(|| {
            StoreError::Unusable(format!("the sentinels know no primary called `{}`", self.name))
        })?;
        let epoch = details.ok().and_then(|details| details.get("config-epoch")?.parse().ok());
        Ok(Named { epoch: epoch.unwrap_or(0), primary: Address { host, port } })
    }

    /// Listens to one sentinel, for ever.
    pub(super) async fn listen(&self, place: &Address, common: &Common, manners: &Manners) {
        loop {
            let listening = self.listen_for_a_while(place, common, manners);
            // Whoever stops listening asks again: something may have been said meanwhile.
            let _ = tokio::time::timeout(LISTENED_FOR, listening).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn listen_for_a_while(
        &self,
        place: &Address,
        common: &Common,
        manners: &Manners,
    ) -> Result<(), StoreError> {
        let told = |error: RedisError| Trouble::of(&error, common.settings.timeout).into_error();
        let client = manners.client_of_sentinel(place)?;
        let mut events = client.get_async_pubsub().await.map_err(told)?;
        events.subscribe(&EVENTS).await.map_err(told)?;
        let mut events = events.into_on_message();
        let mut connection = connect(&client, &common.settings).await?;
        loop {
            let named = self.ask(&mut connection, common).await?;
            lock(&self.known).hear(named, None);
            common.stale.notify_one();
            let Some(event) = events.next().await else { return Ok(()) };
            let text: String = event.get_payload().unwrap_or_default();
            if event.get_channel_name() == CHOSEN
                && let Some(chosen) = chosen(&text, &self.name)
            {
                self.follow(chosen, common, manners).await;
            }
        }
    }

    /// Asks a server that was chosen until it is the primary by its own word.
    async fn follow(&self, chosen: Address, common: &Common, manners: &Manners) {
        let asking = async {
            // A sentinel that promotes a server closes the connections of its clients (`CLIENT KILL`), this one too.
            while leads(&chosen, common, manners).await.is_err() {
                tokio::time::sleep(ASKED_EVERY).await;
            }
        };
        // If the server cannot be asked, the sentinels will say how it went.
        if tokio::time::timeout(ASKED_FOR, asking).await.is_ok() {
            let until = common.clock.now().steady.after(BELIEVED_FOR).unwrap_or(Timestamp::END);
            lock(&self.known).promoted = Some((chosen, until));
        }
    }
}

/// Asks a server for its role over one connection until it is the primary; an error when the connection ends before.
async fn leads(chosen: &Address, common: &Common, manners: &Manners) -> Result<(), StoreError> {
    let client = manners.client(chosen)?;
    let mut connection = connect(&client, &common.settings).await?;
    loop {
        let role: Value = ::redis::cmd("ROLE")
            .query_async(&mut connection)
            .await
            .map_err(|error| Trouble::of(&error, common.settings.timeout).into_error())?;
        if !is_replica(&role) {
            return Ok(());
        }
        tokio::time::sleep(ASKED_EVERY).await;
    }
}

// === impl Known ===

impl Known {
    /// A sentinel says who is the primary.
    fn hear(&mut self, named: Named, silent: Option<&str>) {
        if self.promoted.as_ref().is_some_and(|(promoted, _)| *promoted == named.primary) {
            self.promoted = None;
        }
        let newer = |last: &Named| {
            last.epoch <= named.epoch || silent == Some(last.primary.to_string().as_str())
        };
        if self.named.as_ref().is_none_or(newer) {
            self.named = Some(named);
        }
    }

    fn promoted(&self, now: Timestamp) -> Option<&Address> {
        self.promoted.as_ref().filter(|(_, until)| now < *until).map(|(promoted, _)| promoted)
    }
}

/// The server that was chosen, by an event `slave name host port @ primary host port`.
fn chosen(text: &str, primary: &str) -> Option<Address> {
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

    fn named(epoch: u64, port: u16) -> Named {
        Named { epoch, primary: at(port) }
    }

    fn primary(known: &Known) -> u16 {
        known.named.as_ref().map_or(0, |named| named.primary.port)
    }

    #[test]
    fn a_sentinel_that_has_not_heard_of_the_failover_is_not_believed() {
        let mut known = Known::default();
        for (epoch, port, expected) in [(3, 1, 1), (4, 2, 2), (3, 1, 2), (4, 2, 2), (5, 1, 1)] {
            known.hear(named(epoch, port), None);
            assert_eq!(primary(&known), expected, "epoch {epoch}");
        }
    }

    #[test]
    fn one_that_counts_anew_is_believed_when_the_primary_does_not_answer() {
        let mut known = Known::default();
        known.hear(named(9, 1), None);
        known.hear(named(0, 2), None);
        known.hear(named(0, 2), Some("10.0.0.1:3"));
        assert_eq!(primary(&known), 1);
        known.hear(named(0, 2), Some("10.0.0.1:1"));
        assert_eq!(primary(&known), 2);
    }

    #[test]
    fn the_word_of_the_new_primary_counts_until_it_is_confirmed_or_over() {
        let mut known = Known::default();
        let (now, until) = (Timestamp::EPOCH, Timestamp::from_nanos(10));
        known.hear(named(3, 1), None);
        known.promoted = Some((at(2), until));
        // Others do not know yet.
        known.hear(named(3, 1), None);
        assert_eq!(known.promoted(now), Some(&at(2)));
        assert_eq!(known.promoted(until), None);
        known.hear(named(4, 2), None);
        assert_eq!((known.promoted(now), primary(&known)), (None, 2));
    }

    #[test]
    fn events_of_other_primaries_and_nonsense_choose_nobody() {
        let said = "slave 10.0.0.1:7 10.0.0.1 7 @ ours 10.0.0.1 6";
        assert_eq!(chosen(said, "ours"), Some(at(7)));
        assert_eq!(chosen(said, "theirs"), None);
        for text in ["", "slave", "slave a b c @ ours", "slave a b 0 @ ours", "master a b 1 @ ours"]
        {
            assert_eq!(chosen(text, "ours"), None, "{text}");
        }
    }
}
