//! The page `docs/reference/settings.md`: every setting with its three spellings. It is written from the table.

use super::declare::Setting;
use super::names::{RENAMED, flag_of};
use super::table::{GROUPS, TABLE};
use super::{Flags, Settings};
use crate::doc_pages::{cell, compare};
use std::collections::BTreeSet;

const HEAD: &str = "# Settings reference

<!-- Written by a test: `make references` -->

This page lists every setting of `tidegate serve`. A setting has one name, which each source of settings spells in its own way:

| source | spelling | wins over |
|---|---|---|
| the file of settings: `--config FILE`, or `tidegate.yaml` in the working directory | `http.idle_timeout`, which is `idle_timeout` in the map `http` | the default |
| the environment | `TIDEGATE_HTTP_IDLE_TIMEOUT` | the file |
| the command line | `--http-idle-timeout` | the environment |

`tidegate serve --print-config` prints all settings in force and the source of each, and `tidegate serve --check` finds mistakes without
starting the server. All mistakes are reported together.

The environment variable `TIDEGATE_SECRET` is the secret itself, as `tidegate secret show` prints it. It has no flag and no name in the
file, because other users can see the command line of a process, and files of settings are passed around.

## Kinds of values

| in the tables | how it is written | example |
|---|---|---|
";

/// What the shapes of the table mean, each with an example.
const SHAPES: [(&str, &str, &str); 14] = [
    ("FILE", "The path of a file. For logs also `stdout` or `off`", "policy.yaml"),
    ("FILES", "Paths of files with commas between them", "shop.pem,api.pem"),
    ("DIR", "The path of a directory", "/var/lib/tidegate"),
    ("URL", "A URL, or another form that the meaning names", "redis://127.0.0.1:6379/"),
    ("ADDR", "An IP address and a port; `off` disables the listener", "127.0.0.1:8080"),
    (
        "TIME",
        "A whole number and a unit, `ms`, `s`, `min`, `h` or `day`; from 1ms to 1day",
        "500ms",
    ),
    ("SIZE", "A whole number and a unit, `KiB`, `MiB` or `GiB`; at least 64KiB", "256MiB"),
    ("N", "A whole number; `auto` where the meaning names it", "1000"),
    ("NAMES", "Names with commas or spaces between them", "http,admin"),
    ("FORM", "One of the words that the meaning names", "json"),
    ("LEVEL", "A level of the log", "warn"),
    ("TEXT", "Any text", "https://login.example.com"),
    ("on|off", "One of the two words", "on"),
    ("server|node", "One of the two words", "server"),
];

fn row(setting: &Setting) -> String {
    let default = match setting.default {
        "" => String::new(),
        default => format!("`{default}`"),
    };
    let names = format!("`{}`<br>`{}`<br>`{}`", setting.name, setting.flag(), setting.variable());
    format!("| {names} | `{}` | {default} | {} |\n", cell(setting.shape), cell(setting.help))
}

fn page() -> String {
    let shape = |(name, text, example): &(&str, &str, &str)| {
        format!("| `{}` | {} | `{example}` |\n", cell(name), cell(text))
    };
    let mut text = HEAD.to_owned() + &SHAPES.iter().map(shape).collect::<String>();
    for (prefix, title) in GROUPS {
        text.push_str(&format!("\n## {title}\n\n"));
        text.push_str(
            "| file, command line, environment | value | default | meaning |\n|---|---|---|---|\n",
        );
        let is_here = |setting: &&Setting| match setting.name.strip_prefix(prefix) {
            Some(rest) => !rest.contains('.'),
            None => false,
        };
        text.extend(TABLE.iter().filter(is_here).map(row));
    }
    text.push_str("\n## Former names\n\nA setting with a former name is an error that says the new name.\n\n| former name | name |\n|---|---|\n");
    text.extend(RENAMED.iter().map(|(old, new)| format!("| `{old}` | `{new}` |\n")));
    text
}

#[test]
fn the_settings_page_is_written_from_the_table() {
    compare("docs/reference/settings.md", &page());
}

#[test]
fn the_settings_page_explains_every_kind_of_value() {
    let shapes: BTreeSet<&str> = TABLE.iter().map(|setting| setting.shape).collect();
    assert_eq!(shapes, SHAPES.iter().map(|(shape, _, _)| *shape).collect());
}

/// The examples of kinds are valid: each is given to a setting of its kind.
#[test]
fn the_examples_of_the_settings_page_are_accepted() {
    for (shape, _, example) in SHAPES {
        // Settings that need others beside them, and those that accept only some words of their kind.
        let alone = |setting: &&Setting| {
            let first = match shape {
                "NAMES" => "tls.listeners",
                "FORM" => "log.format",
                "N" => "http.max_connections",
                "FILE" => "policy",
                _ => setting.name,
            };
            setting.shape == shape && setting.name == first && !setting.name.starts_with("jwt.")
        };
        let Some(setting) = TABLE.iter().find(alone).filter(|one| !one.name.starts_with("tls.c"))
        else {
            assert!(["FILES", "TEXT"].contains(&shape), "{shape}");
            continue;
        };
        let flags = Flags::of(&[&format!("--{}", flag_of(setting.name)), example]);
        let read = Settings::load(None, [].into_iter(), &flags);
        assert!(read.is_ok(), "{shape}: {example}: {:?}", read.err());
    }
}
