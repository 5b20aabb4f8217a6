//! A connection: commands are parsed in place, decided in batches, and answered with one write.
//!
//! ```text
//!   bytes ──► CL.THROTTLE … CL.THROTTLE │ TG.CHECK … TG.CHECK │ PING │ CL.THROTTLE …   until all bytes that have arrived are read
//!             └────── one batch ──────┘   └─── together ────┘  alone   └ the next
//! ```
//!
//! A long pipeline is decided in several batches; other connections of the worker have their turn between them (fair
//! queueing).

use super::handler::{AfterCommand, AskingBatch, Batch, RespHandler};
use super::repeated::Repeated;
use super::reply;
use super::session::Session;
use super::throttle::Throttle;
use super::wire::{self, CommandBound, ProtocolError, Read, Words};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{AcceptedConnection, BufferedConnection, Drain, ListenerContext, PIECE, Woken};
use std::io;
use std::mem;

/// How much of the input was answered, and why not more.
struct Progress {
    used: usize,
    stop: Stop,
}

/// Counters that bound the work for one connection.
struct Counts {
    /// Empty commands in a row.
    empty: usize,
    /// Work left before other connections have their turn; its unit is one `CL.THROTTLE`.
    quantum: usize,
}

/// Any other command takes as long as this many `CL.THROTTLE` of a batch.
const OTHER_COMMAND: usize = 4;

/// The commands of the input, one after the other.
struct Commands<'b> {
    here: &'b [u8],
    /// Bytes that were read.
    used: usize,
    /// The words of the last command, unless it was a repeated one.
    words: Words<'b>,
    last: Option<Repeated<'b>>,
}

/// What was read.
enum NextCommand<'b> {
    /// `CL.THROTTLE`, or the error that is the reply to one.
    Throttle(Result<(&'b [u8], Throttle), String>),
    Other,
    /// An empty line or list.
    Nothing,
}

/// Why the answering of input stopped.
enum Stop {
    /// A command is incomplete; the value is the least number of bytes that it has.
    More(usize),
    /// The replies must be sent before more are written.
    Flush,
    Close,
    Refuse(ProtocolError),
}

/// Serves a connection to its end.
pub(crate) async fn serve<S: Backend>(
    AcceptedConnection { stream, peer, account, .. }: AcceptedConnection<'_>,
    handler: &RespHandler<S>,
    place: &ListenerContext,
    drain: &Drain,
) -> io::Result<()> {
    let mut session = handler.session(peer);
    let mut line = BufferedConnection::new(stream, account, place, drain, unread(&session));
    let mut counts = Counts { empty: 0, quantum: bounds::SHORT_PIPELINE };
    loop {
        let input = mem::take(&mut line.input);
        // At least one command is answered each time.
        let most = bounds::RESP_UNWRITTEN.min(line.room());
        let (who, out) = ((handler, place), (&mut line.output, most));
        let answered = answer(who, input.unread(), &mut session, out, &mut counts).await;
        line.input = input;
        line.input.consume(answered.used);
        line.input.set_most(unread(&session));
        match answered.stop {
            Stop::Flush => line.flush().await?,
            Stop::Close => return line.close().await,
            Stop::Refuse(error) => {
                refuse(error, place, &mut line.output);
                return line.close().await;
            }
            // The server is stopping. A client with an incomplete command and no other requests may still finish it.
            Stop::More(_) if answered.used > 0 && line.is_last(line.input.is_empty()) => {
                return line.close().await;
            }
            Stop::More(least) => {
                line.flush().await?;
                counts.quantum = bounds::SHORT_PIPELINE;
                match more(&mut line, least, place).await? {
                    Woken::Bytes | Woken::Draining => {}
                    Woken::End => return Ok(()),
                    Woken::Late => return line.close().await,
                    Woken::NoRoom => {
                        refuse(ProtocolError::NoRoom, place, &mut line.output);
                        return line.close().await;
                    }
                }
            }
        }
    }
}

/// Waits until enough bytes have arrived for a whole command.
async fn more(
    line: &mut BufferedConnection<'_>,
    least: usize,
    place: &ListenerContext,
) -> io::Result<Woken> {
    let mut begun = !line.input.is_empty();
    line.wait_within(if begun { place.timeouts.head } else { line.idle_timeout() });
    loop {
        let woken = line.fill().await?;
        match woken {
            Woken::Bytes if line.input.unread().len() >= least => return Ok(Woken::Bytes),
            Woken::Bytes if !begun => {
                begun = true;
                line.wait_within(place.timeouts.head);
            }
            Woken::Bytes => {}
            // A client that has begun a command may finish it.
            Woken::Draining if begun => {}
            Woken::Draining => line.wait_within(line.idle_timeout()),
            Woken::Late if begun => {
                place.metrics.refused(Refused::Late);
                return Ok(Woken::Late);
            }
            Woken::Late | Woken::End | Woken::NoRoom => return Ok(woken),
        }
    }
}

/// How many unread bytes of a client are buffered.
const fn unread(session: &Session) -> usize {
    match session.role {
        Some(_) => bounds::RESP_UNREAD,
        None => bounds::RESP_UNREAD_BEFORE_AUTH,
    }
}

/// Writes the last reply, after a protocol error. A client of another protocol gets none.
fn refuse(error: ProtocolError, place: &ListenerContext, out: &mut Vec<u8>) {
    if error == ProtocolError::OtherProtocol {
        return place.metrics.refused(Refused::OtherProtocol);
    }
    let full = error == ProtocolError::NoRoom;
    place.metrics.refused(if full { Refused::NoRoom } else { Refused::Malformed });
    reply::error(out, &format!("ERR {error}"));
}

impl<'b> Commands<'b> {
    /// Reads the next command.
    fn next<S: Backend>(
        &mut self,
        handler: &RespHandler<S>,
        session: &Session,
    ) -> Result<NextCommand<'b>, Stop> {
        let rest = self.here.get(self.used..).unwrap_or_default();
        if let Some(last) = &self.last
            && let Some((key, length)) = last.next(rest)
        {
            self.used = self.used.saturating_add(length);
            return Ok(NextCommand::Throttle(Ok((key, last.throttle().clone()))));
        }
        let is_known = session.role.is_some();
        let most = if is_known { CommandBound::KNOWN } else { CommandBound::UNKNOWN };
        let length = match wire::read(rest, most, &mut self.words) {
            Err(error) => return Err(Stop::Refuse(error)),
            Ok(Read::More(least)) => return Err(Stop::More(least)),
            Ok(Read::Nothing(length)) => {
                self.used = self.used.saturating_add(length);
                return Ok(NextCommand::Nothing);
            }
            Ok(Read::Command(length)) => length,
        };
        self.used = self.used.saturating_add(length);
        let throttle = handler.throttle(&self.words, session);
        self.last = match &throttle {
            Some(Ok((_, throttle))) => Repeated::new(rest, length, &self.words, throttle),
            Some(Err(_)) | None => None,
        };
        Ok(throttle.map_or(NextCommand::Other, NextCommand::Throttle))
    }
}

