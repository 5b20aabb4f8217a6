//! The `TG.*` commands in all their forms, and one counter behind every protocol.

use crate::resp::talk::{Said, Talk, error, list, numbers, simple, text};
use crate::support::Server;
use serde_json::json;

const POLICY: &str = "
version: 1
rules:
  - { name: each, key: [user], limits: [2/h] }
  - { name: queued, key: [queue], limits: [{ rate: 2/h, algorithm: leaky_bucket, queue: 2 }] }
";

fn server() -> Server {
    Server::with_policy(POLICY, &[])
}

/// The ten fields of a verdict.
struct Verdict {
    fields: Vec<Said>,
}

impl Verdict {
    fn ask(talk: &mut Talk, words: &str) -> Self {
        let said = talk.ask(words);
        let Said::List(fields) = said else { panic!("to {words}: {said:?}") };
        assert_eq!(fields.len(), 10, "{fields:?}");
        Self { fields }
    }

    fn receipt(&self) -> &str {
        let Said::Text(receipt) = &self.fields[7] else { panic!("no receipt: {:?}", self.fields) };
        receipt
    }

    /// A wait of this many hours, minus the time since the first take.
    fn hours(&self, field: usize) -> i64 {
        let Said::Number(millis) = self.fields[field] else { panic!("{:?}", self.fields) };
        (millis + 3_599_999) / 3_600_000
    }
}

fn number(number: i64) -> Said {
    Said::Number(number)
}

#[test]
fn a_check_tells_the_priority_and_the_flags() {
    let policy = "
version: 1
rules:
  - { name: exports, key: [user], priority: high, limits: [1/h], on_limit: { deprioritize: low } }
  - { name: unusual, key: [user], limits: [1/h], on_limit: { flag: challenge } }
";
    let server = Server::with_policy(policy, &[]);
    let mut talk = server.talk();
    let mut marks = || Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields.split_off(8);
    assert_eq!(marks(), [text("high"), Said::List(vec![])]);
    assert_eq!(marks(), [text("low"), Said::List(vec![text("challenge")])]);
}

#[test]
fn a_check_has_ten_fields() {
    let server = server();
    for (dialect, nothing) in [("HELLO 2", Said::NoText), ("HELLO 3", Said::Null)] {
        let mut talk = server.talk();
        talk.ask(dialect);
        let user = dialect.replace(' ', "-");
        let half_hour = number(1_800_000);
        let check = Verdict::ask(&mut talk, &format!("TG.CHECK 1 user {user}"));
        let expected = [
            number(1),
            text("allow"),
            number(0),
            number(0),
            number(1),
            half_hour,
            text("each"),
            nothing.clone(),
            text("normal"),
            Said::List(vec![]),
        ];
        assert_eq!(check.fields, expected);
        let never = Verdict::ask(&mut talk, &format!("TG.CHECK 3 user {user}-never"));
        let expected = [
            number(0),
            text("deny"),
            number(0),
            number(-1),
            number(2),
            number(0),
            text("each"),
            nothing.clone(),
            text("normal"),
            Said::List(vec![]),
        ];
        assert_eq!(never.fields, expected);
        // No rule limits this.
        let free = Verdict::ask(&mut talk, "TG.CHECK 1 other thing");
        let expected = [
            number(1),
            text("allow"),
            number(0),
            number(0),
            number(-1),
            number(0),
            nothing.clone(),
            nothing.clone(),
            text("normal"),
            Said::List(vec![]),
        ];
        assert_eq!(free.fields, expected);
    }
}

#[test]
fn a_refusal_says_when_and_a_peek_takes_nothing() {
    let server = server();
    let mut talk = server.talk();
    for _ in 0..3 {
        let peek = Verdict::ask(&mut talk, "TG.PEEK 2 user u");
        assert_eq!((&peek.fields[0], &peek.fields[1]), (&number(1), &text("allow")));
    }
    Verdict::ask(&mut talk, "TG.CHECK 2 user u");
    for name in ["TG.PEEK", "tg.check"] {
        let denied = Verdict::ask(&mut talk, &format!("{name} 2 user u"));
        assert_eq!(denied.fields[..3], [number(0), text("deny"), number(0)], "{name}");
        assert_eq!(
            (denied.hours(3), &denied.fields[4], denied.hours(5)),
            (1, &number(0), 1),
            "{name}"
        );
    }
}

