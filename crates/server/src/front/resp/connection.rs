//! A connection: commands are read where they lie, decided in batches, and answered with one write.
//!
//! ```text
//!   bytes ──► CL.THROTTLE … CL.THROTTLE │ PING │ CL.THROTTLE …        until all that is here is read
//!             └──── one batch ────────┘   alone   └ the next
//! ```
//!
//! A long pipeline is decided in several batches, and others have their turn between them.

use super::commands::{AfterCommand, Batch, RespHandler, Session};
use super::reply;
use super::wire::{self, CommandBound, ProtocolError, Read, Words};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{AcceptedConnection, BufferedConnection, Drain, ListenerContext, PIECE, Woken};
use std::io;
use std::mem;

/// How far some bytes were answered.
struct Progress {
    used: usize,
    then: Then,
}

/// What is counted of the commands that arrive together.
struct Counts {
    /// Those that said nothing, in a row.
    empty: usize,
    /// How many more are looked at before others have their turn, in throttles.
    short: usize,
}

/// How many throttles of a batch take as long as another command.
const OTHER: usize = 4;

/// Why no more of them were.
enum Then {
    /// A command has begun; it needs at least so many bytes in all.
    More(usize),
    /// Enough was answered for now.
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
    let mut counts = Counts { empty: 0, short: bounds::SHORT_PIPELINE };
    loop {
        let input = mem::take(&mut line.input);
        // At least one command is answered each time.
        let most = bounds::RESP_UNWRITTEN.min(line.room());
        let (who, out) = ((handler, place), (&mut line.output, most));
        let answered = answer(who, input.unread(), &mut session, out, &mut counts).await;
        line.input = input;
        line.input.consume(answered.used);
        line.input.set_most(unread(&session));
        match answered.then {
            Then::Flush => line.flush().await?,
            Then::Close => return line.close().await,
            Then::Refuse(error) => {
                refuse(error, place, &mut line.output);
                return line.close().await;
            }
            // Whoever has begun a command and asked nothing else may finish it.
            Then::More(_) if answered.used > 0 && line.is_last(line.input.is_empty()) => {
                return line.close().await;
            }
            Then::More(least) => {
                line.flush().await?;
                counts.short = bounds::SHORT_PIPELINE;
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

/// Waits until a command can be whole.
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
            // Whoever has begun a command may finish it.
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

/// How much is kept of somebody that was not looked at.
const fn unread(session: &Session) -> usize {
    match session.role {
        Some(_) => bounds::RESP_UNREAD,
        None => bounds::RESP_UNREAD_BEFORE_AUTH,
    }
}

/// The last reply, to what is no command; whoever speaks another protocol gets none.
fn refuse(error: ProtocolError, place: &ListenerContext, out: &mut Vec<u8>) {
    if error == ProtocolError::OtherProtocol {
        return place.metrics.refused(Refused::OtherProtocol);
    }
    let full = error == ProtocolError::NoRoom;
    place.metrics.refused(if full { Refused::NoRoom } else { Refused::Malformed });
    reply::error(out, &format!("ERR {error}"));
}

/// Answers what is here, as far as it goes.
async fn answer<S: Backend>(
    (handler, place): (&RespHandler<S>, &ListenerContext),
    here: &[u8],
    session: &mut Session,
    (out, most_out): (&mut Vec<u8>, usize),
    counts: &mut Counts,
) -> Progress {
    let mut used = 0;
    let mut words = Words::new();
    let mut batch = Batch::new();
    let then = loop {
        let rest = here.get(used..).unwrap_or_default();
        let most = if session.role.is_some() { CommandBound::KNOWN } else { CommandBound::UNKNOWN };
        match wire::read(rest, most, &mut words) {
            Err(error) => break Then::Refuse(error),
            Ok(Read::More(least)) => break Then::More(least),
            Ok(Read::Nothing(length)) => {
                used = used.saturating_add(length);
                counts.empty = counts.empty.saturating_add(1);
                if counts.empty > bounds::RESP_EMPTY {
                    break Then::Refuse(ProtocolError::TooManyEmpty);
                }
                continue;
            }
            Ok(Read::Command(length)) => used = used.saturating_add(length),
        }
        counts.empty = 0;
        if counts.short == 0 {
            place.long_work.pass(PIECE).await;
            counts.short = bounds::RESP_BATCH;
        }
        let throttle = handler.throttle(&words, session);
        counts.short = counts.short.saturating_sub(if throttle.is_some() { 1 } else { OTHER });
        match throttle {
            Some(Ok(throttle)) => batch.push(throttle),
            other => {
                handler.decide(&batch, out).await;
                batch.clear();
                if let Some(Err(error)) = other {
                    reply::error(out, &error);
                } else if handler.run(&words, session, out).await == AfterCommand::Close {
                    break Then::Close;
                }
            }
        }
        if batch.len() >= bounds::RESP_BATCH {
            handler.decide(&batch, out).await;
            batch.clear();
        }
        if out.len() > most_out {
            break Then::Flush;
        }
    };
    // What came before a mistake is answered before it.
    handler.decide(&batch, out).await;
    Progress { used, then }
}
