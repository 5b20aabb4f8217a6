//! Giving back what a receipt took, once, although replies can be lost.
//!
//! A caller whose reply was lost presents its receipt again, and memcached cannot change two values together. So each part of a
//! receipt has a mark beside its counter, on the same server, and every step can be repeated:
//!
//! ```text
//!   look     mark: none or a plan        counter: its value has number c       (memcached numbers each value that it writes)
//!   plan     mark = c + 1      nothing was subtracted yet; the next caller with the receipt goes on from here
//!   execute  mark = done, if it still is this plan;  then subtract, if the counter still has number c
//! ```
//!
//! - **Once.** A mark that is a plan says that nothing was subtracted, since the mark is written before. Two callers that execute one
//!   plan subtract under one number `c`, which only the first of them finds. A plan whose counter has changed is replaced by compare
//!   and swap, and what is late under the old number changes nothing.
//! - **Not lost.** Both commands of the last step are sent in one write. If only their replies are lost, both were executed.
//! - **Who owns the mark answers for the part.** If the counter changed before its subtraction, it subtracts without a condition. A
//!   caller that subtracted and does not own the mark puts that back.
//!
//! What remains: if the replies of the last step are lost *and* another caller changed the counter within the last round trip, the
//! part is not given back, or, if that caller presented the same receipt, it may be given back twice. If memcached evicts a mark,
//! its part can be given back again.

use super::Memcached;
use super::call::Call;
use super::counters::{self, PartName};
use super::decide::{MAX_TRIES, contended};
use super::meta::{self, KeyText, Reply, Ttl};
use super::server::Failed;
use crate::store::{ReceiptId, Settled, Settlement};
use futures_util::future::join_all;
use tidegate_core::{StateId, Timestamp};

/// The mark of a part that was given back. Larger numbers are plans.
const DONE: u64 = 1;

/// The mark of one part of a receipt.
struct PartMark {
    key: KeyText,
    ttl: Ttl,
}

/// The mark that is there.
enum FoundMark {
    None,
    Plan {
        plan: u64,
        /// The number by which it is compared and swapped.
        cas: u64,
    },
    Done,
}

/// What is to be subtracted from a counter.
struct GivenBack {
    key: KeyText,
    weight: u64,
}

impl Memcached {
    pub(super) async fn settle_receipt(
        &self,
        settlement: &Settlement<'_>,
        until: Timestamp,
    ) -> Result<Settled, Failed> {
        let now = self.context.wall.now();
        if settlement.until <= now.steady {
            return Ok(Settled::Late);
        }
        let settle = |index| self.settle_part(settlement, index, until);
        let parts = join_all((0..settlement.parts.len()).map(settle)).await;
        let mut is_new = false;
        for part in parts {
            is_new |= part?;
        }
        if settlement.parts.is_empty() {
            is_new = self.mark_receipt(settlement.id, settlement.until, until).await?;
        }
        Ok(if is_new { Settled::Done } else { Settled::Already })
    }

    /// Gives one part back; returns whether this call did.
    async fn settle_part(
        &self,
        settlement: &Settlement<'_>,
        index: usize,
        until: Timestamp,
    ) -> Result<bool, Failed> {
        let (earlier, rest) = settlement.parts.split_at_checked(index).unwrap_or_default();
        let Some(part) = rest.first() else { return Ok(false) };
        let before = earlier.iter().filter(|other| other.state == part.state).count();
        let name = PartName { state: part.state, before };
        let now = self.context.wall.now();
        let server = self.server_of(part.state)?;
        let ReceiptId(id) = settlement.id;
        let seconds = counters::receipt_seconds(settlement.until.since(now.steady));
        let mark =
            PartMark { key: counters::receipt_key(id, Some(name)), ttl: server.ttl(seconds) };
        let call = Call::begin(server, until)?;
        let given_back =
            counters::given_back(part.state, part.limit, &part.receipt, now.of(part.limit));
        let Some((key, weight)) = given_back else {
            // It has stopped counting.
            let done = meta::set_if_absent(&mark.key, &DONE.to_string(), mark.ttl);
            return is_stored(&call, ask(&call, &done).await?);
        };
        let given_back = GivenBack { key, weight };
        for _ in 0..MAX_TRIES {
            let look = [&meta::get(&mark.key), &meta::get(&given_back.key)];
            let [found, counter] = ask_both(&call, look).await?;
            // A counter that was lost has nothing to give back.
            let plan = number_of(&call, &counter)?.map(|cas| cas.saturating_add(1));
            let next = plan.unwrap_or(DONE);
            let write = match (found_mark(&call, &found)?, plan) {
                (FoundMark::Done, _) => return Ok(false),
                (FoundMark::Plan { plan: known, cas }, Some(plan)) if known == plan => {
                    if execute(&call, &mark, &given_back, [plan, cas]).await? {
                        return Ok(true);
                    }
                    continue;
                }
                (FoundMark::Plan { cas, .. }, _) => meta::swap(&mark.key, next, cas, mark.ttl),
                (FoundMark::None, _) => meta::set_if_absent(&mark.key, &next.to_string(), mark.ttl),
            };
            if is_stored(&call, ask(&call, &write).await?)? && next == DONE {
                return Ok(true);
            }
        }
        Err(contended())
    }

