//! Upgraded connections, such as websockets: bytes are passed on in both directions until one side ends.

use super::upstream::UpstreamStream;
use crate::net::{Drain, Stream};
use std::io;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

/// Passes on bytes in both directions. First come the bytes that each side had sent before the upgrade was complete.
pub(super) async fn run(
    (client, from_client): (&mut Stream, &[u8]),
    (mut upstream, from_upstream): (UpstreamStream, &[u8]),
    drain: &Drain,
) -> io::Result<()> {
    let passing = async {
        upstream.write_all(from_client).await?;
        client.write_all(from_upstream).await?;
        client.flush().await?;
        copy_bidirectional(client, &mut upstream).await?;
        Ok(())
    };
    tokio::select! {
        passed = passing => passed,
        // A websocket may stay open for days. A server that stops waits for it as long as for any request.
        () = drain.over.cancelled() => Ok(()),
    }
}
