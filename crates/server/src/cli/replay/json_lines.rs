//! Lines of JSON, as nginx, Caddy, Traefik and Envoy write them.
//!
//! ```text
//!   {"ts":1795041695.25,"request":{"client_ip":"203.0.113.7","method":"GET","uri":"/a?b"},"duration":0.004}
//!      time              request.client_ip        request.method    request.uri
//! ```
//!
//! The first line shows which server wrote the log. Flags name other fields; a dot leads into an object. A line is read without
//! building a document: fields that are not wanted are skipped, and texts without escapes are borrowed from the line.

use super::fields::{
    FieldUse, HOPS, IP, LineError, LoggedRequest, METHOD, NamedField, PATH, WantedFields,
};
use super::log_time::{LogStamp, StampReader, decimal_nanos};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The fields of a log, found by its first line.
#[derive(Debug)]
pub(super) struct JsonFormat {
    fields: Vec<JsonField>,
    /// Whether the time is that of the arrival.
    at_start: bool,
    stamps: StampReader,
}

/// A field, or an object with fields.
#[derive(Debug)]
struct JsonField {
    name: String,
    becomes: FieldUse,
    below: Vec<JsonField>,
}

/// The fields that a server usually writes: of each list, the first that a line has.
struct JsonDialect {
    /// A field that only this server writes.
    sign: &'static str,
    time: &'static [&'static str],
    at_start: bool,
    duration: &'static [&'static str],
    ip: &'static [&'static str],
    method: &'static [&'static str],
    path: &'static [&'static str],
    user: &'static [&'static str],
    hops: &'static [&'static str],
}

const DIALECTS: [JsonDialect; 4] = [
    JsonDialect {
        sign: "StartUTC", // Traefik
        time: &["StartUTC"],
        at_start: true,
        duration: &[],
        ip: &["ClientHost"],
        method: &["RequestMethod"],
        path: &["RequestPath"],
        user: &["ClientUsername"],
        hops: &[],
    },
    JsonDialect {
        sign: "start_time", // Envoy and Envoy Gateway
        time: &["start_time"],
        at_start: true,
        duration: &[],
        ip: &["downstream_remote_address", "client_ip"],
        method: &["method"],
        path: &["x-envoy-origin-path", "x_envoy_original_path", "path"],
        user: &["user"],
        hops: &["x-forwarded-for", "x_forwarded_for"],
    },
    JsonDialect {
        sign: "request.uri", // Caddy
        time: &["ts"],
        at_start: false,
        duration: &["duration"],
        ip: &["request.client_ip", "request.remote_ip"],
        method: &["request.method"],
        path: &["request.uri"],
        user: &["user_id"],
        hops: &["request.headers.X-Forwarded-For"],
    },
    JsonDialect {
        sign: "", // nginx, with names of its variables, and others
        time: &["msec", "time_iso8601", "time_local", "time", "@timestamp", "timestamp", "ts"],
        at_start: false,
        duration: &["request_time"],
        ip: &["remote_addr", "client_ip", "remote_ip", "ip"],
        method: &["request_method", "method"],
        path: &["request_uri", "uri", "path"],
        user: &["remote_user", "user"],
        hops: &["http_x_forwarded_for"],
    },
];

// === finding fields ===