/// A service that fails open lets a request pass on an error, and the client chooses the path. So it must not be an
/// error.
#[test]
fn a_path_that_cannot_be_read_is_refused() {
    let server = server();
    let mut talk = server.talk();
    for path in ["/a%", "/a%2541", "/%00", "/%ff", "http://h/a", "*"] {
        for command in ["TG.CHECK", "TG.PEEK"] {
            let refused = Verdict::ask(&mut talk, &format!("{command} 1 user a path {path}"));
            assert_eq!(refused.fields[..4], [number(0), text("deny"), number(0), number(-1)]);
        }
    }
    // None of these was counted.
    let check = Verdict::ask(&mut talk, "TG.CHECK 1 user a path /a");
    assert_eq!(check.fields[4], number(1));
}

#[test]
fn who_may_wait_is_told_how_long() {
    let server = server();
    let mut talk = server.talk();
    let first = Verdict::ask(&mut talk, "TG.CHECK 1 MAXWAIT 7200000 queue mail");
    assert_eq!(first.fields[..3], [number(1), text("allow"), number(0)]);
    let second = Verdict::ask(&mut talk, "TG.CHECK 1 MAXWAIT 7200000 queue mail");
    assert_eq!(second.fields[..2], [number(1), text("delay")]);
    assert!(matches!(second.fields[2], Said::Number(1_790_000..=1_800_000)), "{:?}", second.fields);
    let third = Verdict::ask(&mut talk, "TG.CHECK 1 MAXWAIT 1000 queue mail");
    assert_eq!(third.fields[..2], [number(0), text("deny")]);
}

#[test]
fn a_receipt_is_settled_once() {
    let server = server();
    let mut talk = server.talk();
    let left = |talk: &mut Talk| Verdict::ask(talk, "TG.PEEK 0 user u").fields[4].clone();
    let check = Verdict::ask(&mut talk, "TG.CHECK 2 RECEIPT user u");
    assert_eq!(left(&mut talk), number(0));
    let receipt = check.receipt();
    assert_eq!(talk.ask(&format!("TG.REPORT {receipt} 1")), simple("OK"));
    assert_eq!(left(&mut talk), number(1));
    let again = error("CONFLICT this receipt has already been settled");
    assert_eq!(talk.ask(&format!("TG.REPORT {receipt} cancelled")), again);
    assert_eq!(left(&mut talk), number(1));

    for (outcome, left) in [("success", 1), ("FAILURE", 1), ("cancelled", 2)] {
        let check = Verdict::ask(&mut talk, &format!("TG.CHECK 1 RECEIPT user {outcome}"));
        let report = format!("TG.REPORT {} {outcome}", check.receipt());
        assert_eq!(talk.ask(&report), simple("OK"), "{outcome}");
        let peek = Verdict::ask(&mut talk, &format!("TG.PEEK 0 user {outcome}"));
        assert_eq!(peek.fields[4], number(left), "{outcome}");
    }
    let check = Verdict::ask(&mut talk, "TG.CHECK 1 RECEIPT user w");
    for outcome in ["nonsense", "-1", "1.5", "''"] {
        let said = talk.ask(&format!("TG.REPORT {} {outcome}", check.receipt()));
        assert_eq!(said, error("ERR the outcome must be success, failure, cancelled or a cost"));
    }
    let forged = error("ERR this is not a receipt of this deployment");
    assert_eq!(talk.ask(&format!("TG.REPORT x{} success", check.receipt())), forged);
    assert_eq!(talk.ask("TG.REPORT '' success"), forged);
}

/// A check that takes a permit has a ninth field: the lease.
#[test]
fn a_permit_is_taken_renewed_and_returned() {
    let policy = "{ version: 1, rules: [{ name: jobs, key: [user], limits: [{ concurrent: 1, lease: 20s }] }] }";
    let server = Server::with_policy(policy, &[]);
    let mut talk = server.talk();
    let check = |talk: &mut Talk| {
        let said = talk.ask("TG.CHECK 1 user u");
        let Said::List(fields) = said else { panic!("{said:?}") };
        fields
    };
    let receipt = |said: &Said| {
        let Said::Text(receipt) = said else { panic!("no receipt: {said:?}") };
        receipt.clone()
    };
    let taken = check(&mut talk);
    assert_eq!((taken.len(), &taken[10]), (11, &number(20_000)));
    assert_eq!(
        taken[..7],
        [number(1), text("allow"), number(0), number(0), number(0), number(0), text("jobs")]
    );
    let refused = check(&mut talk);
    assert_eq!(
        refused[..6],
        [number(0), text("deny"), number(0), number(1_000), number(0), number(0)]
    );
    assert_eq!(refused.len(), 10);

    let old = receipt(&taken[7]);
    let renewed = talk.ask(&format!("TG.RENEW {old}"));
    let Said::List(renewed) = renewed else { panic!("{renewed:?}") };
    assert_eq!((renewed.len(), &renewed[1]), (2, &number(20_000)));
    let again = error("CONFLICT this receipt has already been settled");
    assert_eq!(talk.ask(&format!("tg.renew {old}")), again);
    assert_eq!(talk.ask(&format!("TG.REPORT {old} success")), again);
    assert_eq!(check(&mut talk)[0], number(0));
    assert_eq!(talk.ask(&format!("TG.REPORT {} success", receipt(&renewed[0]))), simple("OK"));
    assert_eq!(check(&mut talk)[0], number(1));
    assert_eq!(talk.ask("TG.RENEW x"), error("ERR this is not a receipt of this deployment"));
    let arity = error("ERR wrong number of arguments for 'tg.renew' command");
    assert_eq!(talk.ask("TG.RENEW"), arity);
    let without = Verdict::ask(&mut self::server().talk(), "TG.CHECK 1 RECEIPT user u");
    assert_eq!(without.fields.len(), 10);
}