/// Answers the commands that have arrived.
async fn answer<S: Backend>(
    (handler, place): (&RespHandler<S>, &ListenerContext),
    here: &[u8],
    session: &mut Session,
    (out, most_out): (&mut Vec<u8>, usize),
    counts: &mut Counts,
) -> Progress {
    let mut commands = Commands { here, used: 0, words: Words::new(), last: None };
    let mut batch = Batch::new();
    let mut asked = AskingBatch::new();
    let stop = loop {
        let throttle = match commands.next(handler, session) {
            Err(stop) => break stop,
            Ok(NextCommand::Nothing) => {
                counts.empty = counts.empty.saturating_add(1);
                if counts.empty > bounds::RESP_EMPTY {
                    break Stop::Refuse(ProtocolError::TooManyEmpty);
                }
                continue;
            }
            Ok(NextCommand::Throttle(throttle)) => Some(throttle),
            Ok(NextCommand::Other) => None,
        };
        counts.empty = 0;
        if counts.quantum == 0 {
            place.long_work.pass(PIECE).await;
            counts.quantum = bounds::RESP_BATCH;
        }
        counts.quantum =
            counts.quantum.saturating_sub(if throttle.is_some() { 1 } else { OTHER_COMMAND });
        let asking = match throttle {
            Some(_) => None,
            None => RespHandler::<S>::asking(&commands.words, session),
        };
        // Replies are in the order of the commands, so what is of another kind is decided before.
        let joins =
            asking.zip(asked.first()).is_some_and(|(asking, (first, _))| asking.joins(*first));
        if !asked.is_empty() && (!joins || asked.len() >= RespHandler::<S>::most_asked()) {
            handler.answer_asked(&asked, session, &place.long_work, out).await;
            asked.clear();
        }
        match throttle {
            Some(Ok(throttle)) => {
                if batch.len() == batch.inline_size() {
                    batch.reserve(bounds::RESP_BATCH);
                }
                batch.push(throttle);
            }
            other => {
                handler.decide(&batch, out).await;
                batch.clear();
                if let Some(Err(error)) = other {
                    reply::error(out, &error);
                } else if let Some(asking) = asking {
                    asked.push((asking, commands.words.clone()));
                } else if handler.run(&commands.words, session, out).await == AfterCommand::Close {
                    break Stop::Close;
                }
            }
        }
        if batch.len() >= bounds::RESP_BATCH {
            handler.decide(&batch, out).await;
            batch.clear();
        }
        if out.len() > most_out {
            break Stop::Flush;
        }
    };
    // The commands before a protocol error are answered before the error. At most one of these has any.
    handler.decide(&batch, out).await;
    if !asked.is_empty() {
        handler.answer_asked(&asked, session, &place.long_work, out).await;
    }
    Progress { used: commands.used, stop }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::net::{Budget, LongWorkQueue, Timeouts, Versions};
    use std::rc::Rc;
    use std::sync::Arc;

    /// The replies to a pipeline.
    pub(crate) async fn answered<S: Backend>(handler: &RespHandler<S>, input: &[u8]) -> Vec<u8> {
        let minute = std::time::Duration::from_secs(60);
        let timeouts = Timeouts { handshake: minute, head: minute, body: minute, idle: minute };
        let shared = (Arc::default(), Budget::new(1 << 20));
        let queue = Rc::new(LongWorkQueue::new(S::IN_PROCESS));
        let place = ListenerContext::new(timeouts, Versions::One, shared).with_queue(&queue);
        let mut session = handler.session([127, 0, 0, 1].into());
        let mut counts = Counts { empty: 0, quantum: bounds::SHORT_PIPELINE };
        let mut out = Vec::new();
        let to = (&mut out, usize::MAX);
        let progress = answer((handler, &place), input, &mut session, to, &mut counts).await;
        assert_eq!(progress.used, input.len());
        out
    }
}