impl JsonFormat {
    /// Chooses the fields by the first line of a log. `wanted` gets the user's field if the server has one.
    pub(super) fn new(line: &str, wanted: &mut WantedFields) -> Result<Self, String> {
        let first: Value = serde_json::from_str(line)
            .map_err(|error| format!("the first line is not valid JSON: {error}"))?;
        let has = |name: &str| find(&first, name).is_some();
        let Some(dialect) =
            DIALECTS.iter().find(|dialect| has(dialect.sign) || dialect.sign.is_empty())
        else {
            return Err("the log has no known fields".to_owned());
        };
        let usual = |names: &[&'static str]| names.iter().copied().find(|name| has(name));
        if let Some(user) = usual(dialect.user) {
            wanted.name("user", user, false);
        }
        let mut format =
            Self { fields: vec![], at_start: dialect.at_start, stamps: StampReader::default() };
        let time = wanted.time.as_deref().or(usual(dialect.time));
        let time =
            time.ok_or("the first line has no known field with a time; name it with --time-field")?;
        format.at_start &= wanted.time.is_none() || dialect.time.contains(&time);
        format.add(&first, time, FieldUse::Time);
        for (chosen, names, becomes) in [
            (&wanted.duration, dialect.duration, FieldUse::Duration),
            (&wanted.ip, dialect.ip, FieldUse::Value(IP)),
            (&wanted.method, dialect.method, FieldUse::Value(METHOD)),
            (&wanted.path, dialect.path, FieldUse::Value(PATH)),
            (&None, dialect.hops, FieldUse::Value(HOPS)),
        ] {
            let name = chosen.as_deref().or(usual(names));
            name.into_iter().for_each(|name| format.add(&first, name, becomes));
        }
        if has("request") && !format.has(FieldUse::Value(PATH)) {
            format.add(&first, "request", FieldUse::RequestLine);
        }
        for NamedField { field, .. } in &wanted.named {
            let number = wanted.number_of(field);
            number.into_iter().for_each(|n| format.add(&first, field, FieldUse::Value(n)));
        }
        Ok(format)
    }

    /// Whether the time is that of the arrival.
    pub(super) const fn at_start(&self) -> bool {
        self.at_start
    }

    /// Whether a field is used this way.
    pub(super) fn has(&self, becomes: FieldUse) -> bool {
        fn any(fields: &[JsonField], becomes: FieldUse) -> bool {
            fields.iter().any(|field| field.becomes == becomes || any(&field.below, becomes))
        }
        any(&self.fields, becomes)
    }

    /// Adds a field. Its name is a path of objects, unless the first line has a field with exactly this name.
    fn add(&mut self, first: &Value, name: &str, becomes: FieldUse) {
        let whole = first.get(name).is_some();
        let mut fields = &mut self.fields;
        let mut parts = if whole { vec![name] } else { name.split('.').collect() };
        let Some(last) = parts.pop() else { return };
        for part in parts {
            let at = fields.iter().position(|field| field.name == part).unwrap_or(fields.len());
            if at == fields.len() {
                let name = part.to_owned();
                fields.push(JsonField { name, becomes: FieldUse::Skip, below: vec![] });
            }
            let Some(field) = fields.get_mut(at) else { return };
            fields = &mut field.below;
        }
        fields.push(JsonField { name: last.to_owned(), becomes, below: vec![] });
    }
}

/// The value of a field, whose name is a path of objects.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    if name.is_empty() {
        return None;
    }
    value.get(name).or_else(|| name.split('.').try_fold(value, |value, part| value.get(part)))
}

// === reading ===

impl JsonFormat {
    /// Reads a line into a request.
    pub(super) fn read<'l>(
        &mut self,
        line: &'l str,
        request: &mut LoggedRequest<'l>,
    ) -> Result<(), LineError> {
        request.at_start = self.at_start;
        let mut reader = serde_json::Deserializer::from_str(line);
        let seed = ObjectSeed { fields: &self.fields, into: (&mut self.stamps, request) };
        let read = seed.deserialize(&mut reader).and_then(|()| reader.end());
        read.map_err(|error| LineError(error.to_string().into()))
    }
}

type JsonSink<'s, 'l> = (&'s mut StampReader, &'s mut LoggedRequest<'l>);

/// Reads the fields of an object.
struct ObjectSeed<'s, 'l> {
    fields: &'s [JsonField],
    into: JsonSink<'s, 'l>,
}

impl<'l> DeserializeSeed<'l> for ObjectSeed<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'l> Visitor<'l> for ObjectSeed<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { fields, into: (stamps, request) } = self;
        while let Some(field) = map.next_key_seed(KeySeed { fields })? {
            match field {
                None => _ = map.next_value::<IgnoredAny>()?,
                Some(JsonField { below, .. }) if !below.is_empty() => {
                    map.next_value_seed(ObjectSeed { fields: below, into: (stamps, request) })?;
                }
                Some(field) => {
                    map.next_value_seed(ScalarSeed { field, into: (stamps, request) })?;
                }
            }
        }
        Ok(())
    }
}

/// Finds the field of a key.
struct KeySeed<'s> {
    fields: &'s [JsonField],
}

impl<'l, 's> DeserializeSeed<'l> for KeySeed<'s> {
    type Value = Option<&'s JsonField>;

    fn deserialize<D: Deserializer<'l>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'s> Visitor<'_> for KeySeed<'s> {
    type Value = Option<&'s JsonField>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.fields.iter().find(|field| field.name == key))
    }
}

/// Reads the value of a field: a text, a number, or the first one of a list.
struct ScalarSeed<'s, 'l> {
    field: &'s JsonField,
    into: JsonSink<'s, 'l>,
}