    /// Remembers a receipt; returns whether it was new.
    pub(super) async fn mark_receipt(
        &self,
        ReceiptId(id): ReceiptId,
        expires: Timestamp,
        until: Timestamp,
    ) -> Result<bool, Failed> {
        let server = self.server_of(StateId(id))?;
        let seconds = counters::receipt_seconds(expires.since(self.context.wall.now().steady));
        let key = counters::receipt_key(id, None);
        let mark = meta::set_if_absent(&key, &DONE.to_string(), server.ttl(seconds));
        let call = Call::begin(server, until)?;
        is_stored(&call, ask(&call, &mark).await?)
    }
}

/// Executes a plan, if the mark still is this one; returns whether it was.
async fn execute(
    call: &Call<'_>,
    mark: &PartMark,
    GivenBack { key, weight }: &GivenBack,
    [plan, cas]: [u64; 2],
) -> Result<bool, Failed> {
    let done = meta::swap(&mark.key, DONE, cas, mark.ttl);
    let subtract = meta::subtract_from(key, *weight, plan.saturating_sub(1));
    let [done, subtracted] = ask_both(call, [&done, &subtract]).await?;
    let is_ours = is_stored(call, done)?;
    if is_ours && subtracted == Reply::NotStored {
        // Another caller changed the counter first. This one owns the mark, so it subtracts whatever the counter is now.
        ask(call, &meta::subtract(key, *weight)).await?;
    } else if !is_ours && subtracted == Reply::Done {
        // The owner of the mark found the counter changed by us, and subtracts once more.
        ask(call, &meta::put_back(key, *weight)).await?;
    }
    Ok(is_ours)
}

fn found_mark(call: &Call<'_>, reply: &Reply) -> Result<FoundMark, Failed> {
    match reply {
        Reply::Missing => Ok(FoundMark::None),
        Reply::Number { value: DONE, .. } => Ok(FoundMark::Done),
        Reply::Number { value, cas } => Ok(FoundMark::Plan { plan: *value, cas: *cas }),
        Reply::Done
        | Reply::Text(_)
        | Reply::NotStored
        | Reply::Version(_)
        | Reply::Stats(_)
        | Reply::Error(_) => Err(call.unexpected(reply)),
    }
}

/// The number by which a counter is compared; `None` if there is no counter.
fn number_of(call: &Call<'_>, counter: &Reply) -> Result<Option<u64>, Failed> {
    match counter {
        Reply::Missing => Ok(None),
        Reply::Number { cas, .. } => Ok(Some(*cas)),
        Reply::Done
        | Reply::Text(_)
        | Reply::NotStored
        | Reply::Version(_)
        | Reply::Stats(_)
        | Reply::Error(_) => Err(call.unexpected(counter)),
    }
}

fn is_stored(call: &Call<'_>, reply: Reply) -> Result<bool, Failed> {
    match reply {
        Reply::Done => Ok(true),
        Reply::NotStored | Reply::Missing => Ok(false),
        other @ (Reply::Number { .. }
        | Reply::Text(_)
        | Reply::Version(_)
        | Reply::Stats(_)
        | Reply::Error(_)) => Err(call.unexpected(&other)),
    }
}

async fn ask(call: &Call<'_>, command: &meta::Command) -> Result<Reply, Failed> {
    let sent = call.connection.send(command);
    let mut reply = sent.map_err(|error| call.not_sent(error))?;
    call.reply(&mut reply).await
}

/// Sends two commands together.
async fn ask_both(call: &Call<'_>, commands: [&meta::Command; 2]) -> Result<[Reply; 2], Failed> {
    let sent = call.connection.send_both(commands);
    let [mut first, mut second] = sent.map_err(|error| call.not_sent(error))?;
    Ok([call.reply(&mut first).await?, call.reply(&mut second).await?])
}
