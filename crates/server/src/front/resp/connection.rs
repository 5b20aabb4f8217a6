//! A connection: commands are parsed in place, decided in batches, and answered with one write.
//!
//! ```text
//!   bytes ──► CL.THROTTLE … CL.THROTTLE │ TG.CHECK … TG.CHECK │ PING │ CL.THROTTLE …   until all bytes that have arrived are read
//!             └────── one batch ──────┘   └─── together ────┘  alone   └ the next
//! ```
//!
//! A long pipeline is decided in several batches; other connections of the worker have their turn between them (fair
//! queueing).

use super::handler::{AfterCommand, Asking, AskingBatch, Batch, RespHandler};
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
    /// A command that asks the policy.
    Asking(Asking),
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
    line.wait_for_more();
    loop {
        let woken = line.fill().await?;
        match woken {
            Woken::Bytes if line.input.unread().len() >= least => return Ok(Woken::Bytes),
            Woken::Bytes if !begun => {
                begun = true;
                line.wait_for_more();
            }
            Woken::Bytes => {}
            // A client that has begun a command may finish it.
            Woken::Draining if begun => {}
            Woken::Draining => line.wait_for_more(),
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
        if let Some(throttle) = throttle {
            return Ok(NextCommand::Throttle(throttle));
        }
        let asking = RespHandler::<S>::asking(&self.words, session);
        Ok(asking.map_or(NextCommand::Other, NextCommand::Asking))
    }
}

/// Commands that were read and not decided yet. Replies are in the order of the commands, so at most one of the two lists has any.
struct Pending<'b> {
    batch: Batch<'b>,
    asked: AskingBatch<'b>,
}

impl<'b> Pending<'b> {
    /// Whether the next command is decided together with these; at most `most` of those that ask the policy are.
    fn accepts(&self, next: &NextCommand<'_>, most: usize) -> bool {
        match next {
            NextCommand::Throttle(Ok(_)) => {
                self.asked.is_empty() && self.batch.len() < bounds::RESP_BATCH
            }
            NextCommand::Asking(asking) => {
                let joins = self.asked.first().is_none_or(|(first, _)| asking.joins(*first));
                self.batch.is_empty() && joins && self.asked.len() < most
            }
            NextCommand::Throttle(Err(_)) | NextCommand::Other | NextCommand::Nothing => false,
        }
    }

    fn throttle(&mut self, throttle: (&'b [u8], Throttle)) {
        if self.batch.len() == self.batch.inline_size() {
            self.batch.reserve(bounds::RESP_BATCH);
        }
        self.batch.push(throttle);
    }

    /// Decides them, and writes the replies.
    async fn decide<S: Backend>(
        &mut self,
        handler: &RespHandler<S>,
        place: &ListenerContext,
        session: &Session,
        out: &mut Vec<u8>,
    ) {
        handler.decide(&self.batch, out).await;
        self.batch.clear();
        if !self.asked.is_empty() {
            handler.answer_asked(&self.asked, session, &place.long_work, out).await;
            self.asked.clear();
        }
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
    let mut pending = Pending { batch: Batch::new(), asked: AskingBatch::new() };
    let stop = loop {
        let next = match commands.next(handler, session) {
            Err(stop) => break stop,
            Ok(NextCommand::Nothing) => {
                counts.empty = counts.empty.saturating_add(1);
                if counts.empty > bounds::RESP_EMPTY {
                    break Stop::Refuse(ProtocolError::TooManyEmpty);
                }
                continue;
            }
            Ok(next) => next,
        };
        counts.empty = 0;
        if counts.quantum == 0 {
            place.long_work.pass(PIECE).await;
            counts.quantum = bounds::RESP_BATCH;
        }
        let is_throttle = matches!(next, NextCommand::Throttle(_));
        counts.quantum = counts.quantum.saturating_sub(if is_throttle { 1 } else { OTHER_COMMAND });
        // Their replies must fit where there is memory for them.
        let fit = most_out.saturating_sub(out.len()).checked_div(bounds::ENTRY).unwrap_or(0);
        if !pending.accepts(&next, RespHandler::<S>::most_asked().min(fit)) {
            pending.decide(handler, place, session, out).await;
        }
        match next {
            NextCommand::Throttle(Ok(throttle)) => pending.throttle(throttle),
            NextCommand::Throttle(Err(error)) => reply::error(out, &error),
            NextCommand::Asking(asking) => pending.asked.push((asking, commands.words.clone())),
            NextCommand::Other | NextCommand::Nothing => {
                if handler.run(&commands.words, session, out).await == AfterCommand::Close {
                    break Stop::Close;
                }
            }
        }
        if out.len() > most_out {
            break Stop::Flush;
        }
    };
    // The commands before a protocol error are answered before the error.
    pending.decide(handler, place, session, out).await;
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
