//! The section of BENCHMARKS.md, and the comparison with it.

use super::Row;
use super::callgrind::Profile;
use crate::core_bench::machine;
use crate::rounds::with_section;
use std::fmt::Write as _;

const TITLE: &str = "Instructions of a decision";
const TEXT: &str = "\
Counted by valgrind, for one decision. They depend on the compiler, and hardly on the machine or on what else it does; two runs differ by
up to 3 %. `make
instructions` counts again, and fails when a row is more than 5 % above this page. Inlined code counts for the crate of the function
that it was inlined into.

- `take-`: the store in memory, with 4,096 keys that are integers (`u64`) or strings of 25 bytes (`str25`), in a batch of 64 or one take per
  call. The limit allows all or refuses all. `governor-` is the same with that crate.
- `tower-`: a request through the tower layer, as in \"A full check behind tower\", including what the benchmark itself does to build the
  request. `tower_governor` is the peer there.
- `resp-`: one command of a pipeline of 64. `http-`: one `POST /v1/check`. `grpc-`: one `ShouldRateLimit` call. All of it in the server with
  its default settings, without the kernel.

Of a take in a batch, 45 instructions are the ten rounds of AES that keep clients from choosing keys that collide, and about 40 compare the
seven tags of a bucket. A service that does nothing but put one value into the extensions of a request and write two header fields that are ready
needs 3,632 in the loop of `tower-`: that is the least, before anything is read or decided.";

/// How much a row may grow, in percent.
const TOLERATED: u64 = 5;
/// How many functions are shown of each case.
const FUNCTIONS: usize = 10;

/// The page with these rows instead of the ones that it has.
pub(super) fn with_rows(page: &str, rows: &[Row]) -> String {
    let mut text = format!("{TEXT}\n\nMachine: {}.\n\n", machine());
    text.push_str("| case | instructions | by crate |\n|---|--:|---|\n");
    for row in rows {
        let _ =
            writeln!(text, "| {} | {} | {} |", row.name, row.profile.total(), shares(&row.profile));
    }
    text.push_str("\nThe ten functions of each case that take most of them:\n");
    for row in rows {
        let _ = writeln!(text, "\n```text\n{}", row.name);
        for (function, count) in row.profile.most(FUNCTIONS) {
            let _ = writeln!(text, "{count:>8}  {}", shortened(function));
        }
        text.push_str("```\n");
    }
    with_section(page, TITLE, text.trim_end())
}

/// The share of each crate that has at least a hundredth, in percent.
pub(super) fn shares(profile: &Profile) -> String {
    let total = profile.total();
    let percent = |count: u64| count.saturating_mul(100).checked_div(total).unwrap_or(0);
    let shares = profile.crates().into_iter().map(|(name, count)| (name, percent(count)));
    let shares = shares.filter(|(_, percent)| *percent > 0);
    shares.map(|(name, percent)| format!("{name} {percent} %")).collect::<Vec<_>>().join(", ")
}

/// Peers, which are not compared with the page: governor measures the speed of its clock when it starts, so its counts vary.
const PEERS: [&str; 2] = ["governor", "tower_governor"];

/// One sentence for each row of ours that is more than 5 % above the page.
pub(super) fn grown(page: &str, rows: &[Row]) -> Vec<String> {
    let is_ours = |row: &&Row| !PEERS.iter().any(|peer| row.name.starts_with(peer));
    let compared = rows.iter().filter(is_ours).map(|row| {
        let (name, now) = (row.name, row.profile.total());
        let Some(before) = on_page(page, name) else {
            return Some(format!(
                "{name}: not in BENCHMARKS.md; add it with `lab instructions --write`"
            ));
        };
        let most = before.saturating_mul(100 + TOLERATED) / 100;
        (now > most).then(|| format!("{name}: {now} instructions, {before} in BENCHMARKS.md"))
    });
    compared.flatten().collect()
}

/// The instructions of a case according to the page.
fn on_page(page: &str, name: &str) -> Option<u64> {
    let section = page.split("\n## ").find(|section| section.starts_with(TITLE))?;
    let row = section.lines().find_map(|line| line.strip_prefix(&format!("| {name} | ")))?;
    row.split_once(' ')?.0.parse().ok()
}

/// A function's name without its type arguments, which may take several lines.
fn shortened(function: &str) -> String {
    const LONGEST: usize = 110;
    let short: String = function.chars().take(LONGEST).collect();
    if short.len() < function.len() { short + "…" } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: u64) -> Row {
        let text = format!("fn=(1) tidegate_store::take\n0 {count}\n");
        Row { name: "take-one", profile: Profile::parse(&text).unwrap() }
    }

    #[test]
    fn a_row_may_grow_by_five_percent_and_no_more() {
        let page = with_rows("# Page\n", &[row(1000)]);
        assert!(page.contains("| take-one | 1000 | tidegate_store 100 % |"));
        assert_eq!(grown(&page, &[row(1050)]), Vec::<String>::new());
        assert_eq!(
            grown(&page, &[row(1051)]),
            ["take-one: 1051 instructions, 1000 in BENCHMARKS.md"]
        );
        assert_eq!(grown("# Page\n", &[row(1)]).len(), 1);
        assert!(grown("# Page\n", &[Row { name: "governor-u64", ..row(1) }]).is_empty());
    }
}
