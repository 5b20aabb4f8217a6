//! The slots of a cluster: which slot a key belongs to, and which server owns each slot.

use super::address::Address;
use crate::error::StoreError;
use ::redis::Value;
use tidegate_core::StateId;

/// Hash slots of a cluster, fixed by the protocol.
pub(super) const SLOTS: usize = 16_384;
/// A reply with more servers than this is not valid; the engines advise against more than a thousand.
const MAX_SERVERS: usize = 4_096;

/// The slot of a key: CRC-16 of its hash tag, modulo 16,384.
pub(super) fn slot_of(tag: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021; // CRC-16/XMODEM, as in the cluster specification
            }
        }
    }
    crc & 0x3fff
}

/// The slot of a state, by the hash tag in its key.
pub(super) fn slot_of_state(state: StateId) -> u16 {
    let [_, high, low, ..] = super::wire::key(state);
    slot_of(&[high, low])
}

/// The primaries of a cluster, and which of them owns each slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) servers: Vec<Address>,
    /// For each slot the index of its owner in `servers`.
    owners: Vec<Option<u16>>,
}

impl Slots {
    /// Parses the reply to CLUSTER SLOTS that the server at `from` sent.
    pub(super) fn parse(reply: &Value, from: &Address) -> Result<Self, StoreError> {
        let Value::Array(ranges) = reply else { return Err(invalid("not a list")) };
        if ranges.len() > SLOTS {
            return Err(invalid("more ranges than slots"));
        }
        let mut slots = Self { servers: Vec::new(), owners: vec![None; SLOTS] };
        for range in ranges {
            let Value::Array(range) = range else { return Err(invalid("not a range")) };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
            else {
                return Err(invalid("not a range"));
            };
            let owner = slots.index_of(server(primary, from)?)?;
            let (first, last) = (slot_number(*first)?, slot_number(*last)?);
            let range = slots.owners.get_mut(first..=last).ok_or_else(|| invalid("not a range"))?;
            for slot_owner in range {
                if slot_owner.replace(owner).is_some_and(|other| other != owner) {
                    return Err(invalid("two servers own the same slot"));
                }
            }
        }
        Ok(slots)
    }

    /// This many simulated servers, with the slots divided evenly among them.
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

    /// The index of the server that owns a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners.get(usize::from(slot)).copied().flatten().map(usize::from)
    }

    /// How many slots have no owner.
    pub(super) fn without_owner(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// The index of a server, which is added if it is new.
    fn index_of(&mut self, server: Address) -> Result<u16, StoreError> {
        let known = self.servers.iter().position(|known| *known == server);
        let index = known.unwrap_or(self.servers.len());
        if known.is_none() {
            self.servers.push(server);
        }
        let index = u16::try_from(index).ok().filter(|index| usize::from(*index) < MAX_SERVERS);
        index.ok_or_else(|| invalid("too many servers"))
    }
}

fn slot_number(slot: i64) -> Result<usize, StoreError> {
    let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS);
    slot.ok_or_else(|| invalid("a slot above 16,383"))
}

/// The server of a range. An empty host means the host that sent this reply.
fn server(words: &[Value], from: &Address) -> Result<Address, StoreError> {
    let [host, Value::Int(port), ..] = words else { return Err(invalid("not a server")) };
    let port = u16::try_from(*port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| invalid("not a port"))?;
    #[expect(clippy::wildcard_enum_match_arm, reason = "the client's replies are an open set")]
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Nil => String::new(),
        _ => return Err(invalid("not a host")),
    };
    let host = if host.is_empty() || host == "?" { from.host.clone() } else { host };
    Ok(Address { host, port })
}

fn invalid(what: &str) -> StoreError {
    StoreError::Broken(format!("the reply to CLUSTER SLOTS is not valid: {what}"))
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
    fn hash_tags_map_to_the_same_slots_as_in_the_engines() {
        // Replies of CLUSTER KEYSLOT.
        for (tag, slot) in [("123456789", 12_739), ("foo", 12_182), ("user1000", 3_443), ("", 0)] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn a_reply_names_the_owner_of_each_slot() {
        let reply = Value::Array(vec![
            range(0, 5_460, "10.0.0.1", 7_001),
            range(5_461, 10_922, "10.0.0.2", 7_002),
            range(12_000, 16_383, "10.0.0.1", 7_001),
        ]);
        let slots = Slots::parse(&reply, &from()).unwrap();
        let name = |slot| slots.owner(slot).map(|index| slots.servers[index].to_string());
        assert_eq!(name(0).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(name(5_461).as_deref(), Some("10.0.0.2:7002"));
        assert_eq!(name(16_383).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(name(11_000), None);
        assert_eq!((slots.servers.len(), slots.without_owner()), (2, 1_077));
    }

    #[test]
    fn an_empty_host_means_the_host_that_sent_the_reply() {
        for host in [Value::Nil, Value::BulkString(vec![]), Value::BulkString(b"?".to_vec())] {
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), server_words(host, 7_005)]);
            let slots = Slots::parse(&Value::Array(vec![range]), &from()).unwrap();
            assert_eq!(slots.servers[0].to_string(), "10.0.0.9:7005");
        }
    }

    #[test]
    fn replies_that_are_not_valid_are_refused() {
        let overlapping = vec![range(0, 9, "a", 1), range(9, 20, "b", 1)];
        let million = vec![range(0, 1, "a", 1); 1_000_000];
        for reply in [
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
            assert!(Slots::parse(&reply, &from()).is_err());
        }
        let empty = Slots::parse(&Value::Array(vec![]), &from()).unwrap();
        assert_eq!(empty.without_owner(), SLOTS);
    }
}
