//! Who has which slot of a cluster.

use super::address::Address;
use crate::error::StoreError;
use ::redis::Value;
use tidegate_core::StateId;

/// A cluster has so many slots.
pub(super) const SLOTS: usize = 16_384;
/// A cluster of more servers than this does not exist; the engines advise against more than a thousand.
const MOST_SERVERS: usize = 4_096;

/// The slot of a key, by its hash tag.
pub(super) fn slot_of(tag: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021; // CRC-16/XMODEM, as the engines have it
            }
        }
    }
    crc & 0x3fff
}

/// The slot of a state, as its key says it.
pub(super) fn slot_of_state(state: StateId) -> u16 {
    let [_, high, low, ..] = super::wire::key(state);
    slot_of(&[high, low])
}

/// Which servers there are, and which of them has a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) servers: Vec<Address>,
    /// A number of a server for each slot.
    owners: Vec<Option<u16>>,
}

impl Slots {
    /// Reads the answer to CLUSTER SLOTS, which the server at `from` gave.
    pub(super) fn parse(answer: &Value, from: &Address) -> Result<Self, StoreError> {
        let Value::Array(ranges) = answer else { return Err(garbled("no list")) };
        if ranges.len() > SLOTS {
            return Err(garbled("more ranges than slots"));
        }
        let mut slots = Self { servers: Vec::new(), owners: vec![None; SLOTS] };
        for range in ranges {
            let Value::Array(range) = range else { return Err(garbled("no range")) };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
            else {
                return Err(garbled("no range"));
            };
            let owner = slots.number(server(primary, from)?)?;
            let (first, last) = (place(*first)?, place(*last)?);
            let places = slots.owners.get_mut(first..=last).ok_or_else(|| garbled("no range"))?;
            for owner_of in places {
                if owner_of.replace(owner).is_some_and(|other| other != owner) {
                    return Err(garbled("two servers have one slot"));
                }
            }
        }
        Ok(slots)
    }

    /// As many servers as there are places, each with as many slots as the others.
    #[cfg(feature = "testing")]
    pub(super) fn even(servers: u16) -> Self {
        let address = |port| Address { host: "simulated".to_owned(), port };
        let per_server = SLOTS.div_ceil(usize::from(servers).max(1));
        let owner =
            |slot: usize| slot.checked_div(per_server).and_then(|owner| owner.try_into().ok());
        Self {
            servers: (0..servers).map(address).collect(),
            owners: (0..SLOTS).map(owner).collect(),
        }
    }

    /// The number of the server that has a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners.get(usize::from(slot)).copied().flatten().map(usize::from)
    }

    /// How many slots nobody has.
    pub(super) fn without_owner(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    fn number(&mut self, server: Address) -> Result<u16, StoreError> {
        let known = self.servers.iter().position(|known| *known == server);
        let number = known.unwrap_or(self.servers.len());
        if known.is_none() {
            self.servers.push(server);
        }
        let number =
            u16::try_from(number).ok().filter(|number| usize::from(*number) < MOST_SERVERS);
        number.ok_or_else(|| garbled("too many servers"))
    }
}

fn place(slot: i64) -> Result<usize, StoreError> {
    usize::try_from(slot).ok().filter(|slot| *slot < SLOTS).ok_or_else(|| garbled("no such slot"))
}

/// A server of a range. One without a name is reached as the one that was asked.
fn server(words: &[Value], from: &Address) -> Result<Address, StoreError> {
    let [host, Value::Int(port), ..] = words else { return Err(garbled("no server")) };
    let port = u16::try_from(*port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| garbled("no port"))?;
    #[expect(clippy::wildcard_enum_match_arm, reason = "the client's replies are an open set")]
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Nil => String::new(),
        _ => return Err(garbled("no host")),
    };
    let host = if host.is_empty() || host == "?" { from.host.clone() } else { host };
    Ok(Address { host, port })
}

fn garbled(what: &str) -> StoreError {
    StoreError::Broken(format!("the map of the cluster makes no sense: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from() -> Address {
        Address { host: "10.0.0.9".to_owned(), port: 7_000 }
    }

    fn server_words(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.as_bytes().to_vec());
        Value::Array(vec![Value::Int(first), Value::Int(last), server_words(host, port)])
    }

    #[test]
    fn tags_have_the_slots_that_the_engines_give_them() {
        // As CLUSTER KEYSLOT answers.
        for (tag, slot) in [("123456789", 12_739), ("foo", 12_182), ("user1000", 3_443), ("", 0)] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn a_map_says_who_has_a_slot() {
        let answer = Value::Array(vec![
            range(0, 5_460, "10.0.0.1", 7_001),
            range(5_461, 10_922, "10.0.0.2", 7_002),
            range(12_000, 16_383, "10.0.0.1", 7_001),
        ]);
        let slots = Slots::parse(&answer, &from()).unwrap();
        let name = |slot| slots.owner(slot).map(|number| slots.servers[number].to_string());
        assert_eq!(name(0).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(name(5_461).as_deref(), Some("10.0.0.2:7002"));
        assert_eq!(name(16_383).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(name(11_000), None);
        assert_eq!((slots.servers.len(), slots.without_owner()), (2, 1_077));
    }

    #[test]
    fn a_server_without_a_name_is_where_we_asked() {
        for host in [Value::Nil, Value::BulkString(vec![]), Value::BulkString(b"?".to_vec())] {
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), server_words(host, 7_005)]);
            let slots = Slots::parse(&Value::Array(vec![range]), &from()).unwrap();
            assert_eq!(slots.servers[0].to_string(), "10.0.0.9:7005");
        }
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let overlapping = vec![range(0, 9, "a", 1), range(9, 20, "b", 1)];
        let million = vec![range(0, 1, "a", 1); 1_000_000];
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(3)]),
            Value::Array(vec![range(5, 3, "a", 1)]),
            Value::Array(vec![range(-1, 3, "a", 1)]),
            Value::Array(vec![range(0, 16_384, "a", 1)]),
            Value::Array(vec![range(0, 1, "a", 0)]),
            Value::Array(vec![range(0, 1, "a", 70_000)]),
            Value::Array(overlapping),
            Value::Array(million),
        ] {
            assert!(Slots::parse(&answer, &from()).is_err());
        }
        let nobody = Slots::parse(&Value::Array(vec![]), &from()).unwrap();
        assert_eq!(nobody.without_owner(), SLOTS);
    }
}