#[test]
fn a_reset_gives_everything_back() {
    let server = server();
    let mut talk = server.talk();
    Verdict::ask(&mut talk, "TG.CHECK 2 user u");
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[0], number(0));
    assert_eq!(talk.ask("TG.RESET each user u"), number(1));
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[4], number(1));
    assert!(matches!(talk.ask("TG.RESET nothing user u"), Said::Error(_)));
}

/// A client library that is used to redis-cell deletes a key to reset it. `DEL` was an unknown command, so the counter of a
/// `CL.THROTTLE` key could not be reset at all. It deletes the counter, whatever limit the command named.
#[test]
fn del_resets_the_keys_of_cl_throttle() {
    let server = server();
    let mut talk = server.talk();
    let limited = |talk: &mut Talk, words: &str| numbers(&talk.ask(words))[0];
    for key in ["a", "b"] {
        let one = format!("CL.THROTTLE {key} 0 1 3600");
        assert_eq!((limited(&mut talk, &one), limited(&mut talk, &one)), (0, 1), "{key}");
    }
    assert_eq!(limited(&mut talk, "CL.THROTTLE plenty 14 15 60 15"), 0);
    assert_eq!(talk.ask("DEL a nothing plenty"), number(2));
    assert_eq!(talk.ask("del a"), number(0));
    assert_eq!(limited(&mut talk, "CL.THROTTLE a 0 1 3600"), 0);
    assert_eq!(limited(&mut talk, "CL.THROTTLE b 0 1 3600"), 1);
    assert_eq!(limited(&mut talk, "CL.THROTTLE plenty 14 15 60 15"), 0);
    assert_eq!(talk.ask("DEL"), error("ERR wrong number of arguments for 'del' command"));
    // The counters of the policy are not touched, also if they have the same key.
    Verdict::ask(&mut talk, "TG.CHECK 2 user u");
    assert_eq!(talk.ask("DEL u each user"), number(0));
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[0], number(0));
    let lines = server.admin("GET", "/admin/v1/audit", "", "").json();
    let last = lines.as_array().unwrap().last().unwrap();
    assert_eq!((&last["what"], &last["details"]["change"]["keys"]), (&"reset".into(), &3.into()));
    assert!(!lines.to_string().contains("plenty"), "{lines}");
}

/// The guide lists what a check answers. The list had no priority and no flags at first, so clients read them as something else.
#[test]
fn the_guide_lists_the_fields_of_a_check() {
    let guide = std::fs::read_to_string(crate::support::project("docs/resp.md")).unwrap();
    let table = guide.split("`TG.CHECK` and `TG.PEEK` answer a list of ten values").nth(1).unwrap();
    let rows: Vec<(usize, &str)> = table
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            Some((cells.next()?.parse().ok()?, cells.next()?))
        })
        .collect();
    let policy = "
version: 1
rules:
  - { name: jobs, key: [user], limits: [{ concurrent: 5, lease: 20s }], priority: high }
  - { name: unusual, key: [user], limits: [{ concurrent: 2 }], on_limit: { flag: challenge } }
