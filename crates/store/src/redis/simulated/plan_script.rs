//! The plan script of the simulated server: the same steps as `plan.lua`, with decisions made by the core.

use super::request::{Effect, Executed, OwnedCall, OwnedTake, SimulatedReply};
use super::server::{Datum, NANOS_PER_MICRO, SimulatedRedis};
use crate::redis::wire::{self, ShapeTag, Verb, WrittenUnder};
use ::redis::Value;
use tidegate_core::{
    Ask, Cost, Limit, Now, Plan, Span, State, StateContents, StateId, Take, Timestamp, Written,
};

/// What was found under the key of a state.
enum StateLookup {
    Read(Box<ScriptState>),
    /// A value whose shape the script was not told: its tag.
    UnknownShape(u16),
}

/// A value as it was read.
struct ScriptState {
    value: Vec<u8>,
    /// The limit by which it is read, and how the value names it.
    shape: Limit,
    tag: ShapeTag,
    contents: StateContents,
    /// Its shape is lost, so it counts as full.
    lost: bool,
}

/// The result of marking a receipt.
enum ReceiptMark {
    First,
    Already,
    Over,
}

impl SimulatedRedis {
    /// Runs the plan script. The error is an error reply of the server.
    pub(super) fn run(
        &mut self,
        now: Timestamp,
        call: &OwnedCall,
    ) -> Result<(SimulatedReply, Option<Executed>), SimulatedReply> {
        let micros = call.times.test.unwrap_or(now.as_nanos() / NANOS_PER_MICRO);
        let now = Timestamp::from_nanos(micros.saturating_mul(NANOS_PER_MICRO));
        if call.times.deadline > 0 && micros > call.times.deadline {
            return Ok((call.reply("late", micros, vec![]), None));
        }
        let mut found = Vec::new();
        for ((state, limit), own) in call.states().zip(&call.tags) {
            match self.read(call, state, limit)? {
                StateLookup::UnknownShape(tag) if call.lost.contains(&tag) => {
                    found.push(ScriptState::full(limit, *own, now));
                }
                StateLookup::UnknownShape(tag) => {
                    let tag = vec![tag.to_string().into_bytes()];
                    return Ok((call.reply("shape", micros, tag), None));
                }
                StateLookup::Read(read) => found.push(*read),
            }
        }
        if call.verb == Verb::GiveBack || call.verb == Verb::Charge {
            match self.mark(call, micros) {
                ReceiptMark::Over => return Ok((call.reply("over", micros, vec![]), None)),
                ReceiptMark::Already => return Ok((call.reply("already", micros, vec![]), None)),
                ReceiptMark::First => {}
            }
        }
        let (result, effect) = self.decide_and_write(call, &found, now);
        let mut words = vec![result.to_string().into_bytes()];
        words.extend(found.iter().map(|read| read.value.clone()));
        let read = call.states().zip(&found);
        let lost = read.filter(|(_, read)| read.lost).map(|((state, _), _)| state).collect();
        let reply = call.reply(call.verb_name(), micros, words);
        Ok((reply, effect.map(|effect| Executed { at: now, effect, lost })))
    }

    /// Reads the key of a state, by the shape that it was written under.
    fn read(
        &self,
        call: &OwnedCall,
        state: StateId,
        limit: &Limit,
    ) -> Result<StateLookup, SimulatedReply> {
        if limit.is_unlimited() || limit.amount() == 0 {
            return Ok(StateLookup::Read(Box::new(ScriptState::nothing(limit))));
        }
        let value = match self.data.get(wire::key(state).as_slice()) {
            None => return Ok(StateLookup::Read(Box::new(ScriptState::nothing(limit)))),
            Some(Datum::Text(value, _)) => value,
            Some(Datum::Hash(_) | Datum::Nodes(_) | Datum::Foreign) => {
                return Err(SimulatedReply::wrong_type());
            }
        };
        // A real script fails like this on a value that it cannot parse.
        let unreadable =
            |_| SimulatedReply::error("ERR user_script: attempt to compare nil with number");
        let (contents, under) = wire::parse(limit, value).map_err(unreadable)?;
        let mut tag = ShapeTag::Inline;
        let shape = match under {
            WrittenUnder::Registered(number) => {
                tag = ShapeTag::Registered(number);
                match call.shape(number) {
                    Some(shape) => shape.clone(),
                    None => return Ok(StateLookup::UnknownShape(number)),
                }
            }
            WrittenUnder::Inline(shape) => shape,
            WrittenUnder::Room(room) => {
                wire::Shape::with_room(limit, room, &contents).limit().clone()
            }
            WrittenUnder::CurrentLimit => {
                wire::Shape::wide_enough(limit, &contents).map_err(unreadable)?.limit().clone()
            }
        };
        let (value, lost) = (value.clone(), false);
        Ok(StateLookup::Read(Box::new(ScriptState { value, shape, tag, contents, lost })))
    }

    /// Marks the receipt of a call as settled, if it has one.
    fn mark(&mut self, call: &OwnedCall, micros: u64) -> ReceiptMark {
        let Some((receipt, until)) = call.receipt else { return ReceiptMark::First };
        let over = (until.as_nanos() / NANOS_PER_MICRO).clamp(1, wire::MAX_EXACT);
        if over <= micros {
            return ReceiptMark::Over;
        }
        let key = wire::receipt_key(receipt, call.states().map(|(state, _)| state).min());
        match self.data.get(&key) {
            Some(Datum::Text(_, Some(until))) if *until > micros => ReceiptMark::Already,
            _ => {
                self.data.insert(key, Datum::Text(b"1".to_vec(), Some(over)));
                ReceiptMark::First
            }
        }
    }

