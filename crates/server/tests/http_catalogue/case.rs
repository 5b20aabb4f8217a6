//! A case of the catalogue, and how it is tested.

use crate::support::Server;
use crate::support::http1::{Dice, Wire};

/// What is sent, and what must happen.
pub(crate) struct Case {
    name: String,
    bytes: Vec<u8>,
    /// The status of the only answer.
    status: u16,
    end: End,
    /// What the body of the answer must contain.
    says: &'static str,
}

/// What happens to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closes,
    /// The next request on it is answered.
    GoesOn,
}

pub(crate) use End::{Closes, GoesOn};

/// A user may send a million requests an hour, so nothing here is refused for its rate.
pub(crate) const POLICY: &str = "
version: 1
rules: [{ name: per-user, key: [user], limits: [{ rate: 1000000/h, algorithm: fixed_window, align: first }] }]
";

/// How often a case is sent in pieces, each time cut differently.
const CUTS: u64 = 8;

pub(crate) fn case(name: &str, bytes: impl AsRef<[u8]>, status: u16, end: End) -> Case {
    let bytes = bytes.as_ref().to_vec();
    Case { name: name.to_owned(), bytes, status, end, says: "" }
}

impl Case {
    pub(crate) fn saying(mut self, says: &'static str) -> Self {
        self.says = says;
        self
    }

    /// Sends the case, and returns what was wrong with the answer.
    fn try_on(&self, server: &Server, send: impl FnOnce(&mut Wire, &[u8])) -> Result<(), String> {
        let mut wire = Wire::to(server.http);
        send(&mut wire, &self.bytes);
        let reply = wire.answer().ok_or("no answer")?;
        let close = reply.field("connection") == Some("close");
        let as_told = reply.status == self.status && close == (self.end == Closes);
        if !as_told || !reply.body.contains(self.says) {
            return Err(format!(
                "{} {:?} {} were expected of {reply:?}",
                self.status, self.end, self.says
            ));
        }
        if self.end == GoesOn {
            wire.send(&get("/live", ""));
            let next = wire.answer().map(|reply| reply.status);
            return if next == Some(200) { Ok(()) } else { Err(format!("then {next:?}")) };
        }
        // One answer and no more: the bytes that followed were not taken for another request.
        let rest = wire.rest();
        let rest = String::from_utf8_lossy(&rest);
        if rest.is_empty() { Ok(()) } else { Err(format!("then {rest}")) }
    }

    /// Whether it is refused before it is evaluated. Operators see the number of such requests.
    fn is_counted(&self) -> bool {
        self.end == Closes && matches!(self.status, 400 | 413 | 414 | 431 | 501 | 505)
    }
}

/// Sends every case whole and in pieces, with valid requests in between.
pub(crate) fn try_all(cases: &[Case]) {
    let server = Server::with_policy(POLICY, &[]);
    assert_eq!(server.get("/live").status, 200);
    let logged = server.log();
    let mut honest = Wire::to(server.http);
    let mut wrong = Vec::new();
    for case in cases {
        // Large cases are cut into larger pieces.
        let longest = 7.max(case.bytes.len() / 64);
        let whole = case.try_on(&server, Wire::send).map_err(|error| format!("whole: {error}"));
        let cut = (1..=CUTS).map(|seed| {
            let mut dice = Dice::new(seed);
            let tried =
                case.try_on(&server, |wire, bytes| wire.send_cut(bytes, longest, &mut dice));
            tried.map_err(|error| format!("cut {seed}: {error}"))
        });
        let tried = [whole].into_iter().chain(cut).filter_map(Result::err);
        wrong.extend(tried.map(|error| format!("{}, {error}\n", case.name)));
        honest.send(&check("{\"attributes\":{\"user\":\"honest\"}}"));
        let reply = honest.answer();
        assert_eq!(reply.map(|reply| reply.status), Some(200), "beside {}", case.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
    let counted = cases.iter().filter(|case| case.is_counted()).count();
    assert_eq!(server.refused(), u64::try_from(counted).unwrap() * (1 + CUTS));
    server.is_sound();
    // None of this is logged: a client that can cause log lines can fill a disk.
    assert_eq!(server.log(), logged);
}

/// A `GET` with these additional header lines, each with its line end.
pub(crate) fn get(path: &str, lines: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: tidegate\r\n{lines}\r\n").into_bytes()
}

/// A valid check.
pub(crate) fn check(body: impl AsRef<[u8]>) -> Vec<u8> {
    post("/v1/check", "content-type: application/json\r\n", body)
}

pub(crate) fn post(path: &str, lines: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = body.len();
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: tidegate\r\n{lines}content-length: {length}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