";
    let server = Server::with_policy(policy, &[]);
    let mut talk = server.talk();
    for _ in 0..2 {
        talk.ask("TG.CHECK 1 user u");
    }
    let Said::List(fields) = talk.ask("TG.CHECK 1 RECEIPT user u") else { panic!("no list") };
    // What each row of the guide says, and whether that is what its field has.
    type Meaning = (&'static str, fn(&Said) -> bool);
    let means: [Meaning; 11] = [
        ("allowed", |said| *said == number(1)),
        ("outcome", |said| *said == text("allow")),
        ("delay", |said| *said == number(0)),
        ("retry after", |said| *said == number(0)),
        ("remaining", |said| *said == number(0)),
        ("reset after", |said| matches!(said, Said::Number(0..))),
        ("the rule", |said| *said == text("unusual")),
        ("the receipt", |said| matches!(said, Said::Text(receipt) if receipt.len() > 20)),
        ("the name of the priority class", |said| *said == text("high")),
        ("the flags", |said| *said == Said::List(vec![text("challenge")])),
        ("the lease", |said| *said == number(20_000)),
    ];
    assert_eq!((rows.len(), fields.len()), (means.len(), means.len()), "{rows:?} {fields:?}");
    for ((row, (name, fits)), field) in rows.iter().zip(means).zip(&fields) {
        assert!(row.1.starts_with(name) && fits(field), "{row:?}: {field:?}, expected: {name}");
    }
    assert!(rows.iter().map(|(place, _)| *place).eq(1..=11), "{rows:?}");
}

#[test]
fn mistakes_in_a_check_take_nothing() {
    let server = server();
    let mut talk = server.talk();
    for (words, said) in [
        ("TG.CHECK x user u", "ERR the cost must be a whole number"),
        ("TG.CHECK -1 user u", "ERR the cost must be a whole number"),
        ("TG.CHECK 1 MAXWAIT x user u", "ERR MAXWAIT must be in whole milliseconds"),
        ("TG.CHECK 1 user", "ERR the last attribute has no value"),
        ("TG.CHECK 1 user u other o user v", "ERR attribute `user` is given twice"),
        ("TG.CHECK 1 MAXWAIT", "ERR the last attribute has no value"),
        ("TG.PEEK", "ERR usage: TG.CHECK cost [MAXWAIT ms] [RECEIPT] attribute value …"),
    ] {
        assert_eq!(talk.ask(words), error(said), "{words}");
    }
    talk.send(&list(&[b"TG.CHECK", b"1", b"\xff", b"u"]));
    assert_eq!(talk.hear(), error("ERR the name of an attribute is not valid UTF-8"));
    // The client chooses the value, and must not be able to choose whether it is counted.
    for expected in [1, 1, 0] {
        talk.send(&list(&[b"TG.CHECK", b"1", b"user", b"\xff"]));
        let Said::List(fields) = talk.hear() else { panic!("no verdict") };
        assert_eq!(fields[0], number(expected));
    }
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[4], number(1));
    server.is_well();
}

/// Options may be written in upper or lower case, as everywhere in Redis. Once `maxwait` was taken for an attribute,
/// and a caller that could have waited was refused. An attribute with the name of an option must come after another
/// attribute.
#[test]
fn options_are_written_in_either_case() {
    let policy = "{ version: 1, rules: [{ name: each, key: [receipt], limits: [2/h] }] }";
    let server = Server::with_policy(policy, &[]);
    let mut talk = server.talk();
    for (options, left) in [("RECEIPT MAXWAIT 10", 1), ("receipt MaxWait 10", 0)] {
        let words = format!("TG.CHECK 1 {options} method GET receipt r");
        let check = Verdict::ask(&mut talk, &words);
        assert_eq!(check.fields[4], number(left));
        assert!(check.receipt().len() > 20);
    }
    let told = talk.ask("TG.CHECK 1 maxwait soon user u");
    assert_eq!(told, error("ERR MAXWAIT must be in whole milliseconds"));
}

/// A reset forgets what was counted for a client. Once it was not logged, and every client that could connect could
/// do it.
#[test]
fn resets_are_for_operators_and_are_audited() {
    let server = server();
    let mut talk = server.talk();
    Verdict::ask(&mut talk, "TG.CHECK 1 user canary");
    assert_eq!(talk.ask("TG.RESET each user canary"), number(1));
    let lines = server.admin("GET", "/admin/v1/audit", "", "").json();
    assert_eq!((&lines[0]["what"], &lines[0]["who"]), (&"reset".into(), &"resp".into()), "{lines}");
    assert_eq!(lines[0]["details"]["change"]["by"][0], "user");
    assert!(!lines.to_string().contains("canary"), "{lines}");
    // If other machines can connect and there is no users file, no client may reset.
    let open = Server::with_policy(POLICY, &["--resp-listen", "0.0.0.0:0"]);
    let mut talk = Talk::to(([127, 0, 0, 1], open.resp.port()).into());
    assert!(
        matches!(&talk.ask("TG.RESET each user u"), Said::Error(text) if text.starts_with("NOPERM"))
    );
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[0], number(1));
}

