//! Which nodes use the store: each node announces itself every second (a heartbeat) and learns of the others.
//!
//! ```text
//!   name     of the data directory: the same after a restart ─┐
//!   process  random: differs after a restart                  ├──► the hash `{tidegate}nodes` ──► all nodes ──► tally
//!   policy   the hash of the rules in force                  ─┘
//! ```
//!
//! A node that shuts down says that it leaves. A node that dies is removed from the hash five seconds after its last announcement; the
//! others count it for 30 seconds, because it may only be cut off (`node_tally.rs`). If a data directory was copied, two nodes have one
//! name. The one that was there first then takes a random name.

use super::node_tally::{AnnouncedNode, NodeTally};
use super::router::Router;
use super::script;
use super::settings::RedisSettings;
use super::slots::slot_of;
use super::wire::{CONTROL_TAG, NODES_KEY};
use crate::error::StoreError;
use crate::remote::timers;
use crate::reports::NodeReport;
use crate::sync::{Mutex, lock};
use ::redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tokio::task::JoinHandle;

/// Announces this node, and knows the others.
pub(super) struct NodeRegistry {
    member: Arc<Member>,
    /// `None` if the settings say how many nodes there are: then nothing is announced.
    announcer: Option<JoinHandle<()>>,
}

/// This node among the others.
struct Member {
    router: Arc<Router>,
    timeout: Span,
    process: String,
    /// Locked to look or to write, never across an await.
    state: Mutex<MemberState>,
}

struct MemberState {
    name: String,
    /// The store's time at the last announcement under this name, in milliseconds; 0 if there was none.
    announced_at: u64,
    /// The hash of the policy in force on this node.
    policy: String,
    tally: NodeTally,
}

/// What a node says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    /// It shuts down.
    Left,
}

/// The reply to an announcement.
#[derive(Debug, PartialEq, Eq)]
enum AnnounceReply {
    /// Another process has announced itself under the same name since.
    NameTaken,
    Announced {
        at: u64,
        nodes: Vec<AnnouncedNode>,
    },
}

const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

// === impl NodeRegistry ===

impl NodeRegistry {
    /// Announces this node from now on. `process` is a random number.
    pub(super) async fn join(router: &Arc<Router>, settings: &RedisSettings, process: u64) -> Self {
        let tally = match settings.nodes {
            Some(count) => NodeTally::set(count),
            None => NodeTally::assumed(settings.known_nodes),
        };
        let state = MemberState {
            name: format!("{:016x}", settings.node_id.unwrap_or(process)),
            announced_at: 0,
            policy: String::new(),
            tally,
        };
        let member = Arc::new(Member {
            router: Arc::clone(router),
            timeout: settings.timeout,
            process: format!("{process:016x}"),
            state: Mutex::new(state),
        });
        if settings.nodes.is_some() {
            return Self { member, announcer: None };
        }
        member.announce(Presence::Here).await;
        let announcer = tokio::spawn(router.supervised({
            let member = Arc::clone(&member);
            move || Arc::clone(&member).announce_for_ever()
        }));
        Self { member, announcer: Some(announcer) }
    }

    /// The name of this node.
    pub(super) fn name(&self) -> String {
        lock(&self.member.state).name.clone()
    }

    pub(super) fn count(&self) -> u32 {
        lock(&self.member.state).tally.count()
    }

    /// How many nodes there are, if they were counted.
    pub(super) fn known(&self) -> Option<u32> {
        lock(&self.member.state).tally.known()
    }

    /// Why the number of nodes is not known. The cause is left out if the store complains about it itself.
    pub(super) fn complaint(&self, cause_is_known: bool) -> Option<String> {
        lock(&self.member.state).tally.complaint(cause_is_known)
    }

    /// The nodes, as this node knows them.
    pub(super) fn report(&self) -> Vec<NodeReport> {
        let state = lock(&self.member.state);
        state.tally.report(&state.name)
    }

    /// Sets the hash that the next announcement carries.
    pub(super) fn set_policy(&self, hash: &str) {
        let mut state = lock(&self.member.state);
        if state.policy != hash {
            hash.clone_into(&mut state.policy);
        }
    }

    /// Says that this node shuts down, and announces it no more. If that fails, the others notice within seconds.
    pub(super) async fn leave(&self) {
        if let Some(announcer) = &self.announcer {
            announcer.abort();
            self.member.announce(Presence::Left).await;
        }
    }
}

impl Drop for NodeRegistry {
    fn drop(&mut self) {
        if let Some(announcer) = &self.announcer {
            announcer.abort();
        }
    }
}

#[cfg(feature = "testing")]
impl super::Redis {
    /// Announces this node and counts the others now, and not only once a second.
    pub async fn announce_now(&self) {
        self.nodes.member.announce(Presence::Here).await;
    }
}

// === impl Member ===

impl Member {
    async fn announce_for_ever(self: Arc<Self>) {
        loop {
            timers::sleep(ANNOUNCE_INTERVAL).await;
            self.announce(Presence::Here).await;
        }
    }

    /// Announces this node once. If that fails, the number of nodes stays as it was.
    async fn announce(&self, presence: Presence) {
        let mut reply = self.call(presence).await;
        if matches!(reply, Ok(AnnounceReply::NameTaken)) && presence == Presence::Here {
            self.take_random_name();
            reply = self.call(presence).await;
        }
        let mut state = lock(&self.state);
        match reply {
            Ok(AnnounceReply::Announced { at, nodes }) => {
                state.announced_at = at;
                state.tally.answered(nodes, self.router.now());
            }
            Ok(AnnounceReply::NameTaken) => {}
            Err(error) => state.tally.failed(error.to_string()),
        }
    }

    fn take_random_name(&self) {
        let mut state = lock(&self.state);
        // The process is as random as a new name would be.
        (state.name, state.announced_at) = (self.process.clone(), 0);
    }

    async fn call(&self, presence: Presence) -> Result<AnnounceReply, StoreError> {
        let slot = slot_of(CONTROL_TAG);
        let until = self.router.now().after(self.timeout).unwrap_or(Timestamp::END);
        let mut command = ::redis::cmd("EVAL");
        {
            let state = lock(&self.state);
            command.arg(script::ANNOUNCE_NODE).arg(1).arg(NODES_KEY);
            command.arg(&state.name).arg(&self.process).arg(state.announced_at);
            command.arg(presence.word()).arg(&state.policy);
        }
        command.arg(self.router.time_argument(slot));
        let reply = self.router.query(slot, until, &command).await?;
        AnnounceReply::parse(reply)
            .ok_or_else(|| StoreError::Broken("the reply is not a list of nodes".to_owned()))
    }
}

impl Presence {
    const fn word(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Left => "left",
        }
    }
}

impl AnnounceReply {
    fn parse(reply: Value) -> Option<Self> {
        let Value::Array(values) = reply else { return None };
        let (Value::Int(taken), rest) = values.split_first()? else { return None };
        if *taken == 1 {
            return Some(Self::NameTaken);
        }
        let (Value::Int(at), nodes) = rest.split_first()? else { return None };
        let node = |fields: &[Value]| {
            let [Value::BulkString(name), Value::BulkString(state), Value::BulkString(policy)] =
                fields
            else {
                return None;
            };
            let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
            let has_left = state == Presence::Left.word().as_bytes();
            Some(AnnouncedNode { name: text(name)?, has_left, policy: text(policy)? })
        };
        let nodes = nodes.chunks(3).map(node).collect::<Option<Vec<_>>>()?;
        Some(Self::Announced { at: u64::try_from(*at).ok()?, nodes })
    }
}
