//! An upstream server with eight workers. A request needs a random time, whose mean depends on its class, the first segment of its
//! path (`GET /high/7`).

#![expect(clippy::float_arithmetic, reason = "random times")]
#![expect(clippy::disallowed_methods, reason = "the instants are what is measured")]

use super::priorities::CLASSES;
use crate::rounds::float;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const WORKERS: usize = 8;

/// A running server. It serves until the program ends.
pub(crate) struct ClassServer {
    pub(crate) address: SocketAddr,
    shared: Arc<SharedServer>,
}

struct SharedServer {
    workers: Semaphore,
    /// The mean time of each class, in milliseconds.
    millis: [u32; 4],
    /// For how long requests of each class were here, in nanoseconds.
    nanos: [AtomicU64; 4],
    random: Mutex<Random>,
}

/// Pseudorandom numbers (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A time with this mean in seconds, exponentially distributed.
    pub(crate) fn exponential(&mut self, mean: f64) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bits = (bits ^ (bits >> 31)) >> 11;
        let uniform = (float(bits) + 1.0) / float(1 << 53);
        Duration::from_secs_f64(-uniform.ln() * mean)
    }
}

impl ClassServer {
    pub(crate) fn start(millis: [u32; 4]) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (workers, random) = (Semaphore::new(WORKERS), Mutex::new(Random::new(7)));
        let shared = Arc::new(SharedServer { workers, millis, nanos: Default::default(), random });
        let served = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || runtime.block_on(serve(listener, served)));
        Ok(Self { address, shared })
    }

    /// How many requests of each class were here on average, in this time.
    pub(crate) fn mean_in_flight(&self, length: Duration) -> [f64; 4] {
        let all = length.as_secs_f64() * 1e9;
        self.shared.nanos.each_ref().map(|nanos| float(nanos.load(Ordering::Relaxed)) / all)
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<SharedServer>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A proxy that closes the connection ends the task.
        tokio::spawn(connection(stream, Arc::clone(&shared)));
    }
}

async fn connection(mut stream: TcpStream, shared: Arc<SharedServer>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        shared.work(&head).await;
        head.clear();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
    }
}

impl SharedServer {
    /// Works on a request, when a worker is free.
    async fn work(&self, head: &[u8]) {
        let Some(class) = class_of(head) else { return };
        let (began, worker) = (Instant::now(), self.workers.acquire().await);
        let mean = self.millis.get(class).copied().map_or(0.0, |millis| f64::from(millis) / 1e3);
        let time = self.random.lock().unwrap_or_else(PoisonError::into_inner).exponential(mean);
        tokio::time::sleep(time).await;
        drop(worker);
        if let Some(nanos) = self.nanos.get(class) {
            let here = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(here, Ordering::Relaxed);
        }
    }
}

fn class_of(head: &[u8]) -> Option<usize> {
    let path = str::from_utf8(head.get(..64.min(head.len()))?).ok()?.strip_prefix("GET /")?;
    let name = path.split('/').next()?;
    CLASSES.iter().position(|(class, _)| *class == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_the_first_segment() {
        assert_eq!(class_of(b"GET /high/7 HTTP/1.1\r\nHost: x\r\n\r\n"), Some(1));
        assert_eq!(class_of(b"GET /live HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn random_times_have_the_right_mean() {
        let mut random = Random::new(1);
        let sum: Duration = (0..10_000).map(|_| random.exponential(0.02)).sum();
        assert!((190..210).contains(&sum.as_secs()), "{sum:?}"); // five standard deviations
    }
}
