//! The programs that a server runs for us.
//!
//! | program | as a function (`FCALL`) | as a script (`EVALSHA`) |
//! |---|---|---|
//! | short path, see `short.lua` | `tidegate_HASH_take` | `short.lua` |
//! | long path, see `plan.lua` | `tidegate_HASH_plan` | `prelude.lua` … `plan.lua` |
//! | long path that only reads | `tidegate_HASH_peek` | the same |
//!
//! A function is compiled once, when its library is loaded. A script builds its own functions anew in each call, which takes
//! longer than a decision. Scripts are for servers that have no functions, or forbid them.
//!
//! All functions of a server share one space of names. So the hash of the library is in every name, and nodes of different
//! versions do not disturb one another.

use ::redis::{Cmd, Script};
use std::sync::LazyLock;

const SHORT: &str = include_str!("scripts/short.lua");

/// The long path: all algorithms in one text, because one plan may use any of them. A call builds only those that it uses.
const PLAN: &str = concat!(
    include_str!("scripts/prelude.lua"),
    "if uses('TQ') then\n",
    include_str!("scripts/drain.lua"),
    "end\nif uses('F') then\n",
    include_str!("scripts/fixed_window.lua"),
    "end\nif uses('W') then\n",
    include_str!("scripts/sliding_weighted.lua"),
    "end\nif uses('B') then\n",
    include_str!("scripts/sliding_buckets.lua"),
    "end\nif uses('L') then\n",
    include_str!("scripts/sliding_log.lua"),
    "end\n",
    include_str!("scripts/plan.lua"),
);

/// Which program a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The short path.
    Take,
    /// The long path.
    Plan,
    /// The long path for a call that writes nothing.
    Peek,
}

/// How a server runs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramKind {
    Functions,
    Scripts,
}

/// The texts and names of all programs.
struct Library {
    take_script: String,
    take_hash: String,
    plan_hash: String,
    /// The library of functions, and its name.
    text: String,
    name: String,
    /// The names of the functions: take, plan, peek.
    names: [String; 3],
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let hash = |text: &str| Script::new(text).get_hash().to_owned();
    let take_script = format!("{SHORT}\nreturn decide(KEYS, ARGV)\n");
    let body = format!("{SHORT}\nlocal function plan(KEYS, ARGV)\n{PLAN}\nend\n");
    let library = format!("{PREFIX}{}", hash(&body));
    let names = ["take", "plan", "peek"].map(|name| format!("{library}_{name}"));
    let [take, plan, peek] = &names;
    let text = format!(
        "#!lua name={library}\n{body}\
         redis.register_function('{take}', decide)\n\
         redis.register_function('{plan}', plan)\n\
         redis.register_function{{ function_name = '{peek}', callback = plan, flags = {{ 'no-writes' }} }}\n"
    );
    let (take_hash, plan_hash) = (hash(&take_script), hash(PLAN));
    Library { take_hash, plan_hash, take_script, text, name: library, names }
});

/// How the names of our libraries begin, of this and other versions.
pub(super) const PREFIX: &str = "tidegate_";

/// The name of the library.
pub(super) fn name() -> &'static str {
    &LIBRARY.name
}

impl Program {
    /// The command that calls it, without keys and arguments.
    pub(super) fn command(self, kind: ProgramKind) -> Cmd {
        let [take, plan, peek] = &LIBRARY.names;
        let (command, name) = match (kind, self) {
            (ProgramKind::Functions, Self::Take) => ("FCALL", take),
            (ProgramKind::Functions, Self::Plan) => ("FCALL", plan),
            (ProgramKind::Functions, Self::Peek) => ("FCALL", peek),
            (ProgramKind::Scripts, Self::Take) => ("EVALSHA", &LIBRARY.take_hash),
            (ProgramKind::Scripts, Self::Plan | Self::Peek) => ("EVALSHA", &LIBRARY.plan_hash),
        };
        let mut call = ::redis::cmd(command);
        call.arg(name.as_str());
        call
    }
}

/// The command that loads all programs as functions.
pub(super) fn load_functions() -> Cmd {
    load("FUNCTION", &LIBRARY.text)
}

/// The commands that load all programs as scripts.
pub(super) fn load_scripts() -> [Cmd; 2] {
    [load("SCRIPT", &LIBRARY.take_script), load("SCRIPT", PLAN)]
}

fn load(command: &str, text: &str) -> Cmd {
    let mut load = ::redis::cmd(command);
    load.arg("LOAD").arg(text);
    load
}
