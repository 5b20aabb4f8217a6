//! TCP connections to servers.

use std::io;
use tokio::net::TcpStream;

pub(crate) async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