/// A limit that a client names is the same over HTTP and over RESP, and so is its counter.
#[test]
fn one_state_behind_every_front() {
    let server = server();
    let mut talk = server.talk();
    let take = || {
        let body = json!({ "key": "k", "limit": 1, "per": "1h", "burst": 16 }).to_string();
        server.post("/v1/take", &body).json()["limits"][0]["remaining"].clone()
    };
    assert_eq!(take(), json!(15));
    assert_eq!(numbers(&talk.ask("CL.THROTTLE k 15 1 3600"))[..3], [0, 16, 14]);
    assert_eq!(take(), json!(13));
    assert_eq!(numbers(&talk.ask("CL.THROTTLE k 15 1 3600 13"))[..3], [0, 16, 0]);
    // A check uses the same counter over both protocols.
    server.post("/v1/check", "{\"attributes\":{\"user\":\"u\"}}");
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user u").fields[4], number(0));
    assert_eq!(server.post("/v1/check", "{\"attributes\":{\"user\":\"u\"}}").status, 429);
}

/// When clients had named 65,536 limits, every take under a further one scanned the whole table while other clients
/// waited. Now clients have a share of the limits. Beyond it they get an error, and the policy decides as before.
#[test]
fn limits_that_clients_name_are_bounded() {
    const SHARE: u64 = 49_152;
    let server = server();
    let mut talk = Talk::to(server.resp);
    // A limit whose only take is over is forgotten. Here that is after eleven minutes at the earliest.
    let take = |n: u64| json!({ "key": n.to_string(), "limit": n, "per": "400day" });
    let limits: Vec<u64> = (1..=SHARE).collect();
    for batch in limits.chunks(1_000) {
        let batch: Vec<_> = batch.iter().map(|n| take(*n)).collect();
        assert_eq!(server.post("/v1/take", &json!(batch).to_string()).status, 200);
    }
    assert_eq!(server.get("/ready").json()["status"], "ready");
    let refused = server.post("/v1/take", &take(SHARE + 1).to_string());
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("too many different limits"), "{}", refused.body);
    // A batch is refused before any of its entries counts, and the error names the entry.
    let batch = json!([take(2), take(SHARE + 1)]).to_string();
    assert_eq!(server.post("/v1/take", &batch).status, 503);
    assert_eq!(server.post("/v1/take", &take(2).to_string()).json()["outcome"], "allow");
    let ready = server.get("/ready").json();
    assert_eq!(ready["status"], "degraded");
    assert!(ready["reasons"][0].as_str().unwrap().contains("limits"), "{ready}");
    let busy =
        error("BUSY too many different limits are in use; use one of them, or try again later");
    assert_eq!(talk.ask("CL.THROTTLE k 77 777 7777"), busy);
    assert_eq!(Verdict::ask(&mut talk, "TG.CHECK 1 user alice").fields[0], number(1));
}

/// Settled receipts were once remembered outside the memory budget, without bound. Now there is room for a fixed
/// number. Beyond that, a receipt is not settled, and the client can try again.
#[test]
fn receipts_that_cannot_be_remembered_are_not_settled() {
    let server = Server::with_policy(POLICY, &["--memory-budget", "64KiB"]);
    let mut talk = Talk::to(server.resp);
    // 8 KiB for receipts: 64 buckets of ten.
    let settled = (0..=640).map(|user| {
        let verdict = Verdict::ask(&mut talk, &format!("TG.CHECK 1 RECEIPT user u{user}"));
        talk.ask(&format!("TG.REPORT {} success", verdict.receipt()))
    });
    let (settled, refused): (Vec<Said>, Vec<Said>) =
        settled.partition(|said| *said == simple("OK"));
    assert!(settled.len() > 320, "{}", settled.len());
    let Some(Said::Error(why)) = refused.first() else { panic!("{refused:?}") };
    assert!(why.starts_with("BUSY ") && why.contains("was not settled"), "{why}");
    let over_http = (0..100).map(|user| {
        let asked = json!({ "attributes": { "user": format!("h{user}") }, "receipt": true });
        let receipt = server.post("/v1/check", &asked.to_string()).json()["receipt"].clone();
        let report = json!({ "receipt": receipt, "outcome": "success" }).to_string();
        server.post("/v1/report", &report).status
    });
    // When one is refused, `/ready` reports it.
    assert!(over_http.into_iter().any(|status| status == 503));
    let ready = server.get("/ready").json();
    assert_eq!(ready["status"], "degraded");
    assert!(ready["reasons"][0].as_str().unwrap().contains("receipts"), "{ready}");
}
