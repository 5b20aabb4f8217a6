//! Lines of a recording that a tidegate server has written; `docs/replay.md` describes them.
//!
//! ```text
//!   {"v":1,"t":1795041695250000001,"o":"allow","s":200,"c":1,"w":0,"p":"9f86d081884c","h":true,"a":{"ip":"#…","method":"GET","path":"/a"}}
//!   {"v":1,"t":1795041695250000007,"o":"deny","s":429,"w":0,"p":"9f86d081884c","h":true,"d":[{"c":1,"a":{"user":"#…"}}]}
//! ```

use super::fields::{FIRST_NAMED, IP, LineError, LoggedRequest, METHOD, PATH, RecordedDecision};
use super::log_time::LogStamp;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// What is known of a recording so far.
#[derive(Debug, Default)]
pub(super) struct RecordedFormat {
    /// The names of attributes from [`FIRST_NAMED`] on.
    pub(super) names: Vec<String>,
    /// Hashes of the policies that decided, in the order in which they appear, each once.
    pub(super) policies: Vec<String>,
    /// Whether values of attributes are digests.
    pub(super) hashed: bool,
    /// Whether only some keys are recorded: one in so many.
    pub(super) sample: u64,
}

/// The number of the value that begins a descriptor of a gRPC call; it is the cost of the descriptor.
pub(super) const DESCRIPTOR: u16 = u16::MAX;
/// Different names of attributes in one recording. Clients of the API choose names, so they are bounded.
const MOST_NAMES: usize = 4_096;
const MOST_POLICIES: usize = 1_000;

/// A decision. `recorder.rs` of the server describes the fields.
#[derive(Deserialize)]
struct RecordedLine<'l> {
    v: u32,
    t: u64,
    #[serde(borrow)]
    o: Cow<'l, str>,
    #[serde(borrow)]
    p: Cow<'l, str>,
    #[serde(default)]
    h: bool,
    n: Option<u64>,
    c: Option<u64>,
    #[serde(default)]
    w: u64,
    #[serde(default)]
    r: bool,
    #[serde(borrow)]
    a: Option<RecordedPairs<'l>>,
    #[serde(borrow)]
    d: Option<Vec<RecordedDescriptor<'l>>>,
}

#[derive(Deserialize)]
struct RecordedDescriptor<'l> {
    c: u64,
    #[serde(borrow)]
    a: RecordedPairs<'l>,
}

/// The attributes of a request, in order.
#[derive(Default)]
struct RecordedPairs<'l>(SmallVec<[(Cow<'l, str>, Cow<'l, str>); 6]>);

/// A text that is borrowed from the line if it has no escapes.
#[derive(Deserialize)]
struct BorrowedText<'l>(#[serde(borrow)] Cow<'l, str>);

impl<'de: 'l, 'l> Deserialize<'de> for RecordedPairs<'l> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(RecordedPairsVisitor(PhantomData))
    }
}

struct RecordedPairsVisitor<'l>(PhantomData<&'l str>);

impl<'de: 'l, 'l> Visitor<'de> for RecordedPairsVisitor<'l> {
    type Value = RecordedPairs<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with attributes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RecordedPairs<'l>, A::Error> {
        let mut pairs = RecordedPairs::default();
        while let Some((name, value)) = map.next_entry::<BorrowedText<'l>, BorrowedText<'l>>()? {
            pairs.0.push((name.0, value.0));
        }
        Ok(pairs)
    }
}

