//! The reference page of all settings: docs/configuration.md and the output of `stilling options`.

use std::fmt::Write;

use clap::CommandFactory;

use super::definitions::{SettingDefinition, ValueCount, definitions};
use super::tables::{APP_KEYS, STREAM_KEYS, TableKey, USER_KEYS};

const INTRODUCTION: &str = "\
# Configuration

Every option of `stilling serve` is also a key of a file and a variable of the environment:

| on the command line | in the environment | in the file |
|---|---|---|
| `--max-queue 100` | `STILLING_MAX_QUEUE=100` | `max-queue = 100` |
| `--demo` | `STILLING_DEMO=true` | `demo = true` |
| `--listen 127.0.0.1:9000 --listen '[::1]:9000'` | `STILLING_LISTEN=127.0.0.1:9000,[::1]:9000` | `listen = [\"127.0.0.1:9000\", \"[::1]:9000\"]` |

The command line overrides the environment, the environment the file, the file the defaults. Lists are not merged: the
source with the highest precedence that has the key replaces all others. The file is the one that `--config` or
`STILLING_CONFIG` names, else `stilling.toml` in the current directory if there is one; it is TOML. Relative paths are
resolved against the current directory. A switch that is on in the file is turned off by its variable.

An unknown key is an error that names the nearest one. An unknown variable is a warning, since scripts and Kubernetes
(service links such as `STILLING_SERVICE_HOST`) use such names, too; an empty variable is not set. Sizes may have a unit
(`64KiB`, `1MiB`, `10GiB`; `kB`, `MB`, `GB` are powers of ten), times too (`500ms`, `10s`, `5m`, `2h`, `1d`).

`stilling check` takes the same options, reads everything, shows what `stilling serve` would open, with warnings about unwise
settings, and opens nothing. All errors are reported at once. The exit status is 0 without errors, 64 for an error on the command
line, and 1 for any other. This page is what `stilling options` prints; what happens at each limit is in
[limits.md](limits.md).
";

const STREAMS: &str = "
## Streams

A stream stores the messages to its subjects, in order. The default is one stream, `events`, with `events.>`; configured
streams replace it. A subject belongs to one stream. On the command line and in the environment a stream
is one argument, `NAME=FILTERS[:durability][:key=value]…`; the environment accepts several, separated by blanks.

```toml
[[stream]]
name = \"orders\"
subjects = [\"orders.>\", \"returns.*\"]
durability = \"disk\"
retention-bytes = \"100GiB\"
```

`--stream 'orders=orders.>,returns.*:disk:retention-bytes=100GiB'` is the same.
";

const USERS: &str = "
## Users

As soon as one user is configured, credentials are required. A user has exactly one of the six keys for a password or token. As one
argument it is `NAME:key=value…`; a secret with a colon or a blank cannot be part of an argument: use the file,
`password-env` or `password-file`.

```toml
[[user]]
name = \"shop\"
password = \"to be replaced\"
publish = [\"orders.>\"]
subscribe = [\"_INBOX.>\"]
```

`--user 'shop:password-env=SHOP_PASSWORD:publish=orders.>:subscribe=_INBOX.>'` is the same, except for the source of the password.
";

const APPS: &str = "
## Pools of worker processes

`--app` is one pool of worker processes for all paths. Several pools are `[[app]]` tables of the file; `--app` replaces
them all. [workers.md](workers.md#several-pools) has an example and the rules.
";

pub(crate) fn page() -> String {
    let root = crate::StillingArguments::command();
    let serve = root.find_subcommand("serve").expect("the command is there");
    let mut page = INTRODUCTION.to_owned();
    let mut heading = None;
    let definitions = definitions(serve);
    let shown: Vec<_> = definitions.iter().filter(|definition| !definition.is_hidden()).collect();
    let mut headings: Vec<&str> = Vec::new();
    for definition in &shown {
        if !headings.contains(&definition.heading()) {
            headings.push(definition.heading());
        }
    }
    for definition in headings
        .iter()
        .flat_map(|wanted| shown.iter().filter(move |definition| definition.heading() == *wanted))
    {
        if heading.replace(definition.heading()) != Some(definition.heading()) {
            let title = definition.heading();
            let _ = write!(
                page,
                "\n## {title}\n\n| key | variable | value | default | what it is |\n|---|---|---|---|---|\n"
            );
        }
        page += &row(definition);
    }
    page += STREAMS;
    page += &keys(&STREAM_KEYS);
    page += USERS;
    page += &keys(&USER_KEYS);
    page += APPS;
    page += &keys(&APP_KEYS);
    page
}

fn row(definition: &SettingDefinition<'_>) -> String {
    let (description, default) = definition.help_text();
    let key = if definition.is_key() {
        format!("`{}`", definition.name)
    } else {
        format!("(`--{}`)", definition.name)
    };
    let value = match definition.kind {
        ValueCount::Switch => "true or false".to_owned(),
        ValueCount::One => definition.value_name(),
        ValueCount::List => format!("list of {}", definition.value_name()),
    };
    format!(
        "| {key} | `{}` | {} | {} | {} |\n",
        definition.variable,
        cell(&value),
        cell(&default),
        cell(&description)
    )
}

fn keys<D>(keys: &[TableKey<D>]) -> String {
    let mut table = "\n| key | value | default | what it is |\n|---|---|---|---|\n".to_owned();
    for TableKey { name, value, default, description, .. } in keys {
        let _ = writeln!(table, "| `{name}` | {} | {} | {} |", cell(value), cell(default), cell(description));
    }
    table
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::resolve;

    /// The examples of the page, and of the one it refers to, are valid, as a table and as the equivalent word.
    #[test]
    fn the_examples_of_the_page_are_accepted_and_mean_the_same() {
        let table = |text: &str| {
            let from = text.split_once("```toml\n").expect("an example").1;
            from.split_once("```").expect("its end").0.to_owned()
        };
        let workers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workers.md");
        let workers = std::fs::read_to_string(workers).expect("the page exists");
        let file = table(STREAMS) + &table(USERS) + &table(&workers);
        let config = resolve("serve", &[], &file).unwrap_or_else(|error| panic!("{error}")).config;
        let names: Vec<_> = config.apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["shop", "site", "sensors"]);
        let from_file = config.hub;
        let word = |text: &str, option: &str| {
            let from = text.split_once(&format!("`{option} '")).expect("the same as a word").1;
            from.split_once('\'').expect("its end").0.to_owned()
        };
        // The environment of a test lacks the variable of the example.
        let user = word(USERS, "--user").replace("password-env=SHOP_PASSWORD", "password=x");
        let words = format!("serve --stream {} --user {user}", word(STREAMS, "--stream"));
        let typed = resolve(&words, &[], "").unwrap_or_else(|error| panic!("{error}")).config.hub;
        assert_eq!(from_file.streams, typed.streams);
        let may = |users: &[stilling::settings::UserConfig]| {
            users
                .iter()
                .map(|user| (user.name.clone(), user.publish.clone(), user.subscribe.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(may(&from_file.users), may(&typed.users));
    }

    /// Every visible option is on the page, with its variable.
    #[test]
    fn the_page_has_a_row_for_every_option() {
        let page = page();
        let root = crate::StillingArguments::command();
        let serve = root.find_subcommand("serve").expect("it is there");
        for definition in definitions(serve) {
            let row = page.lines().find(|line| {
                line.starts_with("| ") && line.contains(&format!("`{}` |", definition.variable))
            });
            assert_eq!(row.is_some(), !definition.is_hidden(), "{}", definition.name);
        }
    }
}
