//! Renders the effective settings in the format of the settings file. The output can be read back and means the same,
//! except for inline secrets, which are left out.

use std::fmt::Write;

use clap::ArgMatches;

use super::definitions::{SettingDefinition, ValueCount};
use super::tables::{self, SettingTable};

/// Indentation of each line, which separates the settings from the server's own output.
const INDENT: &str = "  ";

/// Sections of the help with options that are printed only if one of them is used.
const WORKERS: &str = "Elastic workers";
const APP: &str = "Worker processes";

/// Options that need a packet log.
const PACKET_LOG_DETAIL: &str = "packet-log-";

/// Options that contradict `app` with any value.
const NOT_WITH_APP: [&str; 2] = ["worker-threads", "demo"];

/// Keys with inline secrets, which must not appear in a log.
const SECRETS: [&str; 2] = ["password", "token"];

#[derive(Clone, Debug)]
pub(crate) struct EffectiveOption {
    name: String,
    kind: ValueCount,
    values: Vec<String>,
}

/// All options that have a value, including defaults.
pub(super) fn effective(matches: &ArgMatches, definitions: &[SettingDefinition<'_>]) -> Vec<EffectiveOption> {
    let Some((_, matches)) = matches.subcommand() else { return Vec::new() };
    let is_set = |name: &str| {
        matches.value_source(name).is_some_and(|source| source != clap::parser::ValueSource::DefaultValue)
    };
    let (has_app, grows) = (is_set("app"), is_set("free_threshold"));
    let is_wanted = |definition: &&SettingDefinition<'_>| match definition.heading() {
        APP => has_app,
        WORKERS => !has_app && (grows || !definition.is_about_growth()),
        _ if definition.name.starts_with(PACKET_LOG_DETAIL) => is_set("packet_log"),
        _ => !(has_app && NOT_WITH_APP.contains(&definition.name)),
    };
    let of = |definition: &SettingDefinition<'_>| {
        let values: Vec<String> = match definition.kind {
            ValueCount::Switch => vec![matches.get_flag(definition.id()).to_string()],
            ValueCount::One | ValueCount::List => {
                matches.get_raw(definition.id())?.map(|value| value.to_string_lossy().into_owned()).collect()
            }
        };
        Some(EffectiveOption { name: definition.name.to_owned(), kind: definition.kind, values })
    };
    let keys = definitions
        .iter()
        .filter(|definition| definition.is_key() && !super::ARGUMENT_TABLES.contains(&definition.name));
    keys.filter(is_wanted).filter_map(of).collect()
}

/// Values of options with defaults that depend on other settings; they apply unless a source sets the option.
pub(crate) type ComputedDefaults = Vec<(&'static str, Vec<String>)>;

/// Renders options, then tables.
pub(crate) fn render(effective: &[EffectiveOption], computed: ComputedDefaults, tables: &str) -> String {
    let mut text = String::new();
    let is_known = |name: &str| effective.iter().any(|known| known.name == name);
    // `port` also sets `listen`.
    let is_rendered = |name: &str| is_known(name) || name == "listen" && is_known("port");
    for EffectiveOption { name, kind, values } in effective {
        line(&mut text, name, *kind == ValueCount::List, values);
    }
    for (name, values) in computed.iter().filter(|(name, values)| !is_rendered(name) && !values.is_empty()) {
        let is_list =
            values.len() > 1 || matches!(*name, "listen" | "nats" | "coap" | "coap-source" | "syslog-source");
        line(&mut text, name, is_list, values);
    }
    text + tables
}

/// A stream, user or pool as a table.
pub(crate) fn table(kind: &str, table: &SettingTable) -> String {
    let mut text = format!("{INDENT}[[{kind}]]\n");
    for (name, values) in table.keys() {
        if kind == "user" && SECRETS.contains(&name) {
            let _ = writeln!(text, "{INDENT}# {name} is not shown");
        } else {
            line(&mut text, name, tables::is_list(name), values);
        }
    }
    text
}

fn line(text: &mut String, name: &str, is_list: bool, values: &[String]) {
    let value = match values {
        [value] if !is_list => value_of(value),
        values => {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            format!("[{}]", values.join(", "))
        }
    };
    let _ = writeln!(text, "{INDENT}{name} = {value}");
}

/// A TOML number or boolean if the text is one, else a string.
fn value_of(text: &str) -> String {
    let is_truth = text == "true" || text == "false";
    let is_number = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if is_truth || is_number { text.to_owned() } else { quoted(text) }
}

/// A TOML basic string: its escapes are those of JSON, except that JSON leaves DEL as it is.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}
