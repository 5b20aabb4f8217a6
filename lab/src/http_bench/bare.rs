//! A server that only answers: what it reads it does not look at, and what it sends is always the same.
//!
//! With as many threads, nothing that takes requests one by one from the same sockets is much quicker: so it tells how much
//! of a figure belongs to the kernel and to the generator, and what is left to gain.

use clap::Args;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What it takes from the command line.
#[derive(Args)]
pub(crate) struct BareOptions {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
    /// Refuses everything, instead of allowing it.
    #[arg(long)]
    refuse: bool,
}

/// A thread, and the connections that it answers.
struct Worker {
    epoll: OwnedFd,
    /// By the numbers under which they are waited for; `None` when they have ended.
    streams: Mutex<Vec<Option<TcpStream>>>,
}

/// As many events as are looked at together.
const TOGETHER: usize = 64;
/// As much as arrives at once.
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

/// As long as an answer of ours.
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
                    streams.get_mut(*number).is_some_and(|stream| asks(stream, &mut buffer))
                })
                .collect();
            // Together, as our own server does it.
            for stream in asked.iter().filter_map(|number| streams.get(*number)?.as_ref()) {
                // Whoever reads nothing gets nothing.
                let _ = send(stream, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
        }
    }
}

/// Whether somebody asks; who has gone is forgotten.
fn asks(connection: &mut Option<TcpStream>, buffer: &mut [u8]) -> bool {
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
    fn its_answers_are_whole() {
        for (refuse, status) in [(false, 200), (true, 429)] {
            let text = answer(refuse);
            let whole = wire::answer(text.as_bytes()).unwrap().unwrap();
            assert_eq!((whole.status, whole.body.end), (status, text.len()));
        }
    }
}