impl<'l> DeserializeSeed<'l> for ScalarSeed<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for ScalarSeed<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text or a number for `{}`", self.field.name)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<(), E> {
        self.text(Cow::Borrowed(text)).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.text(Cow::Owned(text.to_owned())).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.text(Cow::Owned(number.to_string())).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.text(Cow::Owned(number.to_string())).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<(), E> {
        let (_, request) = self.into;
        let nanos = || {
            let nanos = Duration::try_from_secs_f64(seconds).ok()?.as_nanos();
            u64::try_from(nanos).ok()
        };
        let nanos = || nanos().ok_or_else(|| E::custom(format!("{seconds} is out of range")));
        match self.field.becomes {
            FieldUse::Time => {
                request.stamp = Some(LogStamp { nanos: nanos()?, whole_second: false });
            }
            FieldUse::Duration => request.took = nanos()?,
            FieldUse::Value(number) => request.push(number, seconds.to_string().into()),
            FieldUse::Skip | FieldUse::RequestLine => {}
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.text(Cow::Borrowed(if value { "true" } else { "false" })).map_err(E::custom)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<(), A::Error> {
        list.next_element_seed(self)?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

impl<'l> ScalarSeed<'_, 'l> {
    fn text(self, text: Cow<'l, str>) -> Result<(), LineError> {
        let (stamps, request) = self.into;
        let wrong = |what| LineError::value(&self.field.name, &text, what);
        match self.field.becomes {
            FieldUse::Skip => {}
            FieldUse::Time => {
                request.stamp = Some(stamps.read(&text).ok_or_else(|| wrong("a time"))?);
            }
            FieldUse::Duration if *text == *"-" || text.is_empty() => {}
            FieldUse::Duration => {
                let took = decimal_nanos(&text);
                request.took = took.ok_or_else(|| wrong("a duration in seconds"))?;
            }
            FieldUse::RequestLine => request.push_request_line(text)?,
            FieldUse::Value(PATH) => request.push_target(text),
            FieldUse::Value(number) => request.push(number, text),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FIRST_NAMED;
    use super::super::log_time::SECOND;
    use super::*;

    /// What is read from a line: when the request arrived, how long it took, and its values.
    fn read(line: &str, mut wanted: WantedFields) -> (u64, u64, Vec<(u16, String)>) {
        let mut format = JsonFormat::new(line, &mut wanted).unwrap();
        let mut request = LoggedRequest::default();
        format.read(line, &mut request).unwrap();
        let values = request.values.into_iter().map(|(number, text)| (number, text.into_owned()));
        let took = if request.at_start { 0 } else { request.took };
        let mut values: Vec<_> = values.collect();
        values.sort();
        (request.stamp.unwrap().nanos, took, values)
    }

    #[test]
    fn logs_of_common_servers_need_no_flags() {
        let at = 1_795_041_695 * SECOND + SECOND / 4;
        let caddy = r#"{"level":"info","ts":1795041695.25,"logger":"http.log.access","request":{"remote_ip":"10.0.0.1","client_ip":"203.0.113.7","method":"GET","uri":"/a?b","headers":{"User-Agent":["curl"]}},"user_id":"alice","duration":0.004,"status":200}"#;
        let traefik = r#"{"ClientHost":"203.0.113.7","ClientUsername":"alice","Duration":4000000,"RequestMethod":"GET","RequestPath":"/a?b","StartUTC":"2026-11-18T22:41:35.25Z","time":"2026-11-18T22:41:36Z"}"#;
        let envoy = r#"{"start_time":"2026-11-18T22:41:35.250Z","method":"GET","path":"/a?b","downstream_remote_address":"203.0.113.7","duration":4,"user":"alice","response_code":200}"#;
        let nginx = r#"{"msec":"1795041695.250","remote_addr":"203.0.113.7","request":"GET /a?b HTTP/1.1","request_time":0.004,"remote_user":"alice"}"#;
        for (line, took) in [(caddy, 4_000_000), (traefik, 0), (envoy, 0), (nginx, 4_000_000)] {
            let values =
                [(IP, "203.0.113.7"), (METHOD, "GET"), (PATH, "/a"), (FIRST_NAMED, "alice")];
            let values = values.map(|(number, text)| (number, text.to_owned())).to_vec();
            assert_eq!(read(line, WantedFields::default()), (at, took, values), "{line}");
        }
    }

    #[test]
    fn flags_name_other_fields() {
        let line = r#"{"when":"2026-11-18T22:41:35Z","who":{"tenant":"a\u00e9","ids":[7,8]},"dot.ted":"x"}"#;
        let mut wanted = WantedFields { time: Some("when".to_owned()), ..WantedFields::default() };
        wanted.name("tenant", "who.tenant", true);
        wanted.name("id", "who.ids", true);
        wanted.name("dotted", "dot.ted", true);
        let (_, _, values) = read(line, wanted);
        let expected = [(0, "aé"), (1, "7"), (2, "x")];
        assert_eq!(values, expected.map(|(n, text)| (FIRST_NAMED + n, text.to_owned())));
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        let mut format = JsonFormat::new(r#"{"msec":1}"#, &mut WantedFields::default()).unwrap();
        for (line, said) in [
            ("[1]", "an object"),
            (r#"{"msec":"never"}"#, "msec `never` is not a time"),
            (r#"{"msec":1} x"#, "trailing characters"),
            (r#"{"msec":-1.5}"#, "out of range"),
        ] {
            let error = format.read(line, &mut LoggedRequest::default()).unwrap_err();
            assert!(error.to_string().contains(said), "{line}: {error}");
        }
    }

    #[test]
    fn a_log_without_a_known_time_asks_for_the_field() {
        let error = JsonFormat::new(r#"{"a":1}"#, &mut WantedFields::default()).unwrap_err();
        assert!(error.contains("--time-field"), "{error}");
    }
}
