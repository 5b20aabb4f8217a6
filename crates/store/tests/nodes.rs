//! The registry of nodes on real servers: nodes that restart, leave and die, and copies of a data directory.
//!
//! Two servers were counted as three for more than ten minutes after one of them had been restarted. So each of them granted a third
//! of every limit while the store was unreachable, and not half.
//!
//! In most tests the clock of the engine stands still, so that no announcement becomes old while the machine is busy.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and what it shares with others says how much it tried"
)]

use crate::support;

use std::collections::BTreeMap;
use support::server::{ENGINES, Server};
use support::settings;
use tidegate_core::Span;
use tidegate_store::{NodeReport, Redis, RedisSettings, Secret, Store as _, StoreHealth as _};

/// A node with this identity. It believes that it is alone until it sees others, so that a test need not wait until it has counted.
async fn node(server: &Server, node_id: u64) -> Redis {
    let settings = RedisSettings {
        node_id: Some(node_id),
        known_nodes: Some(1),
        ..settings::redis(&server.url())
    };
    Redis::connect(&settings, &Secret::new([7; 32])).await.unwrap()
}

/// How many nodes a node counts after its next announcement.
async fn counted(node: &Redis) -> u32 {
    node.announce_now().await;
    node.nodes()
}

/// The registry, as it is in the store.
async fn entries(server: &Server) -> BTreeMap<String, String> {
    let mut connection = server.connection().await;
    redis::cmd("HGETALL").arg("{tidegate}nodes").query_async(&mut connection).await.unwrap()
}

#[tokio::test]
async fn a_node_that_restarts_is_counted_once() {
    for engine in ENGINES {
        let server = Server::start_frozen(engine);
        let (stays, dies) = (node(&server, 1).await, node(&server, 2).await);
        assert_eq!((counted(&stays).await, counted(&dies).await), (2, 2), "{engine}");
        drop(dies);
        for _ in 0..3 {
            // It is killed: it does not say that it leaves.
            drop(node(&server, 2).await);
            assert_eq!(counted(&stays).await, 2, "{engine}");
        }
        let restarted = node(&server, 2).await;
        assert_eq!((counted(&stays).await, counted(&restarted).await), (2, 2), "{engine}");
    }
}

#[tokio::test]
async fn a_node_that_leaves_is_not_counted() {
    for engine in ENGINES {
        let server = Server::start_frozen(engine);
        let (stays, leaves) = (node(&server, 1).await, node(&server, 2).await);
        assert_eq!(counted(&stays).await, 2, "{engine}");
        leaves.release().await;
        assert_eq!(counted(&stays).await, 1, "{engine}");
        let back = node(&server, 2).await;
        assert_eq!((counted(&stays).await, counted(&back).await), (2, 2), "{engine}");
    }
}

/// A dead node is forgotten by the store after five seconds. (The others count it for longer, because it may only be cut off.)
#[tokio::test]
async fn a_dead_node_is_forgotten() {
    for engine in ENGINES {
        let server = Server::start_frozen(engine);
        let stays = node(&server, 1).await;
        let own = entries(&server).await["0000000000000001"].clone();
        let (now, rest) = own.split_once(' ').unwrap();
        let now: i64 = now.parse().unwrap();
        // Just in time, too late, and after the clock was set back.
        for (at, expected) in [(now - 4_999, 2), (now - 5_000, 1), (now, 2), (now + 1, 1)] {
            let mut set = redis::cmd("HSET");
            set.arg("{tidegate}nodes").arg("0000000000000002").arg(format!("{at} {rest}"));
            let () = set.query_async(&mut server.connection().await).await.unwrap();
            stays.announce_now().await;
            assert_eq!(entries(&server).await.len(), expected, "{engine}: {}", at - now);
        }
    }
}

/// Two servers were started with copies of one data directory. They are two nodes. If they counted as one, each would grant the whole
/// limit.
#[tokio::test]
async fn nodes_with_copies_of_one_data_directory_are_two_nodes() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let stays = node(&server, 1).await;
        let (first, second) = (node(&server, 2).await, node(&server, 2).await);
        let mut rounds = 0;
        // Announcements of the same millisecond do not show who was first.
        while [counted(&stays).await, counted(&first).await, counted(&second).await] != [3, 3, 3] {
            rounds += 1;
            assert!(rounds < 1_000, "{engine}: {:?}", entries(&server).await);
        }
        let names: Vec<String> = stays.node_reports().into_iter().map(|node| node.name).collect();
        let known = ["0000000000000001", "0000000000000002"];
        assert!(known.iter().all(|name| names.iter().any(|one| one == name)), "{names:?}");
        first.release().await;
        assert_eq!(counted(&stays).await, 2, "{engine}");
        drop(second);
    }
}

#[tokio::test]
async fn nodes_tell_each_other_the_hash_of_their_policy() {
    for engine in ENGINES {
        let server = Server::start_frozen(engine);
        let (one, other) = (node(&server, 1).await, node(&server, 2).await);
        for hash in ["9f86d081884c", "9f86d081884c+60303ae22b99"] {
            other.announce_policy(hash);
            other.announce_now().await;
            one.announce_now().await;
            let policies: Vec<(bool, String)> =
                one.node_reports().into_iter().map(|node| (node.is_this, node.policy)).collect();
            assert_eq!(policies, [(true, String::new()), (false, hash.to_owned())], "{engine}");
        }
        let NodeReport { silent, .. } = one.node_reports()[1];
        assert_eq!(silent, Span::ZERO);
    }
}
