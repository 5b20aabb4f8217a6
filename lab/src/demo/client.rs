//! One HTTP/1.1 request on a connection of its own, and what the demo reads of the answer.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What is read of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    /// The field `Retry-After`.
    pub(crate) retry_after: Option<String>,
    /// `detail` of a problem document.
    pub(crate) detail: Option<String>,
}

/// The longest time for a request. A rule holds it for 10 s at most.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const LONGEST: u64 = 64 << 10;

/// Sends a request that says `connection: close`, and reads the answer.
pub(crate) async fn send(address: SocketAddr, request: &str) -> Result<Heard, String> {
    let answer = timeout(PATIENCE, exchange(address, request)).await;
    let answer = answer.map_err(|_late| format!("no answer within {PATIENCE:?}"))?;
    let bytes = answer.map_err(|error| error.to_string())?;
    heard(&String::from_utf8_lossy(&bytes)).ok_or_else(|| "the answer is not HTTP".to_owned())
}

async fn exchange(address: SocketAddr, request: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(LONGEST).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn heard(answer: &str) -> Option<Heard> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let retry_after = fields.find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
    let detail = body.split("\"detail\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Some(Heard {
        status,
        retry_after: retry_after.map(|(_, value)| value.trim().to_owned()),
        detail: detail.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_with_its_time_and_its_reason() {
        let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 37\r\n\r\n{\"detail\":\"create-url allows 100 per hour; try again in 37 s.\",\"status\":429}";
        let heard = heard(answer).unwrap();
        assert_eq!((heard.status, heard.retry_after.as_deref()), (429, Some("37")));
        assert!(heard.detail.unwrap().starts_with("create-url allows"));
    }

    #[test]
    fn other_texts_are_not_answers() {
        for text in
            ["", "HTTP/1.1 200 OK", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 2\r\n\r\n", "SSH-2.0\r\n\r\n"]
        {
            assert_eq!(heard(text), None, "{text}");
        }
        let plain = heard("HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert_eq!(plain, Heard { status: 204, retry_after: None, detail: None });
    }
}