impl RecordedFormat {
    /// Reads a line into a request.
    pub(super) fn read<'l>(
        &mut self,
        line: &'l str,
        request: &mut LoggedRequest<'l>,
    ) -> Result<(), LineError> {
        let line: RecordedLine<'_> =
            serde_json::from_str(line).map_err(|error| LineError(error.to_string().into()))?;
        self.note(&line)?;
        request.at_start = true;
        request.stamp = Some(LogStamp { nanos: line.t, whole_second: false });
        request.recorded = Some(RecordedDecision {
            cost: line.c.unwrap_or(1),
            wait: line.w,
            wait_by_rule: line.r,
            allowed: line.o != "deny",
        });
        for (name, value) in line.a.into_iter().flat_map(|pairs| pairs.0) {
            request.values.push((self.number(&name)?, value));
        }
        for descriptor in line.d.into_iter().flatten() {
            request.values.push((DESCRIPTOR, descriptor.c.to_string().into()));
            for (name, value) in descriptor.a.0 {
                request.values.push((self.number(&name)?, value));
            }
        }
        Ok(())
    }

    /// Remembers what the report says about the whole recording.
    fn note(&mut self, line: &RecordedLine<'_>) -> Result<(), LineError> {
        if line.v != 1 {
            let text =
                format!("version {} of recordings is not known; use a newer tidegate", line.v);
            return Err(LineError(text.into()));
        }
        self.hashed |= line.h;
        self.sample = self.sample.max(line.n.unwrap_or(1));
        let is_last = self.policies.last().is_some_and(|last| *last == line.p);
        if !is_last
            && !self.policies.iter().any(|known| *known == line.p)
            && self.policies.len() < MOST_POLICIES
        {
            self.policies.push(line.p.clone().into_owned());
        }
        Ok(())
    }

    fn number(&mut self, name: &str) -> Result<u16, LineError> {
        match name {
            "ip" => return Ok(IP),
            "method" => return Ok(METHOD),
            "path" => return Ok(PATH),
            _ => {}
        }
        let at = self.names.iter().position(|known| known == name).unwrap_or(self.names.len());
        if at == self.names.len() {
            if at == MOST_NAMES {
                return Err(LineError("the recording has more than 4,096 attributes".into()));
            }
            self.names.push(name.to_owned());
        }
        let number = u16::try_from(at).ok().and_then(|at| at.checked_add(FIRST_NAMED));
        number.ok_or(LineError("the recording has too many attributes".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_read() {
        let mut format = RecordedFormat::default();
        let mut request = LoggedRequest::default();
        let line = r#"{"v":1,"t":7,"o":"delay","s":200,"c":3,"w":9,"r":true,"p":"ab","n":10,"h":true,"a":{"ip":"::1","user":"a\"b"}}"#;
        format.read(line, &mut request).unwrap();
        let recorded = RecordedDecision { cost: 3, wait: 9, wait_by_rule: true, allowed: true };
        assert_eq!((request.stamp.unwrap().nanos, request.recorded), (7, Some(recorded)));
        let values: Vec<_> = request.values.iter().map(|(n, text)| (*n, &**text)).collect();
        assert_eq!(values, [(IP, "::1"), (FIRST_NAMED, "a\"b")]);
        assert_eq!(
            (format.names, format.policies),
            (vec!["user".to_owned()], vec!["ab".to_owned()])
        );
        assert_eq!((format.hashed, format.sample), (true, 10));
    }

    #[test]
    fn descriptors_follow_each_other() {
        let mut request = LoggedRequest::default();
        let line = r#"{"v":1,"t":7,"o":"deny","p":"","d":[{"c":1,"a":{"user":"a"}},{"c":2,"a":{"x":"b"}}]}"#;
        RecordedFormat::default().read(line, &mut request).unwrap();
        let values: Vec<_> = request.values.iter().map(|(n, text)| (*n, &**text)).collect();
        let second = FIRST_NAMED + 1;
        assert_eq!(
            values,
            [(DESCRIPTOR, "1"), (FIRST_NAMED, "a"), (DESCRIPTOR, "2"), (second, "b")]
        );
    }

    #[test]
    fn other_lines_are_refused() {
        for (line, said) in [
            ("{}", "missing field `v`"),
            (r#"{"v":2,"t":7,"o":"deny","p":""}"#, "newer tidegate"),
            (r#"{"v":1,"t":-1,"o":"deny","p":""}"#, "invalid value"),
            ("x", "expected value"),
        ] {
            let error = RecordedFormat::default().read(line, &mut LoggedRequest::default());
            assert!(error.unwrap_err().to_string().contains(said), "{line}");
        }
    }
}