    /// Decides with the core, and writes the states that changed.
    fn decide_and_write(
        &mut self,
        call: &OwnedCall,
        found: &[ScriptState],
        now: Timestamp,
    ) -> (u64, Option<Effect>) {
        let before: Vec<Written<'_>> = found.iter().map(ScriptState::written).collect();
        let mut after = before.clone();
        let (result, effect) = call.decide(now, &mut after);
        if call.verb != Verb::Peek {
            let names = call.states().zip(&call.tags).zip(found);
            for (((((state, limit), tag), read), before), after) in names.zip(&before).zip(&after) {
                if before != after || read.lost {
                    let tag = if after.shape == limit { *tag } else { read.tag };
                    self.write(state, after, now, tag);
                }
            }
        }
        (result, effect)
    }

    fn write(&mut self, state: StateId, written: &Written<'_>, now: Timestamp, tag: ShapeTag) {
        let key = wire::key(state).to_vec();
        if written.state == State::Empty {
            self.data.remove(&key);
            return;
        }
        let value = wire::value(written, now, tag);
        self.data.insert(key, Datum::Text(value.into_bytes(), None));
    }
}

impl ScriptState {
    /// A key without a value.
    fn nothing(limit: &Limit) -> Self {
        let (contents, tag) = (StateContents::Nothing, ShapeTag::Inline);
        Self { value: vec![], shape: limit.clone(), tag, contents, lost: false }
    }

    /// A value whose shape is lost counts as full, for a second ahead.
    fn full(limit: &Limit, tag: ShapeTag, now: Timestamp) -> Self {
        let mut written = Written::empty(limit);
        let ahead = now.after(Span::from_secs(1)).unwrap_or(now);
        limit.charge(&mut written, &Ask::new(ahead, Cost::new(limit.capacity())));
        let (value, contents) = (wire::value(&written, now, tag), written.remembered(now));
        Self { value: value.into_bytes(), shape: limit.clone(), tag, contents, lost: true }
    }

    fn written(&self) -> Written<'_> {
        Written { shape: &self.shape, state: self.shape.remember(&self.contents) }
    }
}

impl OwnedCall {
    /// A reply of the script: its first word with the echo, the time, and the rest.
    fn reply(&self, word: &str, micros: u64, rest: Vec<Vec<u8>>) -> SimulatedReply {
        let mut words = vec![format!("{word}#{}", self.echo).into_bytes()];
        words.push(micros.to_string().into_bytes());
        words.extend(rest);
        SimulatedReply(Ok(Value::Array(words.into_iter().map(Value::BulkString).collect())))
    }

    /// The states of the call, and their current limits.
    fn states(&self) -> impl Iterator<Item = (StateId, &Limit)> {
        let takes = self.takes.iter().map(|take| (take.state, &take.limit));
        takes.chain(self.parts.iter().map(|part| (part.state, &part.limit)))
    }

    /// The shape of a tag, if the script was told.
    fn shape(&self, tag: u16) -> Option<&Limit> {
        let mut own = self.states().map(|(_, limit)| limit).zip(&self.tags);
        let registered = ShapeTag::Registered(tag);
        let own = own.find(|(limit, own)| limit.ticks().is_some() && **own == registered);
        let told = || self.shapes.iter().find(|(told, _)| *told == tag).map(|(_, shape)| &**shape);
        own.map(|(limit, _)| limit).or_else(told)
    }

    /// Applies the call to its states. The first value is the result: for a plan, whether it passes (0 or 1); for a grant, how
    /// much was granted.
    fn decide<'s>(&'s self, now: Timestamp, states: &mut [Written<'s>]) -> (u64, Option<Effect>) {
        match self.verb {
            Verb::Take => {
                let takes: Vec<Take<'_>> = self.takes.iter().map(OwnedTake::take).collect();
                let Ok(plan) = Plan::new(takes, self.max_wait) else { return (0, None) };
                let passes = plan.take(Now::at(now), states).passes;
                let (takes, max_wait) = (self.takes.clone(), self.max_wait);
                (u64::from(passes), Some(Effect::Took { takes, max_wait, passes }))
            }
            Verb::Charge => {
                for (take, written) in self.takes.iter().zip(states) {
                    take.limit.charge(written, &Ask::new(now, take.cost).bounded(take.bound));
                }
                (1, Some(Effect::Charged(self.takes.clone())))
            }
            Verb::GiveBack => {
                for (part, written) in self.parts.iter().zip(states) {
                    written.give_back(now, &part.limit, &part.receipt);
                }
                (1, Some(Effect::GaveBack(self.parts.clone())))
            }
            Verb::Peek => (1, None),
            Verb::Grant => {
                let (Some(take), Some(written), Some(ask)) =
                    (self.takes.first(), states.first_mut(), self.ask)
                else {
                    return (0, None);
                };
                let weight = take.limit.weight(Cost::ONE, take.bound).unwrap_or(1).max(1);
                let slice = take.limit.grant(written, now, &ask);
                let amount =
                    slice.and_then(|slice| slice.weight().checked_div(weight)).unwrap_or(0);
                (amount, Some(Effect::Granted { take: take.clone(), ask, amount }))
            }
        }
    }
}
