//! A server that sends the same answer to everything it reads, without parsing it.
//!
//! With as many threads, no server that reads requests one by one from the same sockets can be much faster.
//! So this server shows how much of a figure is the kernel's and the generator's share, and how much could
//! still be gained.

use clap::Args;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The command-line options of `lab bare`.
#[derive(Args)]
pub(crate) struct BareOptions {
    /// The address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Refuse every request instead of allowing it
    #[arg(long)]
    refuse: bool,
}

/// One thread's epoll instance and the connections that the thread answers.
struct Worker {
    epoll: OwnedFd,
    /// By the number that epoll reports; `None` for a connection that has ended.
    streams: Mutex<Vec<Option<TcpStream>>>,
}

/// The most events of one `epoll_wait`.
const TOGETHER: usize = 64;
/// The most bytes of one `recv`.
const ROOM: usize = 16 << 10;

/// Serves until it is killed.
pub(crate) fn run(options: &BareOptions) -> Result<(), String> {
    serve(options).map_err(|error| error.to_string())
}

fn serve(options: &BareOptions) -> io::Result<()> {
    let answer = answer(options.refuse);
    let listener = TcpListener::bind(options.listen)?;
    let workers = thread::available_parallelism()?.get();
    let workers: Vec<Worker> = (0..workers).map(|_| Worker::new()).collect::<io::Result<_>>()?;
    thread::scope(|scope| {
        for worker in &workers {
            scope.spawn(|| worker.run(answer.as_bytes()));
        }
        for (stream, worker) in listener.incoming().zip(workers.iter().cycle()) {
            worker.take(stream?)?;
        }
        Ok(())
    })
}

/// An answer as long as tidegate's.
fn answer(refuse: bool) -> String {
    let status = if refuse { "429 Too Many Requests" } else { "200 OK" };
    let body = format!("{{\"allowed\":{},\"filler\":\"{}\"}}\n", !refuse, "-".repeat(250));
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

impl Worker {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, streams: Mutex::default() })
    }

    fn take(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let number = u64::try_from(streams.len()).map_err(io::Error::other)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number), flags)?;
        streams.push(Some(stream));
        Ok(())
    }

    fn run(&self, answer: &[u8]) -> io::Result<()> {
        let mut events = Vec::with_capacity(TOGETHER);
        let mut buffer = vec![0; ROOM];
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            let numbers = events.drain(..).map(|event| event.data.u64());
            let asked: Vec<usize> = numbers
                .filter_map(|number| usize::try_from(number).ok())
                .filter(|number| {
                    streams.get_mut(*number).is_some_and(|stream| has_request(stream, &mut buffer))
                })
                .collect();
            // All answers in a row after all reads, as tidegate does it.
            for stream in asked.iter().filter_map(|number| streams.get(*number)?.as_ref()) {
                // A client that does not read loses its answer.
                let _ = send(stream, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
        }
    }
}

/// Whether bytes have arrived. A connection that has ended is dropped.
fn has_request(connection: &mut Option<TcpStream>, buffer: &mut [u8]) -> bool {
    let Some(stream) = connection else { return false };
    match recv(stream, buffer, RecvFlags::DONTWAIT) {
        Ok((1.., _)) => true,
        Err(Errno::AGAIN | Errno::INTR) => false,
        Ok((0, _)) | Err(_) => {
            *connection = None;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_bench::wire;

    #[test]
    fn its_answers_are_complete() {
        for (refuse, status) in [(false, 200), (true, 429)] {
            let text = answer(refuse);
            let whole = wire::answer(text.as_bytes()).unwrap().unwrap();
            assert_eq!((whole.status, whole.body.end), (status, text.len()));
        }
    }
}
